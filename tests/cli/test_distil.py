"""`bertsmith distil` as a user runs it."""

import json
from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.training import machine

WORDS = ["red cat", "blue dog runs", "red dog", "blue cat runs", "cat", "dog", "red runs", "blue"]


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """On standard error, in one line."""
    return " ".join(capsys.readouterr().err.split())


def write_answers(path: Path) -> Path:
    """What something says of forty texts, as predict writes it."""
    rows = []
    for number in range(40):
        text = f"{WORDS[number % 8]} {WORDS[number // 8]}"
        red = 0.9 if "red" in text else 0.2
        label = "warm" if red > 0.5 else "cold"
        rows.append({"text": text, "label": label, "probabilities": {"cold": 1 - red, "warm": red}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_answers_in_a_file_become_a_model(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_answers(desk / "answers.jsonl")
    words = ["distil", "answers.jsonl", "--task", "classification", "--student", "model", "--out", "small"]
    quick = ["max_length=16", "epochs=2", "batch_size=8", "hardware.threads=1"]
    assert main([*words, *quick]) == 0
    shown = capsys.readouterr().out
    assert "the student" in shown and "most frequent" not in shown and "small/report.html" in shown
    assert main(["predict", "small/model", "texts.jsonl", "--out", "said.jsonl"]) == 0
    first = json.loads((desk / "said.jsonl").read_text().splitlines()[0])
    assert set(first["probabilities"]) == {"cold", "warm"}
    assert main([*words, *quick]) == 2
    assert "already holds a run. Go on with it by --resume" in said(capsys)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["model", "--texts", "texts.jsonl"], "is not fine-tuned but a model for embedding"),
        (["nowhere", "--texts", "texts.jsonl"], "There is no model 'nowhere'"),
        (
            ["nowhere.jsonl", "--task", "classification"],
            "nowhere.jsonl does not exist. Name a file of answers",
        ),
        (["answers.jsonl", "--student", "model"], "say with --task what they answer"),
        (["model", "--static", "--texts", "texts.jsonl", "--scheme", "iob2"], "Leave --scheme out"),
        (["model", "--static", "--texts", "texts.jsonl", "--text-pair", "b"], "Leave --text-pair out"),
        (["answers.jsonl", "--task", "classification"], "name a model with --student"),
        (["answers.jsonl", "model", "--task", "classification"], "teaches alone"),
        (
            [
                "answers.jsonl",
                "--task=classification",
                "--student=model",
                "--texts=texts.jsonl",
                "max_length=16",
            ],
            "leave --texts out",
        ),
        (["answers.jsonl", "--task", "classification", "--layers", "x"], "numbers as in 1,3,6; found 'x'"),
        (["answers.jsonl", "--task", "clasification", "--student", "model"], "clasification"),
        (["answers.jsonl", "--task", "classification", "--student", "model", "temprature=1"], "temperature"),
        (
            [
                "answers.jsonl",
                "--task",
                "classification",
                "--student",
                "model",
                "max_length=16",
                "--layers",
                "2",
            ],
            "layers = 2, but the model to begin with has 1",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(
    words: list[str], why: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_answers(desk / "answers.jsonl")
    assert main(["distil", *words, "--out", "small"]) == 2
    found = said(capsys)
    assert why in found and "Traceback" not in found
    assert not (desk / "small").exists()


def test_a_probability_that_is_none_is_named_with_its_line(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_answers(desk / "answers.jsonl").read_text().splitlines()
    rows[6] = rows[6].replace('"warm": 0.', '"warm": 7.')
    (desk / "answers.jsonl").write_text("\n".join(rows) + "\n")
    words = ["distil", "answers.jsonl", "--task", "classification", "--student", "model", "--out", "small"]
    assert main(words) == 2
    assert "answers.jsonl, line 7: expected the probability of each of the 2 labels" in said(capsys)
