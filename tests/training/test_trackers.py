"""Figures of a run at MLflow and Weights & Biases are those of its log; one that fails stops nothing."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from finetune_toys import SHORT_RUN, tiny_encoder, write_rows

from bertsmith.errors import InputError
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.log import RunLog
from bertsmith.training.trackers import OpenTrackers

MODULES = {"mlflow": "start_run", "wandb": "init"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.training.machine.matmul_flops", lambda *given, **named: 1e9)
    monkeypatch.setattr(
        "bertsmith.training.finetuning.finetune.write_finetune_report", lambda *arguments: None
    )


def train(folder: Path, trackers: str) -> list[dict[str, Any]]:
    """A run of a second; its log."""
    folder.mkdir(exist_ok=True)
    encoder = tiny_encoder(folder / "encoder")
    rows = write_rows(folder / "rows.jsonl", "classification", 64)
    dev = write_rows(folder / "dev.jsonl", "classification", 32, seed=1)
    finetune(
        "classification",
        *SHORT_RUN,
        f"trackers={trackers}",
        "epochs=2",
        model=str(encoder),
        train=str(rows),
        dev=str(dev),
        out=str(folder / "out"),
    )
    return RunLog.read(folder / "out" / "restarts" / "1")


class Made:
    """Stands for both packages; `calls` is what they were told."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failing = failing

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in MODULES:
            module = ModuleType(name)
            for act in ("start_run", "log_params", "log_metrics", "end_run", "init"):
                monkeypatch.setattr(module, act, self._act(name, act), raising=False)
            monkeypatch.setattr(module, "active_run", lambda: None, raising=False)
            monkeypatch.setitem(sys.modules, name, module)

    def _act(self, name: str, act: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if self.failing == act:
                raise ConnectionError("nobody there")
            self.calls.append((f"{name}.{act}", (given, named)))
            return self

        return call

    def define_metric(self, *given: Any, **named: Any) -> None:
        self.calls.append(("wandb.define_metric", (given, named)))

    def log(self, figures: dict[str, Any]) -> None:
        if self.failing == "log":
            raise ConnectionError("nobody there")
        self.calls.append(("wandb.log", figures))

    def finish(self, exit_code: int) -> None:
        self.calls.append(("wandb.finish", exit_code))


def curve(log: list[dict[str, Any]], kind: str, name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in log if line["kind"] == kind and line.get(name) is not None]


def test_both_get_every_figure_of_the_log_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made()
    made.install(monkeypatch)
    log = train(tmp_path, "mlflow,wandb")
    losses, accuracies = curve(log, "step", "loss"), curve(log, "evaluation", "accuracy")
    assert len(losses) > 10 and accuracies
    by_wandb = [call for name, call in made.calls if name == "wandb.log"]
    by_mlflow = [
        {**given[0], "step": named["step"]} for name, (given, named) in
        [call for call in made.calls if call[0] == "mlflow.log_metrics"]
    ]  # fmt: skip
    for points in (by_wandb, by_mlflow):
        assert [(p["step"], p["train/loss"]) for p in points if "train/loss" in p] == losses
        assert [(p["step"], p["heldout/accuracy"]) for p in points if "heldout/accuracy" in p] == accuracies
    (begun,) = [named for name, (_, named) in [c for c in made.calls if c[0] == "wandb.init"]]
    assert begun["mode"] == "offline"
    assert begun["name"] == "out/restarts/1"  # the folder's own name, 1, said nothing
    ((_, started),) = [call for name, call in made.calls if name == "mlflow.start_run"]
    assert started["run_name"] == begun["name"]
    assert begun["config"]["optimizer.learning_rate"] == "0.01"
    assert made.calls[-1] in (("wandb.finish", 0), ("mlflow.end_run", (("FINISHED",), {})))
    assert {name for name, _ in made.calls[-2:]} == {"wandb.finish", "mlflow.end_run"}


@pytest.mark.parametrize("failing", ["init", "log", "start_run", "log_metrics"])
def test_a_tracker_that_fails_is_a_warning_and_the_other_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    made = Made(failing)
    made.install(monkeypatch)
    log = train(tmp_path, "mlflow,wandb")
    name = "wandb" if failing in ("init", "log") else "mlflow"
    (warning,) = [
        line["message"] for line in log if line["kind"] == "warning" and "failed" in line["message"]
    ]
    assert warning == f"{name} failed, and gets no more of this run: ConnectionError: nobody there"
    other = {"wandb": "mlflow.log_metrics", "mlflow": "wandb.log"}[name]
    assert sum(call == other for call, _ in made.calls) > 10


def test_figures_of_a_retrieval_have_names_that_mlflow_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refused mrr@10, and with it all figures from the first evaluation on."""
    made = Made()
    made.install(monkeypatch)
    trackers = OpenTrackers(["mlflow", "wandb"], "run", tmp_path, {})
    trackers.record({"kind": "evaluation", "step": 4, "mrr@10": 0.5, "ndcg@10": 0.25})
    ((given, named),) = [call for name, call in made.calls if name == "mlflow.log_metrics"]
    assert (given, named) == (({"heldout/mrr_10": 0.5, "heldout/ndcg_10": 0.25},), {"step": 4})
    (by_wandb,) = [call for name, call in made.calls if name == "wandb.log"]
    assert by_wandb == {"heldout/mrr@10": 0.5, "heldout/ndcg@10": 0.25, "step": 4}


def test_one_that_is_not_installed_is_a_sentence_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"trackers = mlflow needs a package .* pip install mlflow-skinny"):
        train(tmp_path, "mlflow")
    assert not (tmp_path / "out").exists()


def test_mlflow_itself_shows_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    log = train(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == curve(log, "step", "loss")


def test_a_second_training_within_a_run_of_the_program_is_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its points were mixed with those of the first; with another seed MLflow refused it altogether."""
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run(run_name="mine") as mine:
        first = train(tmp_path / "first", "mlflow")
        second = train(tmp_path / "second", "mlflow")
    client = mlflow.MlflowClient()
    runs = {run.info.run_id: run for run in client.search_runs(["0"])}
    (child,) = runs.keys() - {mine.info.run_id}
    assert runs[child].data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert runs[child].info.status == "FINISHED"
    for run, log in ((mine.info.run_id, first), (child, second)):
        history = client.get_metric_history(run, "train/loss")
        assert [(point.step, point.value) for point in history] == curve(log, "step", "loss")


def test_weights_and_biases_itself_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log = train(tmp_path, "wandb")
    assert not [line for line in log if line["kind"] == "warning"]
    (written,) = (tmp_path / "out").rglob("offline-run-*/run-*.wandb")
    assert written.stat().st_size > 0
