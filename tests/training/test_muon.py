"""Muon's step against torch's own, formulas in float64, and what singular values it must leave."""

import math

import pytest
import torch
from torch import Tensor

from bertsmith.training.optimizer import Muon, orthogonalize

SHAPES = [(16, 16), (16, 48), (48, 16), (1, 8)]
RATE, DECAY, MOMENTUM = 0.02, 0.1, 0.95


def weights_of(shapes: list[tuple[int, int]]) -> list[torch.nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=draw) / 4) for shape in shapes]


def gradients_of(shapes: list[tuple[int, int]], step: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1 + step)
    return [torch.randn(shape, generator=draw) * 10.0 ** (step - 2) for shape in shapes]


def ours(
    shapes: list[tuple[int, int]], steps: int, precision: torch.dtype = torch.float32, matrices: int = 1
) -> list[Tensor]:
    """The weights after so many steps."""
    weights = weights_of(shapes)
    group = {"params": weights, "lr": RATE, "weight_decay": DECAY, "matrices": matrices}
    muon = Muon([group], MOMENTUM, precision)
    for step in range(steps):
        for weight, gradient in zip(weights, gradients_of(shapes, step), strict=True):
            weight.grad = gradient
        muon.step()
    return [weight.detach() for weight in weights]


def in_float64(shapes: list[tuple[int, int]], steps: int) -> list[Tensor]:
    """Jordan's algorithm as he wrote it down, with the mean of gradients in place of their sum, as torch has
    it: a factor that orthogonalising takes away.
    """
    weights = [weight.detach().double() for weight in weights_of(shapes)]
    means = [torch.zeros_like(weight) for weight in weights]
    for step in range(steps):
        for weight, mean, gradient in zip(weights, means, gradients_of(shapes, step), strict=True):
            mean.mul_(MOMENTUM).add_(gradient.double(), alpha=1 - MOMENTUM)
            x = (1 - MOMENTUM) * gradient.double() + MOMENTUM * mean
            x = x / torch.linalg.matrix_norm(x)
            for _ in range(5):
                x = 3.4445 * x - 4.7750 * (x @ x.T @ x) + 2.0315 * (x @ x.T @ x @ x.T @ x)
            weight.mul_(1 - RATE * DECAY)
            weight.sub_(RATE * math.sqrt(max(1, weight.shape[0] / weight.shape[1])) * x)
    return weights


def moved(weights: list[Tensor], shapes: list[tuple[int, int]]) -> list[Tensor]:
    return [end - start.detach() for end, start in zip(weights, weights_of(shapes), strict=True)]


def test_float32_steps_are_those_of_the_formulas_in_float64() -> None:
    for found, expected in zip(ours(SHAPES, steps=4), in_float64(SHAPES, steps=4), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)


def test_bfloat16_steps_are_those_of_torch() -> None:
    """Both round to 8 bits in each of 15 products, so that they agree to some of these roundings."""
    theirs = weights_of(SHAPES)
    muon = torch.optim.Muon(theirs, lr=RATE, weight_decay=DECAY, momentum=MOMENTUM)
    for step in range(4):
        for weight, gradient in zip(theirs, gradients_of(SHAPES, step), strict=True):
            weight.grad = gradient
        muon.step()
    expected = moved([weight.detach() for weight in theirs], SHAPES)
    for found, wanted in zip(moved(ours(SHAPES, 4, torch.bfloat16), SHAPES), expected, strict=True):
        assert float((found - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 24), (24, 96), (96, 24)])
def test_singular_values_become_near_one_and_their_vectors_stay(
    shape: tuple[int, int], precision: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(5)
    left, _ = torch.linalg.qr(torch.randn(shape[0], 24, generator=draw))
    right, _ = torch.linalg.qr(torch.randn(shape[1], 24, generator=draw))
    values = torch.logspace(0, 1, 24)
    found = orthogonalize(left * values @ right.T, precision).float()
    between = left.T @ found @ right  # (24, 24): diagonal, where the vectors have stayed
    assert found.shape == shape
    assert float(between.diagonal().min()) > 0.6 and float(between.diagonal().max()) < 1.3
    tolerance = 1e-4 if precision == torch.float32 else 0.05
    assert float((between - between.diagonal().diag()).abs().max()) < tolerance


def test_stacked_matrices_step_as_if_each_were_alone() -> None:
    stacked = ours([(48, 16)], steps=1, matrices=3)[0]
    before, gradient = weights_of([(48, 16)])[0].detach(), gradients_of([(48, 16)], 0)[0]
    for rows in (slice(0, 16), slice(16, 32), slice(32, 48)):
        alone = before[rows] * (1 - RATE * DECAY) - RATE * orthogonalize(gradient[rows])
        torch.testing.assert_close(stacked[rows], alone, rtol=0, atol=1e-6)
    together = before * (1 - RATE * DECAY) - RATE * math.sqrt(3) * orthogonalize(gradient)
    assert float((stacked - together).abs().max()) > 1e-3


def test_without_a_gradient_nothing_moves_and_a_gradient_of_zero_only_decays() -> None:
    left, right = weights_of([(4, 4), (4, 4)])
    before = left.detach().clone(), right.detach().clone()
    muon = Muon([{"params": [left, right], "lr": RATE, "weight_decay": DECAY}], MOMENTUM, torch.float32)
    right.grad = torch.zeros(4, 4)
    muon.step()
    assert torch.equal(left, before[0]) and not muon.state[left]
    assert torch.equal(right, before[1] * (1 - RATE * DECAY))
