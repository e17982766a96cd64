"""Whole runs in the small: they learn, say what they found, and leave a model that predicts the same."""

import gc
import json
import shutil
import weakref
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_toys import ROWS, run, tiny_encoder, write_rows
from safetensors.torch import load_file, save_file

from bertsmith.cli.main import main
from bertsmith.errors import InputError, ModelError, RecipeError, TrainingStopped
from bertsmith.files import sha256
from bertsmith.inference.predictor import Predictor
from bertsmith.model.checkpoint import encoder_of, read_checkpoint, save_checkpoint
from bertsmith.tasks.finetuning import FinetuningObjective
from bertsmith.tasks.heads.linear_start import LinearStart
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import check_task_settings, make_finetune_recipe
from bertsmith.training.finetuning.finetune import FinetuneResult
from bertsmith.training.finetuning.methods import start_model
from bertsmith.training.finetuning.task_run import BestWeights, TaskRun

LAYER = "bert.encoder.layer.{}.output.dense.weight"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("toy") / "encoder")


@pytest.fixture(autouse=True, scope="module")
def _no_peak() -> Iterator[None]:
    """The matrix product's speed is measured for the log only, and takes longer than a run here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.training.machine.matmul_flops", lambda *given, **named: 1e9)
        yield


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pictures take longer than a run here; those of `finished` are drawn."""
    monkeypatch.setattr(
        "bertsmith.training.finetuning.finetune.write_finetune_report", lambda *arguments: None
    )


@pytest.fixture(scope="module")
def finished(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneResult:
    """Three restarts of classification, with a test file."""
    folder = tmp_path_factory.mktemp("finished")
    test = write_rows(folder / "test.jsonl", "classification", 30, seed=2)
    return run("classification", encoder, folder, "epochs=4", "restarts=3", test=str(test))


@pytest.fixture
def _random_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear head knows this toy's answers before the first step, and nothing that follows is kept."""
    monkeypatch.setattr("bertsmith.tasks.heads.linear_start.LinearProbe.of", lambda *given, **named: None)


from_a_random_head = pytest.mark.usefixtures("_random_head")


def results_of(result: FinetuneResult) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((result.model.parent / "results.json").read_text())
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=[pytest.mark.slow] * (task in ("multi-label", "regression", "similarity")))
        for task in ROWS
    ],
)
def test_each_task_learns_better_than_its_most_frequent_answer(
    task: str, encoder: Path, tmp_path: Path
) -> None:
    result = run(task, encoder, tmp_path, "epochs=8")
    evaluation = results_of(result)["evaluations"]["dev"]
    metric = find_task(task)(find_task(task).Settings()).main_metric
    majority = next(iter(evaluation["baselines"].values()))[metric]
    assert evaluation["model"][metric] > majority + 0.2
    predictor = Predictor.load(result.model)
    again = predictor.evaluate(tmp_path / "dev.jsonl", tmp_path / "train.jsonl")
    assert again.model[metric] == pytest.approx(evaluation["model"][metric], abs=1e-6)


def test_a_pooler_that_starts_at_random_is_said(encoder: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(encoder, tmp_path / "bare", ignore=shutil.ignore_patterns("bertsmith.json"))
    tensors = load_file(bare / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "pooler" not in k}, bare / "model.safetensors")
    for folder in ("said", "silent"):
        (tmp_path / folder).mkdir()
    said = run("classification", bare, tmp_path / "said", "pooling=published")
    silent = run("classification", encoder, tmp_path / "silent", "pooling=published")
    assert any("has no pooler: starting from random weights" in each for each in said.results.warnings)
    assert not any("has no pooler" in each for each in silent.results.warnings)


def test_results_hold_every_restart_and_figures_of_the_best(finished: FinetuneResult) -> None:
    found = results_of(finished)
    scores = [each["score"] for each in found["restarts"]]
    assert [each["seed"] for each in found["restarts"]] == [0, 1, 2]
    assert [each["steps"] for each in found["restarts"]] == [48, 48, 48]  # 4 epochs of 96 rows by 8
    assert found["best_restart"] == scores.index(max(scores)) + 1
    assert found["evaluations"]["dev"]["model"]["accuracy"] == pytest.approx(max(scores))
    over = found["over_restarts"]
    assert over["mean"] == pytest.approx(float(np.mean(scores)))
    assert over["spread"] == pytest.approx(float(np.std(scores, ddof=1)))
    assert (over["best"], over["worst"]) == (max(scores), min(scores))
    majority = found["evaluations"]["dev"]["baselines"]["majority"]["accuracy"]
    assert over["degenerate"] == sum(score <= majority for score in scores)
    assert (
        found["train_rows"],
        found["evaluations"]["dev"]["rows"],
        found["evaluations"]["test"]["rows"],
    ) == (
        96,
        40,
        30,
    )
    assert found["labels"] == ["bad", "good"]


def test_predictions_are_those_the_figures_were_made_of(finished: FinetuneResult) -> None:
    found, folder = results_of(finished), finished.model.parent
    for evaluation in ("dev", "test"):
        lines = lines_of(folder / "predictions" / f"{evaluation}.jsonl")
        rows = lines_of(folder.parent / f"{evaluation}.jsonl")
        assert [(line["text"], line["gold"]) for line in lines] == [
            (row["text"], row["label"]) for row in rows
        ]
        right = np.mean([line["label"] == line["gold"] for line in lines])
        assert found["evaluations"][evaluation]["model"]["accuracy"] == pytest.approx(float(right))


def test_the_saved_model_predicts_what_the_run_did(finished: FinetuneResult, tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    predictor = Predictor.load(finished.model)
    assert predictor.predict_file(finished.model.parent.parent / "test.jsonl", out) == 30
    wanted = lines_of(finished.model.parent / "predictions" / "test.jsonl")
    for found, line in zip(lines_of(out), wanted, strict=True):
        assert (found["text"], found["label"]) == (line["text"], line["label"])
        assert found["confidence"] == pytest.approx(line["confidence"], abs=1e-5)


def test_the_model_says_what_it_was_made_from(finished: FinetuneResult) -> None:
    provenance = json.loads((finished.model / "bertsmith.json").read_text())["provenance"]
    folder = finished.model.parent.parent
    assert provenance["sha256"] == {
        name: sha256(folder / f"{name}.jsonl") for name in ("train", "dev", "test")
    }
    encoder = Path(provenance["recipe"]["model"])
    assert provenance["encoder_sha256"] == sha256(encoder / "model.safetensors")
    assert provenance["recipe"]["restarts"] == 3
    assert provenance["recipe"]["optimizer"]["learning_rate"] == 0.01
    accuracy = results_of(finished)["evaluations"]["dev"]["model"]["accuracy"]
    assert provenance["metrics"]["dev"]["accuracy"] == pytest.approx(accuracy)


def test_of_several_restarts_only_the_best_weights_stay(finished: FinetuneResult) -> None:
    kept = sorted(
        path.parent.parent.name for path in finished.model.parent.glob("restarts/*/best/weights.safetensors")
    )
    assert kept == [str(results_of(finished)["best_restart"])]
    assert not list(finished.model.parent.glob("restarts/*/checkpoints"))
    assert finished.report.is_file()


def test_a_seed_is_another_head_and_order(finished: FinetuneResult) -> None:
    losses = [
        [row["loss"] for row in lines_of(path) if "loss" in row][:3]
        for path in sorted(finished.model.parent.glob("restarts/*/log.jsonl"))
    ]
    assert len(losses) == 3
    assert len({tuple(each) for each in losses}) == 3


def test_patience_ends_a_run_that_no_longer_gets_better(encoder: Path, tmp_path: Path) -> None:
    still = ("optimizer.learning_rate=1e-12", "epochs=9", "patience=2")
    result = run("classification", encoder, tmp_path, *still)
    (restart,) = results_of(result)["restarts"]
    assert (restart["step"], restart["steps"]) == (0, 24)  # what it begins with is never beaten


def test_evaluate_reads_other_columns_and_tells_error_and_warnings(
    finished: FinetuneResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = finished.model.parent
    predicted = [row["label"] for row in lines_of(run_folder / "predictions" / "test.jsonl")]
    rows = lines_of(run_folder.parent / "test.jsonl")
    labels = [row["label"] for row in rows]
    labels[:3] = ["good" if label == "bad" else "bad" for label in labels[:3]]  # so that some are wrong
    data = tmp_path / "other.jsonl"
    other = [{"body": row["text"], "kind": label} for row, label in zip(rows, labels, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in other))
    words = ["evaluate", str(finished.model), str(data), "--text", "body", "--label", "kind"]
    assert main([*words, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    accuracy = float(np.mean([a == b for a, b in zip(predicted, labels, strict=True)]))
    error = (accuracy * (1 - accuracy) / 29) ** 0.5
    assert 0 < accuracy < 1
    assert (measured["rows"], measured["model"]["accuracy"]) == (30, pytest.approx(accuracy))
    assert measured["standard_error"] == pytest.approx(error)
    known = results_of(finished)["evaluations"]["test"]["baselines"]
    assert list(measured["baselines"]) == list(known)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert f"30 rows, accuracy ± {error:.4f}" in " ".join(shown.split())
    assert shown.count("Warning:") == len(measured["warnings"])


def test_evaluate_asks_for_a_file_where_a_fine_tuned_model_is_given_a_folder(
    finished: FinetuneResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(finished.model), str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert f"measured on a file of labelled rows, but {tmp_path} is a folder." in complaint
    assert "Pre-train" not in complaint


def test_texts_that_dev_shares_with_train_are_told(encoder: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", "classification", 40)
    result = run("classification", encoder, tmp_path, "epochs=1", train=rows, dev=rows)
    assert any("of the 40 dev texts occur in" in warning for warning in results_of(result)["warnings"])


def test_a_model_that_learns_nothing_is_told(encoder: Path, tmp_path: Path) -> None:
    """With labels at random and no steps worth the name."""
    result = run(
        "classification", encoder, tmp_path, "epochs=1", "optimizer.learning_rate=1e-12", "restarts=2"
    )
    found = results_of(result)
    majority = found["evaluations"]["dev"]["baselines"]["majority"]["accuracy"]
    degenerate = sum(each["score"] <= majority for each in found["restarts"])
    assert found["over_restarts"]["degenerate"] == degenerate
    told = any("restarts learned nothing" in warning for warning in found["warnings"])
    assert told is (degenerate > 0)
    (tmp_path / "alone").mkdir()
    alone = run("classification", encoder, tmp_path / "alone", "epochs=1", "optimizer.learning_rate=1e-12")
    assert not any("restarts learned" in warning for warning in results_of(alone)["warnings"])


@from_a_random_head
def test_frozen_layers_stay_as_they_were(encoder: Path, tmp_path: Path) -> None:
    result = run("classification", encoder, tmp_path, "epochs=1", "freeze_layers=1", "pooling=published")
    before = {f"bert.{name}": tensor for name, tensor in load_file(encoder / "model.safetensors").items()}
    after = load_file(result.model / "model.safetensors")
    for name, frozen in (
        ("bert.embeddings.word_embeddings.weight", True),
        (LAYER.format(0), True),
        (LAYER.format(1), False),
    ):
        assert bool((before[name] == after[name]).all()) is frozen, name


@from_a_random_head
def test_lora_learns_and_leaves_an_adapter_beside_the_merged_model(encoder: Path, tmp_path: Path) -> None:
    settings = ("epochs=8", "lora.rank=4", "lora.alpha=8", "pooling=published")
    result = run("classification", encoder, tmp_path, *settings)
    accuracy = results_of(result)["evaluations"]["dev"]["model"]["accuracy"]
    assert accuracy > 0.7
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
    before, after = load_file(encoder / "model.safetensors"), load_file(result.model / "model.safetensors")
    assert bool((before[LAYER.format(1).removeprefix("bert.")] == after[LAYER.format(1)]).all())
    query = "encoder.layer.1.attention.self.query.weight"
    assert not bool((before[query] == after[f"bert.{query}"]).all())
    evaluated = Predictor.load(result.model).evaluate(tmp_path / "dev.jsonl")
    assert evaluated.model["accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize("method", ["linear", "full"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_score_of_a_restart_is_that_of_its_calibrated_model(
    method: str, precision: str, encoder: Path, tmp_path: Path
) -> None:
    """Of several labels each has a threshold of its own, which decides what is given. Whatever it was trained
    in, a model is measured in float32.
    """
    settings = f"method={method}", "epochs=1", f"hardware.precision={precision}"
    found = run("multi-label", encoder, tmp_path, *settings).results
    task = found.task
    assert not np.allclose(task.thresholds, 0.5)  # type: ignore[attr-defined]
    score = found.evaluations["dev"].model[task.main_metric]
    assert found.restarts[0].score == pytest.approx(score, abs=1e-6)


def test_every_restart_has_the_layers_that_its_linear_head_was_fitted_to(
    encoder: Path, tmp_path: Path
) -> None:
    """A pooler drawn anew under it left the second restart to begin from noise. LoRA's draws still differ."""
    bare = shutil.copytree(encoder, tmp_path / "bare", ignore=shutil.ignore_patterns("bertsmith.json"))
    tensors = load_file(bare / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "pooler" not in k}, bare / "model.safetensors")
    recipe = make_finetune_recipe(
        {"task": "regression", "model": str(bare), "train": "", "out": ""},
        ["lora.rank=4", "max_length=32", "pooling=published"],
    )
    task = Regression(check_task_settings(recipe, Regression))
    width = start_model(recipe, task, bare).model.config.hidden_size
    linear = LinearStart(torch.ones(1, width), torch.zeros(1), 1.0, 0.0)
    first, second = (start_model(recipe, task, bare, seed, linear).model for seed in (0, 1))
    assert first.new_pooler
    for name, weights in second.state_dict().items():
        if "lora" not in name:
            assert torch.equal(weights, first.state_dict()[name]), name
    assert any(not torch.equal(w, first.state_dict()[name]) for name, w in second.state_dict().items())
    drawn, other = (start_model(recipe, task, bare, seed).model.encoder.pooler for seed in (0, 1))
    assert drawn is not None and other is not None and not torch.equal(drawn.weight, other.weight)


@from_a_random_head
def test_beside_lora_a_new_pooler_is_trained_and_is_part_of_the_adapter(
    encoder: Path, tmp_path: Path
) -> None:
    """Pre-training without next-sentence prediction leaves none."""
    checkpoint = read_checkpoint(encoder)
    model = encoder_of(checkpoint, "test")
    tensors = {
        f"encoder.{name}": tensor for name, tensor in model.state_dict().items() if "pooler" not in name
    }
    bare = tmp_path / "bare"
    save_checkpoint(
        bare, tensors, checkpoint.config, "BertModel", task="test", tokenizer=Tokenizer.load(encoder)
    )
    result = run("regression", bare, tmp_path, "epochs=1", "lora.rank=4", "pooling=published")
    added = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    (found,) = (tensor for name, tensor in added.items() if name.endswith("pooler.dense.weight"))
    recipe = make_finetune_recipe(
        {"task": "regression", "model": str(bare), "train": "", "out": ""},
        ["lora.rank=4", "max_length=32", "pooling=published"],
    )
    begun = start_model(
        recipe, Regression(check_task_settings(recipe, Regression)), bare
    ).model.encoder.pooler
    assert begun is not None and all(parameter.requires_grad for parameter in begun.parameters())
    assert not torch.equal(begun.weight, found)
    merged = load_file(result.model / "model.safetensors")["bert.pooler.dense.weight"]
    assert torch.equal(merged, found)


def test_small_micro_batches_give_the_same_run(encoder: Path, tmp_path: Path) -> None:
    scores = []
    for name, size in (("whole", 100_000), ("parts", 16)):
        (tmp_path / name).mkdir()
        settings = ("epochs=1", "hardware.precision=float32", f"micro_batch_tokens={size}")
        result = run("tagging", encoder, tmp_path / name, *settings)
        losses = [r["loss"] for r in lines_of(result.model.parent / "restarts/1/log.jsonl") if "loss" in r]
        scores.append(losses)
    assert len(scores[0]) == 12
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)
    assert scores[0][0] == pytest.approx(scores[1][0], rel=1e-6)


@pytest.mark.parametrize(
    "evaluation",
    [pytest.param(1, marks=pytest.mark.slow), 4],
    ids=["in the first restart", "in the second"],
)
def test_an_interrupted_run_goes_on_to_the_same_model(
    evaluation: int, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, with dropout: both restarts' scores, and every weight of the best."""
    settings = ("epochs=3", "restarts=2", "dropout=0.1")
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = run("classification", encoder, tmp_path / "whole", *settings)
    considered, consider = count(), BestWeights.consider

    def interrupted(best: BestWeights, *arguments: Any) -> None:
        if next(considered) == evaluation:
            raise KeyboardInterrupt
        consider(best, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BestWeights, "consider", interrupted)
        run("classification", encoder, tmp_path / "parts", *settings)
    parts = run("classification", encoder, tmp_path / "parts", *settings, resume=True)
    scores = [[each["score"] for each in results_of(found)["restarts"]] for found in (whole, parts)]
    assert scores[0] == scores[1]
    first, second = (load_file(found.model / "model.safetensors") for found in (whole, parts))
    assert all(bool((first[name] == second[name]).all()) for name in first)


# -- what is refused ---------------------------------------------------------------------------------------


def test_a_finished_folder_is_not_overwritten(finished: FinetuneResult, encoder: Path) -> None:
    with pytest.raises(RecipeError, match="already holds a run"):
        run("classification", encoder, finished.model.parent.parent, "epochs=4")


def test_a_run_that_diverges_keeps_its_log_and_says_how_to_go_on(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_rows(tmp_path / "train.jsonl", "classification", 96)
    dev = write_rows(tmp_path / "dev.jsonl", "classification", 40, seed=1)
    files = ["--model", str(encoder), "--train", str(train), "--dev", str(dev)]
    command = ["finetune", "classification", *files, "method=full", "max_length=32", "batch_size=8"]
    wild = ["optimizer.learning_rate=0.5", "epochs=20", "guard.spike_factor=1.01"]
    out = tmp_path / "run"
    assert main([*command, *wild, "--out", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    folder = out / "restarts" / "1"
    (batch,) = folder.glob("bad-batch-step-*.safetensors")
    for part in (
        f"the log is {folder / 'log.jsonl'}",
        f"the batch is {batch}",
        "in another folder with a lower",
    ):
        assert part in said
    last = lines_of(folder / "log.jsonl")[-1]
    assert last["kind"] == "warning"
    assert "the loss jumped to" in last["message"]
    assert not (out / "model").exists()
    assert main([*command, "--out", str(out)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    calm = ["optimizer.learning_rate=0.001", "epochs=1"]
    assert main([*command, *calm, "--out", str(tmp_path / "calm")]) == 0
    assert (tmp_path / "calm" / "model").is_dir()


def test_outputs_that_overflow_on_dev_end_the_run_in_the_same_way(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, evaluate = count(1), FinetuningObjective.evaluate

    def damaged(objective: FinetuningObjective, *arguments: Any) -> dict[str, float]:
        if next(calls) > 1:
            with torch.no_grad():
                for parameter in objective.model.parameters():
                    parameter.fill_(3e38)
        return evaluate(objective, *arguments)

    monkeypatch.setattr(FinetuningObjective, "evaluate", damaged)
    with pytest.raises(
        TrainingStopped, match=r"^Step \d+: .* overflow\. The run's folder is kept: the log is "
    ):
        run("classification", encoder, tmp_path, "method=full", "epochs=3")
    assert "overflow" in lines_of(tmp_path / "run" / "restarts" / "1" / "log.jsonl")[-1]["message"]


def test_a_model_of_ones_own_is_not_replaced(encoder: Path, tmp_path: Path) -> None:
    """--out . beside one's own ./model, say."""
    kept = tmp_path / "run" / "model" / "precious.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(RecipeError, match=r"model exists, but .* holds no run"):
        run("classification", encoder, tmp_path)
    assert [path.name for path in (tmp_path / "run").rglob("*")] == ["model", "precious.txt"]


def test_a_run_does_not_go_on_with_other_rows(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = write_rows(tmp_path / "train.jsonl", "classification", 96)
    dev = write_rows(tmp_path / "dev.jsonl", "classification", 40, seed=1)

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BestWeights, "consider", interrupted)
        run("classification", encoder, tmp_path, "epochs=2", train=str(train), dev=str(dev))
    rows = train.read_text()
    train.write_text(rows.replace("\n", "\n\n", 1))
    with pytest.raises(RecipeError, match="The file given as train has changed"):
        run("classification", encoder, tmp_path, "epochs=2", train=str(train), dev=str(dev), resume=True)
    train.write_text(rows)
    run("classification", encoder, tmp_path, "epochs=2", train=str(train), dev=str(dev), resume=True)


def test_a_run_does_not_go_on_without_the_last_file_of_its_folder(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other files keep their numbers in data.json."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, name in enumerate(("a.jsonl", "b.jsonl", "c.jsonl")):
        write_rows(folder / name, "classification", 32, seed=number)

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BestWeights, "consider", interrupted)
        run("classification", encoder, tmp_path, "epochs=2", train=folder)
    (folder / "c.jsonl").rename(tmp_path / "c.jsonl")
    with pytest.raises(RecipeError, match="The file given as train 3 has changed"):
        run("classification", encoder, tmp_path, "epochs=2", train=folder, resume=True)


def test_two_runs_write_alike_to_the_byte_what_the_page_names(encoder: Path, tmp_path: Path) -> None:
    """But for what takes down times, and the recipe's `out`."""
    train = write_rows(tmp_path / "train.jsonl", "classification", 40)
    out, first = tmp_path / "run", tmp_path / "first"
    for _ in range(2):
        run("classification", encoder, tmp_path, "epochs=1", "restarts=2", train=str(train), out=str(out))
        if not first.exists():
            out.rename(first)
    files = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    alike = {str(path) for path in files if (first / path).exists() and same_bytes(first / path, out / path)}
    times = {path for path in map(str, files) if path not in alike}
    named = ("log.jsonl", "restart.json", "results.json", "report.html")
    assert all(path.endswith(named) or "/tensorboard/" in path for path in times)
    assert {"data.json", "recipe.toml", "predictions/dev.jsonl", "restarts/1/best/history.json"} <= alike
    assert {str(path) for path in files if path.parts[0] == "model"} <= alike


def same_bytes(path: Path, other: Path) -> bool:
    return path.read_bytes() == other.read_bytes()


def test_a_folder_that_cant_be_made_is_a_sentence(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="can't be made: Not a directory"):
        run("classification", encoder, tmp_path, out=str(tmp_path / "file" / "run"))


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (("epoch=3",), RecipeError, "unknown key 'epoch'"),
        (("learning_rate=3e-5",), RecipeError, "Did you mean 'optimizer.learning_rate'"),
        (("lr=3e-5",), RecipeError, "unknown key 'lr'. Did you mean 'optimizer.learning_rate'"),
        (("warmup_ratio=0.1",), RecipeError, "Did you mean 'optimizer.warmup'"),
        (("weight_decay=0.1",), RecipeError, "Did you mean 'optimizer.weight_decay'"),
        (("num_train_epochs=3",), RecipeError, "Did you mean 'epochs'"),
        (("max_steps=300",), RecipeError, "Did you mean 'epochs'"),
        (("per_device_train_batch_size=8",), RecipeError, "Did you mean 'batch_size'"),
        (("max_seq_length=64",), RecipeError, "Did you mean 'max_length'"),
        (("device=cpu",), RecipeError, "Did you mean 'hardware.device'"),
        (("max_length=65",), RecipeError, "has positions for 64 tokens"),
        (("class_weights.good=2",), InputError, "Give one for each"),
        (("freeze_layers=3",), ModelError, "the model has 2"),
        (("steps=10",), RecipeError, "given by epochs"),
        (
            ("epochs=2", "optimizer.warmup=24"),
            RecipeError,
            "24 steps is not shorter",
        ),
    ],
)
def test_what_cant_be_trained_is_refused_before_anything_is_written(
    overrides: tuple[str, ...], error: type[Exception], message: str, encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        run("classification", encoder, tmp_path, *overrides)
    assert not (tmp_path / "run").exists()


def test_layers_all_frozen_under_a_head_without_weights_are_refused_before_anything_is_written(
    encoder: Path, tmp_path: Path
) -> None:
    message = "^freeze_layers = 2 leaves nothing to train: similarity has no weights but the encoder's"
    with pytest.raises(RecipeError, match=message):
        run("similarity", encoder, tmp_path, "freeze_layers=2")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"text": "bano", "label": "a"}\n{"text": "delo", "label": "a"}', "nothing to tell apart"),
        ('{"text": "bano", "label": "a"}\n{"text": 3, "label": "b"}', r"train\.jsonl, line 2"),
        ('{"text": "bano", "label": "a"}\n{"text": "b"}', r"train\.jsonl, line 2"),
    ],
)
def test_bad_rows_are_refused_by_line(rows: str, message: str, encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(rows)
    with pytest.raises(InputError, match=message):
        run("classification", encoder, tmp_path, train=tmp_path / "train.jsonl")
    assert not (tmp_path / "run").exists()


def test_a_label_that_training_never_showed_is_refused_by_line(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text": "bano", "label": "neither"}\n')
    with pytest.raises(InputError, match=r"dev\.jsonl, line 1: the label 'neither'"):
        run("classification", encoder, tmp_path, dev=tmp_path / "dev.jsonl")


def test_a_finished_restart_leaves_no_weights_in_memory(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without help from the garbage collector, which may not come for a hundred restarts."""
    models: list[weakref.ref[TaskModel]] = []
    made = TaskRun.__init__

    def watched(self: TaskRun, task: Any, model: TaskModel, *given: Any, **named: Any) -> None:
        assert all(each() is None for each in models)
        models.append(weakref.ref(model))
        made(self, task, model, *given, **named)

    monkeypatch.setattr(TaskRun, "__init__", watched)
    gc.collect()
    gc.disable()
    try:
        run("classification", encoder, tmp_path, "epochs=1", "restarts=3")
    finally:
        gc.enable()
    assert len(models) == 3
