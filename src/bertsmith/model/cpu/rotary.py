"""Rotary positions of queries and keys in one pass through memory, and of their gradients (kernels/rotary.c).

N tokens in the packed batch, A heads, D head size, P positions of the tables.
"""

import torch
from torch import Tensor

from bertsmith.model.cpu import kernels

_MULTIPLE = 16  # of D


def can_use_kernel(qkv: Tensor) -> bool:
    """Whether `rotate_` can rotate this tensor, which must be contiguous."""
    return (
        kernels.can_read(qkv)
        and qkv.is_contiguous()
        and qkv.shape[-1] % _MULTIPLE == 0
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


def rotate_(qkv: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor, backward: bool = False) -> Tensor:
    """Rotates the values d and d + D/2 of each query and key by their angle, in place, and returns qkv (Su et
    al. 2021, section 3.4.2).

    qkv (N, 3, A, D) contiguous; positions (N,) int64; cosines, sines (P, D/2) float32. With `backward` by the
    negative angle, as for gradients. Computed in float32 and rounded once; autograd doesn't record it. Raises
    ValueError for tensors that don't fit, and for positions outside the tables.
    """
    tokens, parts, heads, size = qkv.shape
    expected = (len(cosines), size // 2)
    if parts != 3 or positions.shape != (tokens,) or not cosines.shape == sines.shape == expected:
        shapes = (str(tuple(tensor.shape)) for tensor in (qkv, positions, cosines, sines))
        raise ValueError(f"expected (N, 3, A, D), (N,) and twice (P, D/2), found {', '.join(shapes)}")
    if not can_use_kernel(qkv) or positions.dtype != torch.int64 or cosines.dtype != torch.float32:
        raise ValueError("expected contiguous queries, int64 positions and float32 tables, on a processor")
    if tokens == 0:
        return qkv
    lowest, highest = (int(end) for end in positions.aminmax())
    if lowest < 0 or highest >= len(cosines):
        raise ValueError(f"expected positions of 0 to {len(cosines) - 1}, found {lowest} to {highest}")
    contiguous = positions.contiguous(), cosines.contiguous(), sines.float().contiguous()
    library, is_bf16 = kernels.load_library(kernels.find_instruction_set()), qkv.dtype == torch.bfloat16
    addresses = (tensor.data_ptr() for tensor in contiguous)
    threads = torch.get_num_threads()
    library.rotate(qkv.data_ptr(), *addresses, tokens, heads, size, is_bf16, backward, threads)
    return qkv
