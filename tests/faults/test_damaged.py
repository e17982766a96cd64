"""Torn and altered checkpoints, and a disk that fills up: the last good one is used, and the log says so."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from defects import Defect
from evidence import evidence
from nursery import Attempt, Settings, finish
from places import Fault
from tiny_run import NewRun, Uninterrupted

from bertsmith.training.log import RunLog


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0b100
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "name"),
    [(cut, "weights.safetensors"), (flip_a_bit, "optimizer.safetensors"), (flip_a_bit, "state.json")],
)
def test_the_last_good_checkpoint_is_used(
    damage: Callable[[Path], None], name: str, new_run: NewRun, uninterrupted: Uninterrupted
) -> None:
    settings = killed_in_a_save(new_run)
    out = Path(settings["out"])
    damage(out / "checkpoints" / "step-00000012" / name)
    finish(settings)
    warning = next(record for record in RunLog.read(out) if record["kind"] == "warning")
    assert warning["step"] == 8
    assert warning["message"].startswith("step-00000012 is damaged and was passed over: ")
    assert name in warning["message"]
    assert evidence(out) == uninterrupted(1)


def test_no_good_checkpoint_is_a_sentence(new_run: NewRun) -> None:
    settings = killed_in_a_save(new_run)
    for path in (Path(settings["out"]) / "checkpoints").iterdir():
        cut(path / "weights.safetensors")
    attempt = Attempt(settings)
    assert attempt.wait() == [1]
    assert attempt.complaint().startswith("ModelError: No whole checkpoint is left in ")
    assert "step-00000012" in attempt.complaint() and "step-00000008" in attempt.complaint()


def test_a_disk_that_fills_up(new_run: NewRun, uninterrupted: Uninterrupted) -> None:
    settings = new_run()
    attempt = Attempt(settings, [Defect("the disk is full")])
    assert attempt.wait() == [1]
    assert attempt.complaint().startswith("DiskFull: The disk is full: ")
    assert "step-00000016" in attempt.complaint()
    folder = Path(settings["out"]) / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000008", "step-00000012"]
    finish(settings)
    assert evidence(Path(settings["out"])) == uninterrupted(1)


def killed_in_a_save(new_run: NewRun) -> Settings:
    """A run with checkpoints of steps 8 and 12, which stood before that of step 16 was begun."""
    settings = new_run()
    Attempt(settings, [Fault("before a checkpoint", 4)]).wait()
    return settings
