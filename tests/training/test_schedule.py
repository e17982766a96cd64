"""The learning rate against numbers computed by hand and against transformers' linear schedule."""

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from bertsmith.training.schedule import Schedule


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.55, 0.5), (0.91, 0.1), (1.0, 0.0), (1.2, 0.0)],
)
def test_warm_up_to_the_peak_then_down_to_zero(progress: float, expected: float) -> None:
    assert Schedule(peak=1.0, warmup=0.1).learning_rate(progress) == pytest.approx(expected)


def test_without_warm_up_the_peak_comes_first() -> None:
    assert Schedule(peak=3e-4, warmup=0.0).learning_rate(0.0) == 3e-4


@pytest.mark.parametrize(("steps", "warmup"), [(40, 10), (7, 0), (1000, 1), (30, 29)])
def test_the_same_as_transformers(steps: int, warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-4)
    theirs = get_linear_schedule_with_warmup(optimizer, warmup, steps)
    ours = Schedule(2e-4, warmup / steps)
    for step in range(steps + 1):
        assert ours.learning_rate(step / steps) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9, abs=1e-18)
        optimizer.step()
        theirs.step()
