"""Attention's kernel within a window, and over long sequences, against the plain definition in float64."""

import ctypes
import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.model.cpu import attention, kernels
from bertsmith.model.cpu.attention import attend_by_kernel, is_kernel_faster

WINDOWS = [0, 1, 3, 16, 63, 64, 100]


@pytest.fixture
def kernel(inference_way: str) -> str:
    if inference_way == "torch":
        pytest.skip("there is no kernel to call")
    return inference_way


def random_qkv(tokens: int, heads: int, size: int, seed: int) -> Tensor:
    """Large enough that the softmax is far from uniform."""
    return torch.randn(tokens, 3, heads, size, generator=torch.Generator().manual_seed(seed)) * 1.5


def random_bias(heads: int, lengths: list[int], seed: int) -> Tensor:
    """For one distance more to either side than the kernel asks for."""
    reach = max(lengths) + 17
    return 2 * torch.randn(heads, 2 * reach, generator=torch.Generator().manual_seed(seed + 1))


def plain(
    qkv: Tensor,
    lengths: list[int],
    window: int | None,
    masks: list[Tensor] | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Of weights (A, L, L) that are masked by distance, and then times `masks`."""
    found = []
    for number, sequence in enumerate(qkv.split(lengths)):
        query, key, value = sequence.permute(1, 2, 0, 3)
        scores, places = query @ key.mT / math.sqrt(qkv.shape[-1]), torch.arange(len(sequence))
        if bias is not None:
            scores = scores + bias[:, bias.shape[1] // 2 + places - places[:, None]]
        if window is not None:
            far = (places[:, None] - places).abs() > window
            scores = scores.masked_fill(far, -torch.inf)
        weights = scores.softmax(-1)
        found.append((weights * masks[number] if masks else weights) @ value)
    return torch.cat([each.transpose(0, 1) for each in found])


def squares(cells: Tensor, lengths: list[int], heads: int, window: int | None) -> list[Tensor]:
    """(S,) -> (A, L, L) of each sequence: as kernels.h says, rows nearer to each other where a window is."""
    found, at = [], 0
    for n in lengths:
        filled = n + -n % 16
        wide = 2 * (window + 5) + 6 + 15 if window is not None else filled
        apart = min(filled, wide + -wide % 16)
        size = (n - 1) * apart + filled
        found.append(
            torch.stack([cells[at + a * size :].as_strided((n, n), (apart, 1)) for a in range(heads)])
        )
        at += heads * size
    assert at == len(cells)
    return found


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    window=st.sampled_from([None, *WINDOWS]),
    biased=st.booleans(),
    heads=st.integers(1, 3),
    size=st.sampled_from([16, 32, 48, 64]),
    dropped=st.sampled_from([0.0, 0.1, 0.5]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    kept=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_window_gives_the_plain_definition_and_its_gradient(
    kernel: str,
    lengths: list[int],
    window: int | None,
    biased: bool,
    heads: int,
    size: int,
    dropped: float,
    dtype: torch.dtype,
    kept: bool,
    seed: int,
) -> None:
    """With weights dropped, and with a bias by distance; the same to the bit on two threads, and for the last
    sequence alone.
    """
    real, draw = sum(lengths), torch.Generator().manual_seed(seed)
    qkv = random_qkv(real + 3, heads, size, seed).to(dtype).requires_grad_()
    upstream = torch.randn(real + 3, heads, size, generator=draw).to(dtype)
    bias = random_bias(heads, lengths, seed).requires_grad_() if biased else None
    given = [qkv] if bias is None else [qkv, bias]
    masks = list[Tensor]()

    def drop(like: Tensor) -> Tensor:
        if not masks:
            masks.append((torch.rand(like.shape, generator=draw) >= dropped).to(dtype) / (1 - dropped))
        assert masks[0].shape == like.shape
        return masks[0]

    def attended() -> tuple[Tensor, ...]:
        found = attend_by_kernel(qkv, tuple(lengths), drop if kept else None, window, bias)
        return found.detach(), *torch.autograd.grad(found, given, upstream)

    with patch.object(attention, "_ONE_CORE", 0):  # two threads also for little
        found, gradient, *bias_gradient = attended()
    with patch("torch.get_num_threads", return_value=1):
        again = attended()
    assert all(torch.equal(*pair) for pair in zip(again, (found, gradient, *bias_gradient), strict=True))
    exact = [each.detach().double().requires_grad_() for each in given]
    scaled = squares(masks[0], lengths, heads, window) if kept else None
    expected = plain(exact[0][:real], lengths, window, scaled, *exact[1:])
    wanted, *bias_wanted = torch.autograd.grad(expected, exact, upstream[:real].double())
    digits = 3e-5 if dtype == torch.float32 else 0.02
    pairs = zip((found[:real], gradient), (expected.detach(), wanted), strict=True)
    for one, other in pairs:
        assert float((one.double() - other).abs().max()) <= digits * float(other.abs().max()) + 1e-30
    # a score's gradient is a difference of these, and may be zero but for their rounding
    values = exact[0].detach()[:real, 2]
    largest = float(torch.einsum("ihd,jhd->hij", upstream[:real].double(), values).abs().max())
    for one, other in zip(bias_gradient, bias_wanted, strict=True):
        assert float((one.double() - other).abs().max()) <= digits * largest
    assert not gradient[real:].any()
    if kept:
        return
    own = slice(real - lengths[-1], real)
    alone = qkv.detach()[own].clone().requires_grad_()
    last = attend_by_kernel(alone, (lengths[-1],), None, window, None if bias is None else bias.detach())
    assert torch.equal(last, found[own])
    assert torch.equal(torch.autograd.grad(last, alone, upstream[own])[0], gradient[own])


@pytest.mark.parametrize("length", [1, 5, 6, 7, 16, 17, 64, 65])
def test_a_window_that_reaches_everything_is_none(kernel: str, length: int) -> None:
    """To the bit."""
    qkv = random_qkv(length, 2, 32, seed=1).requires_grad_()
    every, within = (attend_by_kernel(qkv, (length,), None, window) for window in (None, length - 1))
    assert torch.equal(every, within)
    upstream = torch.randn_like(every)
    assert torch.equal(*(torch.autograd.grad(each, qkv, upstream)[0] for each in (every, within)))


@pytest.mark.parametrize("window", [None, 3, 600])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_weights_that_are_too_many_are_computed_again(
    kernel: str, window: int | None, dropped: bool, biased: bool
) -> None:
    """A query of the longer sequences has more than 1,024 of them, and none is kept; the others' are."""
    lengths, heads = [1030, 7, 1300], 2
    qkv = random_qkv(sum(lengths), heads, 16, seed=3).requires_grad_()
    given = [qkv, random_bias(heads, lengths, 3).requires_grad_()][: 1 + biased]
    masks = list[Tensor]()

    def drop(like: Tensor) -> Tensor:
        masks.append(2.0 * (torch.rand(like.shape) >= 0.5))
        return masks[0]

    saved = list[int]()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        found = attend_by_kernel(qkv, tuple(lengths), drop if dropped else None, window, *given[1:])
    exact = [each.detach().double().requires_grad_() for each in given]
    scaled = squares(masks[0], lengths, heads, window) if dropped else None
    expected = plain(exact[0], lengths, window, scaled, *exact[1:])
    upstream = torch.randn(sum(lengths), heads, 16)
    gradients = torch.autograd.grad(found, given, upstream)
    wanted = torch.autograd.grad(expected, exact, upstream.double())
    for one, other in zip((found.detach(), *gradients), (expected.detach(), *wanted), strict=True):
        assert float((one.double() - other).abs().max()) <= 3e-5 * float(other.abs().max())
    assert window == 3 or heads * 7 * 16 in saved


def test_memory_of_a_window_grows_with_the_length_alone(kernel: str) -> None:
    """Of 8,192 tokens: 160 weights a token and head, and a mask of as many."""
    qkv = random_qkv(8192, 1, 16, seed=4).requires_grad_()
    sizes = list[int]()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        found = attend_by_kernel(qkv, (8192,), torch.ones_like, 64)
    assert sizes == [qkv.numel(), *[8191 * 160 + 8192] * 2]
    upstream, some = torch.randn_like(found), slice(4000, 4400)
    (gradient,) = torch.autograd.grad(found, qkv, upstream)
    near = slice(4000 - 128, 4400 + 128)  # all that what `some` are seen by sees
    exact = qkv.detach()[near].double().requires_grad_()
    expected = plain(exact, [400 + 256], 64)
    (wanted,) = torch.autograd.grad(expected, exact, upstream[near].double())
    torch.testing.assert_close(found[some].double(), expected[128:-128], rtol=0, atol=1e-5)
    torch.testing.assert_close(gradient[some].double(), wanted[128:-128], rtol=0, atol=1e-4)


def test_what_is_no_number_spoils_what_sees_it_alone(kernel: str) -> None:
    """A key: those in its window."""
    qkv = random_qkv(200, 1, 16, seed=5)
    qkv[100, 1] = math.nan
    spoilt = attend_by_kernel(qkv, (200,), None, 10).isnan().any(-1).flatten()
    assert spoilt.nonzero().flatten().tolist() == list(range(90, 111))


@pytest.mark.parametrize("length", [13, 14, 15, 16])
def test_queries_that_fill_up_the_last_six_write_nothing_behind_the_scratch(kernel: str, length: int) -> None:
    """Within a window of 0 they are further from all keys than any real one, whose attention is its value."""
    qkv, library = random_qkv(50 * length, 8, 64, seed=6), kernels.load_library("")
    found = torch.empty(50 * length, 8, 64)
    job = attention._make_struct(qkv, (length,) * 50, 0)
    job.qkv, job.to = qkv.data_ptr(), found.data_ptr()
    size = library.attention_scratch(ctypes.byref(job))
    scratch = torch.full((size + 64,), 7.0)
    library.attend_part(ctypes.byref(job), ctypes.c_void_p(scratch.data_ptr()), 0, 1)
    assert (scratch[size:] == 7).all()
    for each in (found, attend_by_kernel(qkv, (length,) * 50, None, 0)):
        assert torch.equal(each, qkv[:, 2])


def test_a_window_below_zero_is_refused(kernel: str) -> None:
    with pytest.raises(ValueError, match="expected a window of 0 or more, found -1"):
        attend_by_kernel(torch.zeros(5, 3, 1, 16), (5,), None, -1)
    attend_by_kernel(torch.zeros(5, 3, 1, 16), (5,), None, 0)


def test_a_bias_of_too_few_distances_is_refused(kernel: str) -> None:
    """The kernel reads a line beyond the longest sequence."""
    with pytest.raises(ValueError, match="expected a bias of 42 distances or more, found 40"):
        attend_by_kernel(torch.zeros(8, 3, 1, 16), (5, 3), None, None, torch.zeros(1, 40))
    attend_by_kernel(torch.zeros(8, 3, 1, 16), (5, 3), None, None, torch.zeros(1, 42))


def test_in_bfloat16_few_keys_in_reach_are_as_good_as_few_keys() -> None:
    qkv = torch.zeros(2000, 3, 1, 16, dtype=torch.bfloat16)
    with patch.object(kernels, "load_library", return_value=len):
        assert is_kernel_faster(qkv, (2000,), 40)
        assert not is_kernel_faster(qkv, (2000,))
