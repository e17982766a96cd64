"""docs/coming-from-transformers.md is followed to its end: both sides run, and give the same numbers."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from page import DOCS, Page

from bertsmith import load_encoder
from bertsmith.errors import RecipeError
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.training import finetune_recipe
from bertsmith.training.finetune_recipe import make_finetune_recipe
from test_guides import write_tiny_bert

TEXT = (DOCS / "coming-from-transformers.md").read_text(encoding="utf-8")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny `minilm`, and no time to compare methods."""
    for module in ("sentence_transformers", "accelerate", "sklearn"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: pip install '.[bench]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune_recipe, "_MINUTES", 0.0)
    monkeypatch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)
    write_tiny_bert(tmp_path / "minilm")
    write_sentence_folder(tmp_path / "minilm", load_encoder("minilm").config, "mean", 128)
    return tmp_path


def vectors_agree(names: dict[str, Any]) -> None:
    assert np.all((names["theirs"] * names["ours"]).sum(axis=1) > 0.9999)


@pytest.mark.filterwarnings("ignore")  # those of the other libraries
def test_vectors_are_sentence_transformers_own(desk: Path) -> None:
    for block in Page("coming-from-transformers.md").follow():
        if "ours" in block.names:
            return vectors_agree(block.names)
    pytest.fail("the page compares no vectors")


@pytest.mark.slow  # the other libraries train, too
@pytest.mark.filterwarnings("ignore")
def test_both_sides_of_the_page_run_and_agree(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = Page("coming-from-transformers.md").follow_all()
    vectors_agree(names)
    assert np.allclose(names["their_first"], names["our_first"], atol=1e-4)
    assert np.allclose(names["their_first"], names["first"].detach(), atol=1e-4)
    assert names["again"].encode(["x"]).shape == (1, 2)
    assert names["run"].report.is_file()
    assert len((desk / "sorted.jsonl").read_text().splitlines()) == 8
    assert (desk / "models/queues/model.safetensors").is_file()
    opened = transformers.AutoModelForMaskedLM.from_pretrained("models/new")
    assert opened.config.model_type == "roberta"
    assert "Did you mean 'optimizer.learning_rate'?" in capsys.readouterr().out


def test_the_other_libraries_names_for_settings_are_answered_with_ours() -> None:
    given = {"task": "classification", "model": "m", "train": "t", "out": "o"}
    for name, ours in (("num_train_epochs", "epochs"), ("warmup_ratio", "optimizer.warmup")):
        assert f"`{name}`" in TEXT
        with pytest.raises(RecipeError, match=ours):
            make_finetune_recipe(given, [f"{name}=1"])
