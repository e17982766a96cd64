"""Attention over packed sequences: one function, with a backend for each device and length. Tests compare
every backend with the plain definition.

N tokens in the packed batch, A heads, D head size, L length of a sequence, R sequences in a run of equal
length; 2 R distances of a bias.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, to_device
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.attention import attend_by_kernel, is_kernel_faster
from bertsmith.model.cpu.grouped_attention import attend_groups, bias_square
from bertsmith.model.cpu.onednn_matmul import MIN_TOKENS
from bertsmith.model.layers.disentangled import Distances, attend_disentangled
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.layers.rotary import Rotary

_SMALLEST_BLOCK = 16  # queries
_MOST_WEIGHTS = 1 << 22  # attention weights that are computed at once
_BUCKETS = 32  # of distances, half of them to each side
_FARTHEST = 128  # tokens; from there on all distances are in one bucket
_LINE = 32  # tokens: the largest number that a backend fills sequences up to


class PositionBias(nn.Module):
    """A learned value for each head and distance from a query to a key, the same in all layers. There are 32
    buckets: one each for 0 to 7 tokens to either side, then eight that grow by the square root of 2 (Raffel
    et al. 2020, section 2.1, with the numbers of MPNet, Song et al. 2020).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bias = nn.Embedding(_BUCKETS, config.num_attention_heads)
        self.reach = _reach_of(config)

    def forward(self) -> Tensor:
        """(A, 2 R), in column R + d the value for a key d tokens after its query, -R <= d < R; R is a few
        tokens more than the longest sequence.
        """
        by_distance: Tensor = self.bias(_distance_buckets(self.reach, self.bias.weight.device))
        return by_distance.T.contiguous()


class Alibi(nn.Module):
    """Minus the distance of a query and a key, times a slope of the head's, the same in all layers (Press et
    al. 2022, section 3). Of A heads, a power of two, slopes are 2^(-8/A), 2^(-16/A) and so on; further heads
    have every second slope of twice as many.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, self.reach = config.num_attention_heads, _reach_of(config)

    def forward(self, device: torch.device) -> Tensor:
        """(A, 2 R), as `PositionBias` has it."""
        return _slopes_by_distance(self.heads, self.reach, device)


def _reach_of(config: BertConfig) -> int:
    """R: beyond the longest sequence as far as backends fill it up."""
    return (config.max_length // _LINE + 2) * _LINE


@lru_cache(maxsize=4)
def _slopes_by_distance(heads: int, reach: int, device: torch.device) -> Tensor:
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * number / whole) for number in range(1, whole + 1)]
    slopes += [2 ** (-4 * number / whole) for number in range(1, 2 * (heads - whole), 2)]
    with torch.inference_mode(False):  # the cached ones may be used with gradients next
        distances = torch.arange(-reach, reach, device=device).abs()
        return -torch.tensor(slopes, device=device)[:, None] * distances


@lru_cache(maxsize=4)
def _distance_buckets(reach: int, device: torch.device) -> Tensor:
    """The buckets (2 R,) of the distances from -R to R - 1."""
    with torch.inference_mode(False):  # the cached ones may be used with gradients next
        distances, half, exact = torch.arange(-reach, reach), _BUCKETS // 2, _BUCKETS // 4
        # in float32, which decides on which side of a bucket's edge a distance lies
        octaves = torch.log(distances.abs().clamp(min=1).float() / exact) / math.log(_FARTHEST / exact)
        far = (exact + (octaves * (half - exact)).long()).clamp(max=half - 1)
        near = torch.where(distances.abs() < exact, distances.abs(), far)
        return (near + half * (distances > 0)).to(device)


def attend_within(
    qkv: Tensor,
    lengths: tuple[int, ...],
    window: int,
    dropout: Callable[[Tensor], Tensor] | None = None,
    position_bias: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over keys at most `window` tokens away, within each sequence.

    qkv (N, 3, A, D) -> (N, A, D), zeros for tokens after the last sequence. `dropout` is applied to the
    attention weights, `position_bias` added to the scores, as `attend` has it. Differentiable as often as
    torch's operations are.
    """
    heads, size = qkv.shape[2:]
    blocks = _make_blocks(lengths, window, qkv.device)
    query, key, value = qkv.unbind(1)  # each (N, A, D)
    count = max(1, _MOST_WEIGHTS // (heads * blocks.size * (blocks.size + 2 * window)))  # blocks at once
    attended = []
    for start in range(0, len(blocks), count):
        query_rows, key_rows, hidden = blocks.select(start, count)
        q = query[query_rows].transpose(1, 2)  # (M, A, C, D)
        k, v = key[key_rows].transpose(1, 2), value[key_rows].transpose(1, 2)  # (M, A, K, D)
        scores = (q @ k.mT) / math.sqrt(size)  # (M, A, C, K)
        if position_bias is not None:
            distances = key_rows[:, None] - query_rows[..., None]  # (M, C, K)
            added = position_bias[:, distances + position_bias.shape[1] // 2]  # (A, M, C, K)
            scores = scores + added.transpose(0, 1).to(scores.dtype)
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        mixed = (weights if dropout is None else dropout(weights)) @ v
        attended.append(mixed.transpose(1, 2).reshape(-1, heads, size))  # (M C, A, D)
    padding = qkv.new_zeros(len(qkv) - sum(lengths), heads, size)
    return torch.cat([torch.cat([padding[:0], *attended]).index_select(0, blocks.real), padding])


@dataclass(frozen=True)
class _Blocks:
    """The blocks of queries of all sequences, in order, for attention within a window."""

    size: int  # C
    window: int
    first: Tensor  # (M,) the first query
    begin: Tensor  # (M,) the first token of its sequence
    end: Tensor  # (M,) after the last one
    real: Tensor  # (N,) the rows of (M C) that aren't padding

    def __len__(self) -> int:
        return len(self.first)

    def select(self, start: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of the queries (M, C) and of the keys (M, K) of `count` blocks from block `start` on,
        and which keys a query doesn't see (M, C, K).

        Padding repeats a sequence's last token as a query, and is hidden as a key.
        """
        part = slice(start, start + count)
        first, begin, end = self.first[part, None], self.begin[part, None], self.end[part, None]
        offsets = torch.arange(self.size + 2 * self.window, device=first.device)
        query, key = torch.minimum(first + offsets[: self.size], end - 1), first - self.window + offsets
        outside = (key < begin) | (key >= end)
        hidden = outside[:, None] | ((key[:, None] - query[..., None]).abs() > self.window)
        return query, torch.maximum(torch.minimum(key, end - 1), begin), hidden


@lru_cache(maxsize=4)  # the layers of a model ask for the same ones
def _make_blocks(lengths: tuple[int, ...], window: int, device: torch.device) -> _Blocks:
    size, of_sequence = max(window, _SMALLEST_BLOCK), np.array(lengths, np.int64)
    ends, counts = np.cumsum(of_sequence), -(-of_sequence // size)
    begin, end = np.repeat(ends - of_sequence, counts), np.repeat(ends, counts)
    number = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its sequence
    first = begin + number * size
    real = np.flatnonzero(first[:, None] + np.arange(size) < end[:, None])
    with torch.inference_mode(False):  # the cached blocks may be used with gradients next
        return _Blocks(size, window, *(to_device(rows, device) for rows in (first, begin, end, real)))


class SelfAttention(nn.Module):
    """Multi-head self-attention within each sequence (Vaswani et al. 2017, section 3.2).

    One product makes queries, keys and values, whose weights are stacked in `qkv`. With a `window` a token
    sees only that many tokens to either side (Beltagy et al. 2020, section 3.1).
    """

    def __init__(self, config: BertConfig, layer: int) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.head_size = config.head_size
        self.window = config.window(layer)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias)
        self.dropout = Dropout(config.attention_probs_dropout_prob)
        self.rotary: Rotary | None = None
        if config.position_embedding == "rotary":
            theta = config.local_rope_theta if config.is_local(layer) else config.rope_theta
            self.rotary = Rotary(theta, config.head_size, config.rotary_pairs, config.rope_factor)
        self.distances = Distances(config) if config.relative_attention else None

    def forward(
        self,
        hidden_states: Tensor,
        batch: PackedBatch,
        rows: Tensor | None = None,
        relative: Tensor | None = None,
    ) -> Tensor:
        """The outputs (N, H) of hidden states (N, H), or (R, H) of the given rows alone. `relative` is the
        encoder's `relative_table`.
        """
        qkv = self.qkv(hidden_states).view(-1, 3, self.heads, self.head_size)  # (N, 3, A, D)
        if self.rotary is not None:
            qkv = self.rotary(qkv, batch)
        if self.distances is not None and relative is not None:
            keys_queries = self.distances(relative, self.qkv)
            attended = attend_disentangled(qkv, batch, keys_queries, self.dropout)
        else:
            attended = attend(qkv, batch, self.dropout, self.window, relative)
        mixed: Tensor = self.output(select_rows(attended.flatten(1), rows))
        return mixed


def select_rows(states: Tensor, rows: Tensor | None) -> Tensor:
    """The given rows of (N, H), or all of them."""
    return states if rows is None else states.index_select(0, rows)


def attend(
    qkv: Tensor,
    batch: PackedBatch,
    dropout: Dropout | None = None,
    window: int | None = None,
    position_bias: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v within each sequence: qkv (N, 3, A, D) -> (N, A, D).

    With a `window`, a query sees keys at most that far away. A `position_bias` (A, 2 R) is added to the
    scores of each head: column R + d for a key d tokens after its query. The rows of padding tokens are
    undefined.
    """
    if window is not None and window >= max(batch.lengths, default=1) - 1:
        window = None
    if position_bias is None and supports_flash_attention(qkv.device.type, qkv.dtype, qkv.shape[-1]):
        return _attend_variable_length(qkv, batch, window)
    make_mask = None
    if dropout is not None and dropout.training and dropout.probability > 0:
        make_mask = dropout.mask
    if is_kernel_faster(qkv, batch.lengths, window):
        return attend_by_kernel(qkv, batch.lengths, make_mask, window, position_bias)
    if window is not None:
        return attend_within(qkv, batch.lengths, window, dropout, position_bias)
    if make_mask is not None:
        return attend_groups(qkv, batch.lengths, make_mask=make_mask, position_bias=position_bias)
    if qkv.device.type == "cpu" and (len(batch.lengths) > 1 or len(qkv) >= MIN_TOKENS):
        return attend_groups(qkv, batch.lengths, batch.padding, position_bias=position_bias)
    return attend_by_equal_lengths(qkv, batch, position_bias)


def supports_flash_attention(device: str, precision: torch.dtype, head_size: int) -> bool:
    """Whether torch's flash attention computes this: in half precision on a GPU, for head sizes that are
    multiples of 8 up to 256.
    """
    half = precision in (torch.bfloat16, torch.float16)
    return device == "cuda" and half and head_size % 8 == 0 and head_size <= 256


def _attend_variable_length(qkv: Tensor, batch: PackedBatch, window: int | None) -> Tensor:
    """torch's own flash attention over cumulative lengths. It has no dropout of attention weights."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv.unbind(1)
    ends, longest = batch.cumulative_lengths, max(batch.lengths)
    reach: dict[str, Any] = {} if window is None else {"window_size": (window, window)}
    attended = varlen_attn(query, key, value, ends, ends, longest, longest, **reach)
    assert isinstance(attended, Tensor)  # a tuple only when asked for more
    return attended


def attend_by_equal_lengths(qkv: Tensor, batch: PackedBatch, position_bias: Tensor | None = None) -> Tensor:
    """Attention by one call of torch's for each run of sequences of equal length, without padding, and with
    no mask but the bias: qkv (N, 3, A, D) -> (N, A, D).
    """
    heads, size = qkv.shape[2:]
    # split, not slices: its gradient is one concatenation, a slice's is a zero tensor of the whole batch
    *parts, padding = qkv.split([*(length * count for length, count in batch.runs), batch.padding])
    attended = []
    for part, (length, count) in zip(parts, batch.runs, strict=True):
        query, key, value = part.view(count, length, 3, heads, size).permute(
            2, 0, 3, 1, 4
        )  # each (R, A, L, D)
        added = None if position_bias is None else bias_square(position_bias, length).to(qkv.dtype)
        mixed = F.scaled_dot_product_attention(query, key, value, added)
        attended.append(mixed.transpose(1, 2).reshape(count * length, heads, size))
    return torch.cat([*attended, padding[:, 0]])
