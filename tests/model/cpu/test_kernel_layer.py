"""Layers of any parts for inference, by the kernels and by oneDNN, give what plain ones do in float64."""

import pickle
from copy import deepcopy
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.model.cpu.kernel_layer import KernelLayer, supports_layer, use_kernels
from bertsmith.model.cpu.onednn_layer import PackedLayer
from bertsmith.model.layers.elementwise import Activation
from bertsmith.model.layers.layer import Layer
from bertsmith.model.layers.rotary import Rotary

NORMS = {
    "layer": lambda size: nn.LayerNorm(size, eps=1e-5),
    "layer without bias": lambda size: nn.LayerNorm(size, eps=1e-5, bias=False),
    "rms": lambda size: nn.RMSNorm(size, eps=1e-6),
    "rms of the smallest epsilon": nn.RMSNorm,
    "none": lambda _: nn.Identity(),
}


def a_layer(
    *,
    heads: int = 2,
    size: int = 16,
    wide: int = 48,
    pre_norm: bool = True,
    gated: bool = True,
    activation: str = "gelu",
    bias: bool = False,
    norms: tuple[str, str] = ("layer", "layer"),
    rotary: str | None = "halves",
    window: int | None = None,
    seed: int = 0,
) -> Layer:
    """With weights that no initialisation has."""
    torch.manual_seed(seed)
    hidden = heads * size
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": wide}
    layer = Layer(make_config({"model_type": "bert", "vocab_size": 9, **sizes}, "test"), 1).eval()
    attention, feed_forward = layer.attention, layer.feed_forward
    layer.pre_norm, feed_forward.gated, attention.window = pre_norm, gated, window
    attention.rotary = None if rotary is None else Rotary(100.0, size, rotary)
    attention.qkv, attention.output = nn.Linear(hidden, 3 * hidden, bias), nn.Linear(hidden, hidden, bias)
    feed_forward.up = nn.Linear(hidden, wide * (1 + gated), bias)
    feed_forward.down = nn.Linear(wide, hidden, bias)
    feed_forward.activation = Activation(activation)
    layer.attention_norm, layer.feed_forward_norm = (NORMS[name](hidden) for name in norms)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return layer


def batch_of(lengths: list[int], multiple: int = 1) -> PackedBatch:
    zeros = np.zeros(sum(lengths), np.int64)
    return PackedBatch.pack(zeros, zeros, np.array(lengths), multiple=multiple)


@pytest.fixture
def kernels_alone(inference_way: str) -> str:
    """One of the libraries."""
    if inference_way == "torch":
        pytest.skip("needs a library")
    return inference_way


@torch.inference_mode()
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heads=st.integers(1, 3),
    size=st.sampled_from([16, 32, 48]),
    wide=st.sampled_from([16, 48, 208]),
    pre_norm=st.booleans(),
    gated=st.booleans(),
    activation=st.sampled_from(["gelu", "gelu_new", "relu", "silu"]),
    bias=st.booleans(),
    norms=st.tuples(*[st.sampled_from(sorted(NORMS))] * 2),
    rotary=st.sampled_from([None, "halves"]),
    window=st.sampled_from([None, 0, 3, 16, 64]),
    biased=st.booleans(),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    precision=st.sampled_from([torch.float32, torch.int16, torch.int8]),
    threads=st.integers(2, 5),
    seed=st.integers(0, 2**16),
)
def test_kernels_compute_a_layer_of_any_parts(
    kernels_alone: str,
    heads: int,
    size: int,
    wide: int,
    pre_norm: bool,
    gated: bool,
    activation: str,
    bias: bool,
    norms: tuple[str, str],
    rotary: str | None,
    window: int | None,
    biased: bool,
    lengths: list[int],
    precision: torch.dtype,
    threads: int,
    seed: int,
) -> None:
    """And a sequence's values are the same on any threads and alone, to the bit; for some rows, too."""
    layer = a_layer(
        heads=heads,
        size=size,
        wide=wide,
        pre_norm=pre_norm,
        gated=gated,
        activation=activation,
        bias=bias,
        norms=norms,
        rotary=rotary,
        window=window,
        seed=seed,
    )
    assert supports_layer(layer, precision)
    batch, states = batch_of(lengths), torch.randn(sum(lengths), heads * size)
    scores = torch.randn(heads, 400) if biased else None  # of up to 150 tokens
    exact = deepcopy(layer).double()(states.double(), batch, None, scores)
    ours = KernelLayer(layer, precision, scores)
    found = ours(states, batch)
    allowed = {torch.float32: 1e-5, torch.int16: 3e-3, torch.int8: 0.2}[precision] * float(exact.abs().max())
    assert float((found - exact).abs().max()) <= allowed
    rows = torch.tensor([len(states) - 1, 0])
    assert torch.equal(ours(states, batch, rows), found[rows])
    with patch("torch.get_num_threads", return_value=threads):
        assert torch.equal(ours(states, batch), found)
    assert torch.equal(ours(states[-lengths[-1] :], batch_of(lengths[-1:])), found[-lengths[-1] :])
    assert torch.equal(pickle.loads(pickle.dumps(ours))(states, batch), found)


@torch.inference_mode()
@pytest.mark.parametrize("types", [("c2p", "p2c"), ("c2p",), ("p2c",)], ids=str)
@pytest.mark.parametrize("shares", [True, False])
def test_they_compute_disentangled_attention(
    types: tuple[str, ...], shares: bool, kernels_alone: str
) -> None:
    """Of sequences longer than the table has distances, in every precision, on any threads and alone."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 96, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
    kinds = {"pos_att_type": types, "share_att_key": shares, "position_buckets": 32, "conv_kernel_size": 3}
    values = {"model_type": "deberta-v2", "vocab_size": 50, "max_position_embeddings": 200} | sizes | kinds
    encoder = Bert(make_config(values, "test")).eval()
    for parameter in encoder.parameters():
        parameter += torch.randn_like(parameter) * 0.1
    lengths = [1, 300, 7, 96, 97, 48]
    ids = np.random.default_rng(0).integers(0, 50, sum(lengths))
    batch = PackedBatch.pack(ids, np.zeros_like(ids), np.array(lengths))
    exact = deepcopy(encoder).double()(batch)
    assert_close(encoder(batch).double(), exact, rtol=0, atol=1e-5 * float(exact.abs().max()))
    for precision, allowed in ((torch.float32, 1e-5), (torch.int16, 3e-3)):
        ours = prepare_for_inference(deepcopy(encoder), precision)
        use_kernels(nn.ModuleDict({"encoder": ours}))
        assert all(isinstance(layer, KernelLayer) for layer in ours.layers)
        found = ours(batch)
        assert_close(found.double(), exact, rtol=0, atol=allowed * float(exact.abs().max()))
        rows = torch.tensor([len(ids) - 1, 0, 200])
        assert torch.equal(ours(batch, rows), found[rows])
        with patch("torch.get_num_threads", return_value=3):
            assert torch.equal(ours(batch), found)
        assert torch.equal(pickle.loads(pickle.dumps(ours))(batch), found)
        alone = PackedBatch.pack(ids[1:301], np.zeros(300, np.int64), np.array([300]))
        assert torch.equal(ours(alone), found[1:301])
    packed = deepcopy(encoder)
    relative = encoder.relative_table()
    for number, layer in enumerate(encoder.layers):
        packed.layers[number] = PackedLayer(layer, torch.float32, relative)  # type: ignore[arg-type]
    assert_close(packed(batch).double(), exact, rtol=0, atol=1e-5 * float(exact.abs().max()))


@torch.inference_mode()
@pytest.mark.parametrize("rotary", [None, "halves", "neighbours"])
@pytest.mark.parametrize("norms", [("none", "rms"), ("layer without bias", "layer"), ("rms", "rms")])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu", "tanh"])
@pytest.mark.parametrize("how", ["pre_norm", "gated", "bias", "all"])
def test_onednn_computes_them_too(
    rotary: str | None, norms: tuple[str, str], activation: str, how: str
) -> None:
    parts = {name: how in (name, "all") for name in ("pre_norm", "gated", "bias")}
    layer = a_layer(rotary=rotary, norms=norms, activation=activation, window=7, **parts)
    batch, states = batch_of([9, 33, 2], multiple=16), torch.randn(48, 32)
    scores = torch.randn(2, 192)
    exact = deepcopy(layer).double()(states.double(), batch, None, scores)[:44]
    ours = PackedLayer(layer, torch.float32, scores)
    assert_close(ours(states, batch)[:44].double(), exact, rtol=0, atol=1e-5)
    assert_close(pickle.loads(pickle.dumps(ours))(states, batch)[:44].double(), exact, rtol=0, atol=1e-5)
    rows = torch.tensor([43, 0, 10])
    assert_close(ours(states, batch, rows).double(), exact[rows], rtol=0, atol=1e-5)


def test_a_layer_is_the_kernel_s_only_if_it_knows_all_of_its_parts(kernels_alone: str) -> None:
    layer = a_layer()
    batch, states = batch_of([5]), torch.zeros(5, 32)
    assert supports_layer(layer, torch.float32)
    assert supports_layer(layer, torch.int16)
    assert supports_layer(layer, torch.int8)
    assert not supports_layer(layer, torch.bfloat16)
    for unknown in (
        a_layer(rotary="neighbours"),
        a_layer(activation="tanh"),
        a_layer(size=24),
        a_layer(wide=40),
        a_layer().half(),
    ):
        assert not supports_layer(unknown, torch.float32)
    layer.attention_norm = nn.LayerNorm(32, elementwise_affine=False)
    assert not supports_layer(layer, torch.float32)
    layer.attention_norm = nn.BatchNorm1d(32)  # type: ignore[assignment]
    assert not supports_layer(layer, torch.float32)
    KernelLayer(a_layer(), torch.float32)(states, batch)


@torch.inference_mode()
@pytest.mark.parametrize("precision", [torch.float32, torch.int16, torch.int8])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_what_is_no_number_stays_none_before_a_norm(
    value: float, precision: torch.dtype, kernels_alone: str
) -> None:
    """Of a state, in the residual stream of its own sequence; 1e30 is one, but not its square."""
    for norms in (("layer", "layer"), ("rms", "rms")):
        ours = KernelLayer(a_layer(norms=norms), precision)
        states = torch.randn(8, 32)
        states[3, 5] = value
        found = ours(states, batch_of([2, 2, 4])).isfinite().all(1)
        assert found.tolist() == [True] * 2 + [False] * 2 + [True] * 4


def modern_encoder(family: str, layers: int) -> Bert:
    """A small one of Ettin's widths or of a Nomic kind, with weights of a trained size and a few outliers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 576}
    encoder = Bert(
        make_config(
            {"model_type": family, "vocab_size": 200, **sizes} | {"num_hidden_layers": layers}, "test"
        )
    )
    with torch.no_grad():
        for parameter in encoder.layers.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.06)
            else:
                parameter += torch.randn_like(parameter) * 0.2
        for layer in encoder.layers:
            assert isinstance(layer, Layer)
            layer.feed_forward.down.weight[7] *= 10  # one value of the stream outgrows the others
    return encoder.eval()


def cosines(one: Tensor, other: Tensor) -> Tensor:
    return nn.functional.cosine_similarity(one.double(), other.double(), dim=-1)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["modernbert", "nomic_bert", "gte", "albert", "jina_bert"])
def test_vectors_of_a_deep_stack_keep_their_direction_in_int16(family: str, kernels_alone: str) -> None:
    """Each token's, though residual streams before the last norm have values that outgrow the others."""
    encoder, lengths = modern_encoder(family, 10), [200, 9, 61]
    ids = np.random.default_rng(0).integers(0, 200, sum(lengths))
    batch = PackedBatch.pack(ids, np.zeros_like(ids), np.array(lengths))
    exact = deepcopy(encoder).double()(batch)
    in_float, whole = (
        prepare_for_inference(deepcopy(encoder), each) for each in (torch.float32, torch.int16)
    )
    assert all(isinstance(layer, KernelLayer) for layer in whole.layers)
    assert_close(in_float(batch).double(), exact, rtol=0, atol=1e-4 * float(exact.abs().max()))
    assert float(cosines(whole(batch), exact).min()) > 0.9999
