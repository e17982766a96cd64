"""Attention within a window by torch's operations, wherever there is no kernel for it: time and memory grow
with the length of a sequence, not with its square.

Sequences are cut into blocks of queries, and each block meets the keys that one of its queries may see
(Beltagy et al. 2020, section 3.1, without their global tokens).

N tokens in the packed batch, A heads, D head size; M blocks of C queries and K = C + 2 window keys.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bertsmith.data.batch import to_device

_SMALLEST = 16  # queries of a block
_TOGETHER = 1 << 22  # weights that are computed at once


def attend_within(
    qkv: Tensor,
    lengths: tuple[int, ...],
    window: int,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v of keys at most `window` tokens away, within each sequence.

    qkv (N, 3, A, D) -> (N, A, D), zeros for tokens after the last sequence. `dropout` is applied to weights.
    Differentiable as often as torch's operations are.
    """
    heads, size = qkv.shape[2:]
    blocks = _blocks(lengths, window, qkv.device)
    query, key, value = qkv.unbind(1)  # each (N, A, D)
    many = max(1, _TOGETHER // (heads * blocks.size * (blocks.size + 2 * window)))
    attended = []
    for of_query, of_key, hidden in (blocks.part(first, many) for first in range(0, len(blocks), many)):
        q = query[of_query].transpose(1, 2)  # (M, A, C, D)
        k, v = key[of_key].transpose(1, 2), value[of_key].transpose(1, 2)  # (M, A, K, D)
        scores = (q @ k.mT) / math.sqrt(size)  # (M, A, C, K)
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        mixed = (weights if dropout is None else dropout(weights)) @ v
        attended.append(mixed.transpose(1, 2).reshape(-1, heads, size))  # (M C, A, D)
    padding = qkv.new_zeros(len(qkv) - sum(lengths), heads, size)
    return torch.cat([torch.cat([padding[:0], *attended]).index_select(0, blocks.real), padding])


@dataclass(frozen=True)
class _Blocks:
    """Of all sequences, in order."""

    size: int  # C
    window: int
    first: Tensor  # (M,) the first query
    begin: Tensor  # (M,) the first token of its sequence
    end: Tensor  # (M,) behind the last one
    real: Tensor  # (N,) rows of (M C) that are no padding

    def __len__(self) -> int:
        return len(self.first)

    def part(self, number: int, many: int) -> tuple[Tensor, Tensor, Tensor]:
        """From a block on: tokens of queries (M, C) and of keys (M, K), and which they don't see (M, C, K).

        Filler is a copy of a sequence's last token as a query, and is hidden as a key.
        """
        part = slice(number, number + many)
        first, begin, end = (each[part, None] for each in (self.first, self.begin, self.end))
        places = torch.arange(self.size + 2 * self.window, device=first.device)
        query, key = torch.minimum(first + places[: self.size], end - 1), first - self.window + places
        outside = (key < begin) | (key >= end)
        hidden = outside[:, None] | ((key[:, None] - query[..., None]).abs() > self.window)
        return query, torch.maximum(torch.minimum(key, end - 1), begin), hidden


@lru_cache(maxsize=4)  # the layers of a model ask for the same ones
def _blocks(lengths: tuple[int, ...], window: int, device: torch.device) -> _Blocks:
    size, of_sequence = max(window, _SMALLEST), np.array(lengths, np.int64)
    ends, counts = np.cumsum(of_sequence), -(-of_sequence // size)
    begin, end = (np.repeat(each, counts) for each in (ends - of_sequence, ends))
    number = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its sequence
    first = begin + number * size
    real = np.flatnonzero(first[:, None] + np.arange(size) < end[:, None])
    with torch.inference_mode(False):  # whoever asks next may want gradients
        return _Blocks(size, window, *(to_device(each, device) for each in (first, begin, end, real)))
