"""Products in int8: to the bit what NumPy computes, and as few in int16 as the hidden states ask for."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bertsmith.arrays import Float32s
from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.inference import choose_products, prepare_for_inference
from bertsmith.model.cpu.kernel_layer import KernelLayer, as_panels, quantise_outputs
from bertsmith.model.layers.layer import Layer


def by_numpy(x: Float32s, weight: Float32s, bias: Float32s) -> Float32s:
    """Whole numbers in int64, and what C rounds once in float64, which holds it exactly."""
    step = (np.abs(weight).max(1) / np.float32(127)).astype(np.float32)
    codes = np.rint(weight / step[:, None]).astype(np.int64)
    low, high = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
    share = (np.float32(253) / (high - low))[:, None].astype(np.float64)
    zero = 1 - np.rint(low[:, None] * share)
    rows = np.rint(x * share + zero)
    assert rows.min() >= 1
    assert rows.max() <= 254
    sums = (rows - zero).astype(np.int64) @ codes.T
    unit = step * ((high - low) / np.float32(253))[:, None]
    return (sums.astype(np.float32).astype(np.float64) * unit + bias).astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 16, 16), (7, 48, 32), (13, 384, 96), (29, 1536, 80), (6, 208, 64)]
)
def test_every_library_gives_numpy_s_product_to_the_bit(
    rows: int, inputs: int, outputs: int, inference_way: str
) -> None:
    """Rows of many sizes, of one sign, and with one value far from the others; in any company."""
    if inference_way == "torch":
        pytest.skip("needs a library")
    generator = np.random.default_rng(rows)
    weight = generator.standard_normal((outputs, inputs)).astype(np.float32)
    x = (generator.standard_normal((rows, inputs)) * 10.0 ** generator.integers(-6, 6, (rows, 1))).astype(
        np.float32
    )
    x[0], x[-1, 3] = np.abs(x[0]), 1e4
    bias = generator.standard_normal(outputs).astype(np.float32)
    codes, scales = quantise_outputs(torch.from_numpy(weight))
    panels, sums = as_panels(codes.view(torch.int32)), codes.sum(1, dtype=torch.int32)
    addresses = panels.data_ptr(), scales.data_ptr(), bias.ctypes.data, sums.data_ptr()
    linear = kernels.LinearStruct(inputs, outputs, *addresses)
    library = kernels.load_library(inference_way)
    for threads in (1, 3):
        found = np.empty((rows, outputs), np.float32)
        assert library.product(linear, x.ctypes.data, rows, threads, found.ctypes.data) == 0
        np.testing.assert_array_equal(found, by_numpy(x, weight, bias))
    alone = np.empty((1, outputs), np.float32)
    library.product(linear, x[-1:].ctypes.data, 1, 1, alone.ctypes.data)
    np.testing.assert_array_equal(alone[0], found[-1])


def an_encoder(outlier: float = 1) -> tuple[Bert, PackedBatch]:
    """One of whose products the inputs have a value that outgrows the others by so much, and a batch."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 3}
    encoder = Bert(make_config({"model_type": "bert", "vocab_size": 200, **sizes}, "test")).eval()
    with torch.no_grad():
        for parameter in encoder.layers.parameters():
            parameter += torch.randn_like(parameter) * (0.15 if parameter.ndim == 2 else 0.05)
        layer = encoder.layers[1]
        assert isinstance(layer, Layer)
        layer.feed_forward.up.weight[5] *= outlier
        layer.feed_forward.down.weight[:, 5] /= outlier
    lengths = [20, 9, 61, 3]
    ids = np.random.default_rng(0).integers(0, 200, sum(lengths))
    return encoder, PackedBatch.pack(ids, np.zeros_like(ids), np.array(lengths))


@torch.inference_mode()
def test_the_choice_foresees_what_the_kernels_change(inference_way: str) -> None:
    """All in int8, and with one product in int16."""
    if inference_way == "torch":
        pytest.skip("needs a library")
    encoder, batch = an_encoder()
    exact = encoder(batch).split(batch.lengths)
    choice = choose_products(encoder, batch, least=0.5)
    assert (choice.in_int16, choice.products, choice.texts) == ((), 12, 4)
    encoder.int8_choice = choice
    states = prepare_for_inference(encoder, torch.int8)(batch).split(batch.lengths)
    pairs = zip(exact, states, strict=True)
    cosine = min(float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) for a, b in pairs)
    assert 0.99 < cosine < 1
    assert cosine == pytest.approx(choice.cosine, abs=1e-5)


@torch.inference_mode()
def test_a_product_that_int8_changes_too_much_stays_in_int16(inference_way: str) -> None:
    if inference_way == "torch":
        pytest.skip("needs a library")
    encoder, batch = an_encoder(outlier=300)
    exact = encoder(batch).split(batch.lengths)
    without = choose_products(encoder, batch, least=0.5)
    encoder.int8_choice = choose_products(encoder, batch, least=0.999)
    assert without.cosine < 0.99 < encoder.int8_choice.cosine
    assert encoder.int8_choice.in_int16 == ("layers.1.feed_forward.down",)
    states = prepare_for_inference(encoder, torch.int8)(batch).split(batch.lengths)
    for one, other in zip(exact, states, strict=True):
        assert float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > 0.99
    layers = [layer for layer in encoder.layers if isinstance(layer, KernelLayer)]
    in_int8 = {(place, name) for place, layer in enumerate(layers) for name in layer.linears}
    in_int8 -= {(place, name) for place, name in in_int8 if layers[place].linears[name][5] is None}
    assert in_int8 == {(place, name) for place in range(3) for name in layers[0].linears} - {(1, "down")}


def test_choosing_leaves_the_encoder_as_it_was() -> None:
    encoder, batch = an_encoder()
    before = deepcopy(encoder.state_dict())
    choose_products(encoder, batch, least=0.9999)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert not any(module._forward_hooks for module in encoder.modules() if isinstance(module, nn.Linear))
