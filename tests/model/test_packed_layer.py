"""Packed weights multiply as plain ones do, activation included, in a pickled copy too."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Activation, Bert
from bertsmith.model.config import make_config
from bertsmith.model.packed_layer import PackedLayer, PackedLinear, can_pack, packed

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 16, 33])
@pytest.mark.parametrize("activation", [None, "gelu", "gelu_new", "relu"])
def test_it_is_the_product_and_the_activation(activation: str | None, rows: int) -> None:
    linear, x = nn.Linear(24, 40), torch.randn(rows, 24)
    after = Activation(activation) if activation else nn.Identity()
    expected = after.double()(linear.double()(x.double()))
    linear.float()
    plain = PackedLinear(linear, activation, torch.float32)
    for module in (plain, pickle.loads(pickle.dumps(plain))):
        assert_close(module(x).double(), expected, rtol=0, atol=2e-6)
    if can_pack(torch.bfloat16):
        half = PackedLinear(linear, activation, torch.bfloat16)(x)
        assert half.dtype == torch.bfloat16
        assert_close(half.double(), expected, rtol=0, atol=0.03)


@torch.inference_mode()
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_an_encoder_gives_the_same(activation: str) -> None:
    config = make_config({"vocab_size": 50, "model_type": "bert", "hidden_act": activation, **SHAPE}, "test")
    encoder = Bert(config).eval()
    ids = np.random.default_rng(0).integers(0, 50, 300)
    batch = PackedBatch.pack(ids, np.zeros_like(ids), np.array([100, 100, 60, 40]))
    expected = encoder(batch)
    assert packed(encoder) is encoder
    assert sum(isinstance(layer, PackedLayer) for layer in encoder.layers) == 2
    assert_close(encoder(batch), expected, rtol=0, atol=1e-5)
    some = torch.tensor([299, 5, 100])
    assert_close(encoder(batch, some), expected[some], rtol=0, atol=1e-5)
    assert_close(pickle.loads(pickle.dumps(encoder))(batch), expected, rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("lengths", [[5], [5, 5, 2], [300], [7, 300, 1]])
@pytest.mark.parametrize("pack", [packed, lambda encoder: encoder])
def test_spare_tokens_change_nothing(lengths: list[int], pack: Callable[[Bert], Bert]) -> None:
    shape = SHAPE | {"max_position_embeddings": 300}
    encoder = pack(Bert(make_config({"vocab_size": 50, "model_type": "bert", **shape}, "test")).eval())
    ids = np.random.default_rng(0).integers(1, 50, sum(lengths))
    batch, filled = (
        PackedBatch.pack(ids, np.zeros_like(ids), np.array(lengths), multiple=multiple)
        for multiple in (1, 16)
    )
    assert filled.spare > 0
    rows = torch.tensor([0, len(ids) - 1])
    assert_close(encoder(filled), encoder(batch), rtol=0, atol=1e-5)
    assert_close(encoder(filled, rows), encoder(batch, rows), rtol=0, atol=1e-5)
    states = zip(encoder.all_hidden_states(filled), encoder.all_hidden_states(batch), strict=True)
    for found, expected in states:
        assert_close(found, expected, rtol=0, atol=1e-5)
