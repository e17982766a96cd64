"""The comparison of runs is worth something: it sees the smallest slip that a resume could make."""

from pathlib import Path

import pytest
from defects import Defect
from evidence import evidence
from nursery import Attempt, finish
from places import Fault
from tiny_run import NewRun, Uninterrupted

SLIPS = [
    "the optimiser's moments are forgotten",
    "one sequence is lost",
    "dropout is drawn anew",
    "the last bit of one weight",
]


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_in_resuming_is_seen(slip: str, new_run: NewRun, uninterrupted: Uninterrupted) -> None:
    settings = new_run()
    Attempt(settings, [Fault("before a checkpoint", 3)]).wait()  # that of step 12: the one of step 8 stands
    finish(settings, [Defect(slip)])
    found, expected = evidence(Path(settings["out"])), uninterrupted(1)
    assert found.steps[:8] == expected.steps[:8]  # up to the checkpoint
    assert found.steps[8:] != expected.steps[8:]
    assert found.weights != expected.weights


def test_a_run_is_not_the_same_for_every_seed(new_run: NewRun, uninterrupted: Uninterrupted) -> None:
    settings = new_run(seed=1)
    finish(settings)
    assert evidence(Path(settings["out"])).steps[0] != uninterrupted(1).steps[0]
