"""Rotary positions: queries and keys are rotated by angles that grow with the position, so that their product
depends on the distance alone (Su et al. 2021, arXiv 2104.09864, section 3).

N tokens in the packed batch, A heads, D head size, P positions.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.data.batch import PackedBatch
from bertsmith.model.cpu import kernels

_FEWEST_POSITIONS = 128  # of a table; longer ones double it
_MULTIPLE = 16  # of D, for the kernel


class Rotary(nn.Module):
    """Rotates queries and keys; it has no weights.

    `pairs` says which two values of a head are rotated together: the i-th of either half ("halves"), or
    neighbours. All angles are divided by `factor`.
    """

    def __init__(self, theta: float, head_size: int, pairs: str = "halves", factor: float = 1.0) -> None:
        super().__init__()
        self.theta, self.head_size, self.pairs, self.factor = theta, head_size, pairs, factor

    def forward(self, qkv: Tensor, batch: PackedBatch) -> Tensor:
        """qkv (N, 3, A, D) with queries and keys rotated, computed in float32 and rounded once.

        On a CPU that is done in place, since nothing else reads the result of the product.
        """
        cosines, sines = self.tables(max(batch.lengths), qkv.device)
        if qkv.device.type == "cpu":
            turned: Tensor = _RotaryFunction.apply(  # type: ignore[no-untyped-call]
                qkv, batch.position_ids, cosines, sines, self.pairs
            )
            return turned
        queries_keys, values = qkv.split([2, 1], dim=1)
        positions = batch.position_ids
        turned = turn(queries_keys, cosines[positions], sines[positions], self.pairs)
        return torch.cat([turned, values], dim=1)

    def tables(self, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The cosines and sines of at least this many positions: each (P, D / 2), float32."""
        size = _FEWEST_POSITIONS
        while size < positions:
            size *= 2
        return _tables(self.theta, self.factor, self.head_size, size, device)

    def extra_repr(self) -> str:
        return f"theta={self.theta:g}, pairs={self.pairs}, factor={self.factor:g}"


@lru_cache(maxsize=32)  # layers share them
def _tables(
    theta: float, factor: float, head_size: int, positions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, device=device).float() / head_size)
        frequencies /= factor
        angles = torch.arange(positions, device=device).float()[:, None] * frequencies
        return angles.cos(), angles.sin()


class _RotaryFunction(torch.autograd.Function):
    """Rotates in place, in the backward pass too: nothing else reads the gradient that attention makes."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor, pairs: str
    ) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(positions, cosines, sines)
        ctx.mark_dirty(qkv)
        return _turn_in_place(qkv, positions, cosines, sines, pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        positions, cosines, sines = ctx.saved_tensors
        back = _turn_in_place(gradient.contiguous(), positions, cosines, sines, ctx.pairs, backward=True)
        return back, None, None, None, None


def _turn_in_place(
    qkv: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor, pairs: str, backward: bool = False
) -> Tensor:
    if pairs == "halves" and can_use_kernel(qkv):
        return rotate_(qkv, positions, cosines, sines, backward)
    c, s = cosines[positions], sines[positions]
    qkv[:, :2] = turn(qkv[:, :2], c, -s if backward else s, pairs)
    return qkv


def turn(vectors: Tensor, cosines: Tensor, sines: Tensor, pairs: str) -> Tensor:
    """vectors (N, 2, A, D), rotated by the angles with these cosines and sines (N, D / 2)."""
    c, s = cosines[:, None, None], sines[:, None, None]  # (N, 1, 1, D / 2)
    values = vectors.float()
    if pairs == "halves":
        first, second = values.chunk(2, dim=-1)
        turned = torch.cat([first * c - second * s, second * c + first * s], dim=-1)
    else:
        first, second = values[..., 0::2], values[..., 1::2]
        turned = torch.stack([first * c - second * s, second * c + first * s], dim=-1).flatten(-2)
    return turned.to(vectors.dtype)


def can_use_kernel(qkv: Tensor) -> bool:
    """Whether `rotate_` can rotate this tensor, which must be contiguous."""
    return (
        kernels.can_read(qkv)
        and qkv.is_contiguous()
        and qkv.shape[-1] % _MULTIPLE == 0
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


def rotate_(qkv: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor, backward: bool = False) -> Tensor:
    """Rotates the values d and d + D/2 of each query and key by their angle, in place and in one pass through
    memory (kernels/rotary.c), and returns qkv (Su et al. 2021, section 3.4.2).

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
