"""The page on checking is followed to its end: sound models agree, the pages of `look` are written."""

import re
from pathlib import Path

import pytest
from page import DOCS, Page

from bertsmith.cli.main import main
from bertsmith.inference.checking.check import TOLERANCES
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.golden.records import write_golden
from random_encoder import random_encoder, tokenizer_and_config
from served_models import save_fine_tuned

TEXT = "My card was charged twice"
WORDS = ["my", "card", "was", "charged", "twice", "the", "courier", "never", "came"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page starts from: a classifier of tickets, `minilm` and a table of texts."""
    monkeypatch.chdir(tmp_path)
    save_fine_tuned(tmp_path / "runs/tickets/model", "classification", labels=["billing", "shipping"])
    assert write_golden(tmp_path / "runs/tickets/model") == ""
    random_encoder(tmp_path / "minilm", WORDS)
    write_sentence_folder(tmp_path / "minilm", tokenizer_and_config(WORDS)[1], "mean", 32)
    rows = ["text,label", "The courier never came,shipping", "The card was charged,billing"]
    (tmp_path / "tickets.csv").write_text("\n".join(rows))
    return tmp_path


def test_the_page_checks_models_and_looks_inside(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sentence_transformers", reason="the page compares with it")
    with Page("check.md") as page:
        names = page.follow_all()
    printed = capsys.readouterr().out
    texts = re.findall(r"(\d+) of (\d+) texts agree", printed)
    assert len(texts) >= 3 and all(agree == of for agree, of in texts)
    assert "beside sentence-transformers" in " ".join(printed.split())
    found, (prediction,) = names["found"], Predictor.load("runs/tickets/model").predict([TEXT])
    assert found.target == "shipping"
    assert found.value == pytest.approx(prediction["probabilities"]["shipping"], abs=1e-4)
    assert found.scores.sum() == pytest.approx(found.value - found.baseline_value, abs=1e-3)
    assert names["attention"].weights.shape[0] == 2  # layers
    assert all((desk / name).is_file() for name in ("look.html", "courier.html", "card.html"))


def test_an_altered_file_ends_with_status_2_and_is_named(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = desk / "runs/tickets/model/model.safetensors"
    altered = bytearray(weights.read_bytes())
    altered[-1] ^= 1
    weights.write_bytes(altered)
    assert main(["check", "runs/tickets/model"]) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_the_tolerances_shown_are_those_of_the_code() -> None:
    shown = re.findall(
        r"^\| \[?(float32|int16|float16|bfloat16|int8)\S* .*?\| ([\d.]+) \|", text(), re.MULTILINE
    )
    assert {name: float(number) for name, number in shown} == {
        str(dtype).removeprefix("torch."): tolerance for dtype, tolerance in TOLERANCES.items()
    }


def text() -> str:
    return (DOCS / "check.md").read_text(encoding="utf-8")
