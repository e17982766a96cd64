"""`bertsmith predict` as a user runs it: what it may write to."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.cli.main import main
from bertsmith.files import write_jsonl
from bertsmith.inference.predictor import Predictor
from bertsmith.model.cpu.kernels import has_kernels
from served_models import inputs_of, save_fine_tuned


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
        ("texts.jsonl/a.jsonl", False, "cannot be written"),
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


@pytest.mark.skipif(not has_kernels(), reason="int8 needs the compiled kernels")
def test_evaluate_tells_what_int8_would_lose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = save_fine_tuned(tmp_path / "model", "classification"), tmp_path / "dev.jsonl"
    texts = inputs_of("classification", 40)
    answers = {
        dtype: [answer["label"] for answer in Predictor.load(folder, compute_dtype=dtype).predict(texts)]
        for dtype in (torch.int8, torch.float32)
    }
    labels = answers[torch.float32][:20] + ["no"] * 20
    write_jsonl([{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)], data)
    words = ["evaluate", str(folder), str(data), "--compute-dtype", "int8"]
    assert main([*words, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    accuracies = [measured[name]["accuracy"] for name in ("model_in_int8", "model")]
    assert accuracies == [
        np.mean([a == b for a, b in zip(given, labels, strict=True)]) for given in answers.values()
    ]
    same = sum(a == b for a, b in zip(*answers.values(), strict=True))
    assert measured["same_answers"] == same
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the model in int8" in shown
    assert f"{same} of 40 answers in int8 are those in float32" in shown
    assert "products are in int8" in shown
