"""few_rows.py and restarts.py unattended: what is done stays, one failed run ends no table."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from bench_runs import RunScript

import few_rows
import labelled
import restarts

WORDS = {"0": ("bad", "dull", "poor"), "1": ("good", "fine", "great")}


@pytest.fixture
def sst2(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in its place, and where runs are kept."""
    draw = random.Random(0)
    for name, rows in (("train.tsv", 60), ("test-labeled.tsv", 40)):
        lines = [f"{draw.choice(WORDS[str(n % 2)])} {n}\t{n % 2}" for n in range(rows)]
        (tmp_path / "sst2").mkdir(exist_ok=True)
        (tmp_path / "sst2" / name).write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    for module in (labelled, few_rows):
        monkeypatch.setattr(module, "MODEL", str(tiny_model))
    monkeypatch.setattr(labelled, "DATA", tmp_path)
    monkeypatch.setattr(labelled, "KEPT", tmp_path / "kept")
    return tmp_path


@pytest.mark.slow
def test_an_interrupted_table_goes_on_beside_what_a_killed_run_left(
    sst2: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--data", "sst2", "--sizes", "8", "--sides", "ours", "--draws", "2")
    monkeypatch.setattr(labelled, "Worker", None)
    request = {"name": "sst2", "size": "8", "draw": 0, "measured_rows": None}
    left = labelled._folder_of(few_rows.__file__, "ours", request) / "run"
    left.mkdir(parents=True)
    (left / "recipe.toml").write_text("of a run that was killed")
    in_this_process(run_script, few_rows, *options)
    (table,) = (sst2 / "results").glob("few-rows-sst2-part_*.md")
    assert "| sst2 | 8 | 16 | 40 | accuracy |" in table.read_text()
    kept = sorted(path.name for path in (sst2 / "kept" / "few_rows").iterdir())
    assert kept == ["sst2-8-ours-0.json", "sst2-8-ours-1.json"]
    monkeypatch.setattr(few_rows, "train_ours", None)  # nothing is trained again
    in_this_process(run_script, few_rows, *options)


def test_a_run_that_fails_is_named_at_the_end_and_the_others_are_made(
    sst2: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["draw"] == 0:
            raise RuntimeError("the worker ended with status -9")
        return {"score": 0.75, "seconds": 2.0, "train_rows": 16, "test_rows": 40}

    monkeypatch.setattr(few_rows, "train_trainer", answer)
    options = ("--data", "sst2", "--sizes", "8", "16", "--sides", "trainer", "--draws", "2")
    with pytest.raises(SystemExit, match=r"sst2-8-trainer-0: the worker ended with status -9\nsst2-16"):
        in_this_process(run_script, few_rows, *options)
    (table,) = (sst2 / "results").glob("few-rows-sst2-part_*.md")
    assert table.read_text().count("75.00 (2 s)") == 2


def test_another_encoder_stands_beside_minilm(
    sst2: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        score = 0.5 if "model" not in request else 0.75
        known = {"score": score, "baselines": [0.5, 0.5, 0.5], "method": "linear", "expected": None}
        return known | {"seconds": 2.0, "train_rows": 16, "test_rows": 40}

    monkeypatch.setattr(few_rows, "train_ours", answer)
    options = ("--data", "sst2", "--sizes", "8", "--sides", "ours", "--draws", "2")
    in_this_process(run_script, few_rows, *options, "--models", f"distilled={sst2}")
    (table,) = (sst2 / "results").glob("few-rows-sst2-part_*.json")
    (row,) = json.loads(table.read_text())["rows"]
    assert (row["ours"][:5], row["distilled"][:5]) == ("50.00", "75.00")


@pytest.mark.slow
def test_restarts_are_counted_that_give_a_majority_answer(
    sst2: Path, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(run_script, restarts, "--data", "sst2", "--size", "16", "--restarts", "2")
    (kept,) = (sst2 / "kept" / "restarts").glob("*.json")
    found = json.loads(kept.read_text())
    assert (len(found["kept"]), len(found["last"]), found["majority"]) == (2, 2, 0.5)
    for restart in (*found["kept"], *found["last"]):
        assert restart.keys() == {"accuracy", "matthews"}
    one_answer, useful = {"accuracy": 0.5, "matthews": 0.0}, {"accuracy": 0.8, "matthews": 0.6}
    row = restarts._row(found | {"kept": [useful, one_answer], "last": [one_answer, one_answer]})
    assert (row["degenerate"], row["degenerate at the last step"]) == ("1", "2")
    assert (row["worst"], row["worst there"]) == ("50.00%", "50.00%")


def in_this_process(run_script: RunScript, script: Any, *options: str) -> None:
    """`run_script` has a worker of the script's own; these come by labelled.py."""
    patch = run_script._monkeypatch

    class Worker:
        def __init__(self, path: str, side: str) -> None:
            answers: list[Any] = []
            patch.setattr(script, "serve", answers.append)
            run_script._main(script, "--worker", side)
            (self._answer,) = answers

        def ask(self, **request: Any) -> Any:
            return json.loads(json.dumps(self._answer(json.loads(json.dumps(request)))))

        def close(self) -> None:
            """Nothing to end."""

    patch.setattr(labelled, "Worker", Worker)
    run_script._main(script, *options)
