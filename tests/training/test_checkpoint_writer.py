"""Writing beside the training: what was given is written, one at a time, and a failure is heard of."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bertsmith.errors import ResourceError
from bertsmith.training import checkpoint as checkpoint_writer
from bertsmith.training.checkpoint import (
    SINGLE_SHARD,
    CheckpointWriter,
    RunProgress,
    Shard,
    TrainingState,
    load_training_state,
    save_training_state,
)

SECONDS = 60  # of patience; a failing test waits as long


class SlowDisk:
    """Saving waits until it may go on; `calls` are the steps that were begun."""

    def __init__(self) -> None:
        self.free, self.begun = threading.Event(), threading.Event()
        self.calls: list[int] = []

    def save(self, folder: Path, state: TrainingState, keep: int, part: Shard) -> Path:
        self.calls.append(state.progress.step)
        self.begun.set()
        assert self.free.wait(SECONDS)
        return save_training_state(folder, state, keep, part)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    slow = SlowDisk()
    monkeypatch.setattr(checkpoint_writer, "save_training_state", slow.save)
    yield slow
    slow.free.set()


def state_at(step: int) -> TrainingState:
    return TrainingState(
        RunProgress(step), {"a": torch.full((2, 3), float(step))}, {"a.step": torch.tensor(step)}
    )


def test_training_goes_on_and_what_is_written_is_what_was_given(tmp_path: Path, disk: SlowDisk) -> None:
    given = state_at(4)
    with CheckpointWriter(2, SINGLE_SHARD) as writer:
        writer.write(tmp_path, given)
        assert disk.begun.wait(SECONDS)
        given.weights["a"].zero_()  # the next step
        given.optimizer["a.step"].add_(1)
        assert list(tmp_path.glob("step-*")) == []
        disk.free.set()
    found, _ = load_training_state(tmp_path)
    assert found is not None and found.progress == RunProgress(4)
    assert torch.equal(found.weights["a"], torch.full((2, 3), 4.0))
    assert found.optimizer["a.step"] == 4


def test_one_is_written_at_a_time(tmp_path: Path, disk: SlowDisk) -> None:
    with CheckpointWriter(2, SINGLE_SHARD) as writer:
        writer.write(tmp_path, state_at(4))
        second = threading.Thread(target=writer.write, args=(tmp_path, state_at(6)))
        second.start()
        second.join(0.1)
        assert second.is_alive() and disk.calls == [4]
        disk.free.set()
        second.join(SECONDS)
        writer.finish()
        assert disk.calls == [4, 6]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000006"]


@pytest.mark.parametrize("heard_in", ["check", "finish", "write"])
def test_a_failure_is_heard_of_once(
    heard_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: SlowDisk
) -> None:
    def full(*_: object) -> Path:
        raise ResourceError("The disk is full.")

    monkeypatch.setattr(checkpoint_writer, "save_training_state", full)
    with CheckpointWriter(2, SINGLE_SHARD) as writer:
        writer.write(tmp_path, state_at(4))
        writer._thread.submit(lambda: None).result(SECONDS)  # the failure lies before this
        with pytest.raises(ResourceError, match="full"):
            writer.write(tmp_path, state_at(6)) if heard_in == "write" else getattr(writer, heard_in)()
        writer.check()
        writer.finish()


def test_parts_of_several_processes_are_heard_of_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `finish`, which all of them call in the same step."""

    def full(*_: object) -> Path:
        raise ResourceError("The disk is full.")

    monkeypatch.setattr(checkpoint_writer, "save_training_state", full)
    with CheckpointWriter(2, Shard(1, 2)) as writer:
        writer.write(tmp_path, state_at(4))
        writer._thread.submit(lambda: None).result(SECONDS)
        writer.check()
        with pytest.raises(ResourceError, match="full"):
            writer.finish()


def test_the_end_waits_even_after_a_failure_of_the_training(tmp_path: Path, disk: SlowDisk) -> None:
    threading.Timer(0.1, disk.free.set).start()
    with pytest.raises(KeyboardInterrupt), CheckpointWriter(2, SINGLE_SHARD) as writer:
        writer.write(tmp_path, state_at(4))
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]
