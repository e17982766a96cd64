"""docs/smaller.md: students of a fine-tuned model, of answers and of an encoder are made and used."""

import json
from pathlib import Path

import pytest

import test_guides
from bertsmith.training import finetune_recipe
from pages.page import Page
from test_guides import lines_of, write_tiny_bert


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a MiniLM of six tiny layers. No work is there to compare methods by, which takes long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune_recipe, "_MINUTES", 0.0)
    monkeypatch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)
    monkeypatch.setitem(test_guides.SHAPE, "num_hidden_layers", 6)
    write_tiny_bert(tmp_path / "minilm")


SHORTER = {
    "--out runs/tickets\n": "--out runs/tickets optimizer.learning_rate=5e-3 method=full epochs=2\n",
    "--layers 3 --out runs/small\n": "--layers 3 --out runs/small epochs=1\n",
    "--out runs/of-llm": "--out runs/of-llm epochs=1",
    "--out runs/shrunk\n": "--out runs/shrunk epochs=1\n",
    "epochs=5": "epochs=1",
    "hours=1": "steps=2",
    '"train", 160': '"train", 60',
}


def test_a_student_is_distilled_and_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Page("smaller.md", SHORTER | {'"tickets", 300': '"tickets", 60'}) as page:
        for block in page.follow():
            if "bertsmith predict" in block.text:
                break
    printed = capsys.readouterr().out
    for words in ("of the teacher's accuracy, agreement with it", "one at a time", "without the teacher"):
        assert words in printed
    results = json.loads((tmp_path / "runs/small/results.json").read_text())
    assert all(results[figure]["dev"] for figure in ("teacher", "without_teacher", "agreement", "share_kept"))
    assert json.loads((tmp_path / "runs/small/model/config.json").read_text())["num_hidden_layers"] == 3
    assert {row["label"] for row in lines_of(tmp_path / "predictions.jsonl")} <= {"billing", "shipping"}
    assert {"answers", "alone", "model", "predictions", "report.html", "student"} <= {
        path.name for path in (tmp_path / "runs/small").iterdir()
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)  # seven models are trained
def test_every_way_of_the_page_to_a_smaller_model_runs(tmp_path: Path) -> None:
    with Page("smaller.md", SHORTER) as page:
        names = page.follow_all()
    assert names["result"].results.share_kept("dev") > 0
    for run, layers in (("two", 2), ("of-llm", 3), ("minilm-3", 3)):
        config = json.loads((tmp_path / "runs" / run / "model/config.json").read_text())
        assert config["num_hidden_layers"] == layers
    assert {path.name for path in (tmp_path / "runs/shrunk/candidates").iterdir()} > {"layers-2", "layers-1"}
    assert (tmp_path / "runs/shrunk/report.html").is_file()
    assert (tmp_path / "runs/static/model/model.safetensors").is_file()
    pieces = (tmp_path / "models/minilm-tickets/vocab.txt").read_text().split()
    assert "parcel" in pieces
    assert "courier" not in pieces
    assert (tmp_path / "vectors.parquet").is_file()
