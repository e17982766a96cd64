"""Attention on a CPU by a kernel in C, forward and backward; kernels/attention.c explains it.

N tokens in the packed batch, B sequences, L length of one, A heads, D head size; S the attention weights: the
sum over sequences of A L (L with padding), fewer with a window; 2 R distances of a bias.
"""

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.model.cpu import kernels

_REGISTER_VALUES = 16  # D must be a multiple
_ONE_CORE = 1 << 19  # up to so many multiplications no other core is woken
# In bfloat16 torch's products take less time for more keys a query than these; in float32 for no number.
# Within a window torch multiplies with blocks of keys, many of which are hidden.
_MOST_KEYS, _MOST_KEYS_IN_WINDOW = 96, 192


def is_kernel_faster(qkv: Tensor, lengths: tuple[int, ...], window: int | None = None) -> bool:
    """Whether `attend_by_kernel` can compute attention of these sequences, and faster than torch's
    operations.
    """
    most_keys = _MOST_KEYS if window is None else _MOST_KEYS_IN_WINDOW
    return (
        kernels.can_read(qkv)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        and qkv.shape[-1] % _REGISTER_VALUES == 0
        and (qkv.dtype == torch.float32 or _count_pairs(lengths, window) <= most_keys * sum(lengths))
    )


def attend_by_kernel(
    qkv: Tensor,
    lengths: tuple[int, ...],
    make_mask: Callable[[Tensor], Tensor] | None = None,
    window: int | None = None,
    position_bias: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) * mask, times v, within each sequence: qkv (N, 3, A, D) -> (N, A, D).

    Query i sees key j where |i - j| <= `window`, or all keys without one. `make_mask` returns a dropout mask
    like the (S,) tensor that it gets: 0 for dropped weights, the scale for the others. A `position_bias`
    (A, 2 R) is added to the scores: column R + d for a key d tokens after its query. The rows of padding
    tokens are zeros. Computed in float32. A sequence's values depend neither on the other sequences nor on
    the number of threads, to the bit; the gradient of the bias not on the threads. Time and memory grow
    linearly with a sequence's length beyond the window. Raises ValueError for lengths that don't fit qkv or
    the bias, and for a window below 0; MemoryError where there is too little memory.
    """
    (tokens, parts, _, _), length = qkv.shape, sum(lengths)
    if parts != 3 or length > tokens:
        raise ValueError(f"expected ({length} or more, 3, A, D), found {tuple(qkv.shape)}")
    if min(lengths, default=0) < 0:
        raise ValueError(f"expected lengths of 0 or more, found {min(lengths)}")
    if window is not None and window < 0:
        raise ValueError(f"expected a window of 0 or more, found {window}")
    mask = None if make_mask is None else make_mask(qkv.new_empty(_count_weights(qkv, lengths, window)))
    bias = None
    if position_bias is not None:
        middle, reach = position_bias.shape[1] // 2, max(lengths, default=0) + kernels.LINE
        if reach > middle:
            raise ValueError(f"expected a bias of {2 * reach} distances or more, found {2 * middle}")
        bias = position_bias[:, middle - reach : middle + reach].float() * math.sqrt(qkv.shape[3])
    needs_gradient = qkv.requires_grad or (bias is not None and bias.requires_grad)
    if not (needs_gradient and torch.is_grad_enabled()):
        return _forward(qkv.detach(), lengths, window, mask, None, bias)
    attended: Tensor = _AttentionFunction.apply(qkv, lengths, window, mask, bias)  # type: ignore[no-untyped-call]
    return attended


def attend_far_by_kernel(
    qkv: Tensor, lengths: tuple[int, ...], keys: Tensor | None, queries: Tensor | None, rows: Tensor
) -> Tensor:
    """Disentangled attention within each sequence, without a gradient: qkv (N, 3, A, D) -> (N, A, D).

    keys, queries (2 S, A, D) float32 are those of distances; rows (2 L - 1,) int64 has the row of each
    distance of the longest sequence, from 1 - L on. As exact and as independent as `attend_by_kernel`.
    """
    attended = qkv.new_empty(len(qkv), *qkv.shape[2:])
    attended[sum(lengths) :] = 0
    tables = {"distance_keys": keys, "distance_queries": queries}
    _call_kernel(lengths, None, qkv=qkv.detach(), to=attended, rows=rows, **tables)
    return attended


class _AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        lengths: tuple[int, ...],
        window: int | None,
        mask: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        weights = qkv.new_empty(_count_weights(qkv, lengths, window, only_kept=True))
        ctx.sequences = lengths, window
        ctx.save_for_backward(qkv, mask, weights, bias)
        return _forward(qkv, lengths, window, mask, weights, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, mask, weights, bias = ctx.saved_tensors
        lengths, window = ctx.sequences
        qkv_gradient = torch.empty_like(qkv, memory_format=torch.contiguous_format)
        qkv_gradient[sum(lengths) :] = 0
        shares = None
        if bias is not None and ctx.needs_input_grad[4]:
            shares = bias.new_zeros(kernels.SHARES, *bias.shape)
        given = {"given": gradient, "mask": mask, "weights": weights, "bias": bias}
        _call_kernel(lengths, window, qkv=qkv, **given, to=qkv_gradient, to_bias=shares)
        return qkv_gradient, None, None, None, None if shares is None else shares.sum(0)


def _forward(
    qkv: Tensor,
    lengths: tuple[int, ...],
    window: int | None,
    mask: Tensor | None,
    weights: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    attended = qkv.new_empty(len(qkv), *qkv.shape[2:])
    attended[sum(lengths) :] = 0
    _call_kernel(lengths, window, qkv=qkv, mask=mask, weights=weights, bias=bias, to=attended)
    return attended


def _call_kernel(
    lengths: tuple[int, ...], window: int | None, *, qkv: Tensor, **others: Tensor | None
) -> None:
    """Calls the C function `attend`; `others` are the tensors of kernels.h by name. All are made contiguous,
    since hooks may have changed the order of those that were saved for the gradient.
    """
    contiguous = {name: tensor.contiguous() for name, tensor in others.items() if tensor is not None}
    qkv = qkv.contiguous()
    arguments = _make_struct(qkv, lengths, window)
    for name, tensor in {"qkv": qkv, **contiguous}.items():
        setattr(arguments, name, middle(tensor) if name == "rows" else tensor.data_ptr())
    if (bias := contiguous.get("bias")) is not None:
        arguments.reach = bias.shape[1] // 2
    multiplications = 2 * qkv.shape[2] * qkv.shape[3] * _count_pairs(lengths, window)
    threads = 1 if multiplications <= _ONE_CORE else torch.get_num_threads()
    if kernels.load_library(kernels.find_instruction_set()).attend(arguments, threads):
        raise MemoryError(f"no memory for attention within {max(lengths)} tokens")


def middle(rows: Tensor) -> int:
    """The address of the row of the distance 0."""
    return rows.data_ptr() + len(rows) // 2 * rows.itemsize


def _make_struct(qkv: Tensor, lengths: tuple[int, ...], window: int | None) -> kernels.AttentionStruct:
    return kernels.AttentionStruct(
        lengths=as_c_array(lengths),
        sequences=len(lengths),
        heads=qkv.shape[2],
        size=qkv.shape[3],
        is_bf16=qkv.dtype == torch.bfloat16,
        window=kernels.EVERYWHERE if window is None else window,
    )


def _count_weights(
    qkv: Tensor, lengths: tuple[int, ...], window: int | None, *, only_kept: bool = False
) -> int:
    """The number S of attention weights, or of those that are kept for the gradient."""
    library = kernels.load_library(kernels.find_instruction_set())
    return int(library.attention_cells(_make_struct(qkv, lengths, window), only_kept))


def _count_pairs(lengths: tuple[int, ...], window: int | None) -> int:
    """About the number of pairs of a query and a key that it sees."""
    most_keys = kernels.EVERYWHERE if window is None else 2 * window + 1
    return sum(length * min(length, most_keys) for length in lengths)


@lru_cache(maxsize=4)  # the layers of a model ask for the same ones
def as_c_array(lengths: tuple[int, ...]) -> Any:
    """The lengths as a C array of int64_t."""
    return (ctypes.c_int64 * len(lengths))(*lengths)
