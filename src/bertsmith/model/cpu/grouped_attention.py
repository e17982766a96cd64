"""Attention over groups of sequences of similar length, with dropout where it is asked for, and a gradient of
its own.

Short sequences of many lengths make many small products, and autograd's work around each takes longer than
the product itself; and a softmax over rows of 25 values takes three times as long as over rows of 32. So
sequences are padded to whole registers of the processor and grouped by their padded length. A group takes
three operations forward and five backward; all groups together take one gather on the way in, one on the way
out, and one dropout mask. Padding has a weight of zero.

N tokens in the packed batch, A heads, D head size; a group is R sequences padded to L tokens; F = sum of
R L; S = sum of R A L L, the attention weights of all groups.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.arrays import Bools, Ints
from bertsmith.data.batch import to_device

_REGISTER = 64  # bytes, of AVX-512


def attend_groups(
    qkv: Tensor,
    lengths: tuple[int, ...],
    padding: int = 0,
    make_mask: Callable[[Tensor], Tensor] | None = None,
    position_bias: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) * mask, times v, within each sequence: qkv (N, 3, A, D) -> (N, A, D).

    `make_mask` returns a dropout mask like the (S,) tensor that it gets: 0 for dropped weights, the scale for
    the others. A `position_bias` (A, 2 R) is added to the scores: column R + d for a key d tokens after its
    query. Without gradients the last `padding` rows may belong to no sequence; their values are undefined.
    """
    order = make_group_order(lengths, padding, qkv.shape[2], qkv.dtype, qkv.device)
    mask = None if make_mask is None else make_mask(qkv.new_empty(order.weights))
    squares = list[Tensor]()
    if position_bias is not None:
        squares = [bias_square(position_bias, length).to(qkv.dtype) for _, length in order.shapes]
    attended: Tensor = _GroupedAttention.apply(qkv, order, mask, *squares)  # type: ignore[no-untyped-call]
    return attended


def bias_square(position_bias: Tensor, length: int) -> Tensor:
    """What is added to the scores of queries and keys of L tokens: (A, 2 R) -> (A, L, L)."""
    middle = position_bias.shape[1] // 2
    distances = position_bias[:, middle - length + 1 : middle + length]  # (A, 2 L - 1)
    return distances.unfold(1, length, 1).flip(1)  # the first query's keys lie after it


@dataclass(frozen=True)
class GroupOrder:
    """The order in which rows of D values, which a product leaves token by token, are grouped as (R, A, L,
    D).

    Padding repeats its sequence's last token, and is left out on the way back.
    """

    rows: Ints  # (F A,) rows of (N, A) in the order of the groups
    is_real: Bools  # (F A,) whether a row isn't padding
    padding: int  # tokens at the end of the batch that belong to no sequence
    heads: int  # A
    device: torch.device
    shapes: tuple[tuple[int, int], ...]  # (R A, L) of each group
    biases: tuple[Tensor | None, ...]  # of each group, (R A, 1, L): -inf for padded keys; None without any
    weights: int  # S

    @cached_property
    def gather(self) -> Tensor:
        """(3 F A,) the rows of (N, 3, A) in the order of the groups: queries, then keys, then values."""
        return _to_device(self._qkv_rows(), self.device)

    @cached_property
    def scatter(self) -> Tensor:
        """(3 N A,) the inverse of `gather`: the grouped rows in the order of (N, 3, A)."""
        return _to_device(_invert_rows(self._qkv_rows(), np.tile(self.is_real, 3)), self.device)

    @cached_property
    def gather_heads(self) -> Tensor:
        """(F A,) the rows of (N, A) in the order of the groups."""
        return _to_device(self.rows, self.device)

    @cached_property
    def scatter_heads(self) -> Tensor:
        """(N A,) the inverse of `gather_heads`: the grouped rows in the order of (N, A)."""
        inverse = _invert_rows(self.rows, self.is_real)
        padded = np.concatenate([inverse, np.zeros(self.padding * self.heads, np.int64)])
        return _to_device(padded, self.device)

    @cached_property
    def padded_rows(self) -> Tensor:
        """The rows of the F A that are padding."""
        return _to_device(np.flatnonzero(~self.is_real), self.device)

    def _qkv_rows(self) -> Ints:
        query = self.rows + self.rows // self.heads * (2 * self.heads)  # rows of (N, 3, A)
        return np.concatenate([query, query + self.heads, query + 2 * self.heads])

    def vectors(self, rows: Tensor) -> list[Tensor]:
        """Splits grouped rows (F A, D) to (R A, L, D) of each group."""
        parts = rows.split([count * length for count, length in self.shapes])
        return [part.view(*shape, -1) for part, shape in zip(parts, self.shapes, strict=True)]

    def squares(self, cells: Tensor) -> list[Tensor]:
        """Splits attention weights (S,) to (R A, L, L) of each group."""
        parts = cells.split([count * length * length for count, length in self.shapes])
        return [part.view(*shape, shape[1]) for part, shape in zip(parts, self.shapes, strict=True)]


@lru_cache(maxsize=4)  # the layers of a model ask for the same one
def make_group_order(
    lengths: tuple[int, ...], padding: int, heads: int, dtype: torch.dtype, device: torch.device
) -> GroupOrder:
    """The groups of sequences of these lengths, with values of this type."""
    of_sequence = np.array(lengths)
    ends, padded = np.cumsum(of_sequence), np.array([padded_length(length, dtype) for length in lengths])
    heads_apart, by_head = np.arange(heads)[:, None], list[Ints]()
    is_real, shapes = list[Bools](), list[tuple[int, int]]()
    biases = list[Tensor | None]()
    for length in np.unique(padded).tolist():
        (sequences,) = np.nonzero(padded == length)
        positions, own_lengths = np.arange(length), of_sequence[sequences, None]
        tokens = (ends[sequences, None] - own_lengths) + np.minimum(positions, own_lengths - 1)  # (R, L)
        by_head.append((tokens[:, None] * heads + heads_apart).ravel())
        real = np.repeat(positions < own_lengths, heads, axis=0)  # (R A, L)
        is_real.append(real.ravel())
        shapes.append((len(sequences) * heads, length))
        if real.all():
            biases.append(None)
            continue
        bias = np.where(real, np.float32(0), np.float32(-np.inf))[:, None]
        biases.append(_to_device(bias, device).to(dtype))
    weights = sum(count * length * length for count, length in shapes)
    rows, all_real = np.concatenate(by_head), np.concatenate(is_real)
    return GroupOrder(rows, all_real, padding, heads, device, tuple(shapes), tuple(biases), weights)


def padded_length(length: int, dtype: torch.dtype) -> int:
    """The length of a sequence with padding to whole registers, for values of this type."""
    return length + -length % (_REGISTER // dtype.itemsize)


def _to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # an order is cached, and may be used with gradients next
        return to_device(array, device)


def _invert_rows(rows: Ints, is_real: Bools) -> Ints:
    """The inverse of an order of rows, without padding: the position of each row in it."""
    positions = np.flatnonzero(is_real)
    inverse = np.empty_like(positions)
    inverse[rows[positions]] = positions
    return inverse


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, order: GroupOrder, mask: Tensor | None, *squares: Tensor) -> Tensor:
        heads, size = qkv.shape[2:]
        by_groups = qkv.reshape(-1, size).index_select(0, order.gather)
        query, key, value = (order.vectors(part) for part in by_groups.chunk(3))
        weights, mixed = by_groups.new_empty(order.weights), by_groups.new_empty(len(order.rows), size)
        scale = 1 / math.sqrt(size)
        for group, (q, k, w) in enumerate(zip(query, key, order.squares(weights), strict=True)):
            bias = order.biases[group]
            torch.baddbmm(w if bias is None else bias, q, k.mT, beta=bias is not None, alpha=scale, out=w)
            if squares:
                w.view(-1, *squares[group].shape).add_(squares[group])
            torch.softmax(w, -1, out=w)
        dropped = order.squares(_apply_mask(weights, mask))
        for w, v, m in zip(dropped, value, order.vectors(mixed), strict=True):
            torch.bmm(w, v, out=m)
        ctx.order, ctx.has_bias = order, bool(squares)
        ctx.save_for_backward(by_groups, weights, mask)
        return mixed.index_select(0, order.scatter_heads).view(-1, heads, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        order: GroupOrder = ctx.order
        square_gradients = list[Tensor]()
        by_groups, weights, mask = ctx.saved_tensors
        heads, size = gradient.shape[1:]
        query, key, value = (order.vectors(part) for part in by_groups.chunk(3))
        rows = gradient.reshape(-1, size).index_select(0, order.gather_heads)
        gradients = order.vectors(rows.index_fill_(0, order.padded_rows, 0))
        qkv_gradient = torch.empty_like(by_groups)
        query_gradient, key_gradient, value_gradient = map(order.vectors, qkv_gradient.chunk(3))
        weight_gradient = torch.empty_like(weights)
        scale = 1 / math.sqrt(size)
        dropped = order.squares(_apply_mask(weights, mask))
        groups = zip(gradients, dropped, value, order.squares(weight_gradient), value_gradient, strict=True)
        for g, w, v, dw, dv in groups:
            torch.bmm(w.mT, g, out=dv)
            torch.bmm(g, v.mT, out=dw)
        if mask is not None:
            weight_gradient *= mask
        squares = zip(order.squares(weights), order.squares(weight_gradient), strict=True)
        vectors = zip(query, key, query_gradient, key_gradient, strict=True)
        for (w, dw), (q, k, dq, dk) in zip(squares, vectors, strict=True):
            ds = torch._softmax_backward_data(dw, w, -1, w.dtype)
            torch.baddbmm(dq, ds, k, beta=0, alpha=scale, out=dq)
            torch.baddbmm(dk, ds.mT, q, beta=0, alpha=scale, out=dk)
            if ctx.has_bias:
                square_gradients.append(ds.view(-1, heads, *ds.shape[1:]).sum(0))
        by_tokens = qkv_gradient.index_select(0, order.scatter).view(-1, 3, heads, size)
        return by_tokens, None, None, *square_gradients


def _apply_mask(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights * mask
