"""Time left and progress, from the records of a run."""

import pytest

from bertsmith.training.live_panel import RunState
from bertsmith.training.log import Record


def step(number: int, elapsed: float) -> Record:
    return {"kind": "step", "step": number, "mlm_loss": 5.0, "elapsed": elapsed}


def test_time_left_follows_the_recent_pace() -> None:
    state = RunState(total_steps=1000)
    for number in range(1, 501):
        state.add(step(number, 2.0 * number if number < 250 else 500 + 0.5 * (number - 250)))
    assert state.seconds_left == pytest.approx(500 * 0.5, rel=0.01)


def test_the_pace_of_shorter_sequences_is_forgotten() -> None:
    state = RunState(total_steps=100)
    state.add(step(1, 1.0))
    state.add(step(2, 2.0))
    assert state.seconds_left == 98.0
    state.add({"kind": "phase", "step": 3, "sequence_length": 512})
    assert state.seconds_left is None


def test_the_budget_that_runs_out_first_counts() -> None:
    state = RunState(total_steps=100, total_seconds=30.0)
    state.add(step(10, 10.0))
    state.add(step(20, 20.0))
    assert state.share_done == pytest.approx(20 / 30)
    assert state.seconds_left == 10.0


def test_nothing_is_known_before_the_first_step() -> None:
    state = RunState()
    assert (state.share_done, state.seconds_left, state.loss) == (0.0, None, None)


def test_a_rollback_takes_the_lost_steps_off_the_curves() -> None:
    state = RunState(total_steps=100)
    for number in range(1, 10):
        state.add(step(number, float(number)))
        state.add({"kind": "evaluation", "step": number, "mlm_loss": 4.0})
    state.rewind(4)
    assert [x for x, _ in state.training_loss.points()] == [1, 2, 3, 4]
    assert [x for x, _ in state.heldout_loss.points()] == [1, 2, 3, 4]


def test_a_rollback_takes_back_an_evaluation() -> None:
    state = RunState(total_steps=100)
    for number, accuracy in ((2, 0.3), (6, 0.4)):
        state.add({"kind": "evaluation", "step": number, "mlm_accuracy": accuracy})
    state.rewind(4)
    assert state.evaluation["mlm_accuracy"] == 0.3
    state.rewind(0)
    assert state.evaluation == {}


def test_a_rollback_takes_back_a_phase() -> None:
    state = RunState(total_steps=100)
    for number, length in ((0, 128), (6, 512)):
        state.add({"kind": "phase", "step": number, "sequence_length": length})
    assert state.sequence_length == 512
    state.rewind(4)
    assert state.sequence_length == 128


def test_a_task_without_masks_shows_its_own_loss() -> None:
    state = RunState()
    state.add({"kind": "step", "step": 1, "loss": 0.7})
    assert (state.loss_name, state.loss) == ("loss", 0.7)
