"""docs/domain.md: a model gets a domain's words and text, is fine-tuned, and gives the words back."""

import json
from itertools import islice
from pathlib import Path

import pytest
from law import write_articles, write_clauses
from page import BLOCK, Page, command_lines

from bertsmith.text.tokens.extension import ExtensionSettings
from bertsmith.training import finetune_recipe
from bertsmith.training.recipe import read_recipe
from test_guides import write_tiny_bert

SHORTER = {
    "hours=2": "steps=3 data.batch_size=4 evaluation.tokens=500 checkpoint.every=1000 hardware.threads=1"
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune_recipe, "_MINUTES", 0.0)  # no work is there to compare methods by
    monkeypatch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)
    write_articles(tmp_path / "articles")
    write_clauses(tmp_path / "clauses.csv")
    write_tiny_bert(tmp_path / "minilm")
    (tmp_path / "general").mkdir()
    for number in range(40):
        lines = [f"The film was {word} and my {number} th one." for word in ("weak", "fine", "superb")]
        (tmp_path / "general" / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_model_gets_the_words_of_a_domain_and_gives_them_back(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Page("domain.md", SHORTER).follow_all()
    added = json.loads((desk / "models/minilm-law/extension.json").read_text())
    assert {"court", "motion"} <= {each["word"] for each in added["words"]}
    printed = capsys.readouterr().out
    assert "mlm_loss_per_character" in printed
    assert "whole_word_loss_per_character" in printed
    assert "MLM loss before" in printed
    assert "True True" in printed
    assert all((desk / f"runs/{run}/report.html").is_file() for run in ("clauses", "clauses-before"))
    assert same(desk, "models/minilm-law-old-words/vocab.txt", "minilm/vocab.txt")
    assert same(desk, "models/as-before/model.safetensors", "minilm/model.safetensors")


def same(folder: Path, one: str, other: str) -> bool:
    return (folder / one).read_bytes() == (folder / other).read_bytes()


def test_the_words_go_in_and_out_again(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's first commands and its Python, without the training between them."""
    page = Page("domain.md")
    blocks = [text for language, _, text in BLOCK.findall(page.text) if language in ("", "python")]
    for line in islice(command_lines(blocks[0]), 3):
        page.run(line)
    (python,) = (text for text in blocks if "extend_vocabulary" in text)
    exec(compile(python, "domain.md", "exec"), {})
    assert "True True" in capsys.readouterr().out
    assert same(desk, "models/as-before/model.safetensors", "minilm/model.safetensors")


def test_the_defaults_in_the_table_are_those_of_the_code() -> None:
    assert (ExtensionSettings().words, ExtensionSettings().min_count) == (2_000, 10)
    adapt = read_recipe("adapt", ["init=minilm"])
    assert (adapt.hours, adapt.data.general_share) == (1, 0.25)
    assert (adapt.optimizer.learning_rate, adapt.optimizer.layer_decay) == (5e-4, 0.8)
