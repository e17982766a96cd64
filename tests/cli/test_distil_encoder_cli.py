"""`bertsmith distil --corpus` as a user runs it."""

import random
from pathlib import Path

import pytest

from bertsmith.cli.main import main
from bertsmith.model.checkpoint import load_encoder
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.training import machine

QUICK = ["data.sequence_length=16", "data.batch_size=8", "hardware.threads=1", "hardware.precision=float32"]


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)


@pytest.fixture
def corpus(desk: Path) -> Path:
    """Of sixty documents of one sentence."""
    draw = random.Random(0)
    (desk / "text").mkdir()
    for number in range(60):
        words = draw.choices(["red", "blue", "cat", "dog", "runs"], k=12)
        (desk / "text" / f"{number}.txt").write_text(f"{' '.join(words)}.\n")
    settings = CorpusSettings(heldout=0.2, near_duplicates=False)
    build_corpus([str(desk / "text")], desk / "corpus", settings=settings, workers=1)
    return desk / "corpus"


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """On standard error, in one line."""
    return " ".join(capsys.readouterr().err.split())


def test_an_encoder_is_distilled_and_goes_on(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["distil", "model", "--corpus", "corpus", "--layers", "1", "--out", "small", "width=8", *QUICK]
    assert main([*words, "steps=3"]) == 0
    shown = capsys.readouterr().out
    assert "hidden states (1 - cosine)" in shown and "relations of self-attention" in shown
    assert "small/report.html" in shown
    assert load_encoder(corpus.parent / "small" / "model").config.hidden_size == 8
    assert main([*words, "steps=3"]) == 2
    assert "already holds a run. Go on with it by --resume" in said(capsys)
    assert main([*words, "steps=3", "--resume"]) == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["model", "--corpus", "nowhere", "steps=2"], "nowhere is not a folder"),
        (["nomodel", "--corpus", "corpus", "steps=2"], "There is no model 'nomodel'"),
        (["model", "--corpus", "corpus"], "exactly one of steps and hours"),
        (["model", "--corpus", "corpus", "steps=2", "--texts", "texts.jsonl"], "--texts doesn't go with it"),
        (["model", "--corpus", "corpus", "steps=2", "--student", "model"], "--student doesn't go with it"),
        (["model", "--corpus", "corpus", "steps=2", "--layers", "2"], "can't be cut from 1"),
        (["model", "--corpus", "corpus", "steps=2", "--layers", "1,2"], "there is no layer 2 to begin with"),
        (["model", "--corpus", "corpus", "steps=2", "width=9"], "choose a multiple of 8"),
        (["model", "--corpus", "corpus", "steps=2", "witdh=8"], "Did you mean 'width'?"),
        (["model", "--corpus", "corpus", "steps=2", "more"], "Expected dotted.key=value, found 'more'"),
        (["model", "--corpus", "corpus", "steps=2", "data.sequence_length=64"], "positions for 32 tokens"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(
    words: list[str], why: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [word for word in QUICK if not any(word.split("=")[0] in each for each in words)]
    assert main(["distil", *words, "--out", "small", *quick]) == 2
    found = said(capsys)
    assert why in found and "Traceback" not in found
    assert not (corpus.parent / "small").exists()


def test_without_a_corpus_an_encoder_is_told_of_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distil", "model", "--texts", "texts.jsonl", "--out", "small"]) == 2
    assert "fine-tuned" in said(capsys)
