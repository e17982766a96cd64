"""GeGLU and SwiGLU in one pass, with gradients, against torch's in float64; and when that is asked."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.activation import can_fuse_gate, fused_gate

PLAIN = {"gelu": F.gelu, "silu": F.silu}


@pytest.fixture
def kernel(inference_way: str) -> str:
    if inference_way == "torch":
        pytest.skip("there is no kernel to call")
    return inference_way


def gate(activation: str, products: Tensor) -> Tensor:
    first, second = products.chunk(2, dim=-1)
    return PLAIN[activation](first) * second


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    activation=st.sampled_from(["gelu", "silu"]),
    bias=st.booleans(),
    rows=st.integers(0, 100),
    width=st.sampled_from([16, 48, 400]),
    scale=st.sampled_from([0.0, 1.0, 4.0, 1000.0]),
    seed=st.integers(0, 2**32),
    threads=st.sampled_from([1, 2, 5]),
)
def test_value_and_gradients_are_torchs(
    kernel: str, activation: str, bias: bool, rows: int, width: int, scale: float, seed: int, threads: int
) -> None:
    """Of products that are exact, by a weight of ones on the diagonal."""
    draw = torch.Generator().manual_seed(seed)
    linear = nn.Linear(2 * width, 2 * width, bias=bias)
    nn.init.eye_(linear.weight)
    twin = nn.Linear(2 * width, 2 * width, bias=bias).double()
    twin.load_state_dict(linear.state_dict())
    x = scale * torch.randn(rows, 2 * width, generator=draw)
    upstream = torch.randn(rows, width, generator=draw)
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    with patch("torch.get_num_threads", return_value=threads):
        found, expected = fused_gate(linear, ours, activation), gate(activation, twin(theirs))
        gradients = torch.autograd.grad(found, (ours, *linear.parameters()), upstream)
    size = max(1.0, scale)
    assert_close(found, expected, rtol=1e-6, atol=3e-6 * size, check_dtype=False)
    wanted = torch.autograd.grad(expected, (theirs, *twin.parameters()), upstream.double())
    for gradient, each in zip(gradients, wanted, strict=True):
        assert_close(gradient, each, rtol=1e-5, atol=2e-5 * size**2, check_dtype=False)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_values_and_slopes_are_right_from_far_below_zero_to_far_above(kernel: str, activation: str) -> None:
    linear = nn.Linear(16, 32, bias=False)
    nn.init.zeros_(linear.weight)
    linear.weight.data[0, 0] = linear.weight.data[16, 1] = 1
    x = torch.zeros(4001, 16)
    x[:, 0], x[:, 1] = torch.linspace(-120, 120, 4001), 1
    x.requires_grad_()
    found = fused_gate(linear, x, activation)
    (slopes,) = torch.autograd.grad(found[:, 0].sum(), x)
    exact = x.detach()[:, 0].double().requires_grad_()
    expected = PLAIN[activation](exact)
    (wanted,) = torch.autograd.grad(expected.sum(), exact)
    assert_close(found[:, 0].double(), expected, rtol=1e-6, atol=1e-6)
    assert_close(slopes[:, 0].double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_in_bfloat16_it_rounds_once(kernel: str, activation: str) -> None:
    linear, x = nn.Linear(8, 64), torch.randn(50, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = fused_gate(linear, x, activation)
        products = F.linear(x, linear.weight)
    assert found.dtype == torch.bfloat16
    expected = gate(activation, products.double() + linear.bias.double())
    assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)
    upstream = torch.randn(50, 32).bfloat16()
    (found_bias,) = torch.autograd.grad(found, linear.bias, upstream)
    twin = linear.bias.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(gate(activation, products.double() + twin), twin, upstream.double())
    assert found_bias.dtype == torch.float32
    assert_close(found_bias.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_does_not_become_one(kernel: str, activation: str, half: int, value: float) -> None:
    linear = nn.Linear(2, 32, bias=False)
    nn.init.zeros_(linear.weight)
    linear.weight.data[:16, 0] = linear.weight.data[16:, 1] = 1
    x = torch.ones(1, 2)
    x[0, half] = value
    assert not fused_gate(linear, x, activation).isfinite().any()


def test_it_is_taken_where_it_can_be(kernel: str) -> None:
    up, x = nn.Linear(16, 64), torch.randn(5, 16)
    assert can_fuse_gate(up, x, "gelu")
    assert can_fuse_gate(nn.Linear(16, 64, bias=False), x, "silu")
    assert not can_fuse_gate(up, x, "gelu_new")
    assert not can_fuse_gate(nn.Linear(16, 48), x, "gelu")
    assert not can_fuse_gate(nn.Sequential(up), x, "gelu")
    assert not can_fuse_gate(up, x.double(), "gelu")
    with torch.autocast("cpu", torch.float16):
        assert not can_fuse_gate(up, x, "gelu")
    with patch.object(kernels, "load_library", return_value=None):
        assert not can_fuse_gate(up, x, "gelu")
    fused_gate(up, x, "gelu")
