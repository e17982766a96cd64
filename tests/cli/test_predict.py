"""`bertsmith predict` as a user runs it: what it may write to."""

from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.inference.predictor import Predictor


@pytest.mark.parametrize(
    ("out", "overwrite", "why"),
    [
        (
            "old.jsonl",
            False,
            "old.jsonl already exists. Choose another --out, or replace it with --overwrite.",
        ),
        ("texts.jsonl", True, "This command reads texts.jsonl, and would overwrite it."),
        ("model/model.safetensors", True, "This command reads model/model.safetensors"),
        ("nowhere/a.jsonl", False, "cannot be written"),
        ("model", False, "model is a folder"),
        ("", False, "--out is empty"),
    ],
)
def test_nothing_is_lost_and_no_model_opened_to_find_that_out(
    desk: Path,
    out: str,
    overwrite: bool,
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Predictor, "load", lambda *_, **__: pytest.fail("a model was opened"))
    (desk / "old.jsonl").write_text("old")
    before = {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()}
    words = ["predict", "model", "texts.jsonl", "--out", out, *(["--overwrite"] if overwrite else [])]
    assert main(words) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()} == before
