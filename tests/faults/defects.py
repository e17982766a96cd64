"""Changes to a run that are not deaths: slips of a resume, which the comparison must see, and a full disk."""

import errno
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import NotFinite
from bertsmith.training import checkpoint, loop, pretraining_report
from bertsmith.training import checkpoint as checkpoint_writer
from bertsmith.training.gradients import StepResult


def _optimizer_forgotten() -> None:
    loop.load_optimizer_tensors = lambda *_: None


def _sequence_lost() -> None:
    original = checkpoint._read_checkpoint

    def read(*arguments: Any) -> checkpoint.TrainingState:
        state = original(*arguments)
        cursor = replace(state.progress.cursor, offset=state.progress.cursor.offset + 1)
        return replace(state, progress=replace(state.progress, cursor=cursor))

    checkpoint._read_checkpoint = read


def _other_dropout() -> None:
    original = loop.dropout_seed
    loop.dropout_seed = lambda seed, step, rank: original(seed + 1, step, rank)


def _one_bit_of_a_weight() -> None:
    original = checkpoint._read_checkpoint

    def read(*arguments: Any) -> checkpoint.TrainingState:
        state = original(*arguments)
        bits = state.weights["encoder.layers.0.attention.output.weight"].view(-1)[:1].view(torch.int32)
        bits ^= 1
        return state

    checkpoint._read_checkpoint = read


def _slow_saving() -> None:
    original = checkpoint_writer.save_training_state

    def save(*arguments: Any) -> Path:
        time.sleep(1.0)
        return original(*arguments)

    checkpoint_writer.save_training_state = save


def _bad_batch() -> None:
    """The twentieth step has no finite loss; the batch that comes in its place has one."""
    original, calls = loop.Gradients.compute, iter(range(1, 1000))

    def compute(*arguments: Any, **named: Any) -> StepResult:
        result = original(*arguments, **named)
        return replace(result, losses={"mlm": math.nan}) if next(calls) == 20 else result

    loop.Gradients.compute = compute


def _disk_full() -> None:
    """From the fourth checkpoint's optimiser state on."""
    original, calls = checkpoint.write_tensors, iter(range(1, 1000))

    def write_tensors(path: Path, tensors: Any) -> str:
        if next(calls) >= 8:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return original(path, tensors)

    checkpoint.write_tensors = write_tensors


def _not_filled_afterwards() -> None:
    def write_after(*arguments: Any) -> None:
        raise NotFinite("a fault")

    pretraining_report.Fills.write_after = write_after


DEFECTS: dict[str, Callable[[], None]] = {
    "the optimiser's moments are forgotten": _optimizer_forgotten,
    "one sequence is lost": _sequence_lost,
    "dropout is drawn anew": _other_dropout,
    "the last bit of one weight": _one_bit_of_a_weight,
    "saving takes a second": _slow_saving,
    "a batch is bad": _bad_batch,
    "the disk is full": _disk_full,
    "examples can't be filled after the run": _not_filled_afterwards,
}


@dataclass(frozen=True)
class Defect:
    """One of `DEFECTS`, by name."""

    name: str

    def install(self) -> None:
        DEFECTS[self.name]()
