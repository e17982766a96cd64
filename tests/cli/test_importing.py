"""`bertsmith import` on the command line: one line of result, notes, and exit statuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.cli.main import main
from bertsmith.model.checkpoint import load_encoder
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from served_models import save_fine_tuned


def test_what_was_imported_is_said_with_its_notes(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shared_data / "fixtures_ckpt" / "camphr_ner_bert"
    assert main(["import", str(source), "--out", str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "BertForTokenClassification, layers 1, width 16, 10,185 weights, vocabulary of 402" in printed
    assert "Note: the head classifier" in printed
    assert "Note: no tokenizer was imported: it has 405 pieces, the model 402 rows" in printed
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_refusal_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(b"not torch's")
    (tmp_path / "old" / "config.json").write_text("{}")
    assert main(["import", str(tmp_path / "old"), "--out", str(tmp_path / "new")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "is not a file that torch.save wrote" in printed.err
    assert not (tmp_path / "new").exists()


def test_the_folder_that_one_stands_in_may_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", ".", "--out", "new"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def made_old(folder: Path) -> Path:
    """A model's folder as it was before safetensors."""
    for path in [*folder.rglob("model.safetensors")]:
        torch.save(load_file(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    (folder / "bertsmith.json").unlink()
    return folder


def altered(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_note_says_that_vectors_can_t_be_made(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a last layer with an activation of somebody's own."""
    config = load_encoder(desk / "model").config
    projection = torch.nn.Linear(16, 4)
    write_sentence_folder(desk / "model", config, "mean", 32, normalise=True, projection=projection)
    old = made_old(desk / "model")
    assert main(["import", str(old), "--out", "whole"]) == 0
    assert "can't be used" not in capsys.readouterr().out
    altered(old / "2_Dense" / "config.json", activation_function="somebody.Tanh")
    assert main(["import", str(old), "--out", "new"]) == 0
    note = (
        "Note: the folder can't be used for vectors of texts: new/2_Dense/config.json: activation_function is"
    )
    assert note in capsys.readouterr().out
    assert (desk / "new" / "model.safetensors").is_file()


def test_a_note_says_that_a_head_can_t_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = made_old(save_fine_tuned(tmp_path / "old", "classification"))
    assert main(["import", str(old), "--out", str(tmp_path / "whole")]) == 0
    assert "can't be used" not in capsys.readouterr().out
    altered(old / "config.json", id2label={"0": "only"}, label2id={"only": 0})
    assert main(["import", str(old), "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert "Note: the folder can't be used for predictions: " in printed
    assert "id2label 1, label2id 1" in printed
