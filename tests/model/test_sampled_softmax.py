"""The sampled vocabulary loss: exact where the sample is everything, unbiased where it is not."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.data.masking import IGNORED
from bertsmith.data.stream import Cursor
from bertsmith.model.cross_entropy import (
    VocabularySample,
    VocabularySampler,
    sampled_vocabulary_loss,
    vocabulary_loss,
)

ROWS, WIDTH, VOCABULARY = 7, 8, 60


def leaves() -> tuple[list[Tensor], Tensor]:
    """Hidden states, weight and bias; labels, one of them ignored."""
    draw = torch.Generator().manual_seed(3)
    shapes = (ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)
    values = [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]
    labels = torch.randint(0, VOCABULARY, (ROWS,), generator=draw)
    labels[2] = IGNORED
    return values, labels


def zipf(size: int) -> npt.NDArray[np.int64]:
    return (10_000 / (1 + np.arange(size))).astype(np.int64)


def sample_of(shares: npt.NDArray[np.float64], pieces: list[int]) -> VocabularySample:
    return VocabularySample(torch.tensor(pieces), torch.from_numpy(np.log(shares[pieces])).float())


def test_a_sample_of_everything_is_the_whole_loss() -> None:
    values, labels = leaves()
    everything = VocabularySampler(np.ones(VOCABULARY, np.int64), VOCABULARY, seed=0).draw(Cursor(offset=0))
    found = sampled_vocabulary_loss(*values, labels, everything)
    expected = vocabulary_loss(*values, labels)
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(found * 0.37, values), torch.autograd.grad(expected * 0.37, values)
    torch.testing.assert_close(*gradients)


def test_the_denominator_is_unbiased_and_the_target_counts_once() -> None:
    """exp(loss) is denominator / exp(score of the target); a target is in some samples and not in others."""
    values, labels = leaves()
    sampler = VocabularySampler(zipf(VOCABULARY), 20, seed=1)
    row = slice(0, 1)
    hidden_states, weight, bias = (value.detach() / 2 for value in values)
    for label in (0, 30, 59):  # certain, likely, rare
        of_row = torch.full_like(labels[row], label)
        exact = vocabulary_loss(hidden_states[row], weight, bias, of_row).exp()
        found = torch.stack(
            [
                sampled_vocabulary_loss(
                    hidden_states[row], weight, bias, of_row, sampler.draw(Cursor(offset=step))
                ).exp()
                for step in range(2000)
            ]
        )
        assert 0 < found.std() < exact
        assert abs(found.mean() - exact) < 4 * found.std() / len(found) ** 0.5
        assert found.min() >= 1  # the target is always in the denominator


def test_value_and_gradients_are_those_of_the_formula() -> None:
    values, labels = leaves()
    shares = np.linspace(0.05, 1, VOCABULARY)
    sample = sample_of(shares, sorted({1, int(labels[0]), 20, 59}))
    doubles = [value.detach().double().requires_grad_() for value in values]
    expected = torch.zeros((), dtype=torch.float64)
    for hidden_states, label in zip(doubles[0], labels.tolist(), strict=True):
        if label != IGNORED:
            scores = doubles[1] @ hidden_states + doubles[2]
            others = sum(
                scores[piece].exp() / shares[piece] for piece in sample.pieces.tolist() if piece != label
            )
            expected = expected + (others + scores[label].exp()).log() - scores[label]
    found = sampled_vocabulary_loss(*values, labels, sample)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad(found, values), torch.autograd.grad(expected, doubles), strict=True
    ):
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-5)


def test_a_target_in_a_small_share_keeps_the_loss_finite_in_half_precision() -> None:
    """Its own exponential times 1 / p would bury all others, and taken away again leave rounding errors."""
    values, labels = leaves()
    hidden_states, weight, bias = (value.detach() * 4 for value in values)
    shares = np.full(VOCABULARY, 1e-4)
    sample = sample_of(shares, list(range(VOCABULARY)))
    with torch.autocast("cpu", torch.bfloat16):
        loss = sampled_vocabulary_loss(hidden_states, weight, bias, labels, sample)
    exact = sampled_vocabulary_loss(hidden_states, weight, bias, labels, sample)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0.1)


def test_nothing_to_predict() -> None:
    values, labels = leaves()
    sample = VocabularySampler(zipf(VOCABULARY), 20, seed=1).draw(Cursor(offset=0))
    loss = sampled_vocabulary_loss(*values, torch.full_like(labels, IGNORED), sample)
    assert loss == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, values))
    assert sampled_vocabulary_loss(values[0][:0], *values[1:], labels[:0], sample) == 0


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(0, 10**6), min_size=2, max_size=80), data=st.data())
def test_shares_follow_the_counts(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(counts)))
    sampler = VocabularySampler(np.array(counts), size, seed=0)
    shares, weights = sampler._probabilities, np.maximum(counts, 1) ** 0.75
    assert shares.sum() == pytest.approx(size)
    assert 0 < shares.min() <= shares.max() <= 1
    uncertain = shares < 1 - 1e-9
    if uncertain.any():
        factors = shares[uncertain] / weights[uncertain]
        assert factors.max() == pytest.approx(factors.min())
        assert (weights * factors[0] >= shares - 1e-9).all()  # a certain one would have more than 1


def test_pieces_are_drawn_by_their_shares() -> None:
    sampler = VocabularySampler(zipf(VOCABULARY), 20, seed=5)
    drawn = np.zeros(VOCABULARY)
    for step in range(4000):
        drawn[sampler.draw(Cursor(offset=step)).pieces.numpy()] += 1
    deviation = np.sqrt(sampler._probabilities * (1 - sampler._probabilities) / 4000)
    assert (np.abs(drawn / 4000 - sampler._probabilities) <= 5 * deviation).all()


def test_seed_and_place_decide_alone() -> None:
    counts = zipf(VOCABULARY)
    first = VocabularySampler(counts, 20, seed=5).draw(Cursor(offset=9))
    again = VocabularySampler(counts, 20, seed=5)
    again.draw(Cursor(offset=3))
    assert torch.equal(first.pieces, again.draw(Cursor(offset=9)).pieces)
    assert not torch.equal(first.pieces, again.draw(Cursor(offset=10)).pieces)
    assert not torch.equal(first.pieces, VocabularySampler(counts, 20, seed=6).draw(Cursor(offset=9)).pieces)
