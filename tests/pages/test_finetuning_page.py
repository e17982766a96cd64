"""The page on fine-tuning is done from top to bottom, with a tiny encoder in the place of MiniLM."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bertsmith.training.finetuning.search import TuneSettings
from bertsmith.training.settings import override
from pages.page import DOCS, Page
from test_guides import lines_of, write_tiny_bert

LABELS = {"account", "billing", "shipping"}
SHORTER = {"trials=20": "trials=2 search.epochs=[1,2]"}
FILES_OF_A_RUN = ("report.html", "results.json", "recipe.toml", "data.json", "restarts/1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def results_of(run: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(f"runs/{run}/results.json").read_text())
    return read


def test_a_classifier_is_trained_and_predicts(folder: Path) -> None:
    write_tiny_bert(folder / "minilm")
    with Page("finetuning.md", instead={"--out runs/tickets": "--out runs/tickets minutes=0"}) as page:
        for block in page.follow():
            if "predict" in block.text:
                break
    assert [line["text"] for line in lines_of(folder / "predictions.jsonl")][-1] == "Delete my data"
    assert {line["label"] for line in lines_of(folder / "predictions.jsonl")} <= LABELS
    assert all((folder / "runs/tickets" / name).exists() for name in FILES_OF_A_RUN)
    names = {path.name for path in (folder / "runs/tickets/predictions").iterdir()}
    assert names == {"cross-validation.jsonl", "test.jsonl"}


@pytest.mark.slow
def test_the_page_is_done_from_top_to_bottom(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="needs the extra tune")
    write_tiny_bert(folder / "minilm")
    with Page("finetuning.md", instead=SHORTER) as page:
        names = page.follow_all()
    assert names["run"].results.method == "linear"
    assert len(results_of("seeds")["restarts"]) == 2
    assert {each["method"] for each in results_of("tickets")["tried"]} == {"linear", "contrastive", "full"}
    said = [
        [line["label"] for line in lines_of(folder / f"{name}.jsonl")] for name in ("predictions", "again")
    ]
    assert said[0] == said[1]
    measured = json.loads((folder / "measured.json").read_text())
    assert measured["model"] == pytest.approx(results_of("tickets")["evaluations"]["test"]["model"])
    assert {"abstain"} < set(lines_of(folder / "runs/careful/predictions/cross-validation.jsonl")[0])
    assert results_of("mixed")["columns"] and len(lines_of(folder / "mixed.jsonl")) == 6
    adapter = json.loads((folder / "runs/lora/adapter/adapter_config.json").read_text())
    assert adapter["r"] == 4
    assert {name.rpartition(".")[2] for name in adapter["target_modules"]} == {"query", "value"}
    assert {"best.toml", "model", "report.html", "trials.json"} <= {
        path.name for path in (folder / "runs/search").iterdir()
    }
    assert "stride = 16" in (folder / "runs/windows/recipe.toml").read_text()


def test_the_bounds_of_a_search_are_its_defaults() -> None:
    shown: dict[str, Any] = {}
    page = (DOCS / "finetuning.md").read_text(encoding="utf-8")
    for change in re.findall(r"`(search\.\w+=\[[\d.e,-]+\])`", page):
        override(shown, change)
    assert shown == {"search": TuneSettings().search.model_dump(mode="json", exclude_none=True)}
