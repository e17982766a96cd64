"""Layers for inference compute what plain ones do, by oneDNN and by the kernels, in a copy too."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.inference.engine import autocasting
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu import kernel_layer, kernels
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.model.cpu.kernel_layer import KernelLayer
from bertsmith.model.cpu.onednn_layer import PackedLayer, PackedLinear, can_pack
from bertsmith.model.layers.elementwise import Activation
from bertsmith.model.layers.layer import Layer

LIBRARY = kernels.load_library.__wrapped__  # without what it keeps
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
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
def test_float16_is_packed_where_the_processor_multiplies_it_and_not_where_it_has_bfloat16_alone() -> None:
    encoder, batch = an_encoder(), batch_of([5, 3])
    expected = encoder(batch)
    with (
        patch.object(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", return_value=True),
        patch.object(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", return_value=False),
    ):
        assert can_pack(torch.bfloat16) and not can_pack(torch.float16)
        prepare_for_inference(encoder, torch.float16)
    with autocasting(encoder, torch.device("cpu"), torch.float16):
        assert_close(encoder(batch).float(), expected, rtol=0, atol=0.02)


@torch.inference_mode()
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_an_encoder_gives_the_same(activation: str, inference_way: str) -> None:
    encoder = an_encoder(hidden_act=activation)
    batch = batch_of([100, 100, 60, 40])
    expected = deepcopy(encoder).double()(batch).float()
    assert prepare_for_inference(encoder) is encoder
    kind = PackedLayer if inference_way == "torch" else KernelLayer
    assert [type(layer) for layer in encoder.layers] == [kind, kind]
    found = encoder(batch)
    assert_close(found, expected, rtol=0, atol=5e-6)
    some = torch.tensor([299, 5, 100])
    assert_close(encoder(batch, some), expected[some], rtol=0, atol=5e-6)
    assert torch.equal(pickle.loads(pickle.dumps(encoder))(batch), found)
    assert torch.equal(deepcopy(encoder)(batch), found)


@torch.inference_mode()
@pytest.mark.parametrize("precision", [torch.float32, torch.int16])
def test_an_encoder_sent_to_another_process_stays_what_it_was(
    precision: torch.dtype, inference_way: str
) -> None:
    """multiprocessing's pickler, as torch changes it, moves tensors into shared memory."""
    if inference_way == "torch" and precision == torch.int16:
        pytest.skip("products in int16 are the kernels'")
    encoder, batch = prepare_for_inference(an_encoder(), precision), batch_of([5, 3])
    found = encoder(batch)
    sent = ForkingPickler.dumps(encoder)
    others = [torch.full((size,), torch.nan) for size in (32, 96, 512, 1024, 1536, 3072) for _ in range(50)]
    assert torch.equal(encoder(batch), found)
    assert torch.equal(ForkingPickler.loads(sent)(batch), found)
    del others  # what would have come to lie where the weights were


@torch.inference_mode()
@pytest.mark.parametrize("pack", [prepare_for_inference, lambda encoder: encoder])
@pytest.mark.parametrize("lengths", [[5], [5, 5, 2], [300], [7, 300, 1]])
def test_padding_changes_nothing(
    lengths: list[int], pack: Callable[[Bert], Bert], inference_way: str
) -> None:
    encoder = pack(an_encoder())
    batch, filled = batch_of(lengths), batch_of(lengths, multiple=16)
    assert filled.padding > 0
    rows = torch.tensor([0, sum(lengths) - 1])
    assert_close(encoder(filled), encoder(batch), rtol=0, atol=1e-5)
    assert_close(encoder(filled, rows), encoder(batch, rows), rtol=0, atol=1e-5)
    states = zip(encoder.all_hidden_states(filled), encoder.all_hidden_states(batch), strict=True)
    for found, expected in states:
        assert_close(found, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heads=st.integers(1, 5),
    wide=st.integers(1, 30),
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=6),
    threads=st.integers(2, 5),
    precision=st.sampled_from([torch.float32, torch.int16]),
    seed=st.integers(0, 2**16),
)
def test_kernels_give_a_sequence_the_same_beside_any_others_on_any_threads(
    kernels_alone: str,
    heads: int,
    wide: int,
    lengths: list[int],
    threads: int,
    precision: torch.dtype,
    seed: int,
) -> None:
    """Of any widths and rows, whatever the tiles, with more threads than as_panels too: to the bit."""
    sizes = {"hidden_size": 16 * heads, "num_attention_heads": heads, "intermediate_size": 16 * wide}
    encoder = an_encoder(seed=seed, **sizes)
    expected = deepcopy(encoder).double()(batch_of(lengths)).float()
    found = prepare_for_inference(encoder, precision)(batch_of(lengths))
    assert_close(found, expected, rtol=0, atol=5e-6 if precision == torch.float32 else 2e-3)
    with patch("torch.get_num_threads", return_value=threads):
        assert torch.equal(encoder(batch_of(lengths)), found)
    alone = batch_of(lengths, only=len(lengths) - 1)
    assert torch.equal(encoder(alone), found[-lengths[-1] :])


@torch.inference_mode()
def test_kernels_sum_as_exactly_as_torch(kernels_alone: str) -> None:
    """Sums of 1,536 products, whose rounding grows with their number where it isn't bounded."""
    encoder = an_encoder(hidden_size=384, num_attention_heads=12, intermediate_size=1536)
    batch = batch_of([90])
    expected = deepcopy(encoder).double()(batch)
    of_torch = rms(encoder(batch) - expected)
    assert rms(prepare_for_inference(encoder)(batch) - expected) < 2 * of_torch


@torch.inference_mode()
@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 288, "intermediate_size": 272}])
def test_products_in_int16_are_those_of_rounded_states_and_weights(
    sizes: dict[str, int], kernels_alone: str
) -> None:
    """As the definition has it, in double precision."""
    encoder = an_encoder(num_hidden_layers=1, **sizes)
    layer = encoder.layers[0]
    batch, states = batch_of([40, 7]), torch.randn(47, encoder.config.hidden_size)
    exact = deepcopy(layer).double()(states.double(), batch)
    rounded = deepcopy(layer).double()
    for module in rounded.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(rounded_weight(module.weight))
            module.register_forward_pre_hook(lambda _, given: (rounded_states(given[0]),))
    expected = rounded(states.double(), batch)
    found = KernelLayer(layer, torch.int16)(states, batch)
    # In float32 some half of a step is a little more or less, and rounded to the other side.
    assert 4 * rms(found - expected) < rms(exact - expected) < 3e-4


def test_codes_of_weights_leave_room_for_the_largest_sum() -> None:
    """Of each group, rounded up or down: times the largest code of a state it is an int32."""
    torch.manual_seed(0)
    of_one_size = torch.rand(200, 1) * torch.ones(1, 272)
    nearly = of_one_size + torch.rand(200, 272) * 1e-4
    for weight in (torch.randn(200, 272), torch.rand(200, 272), of_one_size, nearly):
        codes, scales = kernel_layer._quantise(weight)
        assert max(int(each.int().abs().sum(1).max()) for each in codes.split(128, 1)) * 11585 < 2**31
        assert_close(codes * scales.T.repeat_interleave(128, 1)[:, :272], weight, rtol=0, atol=1e-3)


@torch.inference_mode()
def test_no_sum_in_int16_is_too_large(kernels_alone: str) -> None:
    """States and weights at their largest, nearly all of one sign: the codes' sums fill an int32."""
    encoder = an_encoder(hidden_size=256, num_hidden_layers=1)
    layer = encoder.layers[0]
    assert isinstance(layer, Layer)
    layer.attention_norm.weight.zero_()
    layer.attention_norm.bias.fill_(-1)
    layer.feed_forward.up.weight.fill_(-3)
    layer.feed_forward.up.weight[:, 200] = 2.9  # the other groups have another scale
    layer.feed_forward.down.weight.fill_(0.5)
    layer.feed_forward.down.weight[1:].zero_()
    batch = batch_of([5])
    expected = deepcopy(encoder).double()(batch).float()
    assert_close(prepare_for_inference(encoder, torch.int16)(batch), expected, rtol=0, atol=2e-3)


@torch.inference_mode()
def test_states_of_zero_are_codes_of_zero(kernels_alone: str) -> None:
    encoder = an_encoder(num_hidden_layers=1)
    layer = encoder.layers[0]
    assert isinstance(layer, Layer)
    layer.feed_forward.up.weight.zero_()
    layer.feed_forward.up.bias.fill_(-20)  # whose GELU is 0
    batch = batch_of([5])
    expected = deepcopy(encoder).double()(batch).float()
    assert_close(prepare_for_inference(encoder, torch.int16)(batch), expected, rtol=0, atol=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("precision", [torch.float32, torch.int16])
def test_what_is_no_number_stays_none(precision: torch.dtype, kernels_alone: str) -> None:
    """Of infinite states, too; a sequence's own."""
    encoder = prepare_for_inference(an_encoder(num_hidden_layers=1), precision)
    for spoilt in (torch.nan, -torch.nan, torch.inf, -torch.inf):
        states = torch.randn(4, 32)
        states[1, 3] = spoilt
        found = encoder.layers[0](states, batch_of([1, 1, 2]))
        assert found.isnan().any(1).tolist() == [False, True, False, False]
    for spoilt in (torch.nan, torch.inf):
        weights = an_encoder(num_hidden_layers=1)
        weights.layers[0].feed_forward.down.weight[3, 5] = spoilt
        assert prepare_for_inference(weights, precision)(batch_of([4])).isnan().all()
    for large in (1e20, 1e30):  # finite, but their variance is not
        weights = an_encoder(num_hidden_layers=1)
        weights.layers[0].feed_forward.down.weight.mul_(large)
        assert prepare_for_inference(weights, precision)(batch_of([4])).isnan().all()


@torch.inference_mode()
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_kernels_activate_as_torch_does_anywhere(activation: str, kernels_alone: str) -> None:
    """From far below zero to far above, and where a value is none."""
    encoder = an_encoder(hidden_act=activation, num_hidden_layers=1)
    layer = encoder.layers[0]
    assert isinstance(layer, Layer)
    up, down = layer.feed_forward.up, layer.feed_forward.down
    up.weight.zero_()
    up.bias.copy_(torch.cat([torch.linspace(-12, 12, 90), torch.tensor([-1e4, -1e9, -1e30, 0, 1e-30, 50])]))
    down.weight.normal_(0, 0.1)
    batch = batch_of([4])
    spoilt = deepcopy(encoder)
    expected = deepcopy(encoder).double()(batch).float()
    assert_close(prepare_for_inference(encoder)(batch), expected, rtol=0, atol=5e-6)
    spoilt.layers[0].feed_forward.up.bias[7] = torch.nan
    assert prepare_for_inference(spoilt)(batch).isnan().all()
    states = torch.zeros(4, 32)
    states[1] = torch.nan
    assert encoder.layers[0](states, batch_of([1, 1, 2])).isnan().any(1).tolist() == [
        False,
        True,
        False,
        False,
    ]


@torch.inference_mode()
def test_kernels_refuse_rows_that_the_batch_does_not_have(kernels_alone: str) -> None:
    encoder = prepare_for_inference(an_encoder())
    with pytest.raises(ValueError, match=r"expected \(N, 32\) as in the batch, found \(4, 32\)"):
        encoder.layers[0](torch.zeros(4, 32), batch_of([5]))
    encoder(batch_of([5]))


def test_a_copy_for_kernels_says_so_where_there_are_none(kernels_alone: str) -> None:
    encoder = prepare_for_inference(an_encoder())
    copy = pickle.dumps(encoder)
    with (
        patch.object(kernels, "load_library", return_value=None),
        pytest.raises(ModelError, match="missing here"),
    ):
        pickle.loads(copy)
    encoder(batch_of([5]))


def test_a_library_of_another_version_is_none(kernels_alone: str) -> None:
    with patch("ctypes.sizeof", return_value=400):
        assert LIBRARY(kernels_alone) is None
    assert LIBRARY(kernels_alone) is not None
    prepare_for_inference(an_encoder())(batch_of([5]))


@pytest.mark.parametrize("sizes", [{"hidden_size": 24}, {"intermediate_size": 40}])
def test_other_sizes_are_left_to_onednn(sizes: dict[str, int]) -> None:
    assert not any(
        isinstance(layer, KernelLayer) for layer in prepare_for_inference(an_encoder(**sizes)).layers
    )


@pytest.fixture
def kernels_alone(inference_way: str) -> str:
    """One of the libraries."""
    if inference_way == "torch":
        pytest.skip("needs a library")
    return inference_way


def an_encoder(seed: int = 0, **changes: Any) -> Bert:
    """Two layers, whose biases and norms aren't those that training begins with."""
    torch.manual_seed(seed)
    values = {"vocab_size": 50, "model_type": "bert", "max_position_embeddings": 300, **SHAPE, **changes}
    encoder = Bert(make_config(values, "test")).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += torch.randn_like(parameter) * 0.05
    return encoder


def batch_of(lengths: list[int], multiple: int = 1, only: int | None = None) -> PackedBatch:
    """The same tokens whatever the multiple; `only` one of the sequences."""
    ids = np.random.default_rng(0).integers(0, 50, sum(lengths))
    if only is not None:
        first = sum(lengths[:only])
        ids, lengths = ids[first : first + lengths[only]], [lengths[only]]
    return PackedBatch.pack(ids, np.zeros_like(ids), np.array(lengths), multiple=multiple)


def rounded_weight(weight: torch.Tensor) -> torch.Tensor:
    """(O, I): of each 128 inputs as finely as int16 and a sum of 128 products in int32 allow."""
    groups = weight.float().split(128, dim=1)  # else halves of a step would be other ones
    room = [(((2**31 - 1) // 11585 - 66) / each.abs().sum(1), 32767 / each.abs().amax(1)) for each in groups]
    shares = [torch.minimum(*each)[:, None] for each in room]
    return torch.cat([(g * s).round().double() / s for g, s in zip(groups, shares, strict=True)], dim=1)


def rounded_states(states: torch.Tensor) -> torch.Tensor:
    """(N, I): of each 128 values to 1/11585 of the largest."""
    groups = states.split(128, dim=1)
    units = [each.abs().amax(1, keepdim=True) / 11585 for each in groups]
    return torch.cat([(g / u).round() * u for g, u in zip(groups, units, strict=True)], dim=1)


def rms(error: torch.Tensor) -> float:
    return float(error.square().mean().sqrt())
