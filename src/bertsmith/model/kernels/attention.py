"""Attention without gradients on one core of a processor, in C: attention.c says how and why.

N tokens in the packed batch, B sequences, L length of one, A heads, D head size.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bertsmith.model import kernels

_WIDEST = 16  # values of a register: D is a multiple
# Multiplications that take one core a quarter of a millisecond; several cores aren't faster before that.
_FEW = 1 << 24


def takes_kernel(qkv: Tensor, lengths: tuple[int, ...]) -> bool:
    """Values that nobody else follows; on one core, or where several would wait for each other."""
    heads, size = qkv.shape[2:]
    return (
        kernels.can_read(qkv)
        and not qkv.requires_grad
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        and size % _WIDEST == 0
        and (torch.get_num_threads() == 1 or 2 * heads * size * sum(n * n for n in lengths) <= _FEW)
    )


def attend_on_one_core(qkv: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """softmax(q k^T / sqrt(D)) v within each sequence, zeros for spare tokens: qkv (N, 3, A, D) -> (N, A, D).

    Computed in float32. A sequence's values don't depend on the other sequences, to the bit. Raises
    ValueError for lengths that qkv doesn't have.
    """
    (tokens, three, heads, size), real = qkv.shape, sum(lengths)
    if three != 3 or real > tokens:
        raise ValueError(f"expected ({real} or more, 3, A, D), found {tuple(qkv.shape)}")
    library = kernels.library(kernels.instructions())
    qkv, attended = qkv.contiguous(), qkv.new_empty(tokens, heads, size)
    attended[real:] = 0
    given = qkv.data_ptr(), as_c(lengths), len(lengths), heads, size, qkv.dtype == torch.bfloat16
    if library.attend(*given, attended.data_ptr()):
        raise MemoryError(f"no memory for attention within {max(lengths)} tokens")
    return attended


@lru_cache(maxsize=4)  # the layers of a model ask for the same ones
def as_c(lengths: tuple[int, ...]) -> Any:
    """As an array of int64_t."""
    return (ctypes.c_int64 * len(lengths))(*lengths)
