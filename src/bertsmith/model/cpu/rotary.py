"""Rotary positions of queries and keys in one pass through memory, and of their gradients (kernels/rotary.c).

N tokens in the packed batch, A heads, D head size, P positions of the tables.
"""

import torch
from torch import Tensor

from bertsmith.model.cpu import kernels

_MULTIPLE = 16  # of D


def takes_kernel(qkv: Tensor) -> bool:
    """Whether `rotate_` is for this tensor: where the kernels are. It must be contiguous."""
    return (
        kernels.can_read(qkv)
        and qkv.is_contiguous()
        and qkv.shape[-1] % _MULTIPLE == 0
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


def rotate_(qkv: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor, backward: bool = False) -> Tensor:
    """Turns value d and d + D/2 of each query and key by their angle (Su et al. 2021, section 3.4.2).

    qkv (N, 3, A, D) contiguous and in place; positions (N,) int64; cosines, sines (P, D/2) float32. With
    `backward` by the negative angle, which brings gradients back. Computed in float32 and rounded once;
    autograd sees nothing of it. Raises ValueError for what doesn't fit, and for positions that the tables
    don't have.
    """
    tokens, three, heads, size = qkv.shape
    expected = (len(cosines), size // 2)
    if three != 3 or positions.shape != (tokens,) or not cosines.shape == sines.shape == expected:
        found = (tuple(each.shape) for each in (qkv, positions, cosines, sines))
        raise ValueError(
            f"expected (N, 3, A, D), (N,) and twice (P, D/2), found {', '.join(map(str, found))}"
        )
    if not takes_kernel(qkv) or positions.dtype != torch.int64 or cosines.dtype != torch.float32:
        raise ValueError("expected contiguous queries, int64 positions and float32 tables, on a processor")
    if tokens == 0:
        return qkv
    lowest, highest = (int(end) for end in positions.aminmax())
    if lowest < 0 or highest >= len(cosines):
        raise ValueError(f"expected positions of 0 to {len(cosines) - 1}, found {lowest} to {highest}")
    in_order = positions.contiguous(), cosines.contiguous(), sines.float().contiguous()
    library, is_bf16 = kernels.library(kernels.instructions()), qkv.dtype == torch.bfloat16
    addresses = (each.data_ptr() for each in in_order)
    threads = torch.get_num_threads()
    library.rotate(qkv.data_ptr(), *addresses, tokens, heads, size, is_bf16, backward, threads)
    return qkv
