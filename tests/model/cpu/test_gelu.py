"""The bias and GELU in one pass, with gradients, against torch's in float64; and when that is asked."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from bertsmith.model.config import make_config
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.activation import can_fuse_gelu, fused_gelu
from bertsmith.model.layers.layer import FeedForward

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 96}


@pytest.fixture
def kernel(inference_way: str) -> str:
    if inference_way == "torch":
        pytest.skip("there is no kernel to call")
    return inference_way


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(0, 100),
    width=st.sampled_from([16, 48, 400]),
    scale=st.sampled_from([0.0, 1.0, 4.0, 1000.0]),
    seed=st.integers(0, 2**32),
    threads=st.sampled_from([1, 2, 5]),
)
def test_value_and_gradients_are_torchs(
    kernel: str, rows: int, width: int, scale: float, seed: int, threads: int
) -> None:
    """Of products that are exact, by a weight of ones on the diagonal."""
    draw = torch.Generator().manual_seed(seed)
    linear = nn.Linear(width, width)
    nn.init.eye_(linear.weight)
    x = scale * torch.randn(rows, width, generator=draw)
    upstream = torch.randn(rows, width, generator=draw)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    twin = nn.Linear(width, width).double()
    twin.load_state_dict(linear.state_dict())
    with patch("torch.get_num_threads", return_value=threads):
        found, expected = fused_gelu(linear, ours), F.gelu(twin(theirs))
        gradients = torch.autograd.grad(found, (ours, linear.weight, linear.bias), upstream)
    assert_close(found, expected, rtol=1e-6, atol=2e-6, check_dtype=False)
    wanted = torch.autograd.grad(expected, (theirs, twin.weight, twin.bias), upstream.double())
    for gradient, each in zip(gradients, wanted, strict=True):
        assert_close(gradient, each, rtol=1e-5, atol=1e-5 * max(1.0, scale), check_dtype=False)


def test_in_bfloat16_it_rounds_once(kernel: str) -> None:
    linear, x = nn.Linear(8, 64), torch.randn(50, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = fused_gelu(linear, x)
        products = F.linear(x, linear.weight)
    assert found.dtype == torch.bfloat16
    expected = F.gelu(products.double() + linear.bias.double())
    assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)
    upstream = torch.randn(50, 64).bfloat16()
    (found_bias,) = torch.autograd.grad(found, linear.bias, upstream)
    twin = linear.bias.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.gelu(products.double() + twin), twin, upstream.double())
    assert found_bias.dtype == torch.float32
    assert_close(found_bias.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_does_not_become_one(kernel: str, value: float) -> None:
    """Of -inf GELU is next to nothing, by torch it is no number."""
    linear = nn.Linear(1, 16)
    nn.init.ones_(linear.weight)
    nn.init.zeros_(linear.bias)
    found = fused_gelu(linear, torch.tensor([[value]])).detach()
    if value == -float("inf"):
        assert float(found.abs().max()) < 1e-6
    else:
        assert not found.isfinite().any()


def test_a_layer_takes_it_where_it_can(kernel: str) -> None:
    feed_forward = FeedForward(make_config({"model_type": "bert", "vocab_size": 9, **SHAPE}, "test"))
    up, x = feed_forward.up, torch.randn(5, 32)
    library = kernels.load_library("")
    feed_forward(x).sum().backward()
    assert up.bias.grad is not None
    assert library.activate_forward.call_count == library.activate_backward.call_count == 1
    with torch.no_grad():
        assert torch.equal(feed_forward.eval()(x), feed_forward.train()(x))
    with torch.autocast("cpu", torch.float16):
        assert not can_fuse_gelu(up, x)
    hook = up.register_forward_hook(lambda *_: None)
    assert not can_fuse_gelu(up, x)
    hook.remove()
    assert can_fuse_gelu(up, x)
    assert not can_fuse_gelu(nn.Sequential(up), x)
    assert not can_fuse_gelu(nn.Linear(32, 40), x)
    assert not can_fuse_gelu(nn.Linear(32, 96, bias=False), x)
    assert not can_fuse_gelu(up, x.double())
    assert not can_fuse_gelu(up, x.to("meta"))
    with patch.object(kernels, "load_library", return_value=None):
        assert not can_fuse_gelu(up, x)
