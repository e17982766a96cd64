"""Every attention backend against the plain definition, a sequence and a head at a time in float64."""

import math
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_parity import assert_same
from torch import Tensor

from bertsmith.data.batch import PackedBatch
from bertsmith.model import grouped_attention
from bertsmith.model.attention import attend, attend_by_equal_lengths
from bertsmith.model.dropout import Dropout

# Below half of 1/256 no value is dropped, but the path with dropout is taken.
NOTHING_DROPPED = Dropout(0.001).train()


def batch_of(lengths: list[int]) -> PackedBatch:
    zeros = np.zeros(sum(lengths), np.int64)
    return PackedBatch.pack(zeros, zeros, np.array(lengths))


def random_qkv(lengths: list[int], heads: int, size: int, seed: int) -> Tensor:
    """Large enough that the softmax is far from uniform."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), 3, heads, size, generator=draw) * 1.5


def attend_dropping_nothing(qkv: Tensor, batch: PackedBatch) -> Tensor:
    """With a mask of ones."""
    return attend(qkv, batch, NOTHING_DROPPED)


def plain_attention(qkv: Tensor, lengths: list[int]) -> Tensor:
    """Vaswani et al. 2017, equation 1, for each sequence and head alone."""
    outputs = []
    for sequence in qkv.double().split(lengths):
        heads = []
        for query, key, value in zip(*(part.unbind(1) for part in sequence.unbind(1)), strict=True):
            weights = torch.softmax(query @ key.T / math.sqrt(query.shape[-1]), dim=-1)
            heads.append(weights @ value)
        outputs.append(torch.stack(heads, dim=1))
    return torch.cat(outputs)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    heads=st.integers(1, 4),
    size=st.sampled_from([1, 3, 8, 16]),
    seed=st.integers(0, 2**32),
    way=st.sampled_from([attend, attend_dropping_nothing, attend_by_equal_lengths]),
)
def test_any_batch_gives_the_plain_definition_and_its_gradient(
    lengths: list[int], heads: int, size: int, seed: int, way: Callable[[Tensor, PackedBatch], Tensor]
) -> None:
    qkv = random_qkv(lengths, heads, size, seed).requires_grad_()
    upstream = torch.randn(sum(lengths), heads, size, generator=torch.Generator().manual_seed(seed))
    found = way(qkv, batch_of(lengths))
    expected = plain_attention(qkv, lengths)
    assert_same(found, expected.float(), "attention")
    (gradient,) = torch.autograd.grad(found, qkv, upstream)
    (wanted,) = torch.autograd.grad(expected, qkv, upstream.double())
    assert_same(gradient, wanted, "gradient")


def largest_sum(qkv: Tensor, lengths: list[int]) -> float:
    """Of the absolute values that make up a score."""
    sums = []
    for sequence in qkv.double().abs().split(lengths):
        query, key, _ = sequence.unbind(1)
        sums.append(float(torch.einsum("iad,jad->aij", query, key).max()))
    return max(sums) / math.sqrt(qkv.shape[-1])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=8),
    size=st.sampled_from([1, 3, 8, 16]),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1.0, 3.0, 30.0]),
    at_once=st.sampled_from([1, 3000, 1 << 19]),
)
def test_without_gradients_it_is_the_same(
    lengths: list[int], size: int, seed: int, scale: float, at_once: int
) -> None:
    """Also where weights that are not divided by their sum leave float32's range, as many do at 30; however
    many weights are held at a time. A weight is as far off as its score, which is rounded by what was summed.
    """
    qkv = scale * random_qkv(lengths, 2, size, seed)
    with torch.no_grad(), patch.object(grouped_attention, "_WEIGHTS", at_once):
        found = attend(qkv, batch_of(lengths))
    expected = plain_attention(qkv, lengths)
    allowed = 4e-6 + 2**-24 * largest_sum(qkv, lengths)
    assert float((found - expected).abs().max()) <= allowed * float(expected.abs().max())
    with torch.no_grad():
        exact = attend(qkv.double(), batch_of(lengths))
    assert float((exact - expected).abs().max()) <= 1e-12 * max(1.0, scale) * float(expected.abs().max())


@pytest.mark.parametrize("score", [-95.0, -60.0, 0.0, 80.0, 95.0])
def test_scores_of_any_height_give_the_same_weights(score: float) -> None:
    """One key's score against zeros; e^-95 has few digits left in float32, e^95 none."""
    lengths = [5, 9]
    qkv = random_qkv(lengths, 1, 4, seed=9)
    qkv[:, 0], qkv[:, 1] = 0, 0
    qkv[:, 0, :, 0] = 2 * score
    qkv[0, 1, :, 0] = qkv[5, 1, :, 0] = 1.0
    qkv[:, 1, :, 1:] = 0
    qkv[:, 0, :, 1], qkv[:, 1, :, 1] = 2 * min(score, 0), 1.0  # all scores of a row are as low
    with torch.no_grad():
        found = attend(qkv, batch_of(lengths))
    expected = plain_attention(qkv, lengths)
    assert float((found - expected).abs().max()) < 1e-6 * float(expected.abs().max())


@pytest.mark.parametrize(("value", "passes"), [(1.0, 1), (1e4, 2)])
def test_large_values_times_large_weights_stay_finite(value: float, passes: int) -> None:
    """The sum of e^84 is a number in float32, as first layers have them; ten thousand times it isn't."""
    lengths = [5, 9]
    qkv = random_qkv(lengths, 1, 4, seed=12)
    qkv[:, 0], qkv[:, 1] = 0, 0
    qkv[:, 0, :, 0], qkv[:, 1, :, 0] = 2 * 84.0, 1.0
    qkv[:, 2] *= value
    again = grouped_attention._GroupedAttention
    with torch.no_grad(), patch.object(again, "apply", side_effect=again.apply) as second:
        found = attend(qkv, batch_of(lengths))
    assert second.call_count == passes - 1
    assert_same(found, plain_attention(qkv, lengths).float(), "attention")


def test_without_gradients_bfloat16_keeps_its_digits() -> None:
    """A row's last token weighs most, as [SEP] often does, and has much filler behind it."""
    lengths = [33, 1, 18, 65]
    qkv = random_qkv(lengths, heads=2, size=8, seed=8)
    ends = np.cumsum(lengths) - 1
    qkv[ends, 1] = 3 * qkv[ends, 0]
    qkv = qkv.bfloat16()
    with torch.no_grad():
        found = attend(qkv, batch_of(lengths))
    expected = plain_attention(qkv, lengths)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - expected).abs().max()) < 0.02 * float(expected.abs().max())


def test_without_gradients_a_long_sequence_alone_is_the_same() -> None:
    qkv = random_qkv([300], heads=2, size=8, seed=10)
    with torch.no_grad():
        found = attend(qkv, batch_of([300]))
    assert_same(found, plain_attention(qkv, [300]).float(), "attention")


def test_without_gradients_what_is_no_number_stays_so() -> None:
    qkv = random_qkv([4, 7], heads=1, size=4, seed=11)
    qkv[2] = math.nan
    with torch.no_grad():
        found = attend(qkv, batch_of([4, 7]))
    assert found[:4].isnan().all()
    assert_same(found[4:], plain_attention(qkv[4:], [7]).float(), "attention")


def test_the_gradient_written_out_is_that_of_finite_differences() -> None:
    """With weights dropped, the same ones at every look."""
    lengths = [3, 3, 5, 1]
    qkv = random_qkv(lengths, heads=2, size=4, seed=1).double().requires_grad_()
    dropout = Dropout(0.5).train()

    def attended(values: Tensor) -> Tensor:
        torch.manual_seed(1)
        return attend(values, batch_of(lengths), dropout)

    assert torch.autograd.gradcheck(attended, (qkv,))


def test_the_path_with_dropout_takes_bfloat16() -> None:
    """3 digits: against float64 on the same rounded inputs, 2 % of the largest value, gradient too."""
    lengths = [7, 7, 12]
    qkv = random_qkv(lengths, heads=2, size=8, seed=6).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(qkv, batch_of(lengths), NOTHING_DROPPED)
    expected = plain_attention(qkv, lengths)
    (gradient,) = torch.autograd.grad(found.double().square().sum(), qkv)
    (wanted,) = torch.autograd.grad(expected.square().sum(), qkv)
    assert found.dtype == gradient.dtype == torch.bfloat16
    for one, other in ((found.detach().double(), expected.detach()), (gradient.double(), wanted.double())):
        assert float((one - other).abs().max()) < 0.02 * float(other.abs().max())


def test_dropout_falls_on_the_weights_after_the_softmax() -> None:
    lengths = [16, 16]  # of a whole group, so that the mask has no values for filler
    qkv = random_qkv(lengths, heads=2, size=4, seed=2)
    dropout = Dropout(0.5).train()
    torch.manual_seed(3)
    found = attend(qkv, batch_of(lengths), dropout)
    query, key, value = qkv.view(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
    torch.manual_seed(3)
    weights = dropout(torch.softmax(query @ key.mT / 2.0, dim=-1))
    assert (weights == 0).any()
    assert_same(found, (weights @ value).transpose(1, 2).flatten(0, 1), "attention with dropout")


def test_a_sequence_is_blind_to_its_neighbours() -> None:
    lengths = [4, 4, 7]
    qkv = random_qkv(lengths, heads=2, size=8, seed=4)
    altered = qkv.clone()
    altered[4:8] = 1e6
    before, after = attend(qkv, batch_of(lengths)), attend(altered, batch_of(lengths))
    assert torch.equal(before[:4], after[:4])
    assert torch.equal(before[8:], after[8:])


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_variable_length_attention_on_a_gpu_gives_the_plain_definition(dtype: torch.dtype) -> None:
    """bfloat16 carries 3 digits: against float64 on the same rounded inputs, 2 % of the largest value."""
    lengths = [1, 40, 17, 128, 40]
    qkv = random_qkv(lengths, heads=4, size=64, seed=5).to("cuda", dtype)
    zeros = np.zeros(sum(lengths), np.int64)
    found = attend(qkv, PackedBatch.pack(zeros, zeros, np.array(lengths), "cuda")).double().cpu()
    expected = plain_attention(qkv.cpu(), lengths)
    assert float((found - expected).abs().max()) < 0.02 * float(expected.abs().max())
