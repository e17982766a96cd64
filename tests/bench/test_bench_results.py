"""bench/harness.py and bench/labelled.py: where results and runs are kept, and which runs are the same."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import harness
import labelled

REQUEST = {"name": "sst2", "seed": 0}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What workers were asked; each answer is how many questions there were so far."""
    requests: list[dict[str, Any]] = []

    class Worker:
        def __init__(self, script: str, side: str) -> None:
            pass

        def ask(self, **request: Any) -> dict[str, Any]:
            requests.append(request)
            return {"answer": len(requests)}

        def close(self) -> None:
            pass

    monkeypatch.setattr(labelled, "Worker", Worker)
    monkeypatch.setattr(labelled, "KEPT", tmp_path)
    return requests


def run(request: dict[str, Any] = REQUEST, again: bool = False) -> Any:
    return labelled.run_once("finetuning.py", "ours", "sst2-ours-0", request, again)["answer"]


def test_a_kept_run_counts_for_the_same_request_only(asked: list[Any], tmp_path: Path) -> None:
    assert [run(), run(), run(REQUEST | {"rows": 8}), run(), run(REQUEST | {"rows": 8})] == [1, 1, 2, 1, 2]
    assert run(again=True) == 3
    kept = json.loads((tmp_path / "finetuning" / "sst2-ours-0.json").read_text())
    assert kept["request"] == REQUEST
    assert (kept["threads"], kept["torch"]) == (torch.get_num_threads(), torch.__version__)


@pytest.mark.parametrize("changed", [{"threads": 99}, {"torch": "1.0"}])
def test_a_run_under_other_conditions_is_repeated(
    asked: list[Any], tmp_path: Path, changed: dict[str, Any]
) -> None:
    run()
    (kept,) = (tmp_path / "finetuning").glob("*.json")
    kept.write_text(json.dumps(json.loads(kept.read_text()) | changed))
    assert [run(), run()] == [2, 2]


def test_an_interrupted_run_finds_its_folder_and_a_finished_one_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled, "KEPT", tmp_path)
    with pytest.raises(KeyboardInterrupt), labelled.run_folder("finetuning.py", "ours", REQUEST) as folder:
        (folder / "step").touch()
        raise KeyboardInterrupt
    with labelled.run_folder("finetuning.py", "ours", REQUEST) as again:
        assert (again / "step").exists()
    assert not list(folder.parent.iterdir())


def test_dates_and_threads_of_a_table() -> None:
    answers = [{"date": f"2026-11-2{day}", "threads": 1} for day in (2, 1, 2)]
    assert labelled.when_run(answers) == "Runs of 2026-11-21 to 2026-11-22, 1 thread each."
    assert labelled.when_run([{"date": "2026-11-21", "threads": 2}]) == "Runs of 2026-11-21, 2 threads each."


def test_a_narrower_run_leaves_the_whole_table_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    for options in (["--again"], ["--tasks", "mrpc", "--part", "v1.1", "--file", "/somewhere/texts"]):
        monkeypatch.setattr(sys, "argv", ["bench/finetuning/finetuning.py", *options])
        harness.report("finetuning", "A table", [{"a": 1}])
    whole, narrow = sorted(path.name.partition("_")[0] for path in tmp_path.glob("*.md"))
    assert (whole, narrow) == ("finetuning", "finetuning-part")
    assert (
        "`python bench/finetuning/finetuning.py --tasks mrpc --part v1.1 --file texts`"
        in capsys.readouterr().out
    )


def test_a_script_without_its_data_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(labelled, "DATA", tmp_path)
    with pytest.raises(SystemExit) as ended:
        labelled.find("sst2/dev.tsv")
    assert ended.value.code == harness.NO_DATA
    assert "../shared/data/sst2/dev.tsv" in capsys.readouterr().err


def test_the_table_of_results_links_each_of_them() -> None:
    results = Path(__file__).parents[2] / "bench" / "results"
    linked = set(re.findall(r"\]\(([^)]+)\)", (results / "README.md").read_text(encoding="utf-8")))
    assert linked - {"../../LOG.md"} == {path.name for path in results.glob("*.md")} - {"README.md"}
