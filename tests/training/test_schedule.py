"""The learning rate against numbers computed by hand and against transformers' schedules."""

import pytest
import torch
from transformers import get_linear_schedule_with_warmup, get_wsd_schedule

from bertsmith.training.settings import Schedule


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


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0.0, 0.0),
        (0.05, 0.5),
        (0.1, 1.0),
        (0.5, 1.0),
        (0.8, 1.0),
        (0.85, 0.5),
        (0.9, 1 - 0.5**0.5),
        (1.0, 0.0),
    ],
)
def test_warm_up_then_stable_then_down_by_one_minus_the_root(progress: float, expected: float) -> None:
    schedule = Schedule(peak=1.0, warmup=0.1, decay=0.2)
    assert schedule.learning_rate(progress) == pytest.approx(expected, abs=1e-12)


def test_the_same_as_transformers_wsd() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-4)
    theirs = get_wsd_schedule(
        optimizer, num_warmup_steps=8, num_decay_steps=10, num_training_steps=40, decay_type="1-sqrt"
    )
    ours = Schedule(2e-4, 8 / 40, 10 / 40)
    for step in range(41):
        assert ours.learning_rate(step / 40) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9, abs=1e-16)
        optimizer.step()
        theirs.step()


def test_a_decay_alone_begins_at_the_peak_and_no_decay_ends_there() -> None:
    assert Schedule(1.0, warmup=0.0, decay=1.0).learning_rate(0.25) == 0.5
    assert Schedule(1.0, warmup=0.1, decay=0.0).learning_rate(1.0) == 1.0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(1.0, 0.1, 0.2), [False, False, True, True, True, False, False]),
        (Schedule(1.0, 0.1, 0.0), [False, False, True, True, True, True, True]),
        (Schedule(1.0, 0.1), [False] * 7),
        (Schedule(1.0, 0.0, 1.0), [True, *[False] * 6]),
    ],
)
def test_where_a_run_is_stable(schedule: Schedule, expected: list[bool]) -> None:
    assert [schedule.is_stable(progress) for progress in (0, 0.05, 0.1, 0.5, 0.8, 0.85, 1)] == expected


def test_how_far_the_decay_has_come() -> None:
    assert [Schedule(1.0, 0.1, 0.2).decayed(x) for x in (0, 0.5, 0.9, 1)] == pytest.approx([0, 0, 0.5, 1])
    assert [Schedule(1.0, 0.2).decayed(x) for x in (0, 0.2, 0.6, 1)] == pytest.approx([0, 0, 0.5, 1])
    assert Schedule(1.0, 0.1, 0.0).decayed(1.0) == 0
