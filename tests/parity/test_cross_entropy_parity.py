"""The fused vocabulary loss against torch's cross-entropy in float64, value and gradients."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_parity import assert_same
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.masking import IGNORED
from bertsmith.model.cross_entropy import vocabulary_loss

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs(rows: int, vocabulary: int, seed: int, scale: float = 1.0, ignored: float = 0.3) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    hidden_states = torch.randn(rows, 8, generator=draw) * scale
    weight = torch.randn(vocabulary, 8, generator=draw)
    bias = torch.randn(vocabulary, generator=draw)
    labels = torch.randint(0, vocabulary, (rows,), generator=draw)
    labels[torch.rand(rows, generator=draw) < ignored] = IGNORED
    return hidden_states, weight, bias, labels


def plain_loss(hidden_states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        F.linear(hidden_states, weight, bias), labels, ignore_index=IGNORED, reduction="sum"
    )


def assert_equal_to_plain(values: Inputs) -> None:
    """Per row of the sum: the tolerance is that of one row's loss."""
    labels = values[-1]
    ours = [value.clone().requires_grad_() for value in values[:3]]
    theirs = [value.double().requires_grad_() for value in values[:3]]
    found, expected = vocabulary_loss(*ours, labels), plain_loss(*theirs, labels)
    counted = max(int((labels != IGNORED).sum()), 1)
    assert_same(found.double() / counted, expected / counted, "loss")
    # an upstream gradient other than 1, as mean losses and several heads give
    found_gradients = torch.autograd.grad(found * 0.37, ours)
    expected_gradients = torch.autograd.grad(expected * 0.37, theirs)
    for name, gradient, wanted in zip(
        ("hidden states", "weight", "bias"), found_gradients, expected_gradients, strict=True
    ):
        assert_same(gradient, wanted, f"gradient of the {name}")


each_way = pytest.mark.usefixtures("inference_way")


@each_way
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 40), vocabulary=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_value_and_gradients_equal_torch(rows: int, vocabulary: int, seed: int) -> None:
    assert_equal_to_plain(inputs(rows, vocabulary, seed))


@each_way
@pytest.mark.parametrize("rows", [31, 32, 33, 63, 64, 65, 127, 128, 129, 400])
def test_blocks_of_rows_leave_no_seam(rows: int) -> None:
    assert_equal_to_plain(inputs(rows, vocabulary=50, seed=rows))


@each_way
@pytest.mark.parametrize("vocabulary", [1023, 1024, 1025, 3000])
def test_tiles_of_the_vocabulary_leave_no_seam(vocabulary: int) -> None:
    """Whose largest product lies in the first tile for some rows, and for others in a later one."""
    assert_equal_to_plain(inputs(150, vocabulary, seed=5, scale=3.0))


@each_way
@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("rows", [0, 7, 70, 300])
def test_threads_leave_no_seam(threads: int, rows: int) -> None:
    with patch("torch.get_num_threads", return_value=threads):
        assert_equal_to_plain(inputs(rows, 1500, seed=7))


@each_way
def test_what_is_no_number_makes_the_loss_none() -> None:
    hidden_states, weight, bias, labels = inputs(20, 3000, seed=6)
    weight[2500, 0] = torch.nan
    assert vocabulary_loss(hidden_states, weight, bias, labels).isnan()


@each_way
def test_large_logits_do_not_overflow() -> None:
    """Products of order 1,000: exp() of them is infinite in float32."""
    assert_equal_to_plain(inputs(20, vocabulary=30, seed=1, scale=300.0))


def test_a_batch_in_which_all_labels_are_ignored_costs_and_moves_nothing() -> None:
    values = [value.requires_grad_() for value in inputs(5, 20, seed=2)[:3]]
    loss = vocabulary_loss(*values, torch.full((5,), IGNORED))
    assert loss.item() == 0.0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, values))


def test_a_batch_without_a_masked_position_costs_and_moves_nothing() -> None:
    values = [value.requires_grad_() for value in inputs(0, 20, seed=3)[:3]]
    loss = vocabulary_loss(*values, torch.zeros(0, dtype=torch.int64))
    assert loss.item() == 0.0
    gradients = torch.autograd.grad(loss, values)
    assert [tuple(gradient.shape) for gradient in gradients] == [(0, 8), (20, 8), (20,)]
    assert all(not gradient.any() for gradient in gradients)


@each_way
def test_under_bfloat16_autocast_the_loss_stays_within_its_three_digits() -> None:
    values = inputs(64, vocabulary=50, seed=4, ignored=0.0)
    leaves = [value.clone().requires_grad_() for value in values[:3]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = vocabulary_loss(*leaves, values[-1])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, plain_loss(*values), rtol=0.02, atol=0.0)
    reference = [value.clone().requires_grad_() for value in values[:3]]
    wanted = torch.autograd.grad(plain_loss(*reference, values[-1]), reference)
    for gradient, expected in zip(torch.autograd.grad(loss, leaves), wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert float((gradient - expected).abs().max()) < 0.03 * float(expected.abs().max())
