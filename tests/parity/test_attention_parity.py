"""Every attention backend against the plain definition, a sequence and a head at a time in float64."""

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_parity import assert_same
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from bertsmith.data.batch import PackedBatch
from bertsmith.model.cpu import attention, kernels
from bertsmith.model.cpu.attention import attend_by_kernel, is_kernel_faster
from bertsmith.model.layers.attention import attend, attend_by_equal_lengths
from bertsmith.model.layers.elementwise import Dropout

# Below half of 1/256 no value is dropped, but the path with dropout is taken.
NOTHING_DROPPED = Dropout(0.001).train()


def batch_of(lengths: list[int]) -> PackedBatch:
    zeros = np.zeros(sum(lengths), np.int64)
    return PackedBatch.pack(zeros, zeros, np.array(lengths))


def random_qkv(lengths: list[int], heads: int, size: int, seed: int) -> Tensor:
    """Large enough that the softmax is far from uniform."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), 3, heads, size, generator=draw) * 1.5


def attend_dropping_nothing(qkv: Tensor, batch: PackedBatch, bias: Tensor | None = None) -> Tensor:
    """With a mask of ones."""
    return attend(qkv, batch, NOTHING_DROPPED, None, bias)


def attend_all(qkv: Tensor, batch: PackedBatch, bias: Tensor | None = None) -> Tensor:
    return attend(qkv, batch, None, None, bias)


def plain_attention(qkv: Tensor, lengths: list[int], bias: Tensor | None = None) -> Tensor:
    """Vaswani et al. 2017, equation 1, for each sequence and head alone; plus a bias by distance and head."""
    outputs = []
    for sequence in qkv.double().split(lengths):
        heads = []
        for number, parts in enumerate(zip(*(part.unbind(1) for part in sequence.unbind(1)), strict=True)):
            query, key, value = parts
            scores, places = query @ key.T / math.sqrt(query.shape[-1]), torch.arange(len(query))
            if bias is not None:
                scores = scores + bias[number, bias.shape[1] // 2 + places - places[:, None]]
            weights = torch.softmax(scores, dim=-1)
            heads.append(weights @ value)
        outputs.append(torch.stack(heads, dim=1))
    return torch.cat(outputs)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    heads=st.integers(1, 4),
    size=st.sampled_from([1, 3, 8, 16, 32, 48]),
    seed=st.integers(0, 2**32),
    way=st.sampled_from([attend_all, attend_dropping_nothing, attend_by_equal_lengths]),
    biased=st.booleans(),
)
def test_any_batch_gives_the_plain_definition_and_its_gradient(
    lengths: list[int], heads: int, size: int, seed: int, way: Callable[..., Tensor], biased: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    upstream = torch.randn(sum(lengths), heads, size, generator=draw)
    bias = torch.randn(heads, 192, generator=draw).requires_grad_()
    given = [random_qkv(lengths, heads, size, seed).requires_grad_(), bias][: 1 + biased]
    found = way(given[0], batch_of(lengths), *given[1:])
    expected = plain_attention(given[0], lengths, *given[1:])
    assert_same(found, expected.float(), "attention")
    gradients = torch.autograd.grad(found, given, upstream)
    for gradient, wanted in zip(
        gradients, torch.autograd.grad(expected, given, upstream.double()), strict=True
    ):
        assert_same(gradient, wanted, "gradient")


def largest_sum(qkv: Tensor, lengths: list[int]) -> float:
    """Of the absolute values that make up a score."""
    sums = []
    for sequence in qkv.double().abs().split(lengths):
        query, key, _ = sequence.unbind(1)
        sums.append(float(torch.einsum("iad,jad->aij", query, key).max()))
    return max(sums) / math.sqrt(qkv.shape[-1])


@pytest.fixture
def without_gradients(inference_way: str) -> Iterator[str]:
    """On one core, in each of the ways."""
    with torch.no_grad(), patch("torch.get_num_threads", return_value=1):
        yield inference_way


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=8),
    heads=st.integers(1, 3),
    size=st.sampled_from([3, 16, 32, 48, 64]),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1.0, 3.0, 30.0]),
    biased=st.booleans(),
)
def test_without_gradients_it_is_the_same(
    without_gradients: str,
    lengths: list[int],
    heads: int,
    size: int,
    seed: int,
    scale: float,
    biased: bool,
) -> None:
    """A weight is as far off as its score, which is rounded by what was summed, by the kernel twice."""
    rounding = 2**-24 if without_gradients == "torch" else 2**-23
    qkv = scale * random_qkv(lengths, heads, size, seed)
    bias = scale * torch.randn(heads, 400, generator=torch.Generator().manual_seed(seed)) if biased else None
    found = attend(qkv, batch_of(lengths), None, None, bias)
    expected = plain_attention(qkv, lengths, None if bias is None else bias.double())
    allowed = 4e-6 + rounding * (largest_sum(qkv, lengths) + 3 * scale * biased)
    assert float((found - expected).abs().max()) <= allowed * float(expected.abs().max())
    exact = attend(qkv.double(), batch_of(lengths), None, None, bias)
    assert float((exact - expected).abs().max()) <= 1e-12 * max(1.0, scale) * float(expected.abs().max())


@pytest.mark.parametrize("score", [-1000.0, -95.0, -60.0, 0.0, 80.0, 95.0, 1000.0])
@pytest.mark.usefixtures("without_gradients")
def test_scores_of_any_height_give_the_same_weights(score: float) -> None:
    """One key's score against zeros; e^-95 has few digits left in float32, e^95 none."""
    lengths, size = [5, 9], 16
    qkv = random_qkv(lengths, 1, size, seed=9)
    qkv[:, 0], qkv[:, 1] = 0, 0
    qkv[:, 0, :, 0] = size**0.5 * score
    qkv[0, 1, :, 0] = qkv[5, 1, :, 0] = 1.0
    qkv[:, 1, :, 1:] = 0
    qkv[:, 0, :, 1], qkv[:, 1, :, 1] = size**0.5 * min(score, 0), 1.0  # all scores of a row are as low
    found = attend(qkv, batch_of(lengths))
    expected = plain_attention(qkv, lengths)
    assert float((found - expected).abs().max()) < 1e-6 * float(expected.abs().max())


@pytest.mark.parametrize("value", [1.0, 1e4, 1e30])
@pytest.mark.usefixtures("without_gradients")
def test_large_values_times_large_weights_stay_finite(value: float) -> None:
    """The sum of e^84 is a number in float32, as first layers have them; ten thousand times it isn't."""
    lengths = [5, 9]
    qkv = random_qkv(lengths, 1, 16, seed=12).clamp(-3, 3)
    qkv[:, 0], qkv[:, 1] = 0, 0
    qkv[:, 0, :, 0], qkv[:, 1, :, 0] = 4 * 84.0, 1.0
    qkv[:, 2] *= value
    found = attend(qkv, batch_of(lengths)) / value
    assert_same(found, (plain_attention(qkv, lengths) / value).float(), "attention")


def test_without_gradients_bfloat16_keeps_its_digits(without_gradients: str) -> None:
    """A row's last token weighs most, as [SEP] often does, and has much padding behind it."""
    lengths = [33, 1, 18, 65]
    qkv = random_qkv(lengths, heads=2, size=16, seed=8)
    ends = np.cumsum(lengths) - 1
    qkv[ends, 1] = 3 * qkv[ends, 0]
    qkv = qkv.bfloat16()
    found = attend(qkv, batch_of(lengths))
    expected = plain_attention(qkv, lengths)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - expected).abs().max()) < 0.02 * float(expected.abs().max())
    if without_gradients != "torch":  # in float32, and rounded once
        assert torch.equal(found, attend(qkv.float(), batch_of(lengths)).bfloat16())


def test_without_gradients_a_sequence_is_blind_to_its_neighbours(without_gradients: str) -> None:
    """To the bit; the kernel's values don't even depend on whether there are neighbours."""
    batch = batch_of([9, 33, 2])
    qkv = random_qkv([9, 33, 2], heads=2, size=16, seed=14)
    before, alone = attend(qkv, batch)[9:42], attend(qkv[9:42].clone(), batch_of([33]))
    qkv[:9], qkv[42:] = 1e6, -1e6
    assert torch.equal(attend(qkv, batch)[9:42], before)
    assert without_gradients == "torch" or torch.equal(before, alone)


@pytest.mark.usefixtures("without_gradients")
def test_without_gradients_a_part_of_a_larger_tensor_will_do() -> None:
    wide = random_qkv([9, 33], heads=4, size=16, seed=15)
    part = wide[:, :, ::2]
    assert not part.is_contiguous()
    assert torch.equal(attend(part, batch_of([9, 33])), attend(part.contiguous(), batch_of([9, 33])))


@pytest.mark.usefixtures("without_gradients")
def test_without_gradients_a_long_sequence_alone_is_the_same() -> None:
    qkv = random_qkv([1300], heads=2, size=16, seed=10)
    found = attend(qkv, batch_of([1300]))
    assert_same(found, plain_attention(qkv, [1300]).float(), "attention")


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.usefixtures("without_gradients")
def test_without_gradients_what_is_no_number_stays_so(part: int) -> None:
    """In a query it spoils one token, in a key or a value all of its sequence."""
    qkv = random_qkv([4, 7], heads=1, size=16, seed=11)
    qkv[2, part] = math.nan
    found = attend(qkv, batch_of([4, 7]))
    assert found[2 if part == 0 else slice(4)].isnan().all()
    assert_same(found[4:], plain_attention(qkv[4:], [7]).float(), "attention")


@pytest.mark.usefixtures("without_gradients")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_gradients_spare_tokens_are_written_and_change_nothing(dtype: torch.dtype) -> None:
    lengths = [7, 20, 4]
    qkv = random_qkv([*lengths, 17], heads=2, size=16, seed=13).to(dtype)
    qkv[sum(lengths) :] = math.inf
    tokens = np.zeros(sum(lengths), np.int64)
    batch = PackedBatch.pack(tokens, tokens, np.array(lengths), multiple=48)
    found = attend(qkv, batch)
    assert torch.equal(found[:31], attend(qkv[:31].clone(), batch_of(lengths)))
    assert found.shape == (48, 2, 16)
    assert found.isfinite().all()


def test_the_kernel_is_taken_where_it_is_faster() -> None:
    def takes(*lengths: int, size: int = 16, **how: Any) -> bool:
        return is_kernel_faster(torch.zeros(sum(lengths), 3, 1, size, **how), lengths)

    with patch.object(kernels, "load_library", return_value=len):
        assert takes(2000)
        assert takes(9, requires_grad=True)
        assert takes(9, 90, dtype=torch.bfloat16)
        assert not takes(9, 190, dtype=torch.bfloat16)
        assert not takes(9, size=24)
        assert not takes(9, dtype=torch.float64)
        assert not takes(9, device="meta")
        with FakeTensorMode():
            assert not takes(9)
    with patch.object(kernels, "load_library", return_value=None):
        assert not takes(9)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    heads=st.integers(1, 3),
    size=st.sampled_from([16, 32, 48, 64]),
    dropped=st.sampled_from([0.0, 0.1, 0.5]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**32),
)
def test_the_kernel_s_gradient_is_that_of_the_plain_definition(
    inference_way: str,
    lengths: list[int],
    heads: int,
    size: int,
    dropped: float,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Weights dropped by a mask with padding, a sequence's (A, L, L with padding) after the other's; the same
    to the bit on one thread and on two; padding tokens have a gradient of zero.
    """
    if inference_way == "torch":
        pytest.skip("no kernel is used")
    draw, real = torch.Generator().manual_seed(seed), sum(lengths)
    qkv = random_qkv([*lengths, 3], heads, size, seed).to(dtype).requires_grad_()
    upstream = torch.randn(real + 3, heads, size, generator=draw).to(dtype)
    masks = [torch.rand(heads, n, n + -n % 16, generator=draw) >= dropped for n in lengths]
    scaled = [(mask / (1 - dropped)).to(dtype) for mask in masks]

    def attended() -> tuple[Tensor, Tensor]:
        found = attend_by_kernel(qkv, tuple(lengths), lambda _: torch.cat([m.ravel() for m in scaled]))
        return found.detach(), *torch.autograd.grad(found, qkv, upstream)

    with patch.object(attention, "_ONE_CORE", 0):  # two threads also for little
        found, gradient = attended()
    with patch("torch.get_num_threads", return_value=1):
        assert all(torch.equal(*pair) for pair in zip(attended(), (found, gradient), strict=True))
    exact = qkv.detach().double().requires_grad_()
    expected = []
    for sequence, mask in zip(exact[:real].split(lengths), scaled, strict=True):
        query, key, value = sequence.permute(1, 2, 0, 3)
        weights = torch.softmax(query @ key.mT / math.sqrt(size), dim=-1) * mask[..., : len(sequence)]
        expected.append((weights @ value).transpose(0, 1))
    wanted = torch.cat(expected)
    (wanted_gradient,) = torch.autograd.grad(wanted, exact, upstream[:real].double())
    digits = 3e-5 if dtype == torch.float32 else 0.02
    for one, other in ((found[:real], wanted.detach()), (gradient, wanted_gradient)):
        assert float((one.double() - other).abs().max()) <= digits * float(other.abs().max()) + 1e-30
    assert not gradient[real:].any()


@pytest.mark.parametrize(
    ("shape", "lengths"), [((9, 3, 1, 16), (10,)), ((9, 2, 1, 16), (9,)), ((9, 3, 1, 16), (12, -3))]
)
def test_the_kernel_refuses_what_it_would_read_beyond(
    shape: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="found"):
        attend_by_kernel(torch.zeros(shape), lengths)


def test_what_is_saved_for_the_gradient_may_come_back_in_another_order() -> None:
    """From hooks that keep it elsewhere."""
    plain, hooked = (random_qkv([5], heads=2, size=16, seed=2).requires_grad_() for _ in range(2))

    def turned(saved: Tensor) -> Tensor:
        return saved.mT.contiguous().mT if saved.dim() > 1 else saved

    with torch.autograd.graph.saved_tensors_hooks(turned, lambda saved: saved):
        attended = attend_by_kernel(hooked, (5,))
    for found in (attended, attend_by_kernel(plain, (5,))):
        found.square().sum().backward()
    torch.testing.assert_close(hooked.grad, plain.grad, rtol=0, atol=0)


def test_a_tensor_negated_only_when_it_is_read_is_negated() -> None:
    qkv = random_qkv([5], heads=2, size=16, seed=2)
    lazy = torch._neg_view(qkv)
    torch.testing.assert_close(attend(lazy, batch_of([5])), attend(-qkv, batch_of([5])))


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
    lengths = [16, 16]  # of a whole group, so that the mask has no values for padding
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
