"""docs/pretraining.md: models from nothing, from another, from a long run, and of other objectives."""

from itertools import islice
from pathlib import Path

import pytest
from law import write_articles
from page import Page

from bertsmith.cli.main import main
from bertsmith.data.masking import MaskingRates
from bertsmith.training.recipe import read_recipe

SMALL = "data.batch_size=2 evaluation.tokens=500 checkpoint.every=1000 hardware.threads=1"
SHORTER = {
    "hours=4 ": f"steps=2 {SMALL} ",
    '"hours=4"': '"steps=2", "data.batch_size=2", "evaluation.tokens=500", "hardware.threads=1"',
    "hours = 10": "steps = 2",
    "batch_size = 64": "batch_size = 2",
    "hours=24": f"steps=10 {SMALL}".replace("every=1000", "every=1"),
    "hours=1 ": "steps=2 ",
    "budget model.model_type=bert": f"budget hours=none steps=2 {SMALL} model.model_type=bert",
    "hours=12": f"steps=2 {SMALL} model.num_hidden_layers=1",
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    write_articles(tmp_path / "articles")
    assert main(["corpus", "build", "articles", "--out", "corpora/law", "--heldout", "0.1"]) == 0
    assert main(["tokenizer", "train", "corpora/law", "--out", "tokenizers/law", "--vocab-size", "300"]) == 0
    capsys.readouterr()
    return tmp_path


def test_a_model_from_nothing_is_measured_and_fills_gaps(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list(islice(Page("pretraining.md", SHORTER).follow(), 1))
    printed = capsys.readouterr().out
    assert "mlm_majority" in printed
    assert (desk / "runs/law/report.html").is_file()


@pytest.mark.slow
def test_the_page_is_followed_to_its_end(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Page("pretraining.md", SHORTER).follow_all()
    models = {path.parent.parent.name for path in desk.glob("runs/*/model/config.json")}
    assert models == {
        "law",
        "again",
        "night",
        "law-longer",
        "long",
        "long-decayed",
        "law-order",
        "law-electra",
    }
    assert (desk / "runs/law-electra/generator/config.json").is_file()
    assert "decay from runs/long/checkpoints/step-" in capsys.readouterr().out


def test_the_defaults_in_the_table_are_those_of_budget() -> None:
    budget = read_recipe("budget", [])
    assert (budget.hours, budget.optimizer.learning_rate, budget.data.batch_size) == (1, 2e-3, 32)
    assert (budget.data.sequence_lengths, budget.masking.mask_rate) == ((128,), 0.3)
    assert (budget.loss.sampled_pieces, budget.optimizer.kind, budget.optimizer.schedule) == (
        1500,
        "muon",
        "linear",
    )
    assert (budget.checkpoint.keep, budget.checkpoint.minutes) == (2, None)


def test_held_out_figures_hide_what_the_page_says() -> None:
    assert "Held-out figures always hide 15 %" in Page("pretraining.md").text
    assert MaskingRates().mask_rate == 0.15
