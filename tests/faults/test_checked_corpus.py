"""A model knows which test files its corpus was compared with, and warns where it is measured on another."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from nursery import Settings

from bertsmith.cli.main import main
from bertsmith.model.card import checked_against, contamination_provenance
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.decontamination.contamination import find_contamination
from bertsmith.text.decontamination.removal import write_decontaminated
from bertsmith.training import pretrain as pretraining
from bertsmith.training.recipe import check_recipe


def rows(path: Path, count: int) -> Path:
    with path.open("w", newline="") as file:
        texts = [
            (f"these {number} words are in no corpus at all", "ab"[number % 2]) for number in range(count)
        ]
        csv.writer(file).writerows([("text", "label"), *texts])
    return path


@pytest.mark.slow
def test_from_the_corpus_to_the_score(
    corpus: Path,
    new_run: Callable[..., Settings],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    test, other = rows(tmp_path / "test.csv", 8), rows(tmp_path / "other.csv", 10)
    found = find_contamination(Corpus.open(corpus), [str(test)])
    write_decontaminated(found, tmp_path / "clean")
    settings = new_run(corpus=str(tmp_path / "clean"), steps=6)
    model = pretraining.pretrain(check_recipe(settings, "the test")).model
    finetune = ["finetune", "classification", "--model", str(model), "--train", str(other), "--out"]
    capsys.readouterr()
    assert main([*finetune, "one", "--test", str(test), "epochs=1", "max_length=16"]) == 0
    assert "never compared" not in capsys.readouterr().out
    assert main([*finetune, "two", "--test", str(other), "epochs=1", "max_length=16"]) == 0
    assert "never compared with other.csv" in capsys.readouterr().out
    for folder in (model, Path("one/model")):
        assert checked_against(folder) == Corpus.open(tmp_path / "clean").manifest.checked_against
    assert main(["evaluate", "one/model", str(other)]) == 0
    assert "never compared with other.csv" in capsys.readouterr().out
    shutil.copy(test, "renamed.csv")
    assert main(["evaluate", "one/model", "renamed.csv"]) == 0
    assert "never compared" not in capsys.readouterr().out


def test_of_two_corpora_both_must_have_been_compared() -> None:
    assert contamination_provenance(["a", "b"], ["b", "c"]) == {"corpus_checked_against": ["b"]}
    assert contamination_provenance(["a", "b"], None) == {"corpus_checked_against": ["a", "b"]}
    assert contamination_provenance([]) == {"corpus_checked_against": []}
    assert contamination_provenance(None, None) == {}
