"""Attention over groups of sequences of like length, with dropout if asked for, its gradient written out.

Short sequences of many lengths make many small products, and what autograd does around each costs more than
the product itself; and a softmax over rows of 25 values takes three times as long as over rows of 32. So
sequences are filled up to whole registers of the processor and stand in groups of one filled length: three
operations a group forward and five backward, one gather for all groups on the way in and on the way out, one
dropout mask for all. The padding has a weight of zero.

N tokens in the packed batch, A heads, D head size; a group is R sequences filled up to L tokens; F = sum of
R L; S = sum of R A L L, the attention weights of all groups.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
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
) -> Tensor:
    """softmax(q k^T / sqrt(D)) * mask, times v, within each sequence: qkv (N, 3, A, D) -> (N, A, D).

    `make_mask` makes a mask like the (S,) tensor it is given: 0 what is dropped, the scale what is kept.
    Without gradients the last `padding` rows may be of no sequence, and get what some other row has.
    """
    order = group_order(lengths, padding, qkv.shape[2], qkv.dtype, qkv.device)
    mask = None if make_mask is None else make_mask(qkv.new_empty(order.weights))
    attended: Tensor = _GroupedAttention.apply(qkv, order, mask)  # type: ignore[no-untyped-call]
    return attended


@dataclass(frozen=True)
class GroupOrder:
    """Where rows of D values, which a product leaves token by token, lie group by group as (R, A, L, D).

    Filler is a copy of its sequence's last token, and is left out on the way back. A group without has None
    for it.
    """

    rows: Ints  # (F A,) rows of (N, A) in the order of the groups
    is_real: Bools  # (F A,) what is no padding
    padding: int  # tokens at the end of the batch, of no sequence
    heads: int  # A
    device: torch.device
    shapes: tuple[tuple[int, int], ...]  # (R A, L) of each group
    biases: tuple[Tensor | None, ...]  # of each group, (R A, 1, L): -inf for keys that are padding
    weights: int  # S

    @cached_property
    def gather(self) -> Tensor:
        """(3 F A,) from rows of (N, 3, A) to queries, then keys, then values by groups."""
        return to_device(self._three_times(), self.device)

    @cached_property
    def scatter(self) -> Tensor:
        """(3 N A,) the inverse of `gather`: from rows by groups back to rows of (N, 3, A)."""
        return to_device(_way_back(self._three_times(), np.tile(self.is_real, 3)), self.device)

    @cached_property
    def given(self) -> Tensor:
        """(F A,) from rows of (N, A) to one of the three by groups."""
        return to_device(self.rows, self.device)

    @cached_property
    def attended(self) -> Tensor:
        """(N A,) the inverse of `given`: from rows by groups back to rows of (N, A)."""
        way_back = _way_back(self.rows, self.is_real)
        padded = np.concatenate([way_back, np.zeros(self.padding * self.heads, np.int64)])
        return to_device(padded, self.device)

    @cached_property
    def padded_rows(self) -> Tensor:
        """Rows of the F A that are padding."""
        return to_device(np.flatnonzero(~self.is_real), self.device)

    def _three_times(self) -> Ints:
        query = self.rows + self.rows // self.heads * (2 * self.heads)  # rows of (N, 3, A)
        return np.concatenate([query, query + self.heads, query + 2 * self.heads])

    def vectors(self, rows: Tensor) -> list[Tensor]:
        """(F A, D) -> (R A, L, D) of each group."""
        parts = rows.split([many * length for many, length in self.shapes])
        return [part.view(*shape, -1) for part, shape in zip(parts, self.shapes, strict=True)]

    def squares(self, cells: Tensor) -> list[Tensor]:
        """(S,) -> (R A, L, L) of each group."""
        parts = cells.split([many * length * length for many, length in self.shapes])
        return [part.view(*shape, shape[1]) for part, shape in zip(parts, self.shapes, strict=True)]


@lru_cache(maxsize=4)  # the layers of a model ask for the same one
def group_order(
    lengths: tuple[int, ...], padding: int, heads: int, dtype: torch.dtype, device: torch.device
) -> GroupOrder:
    """Of sequences of these lengths, whose values are of this type."""
    of_sequence = np.array(lengths)
    ends, filled = np.cumsum(of_sequence), np.array([filled_length(length, dtype) for length in lengths])
    heads_apart, by_head = np.arange(heads)[:, None], list[Ints]()
    is_real, shapes = list[Bools](), list[tuple[int, int]]()
    biases = list[Tensor | None]()
    for length in np.unique(filled).tolist():
        (sequences,) = np.nonzero(filled == length)
        places, own = np.arange(length), of_sequence[sequences, None]
        tokens = (ends[sequences, None] - own) + np.minimum(places, own - 1)  # (R, L)
        by_head.append((tokens[:, None] * heads + heads_apart).ravel())
        real = np.repeat(places < own, heads, axis=0)  # (R A, L)
        is_real.append(real.ravel())
        shapes.append((len(sequences) * heads, length))
        if real.all():
            biases.append(None)
            continue
        bias = np.where(real, np.float32(0), np.float32(-np.inf))[:, None]
        biases.append(to_device(bias, device).to(dtype))
    weights = sum(many * length * length for many, length in shapes)
    rows, reals = np.concatenate(by_head), np.concatenate(is_real)
    return GroupOrder(rows, reals, padding, heads, device, tuple(shapes), tuple(biases), weights)


def filled_length(length: int, dtype: torch.dtype) -> int:
    """Of a sequence with padding, if its values are of this type."""
    return length + -length % (_REGISTER // dtype.itemsize)


def _way_back(rows: Ints, is_real: Bools) -> Ints:
    """Where each row went, padding apart."""
    places = np.flatnonzero(is_real)
    back = np.empty_like(places)
    back[rows[places]] = places
    return back


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, order: GroupOrder, mask: Tensor | None) -> Tensor:
        heads, size = qkv.shape[2:]
        by_groups = qkv.reshape(-1, size).index_select(0, order.gather)
        query, key, value = (order.vectors(part) for part in by_groups.chunk(3))
        weights, mixed = by_groups.new_empty(order.weights), by_groups.new_empty(len(order.rows), size)
        scale = 1 / math.sqrt(size)
        for q, k, w, bias in zip(query, key, order.squares(weights), order.biases, strict=True):
            torch.baddbmm(w if bias is None else bias, q, k.mT, beta=bias is not None, alpha=scale, out=w)
            torch.softmax(w, -1, out=w)
        dropped = order.squares(_masked(weights, mask))
        for w, v, m in zip(dropped, value, order.vectors(mixed), strict=True):
            torch.bmm(w, v, out=m)
        ctx.order = order
        ctx.save_for_backward(by_groups, weights, mask)
        return mixed.index_select(0, order.attended).view(-1, heads, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        order: GroupOrder = ctx.order
        by_groups, weights, mask = ctx.saved_tensors
        heads, size = gradient.shape[1:]
        query, key, value = (order.vectors(part) for part in by_groups.chunk(3))
        rows = gradient.reshape(-1, size).index_select(0, order.given)
        given = order.vectors(rows.index_fill_(0, order.padded_rows, 0))
        found = torch.empty_like(by_groups)
        to_query, to_key, to_value = (order.vectors(part) for part in found.chunk(3))
        to_weights = torch.empty_like(weights)
        scale = 1 / math.sqrt(size)
        dropped = order.squares(_masked(weights, mask))
        for g, w, v, dw, dv in zip(given, dropped, value, order.squares(to_weights), to_value, strict=True):
            torch.bmm(w.mT, g, out=dv)
            torch.bmm(g, v.mT, out=dw)
        if mask is not None:
            to_weights *= mask
        each = zip(
            order.squares(weights), order.squares(to_weights), query, key, to_query, to_key, strict=True
        )
        for w, dw, q, k, dq, dk in each:
            ds = torch._softmax_backward_data(dw, w, -1, w.dtype)
            torch.baddbmm(dq, ds, k, beta=0, alpha=scale, out=dq)
            torch.baddbmm(dk, ds.mT, q, beta=0, alpha=scale, out=dk)
        return found.index_select(0, order.scatter).view(-1, 3, heads, size), None, None


def _masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights * mask
