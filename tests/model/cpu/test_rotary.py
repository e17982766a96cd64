"""Rotary positions by the kernel, forward and back, against their definition in float64."""

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from bertsmith.model.cpu import kernels
from bertsmith.model.layers.rotary import can_use_kernel, rotate_


@pytest.fixture
def kernel(inference_way: str) -> str:
    if inference_way == "torch":
        pytest.skip("there is no kernel to call")
    return inference_way


def tables(positions: int, size: int, theta: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """cos and sin of p theta^(-2d / D), (P, D/2)."""
    frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def turned(qkv: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs as complex numbers, times e^(i angle)."""
    query_key = qkv[:, :2].double()
    first, second = query_key.chunk(2, dim=-1)
    unit = torch.complex(cosines.double(), sines.double())[positions][:, None, None]
    found = torch.complex(first.contiguous(), second.contiguous()) * unit
    return torch.cat([torch.cat([found.real, found.imag], dim=-1), qkv[:, 2:].double()], dim=1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.integers(0, 90),
    heads=st.integers(1, 5),
    size=st.sampled_from([16, 32, 48, 64, 80]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    threads=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 2**32),
)
def test_queries_and_keys_turn_and_values_stay(
    kernel: str, tokens: int, heads: int, size: int, dtype: torch.dtype, threads: int, seed: int
) -> None:
    """In bfloat16 rounded once, from float32: to the bit but where that is nearly half a step."""
    draw = torch.Generator().manual_seed(seed)
    qkv = torch.randn(tokens, 3, heads, size, generator=draw).to(dtype)
    positions = torch.randint(0, 300, (tokens,), generator=draw)
    expected = turned(qkv, positions, *tables(300, size))
    found = qkv.clone()
    with patch("torch.get_num_threads", return_value=threads):
        assert rotate_(found, positions, *tables(300, size)) is found
    assert torch.equal(found[:, 2], qkv[:, 2])
    if dtype == torch.float32:
        assert_close(found.double(), expected, rtol=0, atol=1e-6)
    else:
        assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)


def test_the_way_back_is_the_gradient(kernel: str) -> None:
    qkv = torch.randn(50, 3, 2, 32).double().requires_grad_()
    positions, upstream = torch.arange(50) % 30, torch.randn(50, 3, 2, 32)
    expected = turned(qkv, positions, *tables(30, 32))
    (wanted,) = torch.autograd.grad(expected, qkv, upstream.double())
    found = rotate_(upstream.clone(), positions, *tables(30, 32), backward=True)
    assert_close(found.double(), wanted, rtol=0, atol=1e-6)


def test_products_of_queries_and_keys_know_distances_only(kernel: str) -> None:
    query, key = torch.randn(2, 1, 1, 64).unbind()
    products = []
    for place in (0, 7, 4000):
        qkv = torch.stack([query, key, key], dim=1).expand(2, 3, 1, 64).contiguous()
        rotate_(qkv, torch.tensor([place, place + 5]), *tables(4100, 64))
        products.append(float((qkv[0, 0] * qkv[1, 1]).sum()))
    assert math.isclose(products[0], products[1], abs_tol=1e-4)
    assert math.isclose(products[0], products[2], abs_tol=1e-2)


@pytest.mark.parametrize("position", [-1, 30])
def test_positions_beyond_the_tables_are_refused(kernel: str, position: int) -> None:
    with pytest.raises(ValueError, match="expected positions of 0 to 29, found"):
        rotate_(torch.zeros(2, 3, 1, 16), torch.tensor([0, position]), *tables(30, 16))
    rotate_(torch.zeros(1, 3, 1, 16), torch.tensor([0]), *tables(30, 16))


def test_what_does_not_fit_is_refused() -> None:
    qkv, positions, table = torch.zeros(2, 3, 2, 16), torch.zeros(2, dtype=torch.int64), tables(9, 16)
    for wrong in (
        (qkv[:, :2].contiguous(), positions, *table),
        (qkv, positions[:1], *table),
        (qkv, positions, *tables(9, 32)),
        (qkv.mT.contiguous().mT, positions, *table),
        (qkv, positions.int(), *table),
        (qkv.double(), positions, *table),
    ):
        with pytest.raises(ValueError, match="expected"):
            rotate_(*wrong)


def test_it_is_taken_where_there_are_kernels() -> None:
    qkv = torch.zeros(2, 3, 1, 48)
    with patch.object(kernels, "load_library", return_value=len):
        assert can_use_kernel(qkv)
        assert can_use_kernel(qkv.bfloat16())
        assert not can_use_kernel(qkv.double())
        assert not can_use_kernel(qkv[..., :40].contiguous())
        assert not can_use_kernel(qkv[..., :32])
        assert not can_use_kernel(qkv.to("meta"))
    with patch.object(kernels, "load_library", return_value=None):
        assert not can_use_kernel(qkv)
