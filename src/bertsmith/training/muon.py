"""Muon: the step of a weight matrix has its gradient's directions, and the same length in each of them
(Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

R rows and C columns of a matrix, R ≤ C.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.model.cpu.onednn_matmul import fast_products
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.feed_forward import FeedForward

# A quintic that draws singular values to 1 from far below it in few steps: to between 0.7 and 1.2.
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_SHORTEST = 1e-7  # a gradient of zero stays zero


def layer_matrices(model: nn.Module) -> dict[str, int]:
    """Muon's weights by name, those of the layers' products, and how many matrices lie stacked in each."""
    found: dict[str, int] = {}
    for name, part in model.named_modules():
        stacked: dict[str, int] = {}
        if isinstance(part, SelfAttention):
            stacked = {"qkv": 3, "output": 1}
        elif isinstance(part, FeedForward):
            stacked = {"up": 1 + part.gated, "down": 1}
        found |= {f"{name}.{product}.weight": matrices for product, matrices in stacked.items()}
    return found


class Muon(torch.optim.Optimizer):
    """As torch.optim.Muon, with its adjustment "original" of the rate, in two things otherwise.

    A group's `matrices` says how many matrices lie below one another in each of its weights. Query, key and
    value have directions of their own, and so have the two of a gated feed-forward: as one, the part with the
    largest gradient would take the step of all. And products are in `precision`, for bfloat16 is a hundred
    times slower on a processor without it.
    One matrix after the other: on a processor, batched products of equal shapes took longer.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float, precision: torch.dtype) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "matrices": 1})
        self.momentum, self.precision = momentum, precision

    @torch.no_grad()
    @fast_products()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Decay, which is no part of the gradient, then a step; weights without a gradient stay."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    self._move(weight, weight.grad, group["lr"], group["matrices"])

    def _move(self, weight: Tensor, gradient: Tensor, rate: float, matrices: int) -> None:
        """By Nesterov's momentum, made orthogonal; the rate is that of an entry, in a tall matrix too."""
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - self.momentum)
        ahead = gradient.lerp(mean, self.momentum)
        for part, direction in zip(weight.chunk(matrices), ahead.chunk(matrices), strict=True):
            rows, columns = part.shape
            part.add_(orthogonal(direction, self.precision), alpha=-rate * math.sqrt(max(1, rows / columns)))


def orthogonal(matrix: Tensor, precision: torch.dtype = torch.float32) -> Tensor:
    """The same left and right singular vectors, and every singular value near 1, by Newton-Schulz."""
    if len(matrix) > matrix.shape[1]:
        return orthogonal(matrix.t(), precision).t()
    found: Tensor = (matrix / matrix.norm().clamp(min=_SHORTEST)).to(precision)  # (R, C)
    for _ in range(_ITERATIONS):
        gram = found @ found.T  # (R, R)
        powers = torch.addmm(gram, gram, gram, beta=_CUBIC, alpha=_QUINTIC)
        found = torch.addmm(found, powers, found, beta=_LINEAR)
    return found
