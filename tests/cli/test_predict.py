"""`bertsmith predict` as a user runs it: what it may write to."""

from pathlib import Path
from typing import Any

import pytest

from bertsmith.cli.main import main
from bertsmith.files import write_jsonl
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


@pytest.mark.parametrize("out", ["-", "out.jsonl"])
def test_standard_output_has_the_predictions_and_no_warning_among_them(
    desk: Path, out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told:
        int8_choice = "products are in int8"

        def predict_file(self, path: str, out: str, *_: Any, warn: Any, **__: Any) -> int:
            warn("1 of 2 rows have no text")
            return write_jsonl([{"label": "red"}], out)

    monkeypatch.setattr(Predictor, "load", lambda *_, **__: Told())
    assert main(["predict", "model", "texts.jsonl", "--out", out]) == 0
    printed, said = capsys.readouterr()
    assert "Note: products are in int8" in (said if out == "-" else printed)
    assert "Warning: 1 of 2 rows" in (said if out == "-" else printed)
    assert printed == '{"label": "red"}\n' or out != "-"
