"""Attention weights: those of transformers, which writes them down in its plain implementation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from model_parity import assert_same, random_sample, twin
from test_model_parity import DISENTANGLED, SHAPES, deberta, their_model
from test_modern_parity import MODERN, modern

from bertsmith.inference.explaining.attribution import attention_weights


def assert_same_weights(theirs: Any, folder: Path, tokens: int) -> None:
    ours = twin(theirs, folder)
    sample = random_sample(ours.config, seed=1, lengths=(tokens,))
    expected = torch.stack(theirs(**sample.padded, output_attentions=True).attentions)[:, 0]
    found = attention_weights(ours.encoder, sample.packed)
    layers, heads = ours.config.num_hidden_layers, ours.config.num_attention_heads
    assert found.shape == (layers, heads, tokens, tokens)
    assert_same(found, expected, "attention weights")
    assert float(found.max()) > 2 / tokens  # not uniform: a wrong order of heads or tokens would show


@pytest.mark.parametrize("shape", ["two layers", "odd sizes", "heads of one"])
@pytest.mark.parametrize("family", ["bert", "jina_bert", "roberta", "distilbert", "mpnet"])
def test_they_are_those_of_transformers(family: str, shape: str, tmp_path: Path) -> None:
    assert_same_weights(their_model(family, SHAPES[shape]), tmp_path / "model", 23)


@pytest.mark.parametrize("name", ["as the third version", "c2p alone", "keys of its own"])
def test_they_are_disentangled(name: str, tmp_path: Path) -> None:
    theirs = deberta(**DISENTANGLED[name])
    assert_same_weights(theirs, tmp_path / "model", 23)


@pytest.mark.parametrize("shape", ["every third layer global", "odd window", "window of one token"])
def test_they_have_rotary_positions_and_windows(shape: str, tmp_path: Path) -> None:
    assert_same_weights(modern(MODERN[shape]), tmp_path / "model", 21)
