"""A batch whose loss is not finite, or jumps: the run stops before it changes a weight, or passes it over."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from toy_task import ToyTask, sequences_of

from bertsmith.errors import TrainingStopped
from bertsmith.training.checkpoint import RunProgress, load_training_state
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Guard, Loop

NewLoop = Callable[..., Loop]

NAN, SPIKE = math.nan, 1000.0
# Batch n is that of step n + 1. A jump counts once a run has settled, after 50 steps.
BAD_BATCHES = [(NAN, 9), (SPIKE, 57)]


def test_a_sound_step_is_let_through() -> None:
    guard = Guard(spike_factor=3.0)
    assert guard.find_problem(RunProgress(step=60, recent_loss=2.0), 5.9, 1e6) is None
    assert guard.find_problem(RunProgress(step=60, recent_loss=None), 100.0, 1.0) is None


def test_a_jump_counts_only_after_fifty_steps() -> None:
    guard = Guard(spike_factor=3.0)
    assert guard.find_problem(RunProgress(step=49, recent_loss=2.0), 6.1, 1.0) is None
    verdict = guard.find_problem(RunProgress(step=50, recent_loss=2.0), 6.1, 1.0)
    assert verdict == "the loss jumped to 6.10 from a running mean of 2.00"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_from_the_first_step(bad: float) -> None:
    guard = Guard(spike_factor=3.0)
    assert guard.find_problem(RunProgress(), bad, 1.0) == f"the loss is {bad}"
    assert guard.find_problem(RunProgress(), 1.0, bad) == f"the gradient's norm is {bad}"


def test_the_running_mean_remembers_about_twenty_steps() -> None:
    guard, progress = Guard(spike_factor=3.0), RunProgress(recent_loss=1.0)
    for _ in range(20):
        progress = RunProgress(recent_loss=guard.update_mean(progress, 0.0))
    assert progress.recent_loss == pytest.approx(0.95**20)
    assert guard.update_mean(RunProgress(), 7.0) == 7.0


@pytest.mark.parametrize(("factor", "bad"), BAD_BATCHES)
def test_stopping_saves_the_batch_and_leaves_weights_and_checkpoint(
    factor: float, bad: int, tmp_path: Path, new_loop: NewLoop
) -> None:
    loop = new_loop(ToyTask(poison={bad: factor}), tmp_path / "run")
    sound = new_loop(ToyTask(), tmp_path / "sound", steps=64)
    with pytest.raises(TrainingStopped, match=rf"Step {bad + 1}: the loss .*--resume guard.action=skip"):
        loop.run()
    advance_to(sound, bad)
    assert_same_weights(loop, sound)
    state, _ = load_training_state(tmp_path / "run" / "checkpoints")
    assert state is not None and state.progress.step == bad // 8 * 8
    saved = load_file(tmp_path / "run" / f"bad-batch-step-{bad + 1}.safetensors")
    assert saved["token_ids"].tolist() == sequences_of(bad).token_ids.tolist()
    assert saved["keys"].tolist() == sequences_of(bad).keys.tolist()


@pytest.mark.parametrize(("factor", "bad"), [*BAD_BATCHES, (NAN, 0), (NAN, 2)])
def test_skipping_comes_to_the_run_that_never_had_the_batch(
    factor: float, bad: int, tmp_path: Path, new_loop: NewLoop
) -> None:
    """Before the first checkpoint as after it, to the bit."""
    loop = new_loop(ToyTask(poison={bad: factor}), tmp_path / "run", guard={"action": "skip"})
    without = new_loop(ToyTask(left_out=(bad,)), tmp_path / "without")
    loop.run()
    without.run()
    assert_same_weights(loop, without)
    assert losses(tmp_path / "run") == losses(tmp_path / "without")
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(1, 65))
    stands = bad // 8 * 8 or bad  # the last checkpoint; before the first, where the run is
    (warning,) = warnings(tmp_path / "run")
    assert f"step {bad + 1}: the loss" in warning and f"back to step {stands}, batch skipped" in warning


def test_a_run_stopped_by_the_guard_goes_on_past_the_batch(tmp_path: Path, new_loop: NewLoop) -> None:
    task = ToyTask(poison={9: NAN})
    with pytest.raises(TrainingStopped):
        new_loop(task, tmp_path / "run").run()
    resumed = new_loop(ToyTask(poison={9: NAN}), tmp_path / "run", guard={"action": "skip"})
    resumed.resume()
    resumed.run()
    without = new_loop(ToyTask(left_out=(9,)), tmp_path / "without")
    without.run()
    assert_same_weights(resumed, without)


def test_a_skipped_batch_stays_skipped_after_a_resume(tmp_path: Path, new_loop: NewLoop) -> None:
    """A batch that is passed over is remembered in the checkpoints that follow."""
    task = ToyTask(poison={5: NAN})
    first = new_loop(task, tmp_path / "run", guard={"action": "skip"})
    advance_to(first, 12)
    first.save_now()
    resumed = new_loop(ToyTask(), tmp_path / "run", guard={"action": "skip"})  # would train on the batch now
    resumed.resume()
    assert [cursor.offset for cursor in resumed.progress.skipped] == [5]


def test_only_so_many_batches_are_skipped(tmp_path: Path, new_loop: NewLoop) -> None:
    poison = dict.fromkeys((6, 10, 14), NAN)
    guard = {"action": "skip", "skips": 2}
    with pytest.raises(TrainingStopped, match=r"Step 13: "):  # the third bad one, two steps early by now
        new_loop(ToyTask(poison=poison), tmp_path / "two", guard=guard).run()
    new_loop(ToyTask(poison=poison), tmp_path / "three", guard=guard | {"skips": 3}).run()
    assert len(warnings(tmp_path / "three")) == 3


def advance_to(loop: Loop, step: int) -> None:
    loop.task.model.train()
    while loop.progress.step < step:
        for batch in loop.task.batches(loop.progress.cursor):
            if not loop.advance(batch) or loop.progress.step == step:
                break


def assert_same_weights(loop: Loop, other: Loop) -> None:
    assert loop.progress.step == other.progress.step
    weights, others = loop.task.model.state_dict(), other.task.model.state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def losses(folder: Path) -> list[tuple[int, Any]]:
    return [(line["step"], line["loss"]) for line in RunLog.read(folder) if line["kind"] == "step"]


def warnings(folder: Path) -> list[str]:
    return [record["message"] for record in RunLog.read(folder) if record["kind"] == "warning"]


def test_a_batch_with_nothing_to_predict_moves_nothing_and_stops_nothing(
    tmp_path: Path, new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches of long words masked whole can have none that fits."""
    task = ToyTask(poison={3: 0.0})
    counts = task.counts
    monkeypatch.setattr(task, "counts", lambda of: {"toy": 0} if of.labels[0] == 3 else counts(of))
    loop = new_loop(task, tmp_path / "run", steps=8)
    loop.run()
    assert loop.progress.step == 8
