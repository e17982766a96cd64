"""docs/sequences.md: logs become a model that tells bad runs; tables and series are pre-trained on."""

from pathlib import Path

import pytest

from bertsmith.training import finetune_recipe
from pages.page import Page
from test_guides import lines_of


def test_logs_become_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with Page("sequences.md", {"steps=60": "steps=2", "runs/bad max": "runs/bad epochs=1 max"}) as page:
        for block in page.follow():
            if "bertsmith predict" in block.text:
                break
    assert "mlm_majority" in evaluations(tmp_path / "runs/logs")[-1]
    assert {row["label"] for row in lines_of(tmp_path / "predictions.jsonl")} <= {"good", "bad"}


@pytest.mark.slow
def test_the_page_runs_to_its_end_and_bad_runs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hurry(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shorter = {f"steps=60 out=runs/{run}": f"steps=3 out=runs/{run}" for run in ("customers", "sensors")}
    with Page("sequences.md", shorter | {"steps=20": "steps=2"}) as page:
        names = page.follow_all()
    figures = evaluations(tmp_path / "runs/logs")
    assert figures[-1]["mlm_accuracy"] > 2 * figures[-1]["mlm_majority"]
    truth = [row["label"] for row in lines_of(tmp_path / "new.jsonl")]
    told = [row["label"] for row in lines_of(tmp_path / "predictions.jsonl")]
    assert sum(a == b for a, b in zip(truth, told, strict=True)) >= 36
    assert sum(names["built"].rows.values()) == 600
    assert names["built"].vocab_size == 17  # 12 events and 5 special tokens
    stores = ("logs", "new", "customers", "numbers", "sensors")
    assert all((tmp_path / "stores" / store / "manifest.json").is_file() for store in stores)
    for run, figure in (("customers", "mlm_accuracy"), ("sensors", "explained")):
        assert figure in evaluations(tmp_path / "runs" / run)[-1]
    assert "event-" in capsys.readouterr().out  # what fill-mask suggests


def evaluations(run: Path) -> list[dict[str, float]]:
    return [line for line in lines_of(run / "log.jsonl") if line["kind"] == "evaluation"]


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work is there to compare methods by, where by default it grows with the rows."""
    monkeypatch.setattr(finetune_recipe, "_MINUTES", 0.0)
    monkeypatch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)
