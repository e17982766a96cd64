"""pretraining_quality.py: sides in turns on a small corpus, and what is read from their curves."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from bench_runs import RunScript

import accuracy_plot
import plain_loop
import pretraining_quality
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.model.config import make_config
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training import machine
from bertsmith.training.log import RunLog
from pretraining_sides import OURS, PLAIN, Plain, shape_beside, weights

pytestmark = pytest.mark.thorough


@pytest.fixture
def store(small_corpus: Corpus, tiny_model: Path, tmp_path: Path) -> Path:
    tokenize_corpus(small_corpus, Tokenizer.load(tiny_model), tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def compare(
    run_script: RunScript, store: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Runs sides for so many minutes, with two turns each; returns the folder where turns are kept."""
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1.0)  # takes longer than the steps
    monkeypatch.setattr(pretraining_quality, "KEPT", tmp_path / "kept")
    text = ("--store", str(store), "--tokenizer", str(tiny_model), "--reported", str(store / "train"))

    def run(minutes: float, *sides: str) -> Path:
        options = ("--minutes", str(minutes), "--points", "2", "--rows", *sides)
        run_script(pretraining_quality, *options, *text)
        return tmp_path / "kept" / "pretraining_quality"

    return run


def read_curve(kept: Path, side: str) -> list[dict[str, Any]]:
    (file,) = kept.glob(f"{side}-*/curve.json")
    curve: list[dict[str, Any]] = json.loads(file.read_text())
    return curve


@pytest.mark.slow
def test_a_plain_loop_goes_on_and_is_kept(
    compare: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = read_curve(compare(0.05, "modernbert-tuned"), "modernbert-tuned")
    assert 1.5 <= first["seconds"] < 3 <= last["seconds"]
    assert 0 < first["tokens"] < last["tokens"]
    assert (first["finished"], last["finished"]) == (False, True)
    (*_, row) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| mod"))

    def no_more(request: Any) -> Any:
        raise AssertionError("what is kept is not trained again")

    monkeypatch.setattr(pretraining_quality, "train_and_measure", no_more)
    compare(0.05, "modernbert-tuned")
    assert row in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "nomic_bert", "modernbert"])
def test_ours_is_interrupted_at_the_end_of_a_turn_and_goes_on(
    compare: Callable[..., Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    settings = [f"model.{name}={value}" for name, value in shape.items()]
    settings += [f"model.model_type={family}", f"model.size={'base' if family == 'modernbert' else 'tiny'}"]
    settings += [f"data.next_sentence={'true' if family == 'bert' else 'false'}", "evaluation.tokens=500"]
    monkeypatch.setitem(OURS, "ours", tuple(settings))
    kept = compare(0.2, "ours")
    first, last = read_curve(kept, "ours")
    assert 6 <= first["seconds"] < 12 <= last["seconds"]
    assert 0 < first["tokens"] < last["tokens"]
    assert first["accuracy"] != last["accuracy"]
    (run,) = kept.glob("ours-*/run")
    starts = [record["step"] for record in RunLog.read(run) if record["kind"] == "start"]
    assert len(starts) == 2
    assert starts[0] == 0 < starts[1]


def test_a_curve_reaches_an_accuracy_between_two_points() -> None:
    curve = [(1.0, 0.04), (2.0, 0.03), (4.0, 0.11)]
    assert pretraining_quality.reached(curve, 0.02) == pytest.approx(0.5)
    assert pretraining_quality.reached(curve, 0.05) == pytest.approx(2.5)
    assert pretraining_quality.reached(curve, 0.12) is None


@pytest.mark.parametrize("side", sorted(PLAIN))
@pytest.mark.parametrize(
    "ours", [{"model_type": "bert"}, {"model_type": "modernbert", "num_hidden_layers": 3}]
)
def test_a_plain_loop_has_as_many_weights_as_ours(side: str, ours: dict[str, Any]) -> None:
    values = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256}
    config = make_config({"vocab_size": 1000, "pad_token_id": 0, **values, **ours}, "test")
    found = shape_beside(config, PLAIN[side])
    assert (found.num_hidden_layers, found.hidden_size) == (config.num_hidden_layers, 64)
    unit = 8 * 64 * found.num_hidden_layers * (3 if "modern" in side else 2)
    assert abs(weights(found) - weights(config)) <= unit / 2


def test_the_rate_rises_stays_and_falls() -> None:
    plain = Plain("bert", 1.0, warmup=0.1, stable=0.5)
    rates = [plain.rate(progress) for progress in (0, 0.05, 0.1, 0.6, 0.8, 1)]
    assert rates == pytest.approx([0, 0.5, 1, 1, 0.5, 0])


def test_batches_go_on_where_they_were(store: Path, tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    settings = Plain("bert", 1.0, masked=0.3, batch=4)
    batches = plain_loop.PaddedBatches(TokenStore.open(store / "train", tokenizer), tokenizer, settings)
    first, second, third = islice(batches.after(Cursor(), 0), 3)
    (again,) = islice(batches.after(second[2], 2), 1)
    for name, values in third[0].items():
        assert (again[0][name] == values).all()
    assert (first[0]["input_ids"][:, 0] != second[0]["input_ids"][:, 0]).sum() == 0  # [CLS]
    assert third[1] == int(third[0]["attention_mask"].sum())


def test_masked_tokens_are_predicted_and_no_others(store: Path, tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    settings = Plain("modernbert", 1.0, masked=0.3, batch=32)
    batches = plain_loop.PaddedBatches(TokenStore.open(store / "train", tokenizer), tokenizer, settings)
    ((batch, tokens, _),) = islice(batches.after(Cursor(), 0), 1)
    read, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
    predicted = labels != -100
    assert predicted.sum() / tokens == pytest.approx(0.3, abs=0.03)
    assert not np.isin(labels[predicted], list(tokenizer.special_ids)).any()
    assert (read[predicted] == tokenizer.mask_id).mean() == pytest.approx(0.8, abs=0.05)
    assert not (read[~predicted] == tokenizer.mask_id).any()
    assert set(batch) == {"input_ids", "attention_mask", "labels"}


def test_the_picture_has_every_run() -> None:
    curves = {
        ("ours", 10.0): [(1.0, 0.05), (10.0, 0.2)],
        ("modernbert", 10.0): [(1.0, 0.01), (10.0, 0.1)],
        ("modernbert", 40.0): [(4.0, 0.02), (40.0, 0.15)],
    }
    picture = accuracy_plot.draw(curves, 0.2)
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    for words in ("ours, 10 minutes", "modernbert, 40 minutes", "minutes of training"):
        assert words in picture
    assert picture == accuracy_plot.draw(curves, 0.2)
