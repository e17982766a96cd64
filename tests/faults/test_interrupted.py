"""Ctrl-C and SIGTERM: a checkpoint after the step at hand, KeyboardInterrupt, and an exact resume."""

from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest
from defects import Defect
from evidence import evidence
from nursery import Attempt, finish
from places import Fault
from tiny_run import NewRun, Uninterrupted

# The third micro-batch of phase 0 belongs to step 2, and step 2 to no regular checkpoint.
ARRIVAL, STEP = 3, 2


@pytest.mark.parametrize("signal", [SIGINT, SIGTERM])
def test_a_signal_saves_a_checkpoint(signal: Signals, new_run: NewRun, uninterrupted: Uninterrupted) -> None:
    settings = new_run()
    attempt = Attempt(settings, [Fault("before a micro-batch", ARRIVAL, signal)])
    assert attempt.wait() == [1]
    assert attempt.complaint() == "KeyboardInterrupt: "
    assert checkpoints(settings) == [f"step-{STEP:08d}"]
    finish(settings)
    assert evidence(Path(settings["out"])) == uninterrupted(1)


def test_sigterm_again_and_after_ctrl_c_does_not_cost_the_checkpoint(new_run: NewRun) -> None:
    settings = new_run()
    signals = [
        Fault("before a micro-batch", ARRIVAL, SIGINT),
        Fault("before the weights change", STEP, SIGTERM),
        Fault("before a checkpoint", 1, SIGTERM),
    ]
    assert Attempt(settings, signals).wait() == [1]
    assert checkpoints(settings) == [f"step-{STEP:08d}"]


def test_a_second_ctrl_c_ends_the_run_at_once(new_run: NewRun) -> None:
    settings = new_run()
    signals = [
        Fault("before a micro-batch", ARRIVAL, SIGINT),
        Fault("before the weights change", STEP, SIGINT),
    ]
    attempt = Attempt(settings, signals)
    assert attempt.wait() == [1]
    assert attempt.complaint() == "KeyboardInterrupt: "
    assert checkpoints(settings) == []


def test_a_signal_to_one_rank_stops_all_and_none_ends_before_the_checkpoint_stands(
    new_run: NewRun, uninterrupted: Uninterrupted
) -> None:
    """A launcher kills the other ranks when one ends, and here the first one saves slowly."""
    settings = new_run()
    slow, interrupted = [Defect("saving takes a second")], [Fault("before a micro-batch", ARRIVAL, SIGINT)]
    assert 0 not in Attempt(settings, slow, interrupted, ranks=2).wait()
    assert len(checkpoints(settings)) == 1
    finish(settings, ranks=2)
    assert evidence(Path(settings["out"])) == uninterrupted(2)


def checkpoints(settings: dict[str, str]) -> list[str]:
    return sorted(path.name for path in (Path(settings["out"]) / "checkpoints").glob("*"))
