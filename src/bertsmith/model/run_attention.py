"""Attention over runs of sequences of equal length, with dropout if asked for, its gradient written out.

Short sequences of many lengths make many small products, and what autograd does around each costs more than
the product itself: here three operations a run forward and five backward, one gather for all runs on the way
in and on the way out, one dropout mask for all. On a processor torch's own attention, which keeps no weights,
takes as long by MKL, and two to three times as long where oneDNN multiplies (`products`, bfloat16).

N tokens in the packed batch, A heads, D head size; a run is R sequences of L tokens; S = sum of R A L L, the
attention weights of all runs.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.data.batch import to_device
from bertsmith.model.products import usual_products

Runs = tuple[tuple[int, int], ...]  # (L, R) each
# So many multiplications a run are worth the code that oneDNN makes for each new shape, a quarter of a
# millisecond. Fewer are MKL's, in float32.
_LARGE = 2**25


def attend_runs(qkv: Tensor, runs: Runs, make_mask: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) * mask, times v: qkv (N, 3, A, D) -> (N, A, D).

    `make_mask` makes a mask like the (S,) tensor it is given: 0 what is dropped, the scale what is kept.
    """
    order = run_order(runs, qkv.shape[2], qkv.device)
    small = qkv.device.type == "cpu" and order.weights * qkv.shape[3] < _LARGE * len(runs)
    computed = qkv.float() if small and qkv.dtype == torch.bfloat16 else qkv
    mask = None if make_mask is None else make_mask(computed.new_empty(order.weights))
    products = usual_products if small else nullcontext
    attended: Tensor = _RunAttention.apply(computed, order, mask, products)  # type: ignore[no-untyped-call]
    return attended.to(qkv.dtype)


@dataclass(frozen=True)
class RunOrder:
    """Where rows of D values, which a product leaves token by token, lie run by run as (R, A, L, D)."""

    gather: Tensor  # (3 N A,) from rows of (N, 3, A) to queries, then keys, then values by runs
    scatter: Tensor  # its inverse
    given: Tensor  # (N A,) from rows of (N, A) to one of the three by runs
    attended: Tensor  # its inverse
    shapes: tuple[tuple[int, int], ...]  # (R A, L) of each run
    weights: int  # S

    def vectors(self, rows: Tensor) -> list[Tensor]:
        """(N A, D) -> (R A, L, D) of each run."""
        parts = rows.split([many * length for many, length in self.shapes])
        return [part.view(*shape, -1) for part, shape in zip(parts, self.shapes, strict=True)]

    def squares(self, cells: Tensor) -> list[Tensor]:
        """(S,) -> (R A, L, L) of each run."""
        parts = cells.split([many * length * length for many, length in self.shapes])
        return [part.view(*shape, shape[1]) for part, shape in zip(parts, self.shapes, strict=True)]


@lru_cache(maxsize=4)  # the layers of a model ask for the same one
def run_order(runs: Runs, heads: int, device: torch.device) -> RunOrder:
    """Of so many heads over these runs."""
    parts, start = [], 0
    for length, count in runs:
        tokens = torch.arange(start, start + count * length).view(count, 1, length)
        parts.append((tokens * 3 * heads + torch.arange(heads)[:, None]).flatten())
        start += count * length
    # rows of (N, 3, A): keys stand A rows further, values 2 A
    query = to_device(torch.cat(parts).numpy(), device)
    gather = torch.cat([query, query + heads, query + 2 * heads])
    given = query // (3 * heads) * heads + query % heads  # rows of (N, A)
    shapes = tuple((count * heads, length) for length, count in runs)
    weights = sum(many * length * length for many, length in shapes)
    return RunOrder(gather, gather.argsort(), given, given.argsort(), shapes, weights)


class _RunAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, order: RunOrder, mask: Tensor | None, products: Callable[[], Any]
    ) -> Tensor:
        heads, size = qkv.shape[2:]
        by_runs = qkv.reshape(-1, size).index_select(0, order.gather)
        query, key, value = (order.vectors(part) for part in by_runs.chunk(3))
        weights, mixed = by_runs.new_empty(order.weights), by_runs.new_empty(len(order.given), size)
        scale = 1 / math.sqrt(size)
        with products():
            for q, k, w in zip(query, key, order.squares(weights), strict=True):
                torch.baddbmm(w, q, k.mT, beta=0, alpha=scale, out=w)
                torch.softmax(w, -1, out=w)
            dropped = order.squares(_masked(weights, mask))
            for w, v, m in zip(dropped, value, order.vectors(mixed), strict=True):
                torch.bmm(w, v, out=m)
        ctx.order, ctx.products = order, products
        ctx.save_for_backward(by_runs, weights, mask)
        return mixed.index_select(0, order.attended).view(-1, heads, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        with ctx.products():
            return _RunAttention._gradient(ctx, gradient), None, None, None

    @staticmethod
    def _gradient(ctx: Any, gradient: Tensor) -> Tensor:
        order: RunOrder = ctx.order
        by_runs, weights, mask = ctx.saved_tensors
        heads, size = gradient.shape[1:]
        query, key, value = (order.vectors(part) for part in by_runs.chunk(3))
        given = order.vectors(gradient.reshape(-1, size).index_select(0, order.given))
        found = torch.empty_like(by_runs)
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
        return found.index_select(0, order.scatter).view(-1, 3, heads, size)


def _masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights * mask
