"""Attention within a window by torch's operations against the plain definition in float64."""

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.data.batch import PackedBatch
from bertsmith.model.cpu import kernels
from bertsmith.model.layers import attention
from bertsmith.model.layers.attention import attend, attend_within
from bertsmith.model.layers.elementwise import Dropout

WINDOWS = [0, 1, 3, 16, 63, 64, 100]


def plain(qkv: Tensor, lengths: list[int], window: int, bias: Tensor | None = None) -> Tensor:
    found = []
    for sequence in qkv.split(lengths):
        query, key, value = sequence.permute(1, 2, 0, 3)
        places = torch.arange(len(sequence))
        scores = query @ key.mT / math.sqrt(qkv.shape[-1])
        if bias is not None:
            scores = scores + bias[:, bias.shape[1] // 2 + places - places[:, None]]
        far = (places[:, None] - places).abs() > window
        found.append((scores.masked_fill(far, -torch.inf).softmax(-1) @ value).transpose(0, 1))
    return torch.cat(found)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    window=st.sampled_from(WINDOWS),
    heads=st.integers(1, 3),
    size=st.sampled_from([3, 8, 24]),
    together=st.sampled_from([1, 5000, 1 << 22]),
    biased=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_window_gives_the_plain_definition_and_its_gradient(
    lengths: list[int], window: int, heads: int, size: int, together: int, biased: bool, seed: int
) -> None:
    """However many blocks are computed at once, and with a bias by distance."""
    draw, real = torch.Generator().manual_seed(seed), sum(lengths)
    qkv = 1.5 * torch.randn(real + 3, 3, heads, size, generator=draw, dtype=torch.float64)
    qkv.requires_grad_()
    upstream = torch.randn(real + 3, heads, size, generator=draw, dtype=torch.float64)
    bias = torch.randn(heads, 2 * max(lengths), generator=draw, dtype=torch.float64).requires_grad_()
    given = [qkv, bias][: 1 + biased]
    with patch.object(attention, "_MOST_WEIGHTS", together):
        found = attend_within(qkv, tuple(lengths), window, None, *given[1:])
    gradients = torch.autograd.grad(found, given, upstream)
    expected = plain(qkv[:real], lengths, window, *given[1:])
    wanted = torch.autograd.grad(expected, given, upstream[:real])
    torch.testing.assert_close(found[:real], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients, wanted, rtol=0, atol=1e-11)
    assert not found[real:].any()


def test_what_is_no_number_spoils_no_other_sequence() -> None:
    qkv = torch.randn(100, 3, 2, 8)
    qkv[:40] = torch.nan
    found = attend_within(qkv, (40, 60), 20)
    torch.testing.assert_close(found[40:].double(), plain(qkv[40:].double(), [60], 20), rtol=0, atol=1e-5)


def test_dropout_falls_on_the_weights() -> None:
    """Without values at all, nothing is left; with half of them, the mean stays."""
    qkv = torch.randn(200, 3, 1, 8)
    qkv[:, :2], qkv[:, 2] = 0, 1
    assert not attend_within(qkv, (200,), 64, torch.zeros_like).any()
    found = attend_within(qkv, (200,), 64, Dropout(0.5).train())
    assert found.std(0).max() > 0.02
    assert abs(float(found.mean()) - 1) < 0.05


def test_long_sequences_take_time_and_memory_of_their_length() -> None:
    """Of 50,000 tokens all scores would be 10 GB."""
    qkv = torch.randn(50_000, 3, 1, 8)
    found = attend_within(qkv, (50_000,), 8)
    near = qkv[30_000 - 8 : 30_100 + 8].double()
    torch.testing.assert_close(found[30_000:30_100].double(), plain(near, [116], 8)[8:-8], rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [None, Dropout(0.001).train()])  # by which nothing is dropped
@pytest.mark.parametrize("window", [5, 60])
def test_attention_asks_whatever_there_is(
    size: int, dtype: torch.dtype, dropout: Dropout | None, window: int, inference_way: str
) -> None:
    lengths = [40, 7, 200]
    zeros = np.zeros(247, np.int64)
    batch = PackedBatch.pack(zeros, zeros, np.array(lengths), multiple=16)
    qkv = torch.randn(256, 3, 2, size).to(dtype).requires_grad_()
    found, expected = attend(qkv, batch, dropout, window)[:247], plain(qkv[:247].double(), lengths, window)
    gradients = (torch.autograd.grad(each.sum(), qkv)[0][:247].double() for each in (found, expected))
    digits = 1e-4 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.double(), expected, rtol=digits, atol=digits)
    torch.testing.assert_close(*gradients, rtol=digits, atol=2 * digits)
    if inference_way != "torch":
        by_kernel = kernels.load_library("").attend.call_count
        assert by_kernel == (2 if size == 16 else 0)
        attend(torch.zeros(256, 3, 1, 16), batch)  # the fixture wants to see the library asked
