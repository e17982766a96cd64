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
from bertsmith.model.cpu.rotary import can_use_kernel, rotate_

_FEWEST_POSITIONS = 128  # of a table; longer ones double it


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
