"""`bertsmith import` on the command line: one line of result, notes, and exit statuses."""

from pathlib import Path

import pytest

from bertsmith.cli.main import main


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
