"""Attention on a processor in C, forward and backward: attention.c says how and why.

N tokens in the packed batch, B sequences, L length of one, A heads, D head size; S the attention weights: the
sum over sequences of A L (L with padding), with a window less.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.model.cpu import kernels

_WIDEST = 16  # values of a register: D is a multiple
_FEW = 1 << 19  # multiplications that wake no other core
# Keys of a query: in bfloat16 torch's products with more take less time, in float32 with none. Within a
# window those are products with blocks of keys, many of them hidden.
_MANY, _MANY_IN_WINDOW = 96, 192


def takes_kernel(qkv: Tensor, lengths: tuple[int, ...], window: int | None = None) -> bool:
    """Where it is faster than torch's operations."""
    many = _MANY if window is None else _MANY_IN_WINDOW
    return (
        kernels.can_read(qkv)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        and qkv.shape[-1] % _WIDEST == 0
        and (qkv.dtype == torch.float32 or _pairs(lengths, window) <= many * sum(lengths))
    )


def attend_by_kernel(
    qkv: Tensor,
    lengths: tuple[int, ...],
    make_mask: Callable[[Tensor], Tensor] | None = None,
    window: int | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) * mask, times v, within each sequence: qkv (N, 3, A, D) -> (N, A, D).

    Query i sees key j where |i - j| <= `window`, or everywhere. `make_mask` makes a mask like the (S,) tensor
    it is given: 0 what is dropped, the scale what is kept. Zeros for padding tokens. Computed in float32. A
    sequence's values don't depend on the other sequences, nor on the number of threads, to the bit. Time and
    memory grow with a sequence's length where a window is smaller. Raises ValueError for lengths that qkv
    doesn't have, and for a window below 0.
    """
    (tokens, three, _, _), real = qkv.shape, sum(lengths)
    if three != 3 or real > tokens:
        raise ValueError(f"expected ({real} or more, 3, A, D), found {tuple(qkv.shape)}")
    if min(lengths, default=0) < 0:
        raise ValueError(f"expected lengths of 0 or more, found {min(lengths)}")
    if window is not None and window < 0:
        raise ValueError(f"expected a window of 0 or more, found {window}")
    mask = None if make_mask is None else make_mask(qkv.new_empty(_weights(qkv, lengths, window)))
    if not (qkv.requires_grad and torch.is_grad_enabled()):
        return _forward(qkv.detach(), lengths, window, mask, None)
    attended: Tensor = _AttentionFunction.apply(qkv, lengths, window, mask)  # type: ignore[no-untyped-call]
    return attended


class _AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, lengths: tuple[int, ...], window: int | None, mask: Tensor | None
    ) -> Tensor:
        weights = qkv.new_empty(_weights(qkv, lengths, window, only_kept=True))
        ctx.where = lengths, window
        ctx.save_for_backward(qkv, mask, weights)
        return _forward(qkv, lengths, window, mask, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, mask, weights = ctx.saved_tensors
        lengths, window = ctx.where
        found = torch.empty_like(qkv, memory_format=torch.contiguous_format)
        found[sum(lengths) :] = 0
        _call(lengths, window, qkv=qkv, given=gradient, mask=mask, weights=weights, to=found)
        return found, None, None, None


def _forward(
    qkv: Tensor,
    lengths: tuple[int, ...],
    window: int | None,
    mask: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    attended = qkv.new_empty(len(qkv), *qkv.shape[2:])
    attended[sum(lengths) :] = 0
    _call(lengths, window, qkv=qkv, mask=mask, weights=weights, to=attended)
    return attended


def _call(lengths: tuple[int, ...], window: int | None, *, qkv: Tensor, **others: Tensor | None) -> None:
    """As kernels.h says. Hooks may have brought what is saved for the gradient into another order."""
    in_order = {name: tensor.contiguous() for name, tensor in others.items() if tensor is not None}
    qkv = qkv.contiguous()
    job = _job(qkv, lengths, window)
    for name, tensor in {"qkv": qkv, **in_order}.items():
        setattr(job, name, tensor.data_ptr())
    multiplications = 2 * qkv.shape[2] * qkv.shape[3] * _pairs(lengths, window)
    threads = 1 if multiplications <= _FEW else torch.get_num_threads()
    if kernels.library(kernels.instructions()).attend(job, threads):
        raise MemoryError(f"no memory for attention within {max(lengths)} tokens")


def _job(qkv: Tensor, lengths: tuple[int, ...], window: int | None) -> kernels.AttentionStruct:
    return kernels.AttentionStruct(
        lengths=as_c(lengths),
        sequences=len(lengths),
        heads=qkv.shape[2],
        size=qkv.shape[3],
        is_bf16=qkv.dtype == torch.bfloat16,
        window=kernels.EVERYWHERE if window is None else window,
    )


def _weights(qkv: Tensor, lengths: tuple[int, ...], window: int | None, *, only_kept: bool = False) -> int:
    """S, or of it what is kept for the gradient."""
    library = kernels.library(kernels.instructions())
    return int(library.attention_cells(_job(qkv, lengths, window), only_kept))


def _pairs(lengths: tuple[int, ...], window: int | None) -> int:
    """Of queries and keys that see each other, nearly."""
    widest = kernels.EVERYWHERE if window is None else 2 * window + 1
    return sum(n * min(n, widest) for n in lengths)


@lru_cache(maxsize=4)  # the layers of a model ask for the same ones
def as_c(lengths: tuple[int, ...]) -> Any:
    """The lengths as a C array of int64_t."""
    return (ctypes.c_int64 * len(lengths))(*lengths)
