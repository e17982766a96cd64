"""Saving and reading training state: beside writing the same bytes, and what the training loses meanwhile.
Last answer (2026-11-23, Zen 4): a save 0.66 of writing the same bytes, the stall 0.12.

    python bench/pretraining/checkpoint.py [--size base] [--rounds 5] [--folder .]

Weights and AdamW's moments of a BERT, random numbers, saved under --folder, and in turn with it:

    the same bytes      one file of as many bytes from memory, flushed to the disk, and put in place of the
                        one before, as a checkpoint is
    save                a checkpoint copied, written, summed and flushed, nothing beside it: at most 1.3 times
    training stalls     how much later a loop of matrix products ends that begins such a save and goes on,
                        and the save with it, than the mean of the same loop before and after: at most a third
                        of writing the bytes. Of this and of the save the run has saved before, and memory for
                        the copy is there
    the call            the part of it for which the training itself waits, a copy in memory
    the first call      the same of a run's first save, for which the system has to find the memory
    load                the newest checkpoint read and every sum checked
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.model.config import preset
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training.checkpoint import (
    SINGLE_SHARD,
    CheckpointWriter,
    RunProgress,
    TrainingState,
    load_training_state,
)
from harness import ratio, report

_LOOP_SECONDS = 2.0  # of products before a save begins; as many steps follow as the writing takes


def main() -> None:
    """Parses, measures, reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    state = _state(options.size)
    size = sum(tensor.nbytes for part in (state.weights, state.optimizer) for tensor in part.values())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rounds = [_round(state, size, Path(folder)) for _ in range(options.rounds + 1)][1:]
    written = [each["the same bytes"] for each in rounds]
    report(
        "checkpoint",
        f"Checkpoints of BERT-{options.size}: {size / 1e9:.2f} GB",
        [_row(name, [each[name] for each in rounds], written) for name in rounds[0]],
        ["Seconds: medians. 'times': of writing the same bytes, round by round."],
    )


def _row(name: str, seconds: list[float], written: list[float]) -> dict[str, str]:
    times = ratio(seconds, written)
    return {
        "": name,
        "seconds": f"{statistics.median(seconds):.2f}",
        "times": f"{times['median']:.2f} ({times['lowest']:.2f} – {times['highest']:.2f})",
    }


def _state(size: str) -> TrainingState:
    model = PretrainingModel(preset(size))
    weights = dict(model.state_dict())
    moments = {
        f"{name}.{moment}": torch.rand_like(weight)
        for name, weight in model.named_parameters()
        for moment in ("exp_avg", "exp_avg_sq")
    }
    return TrainingState(RunProgress(step=1), weights, moments)


def _round(state: TrainingState, size: int, folder: Path) -> dict[str, float]:
    """Seconds of each."""
    # The first time the system may have to find memory for the file, which takes as long again.
    plain = min(_write_bytes(folder / "bytes", size) for _ in range(2))
    saving = _saving(state, folder, plain)
    return {"the same bytes": plain, **saving, "load": _seconds(lambda: load_training_state(folder))}


def _write_bytes(path: Path, size: int) -> float:
    """Seconds from the first byte to the flushed disk."""
    content = memoryview(torch.rand(size // 4).numpy()).cast("B")
    partial = path.with_suffix(".partial")
    start = time.monotonic()
    with partial.open("wb", buffering=0) as file:
        while content:
            content = content[file.write(content) :]
        os.fsync(file.fileno())
    partial.replace(path)
    return time.monotonic() - start


def _saving(state: TrainingState, folder: Path, writing: float) -> dict[str, float]:
    """Seconds of a save, by which products beside one end later than without it, and of the calls."""
    matrix = torch.rand(1024, 1024)
    steps = int((_LOOP_SECONDS + 2 * writing) / (_seconds(lambda: _products(matrix, 20)) / 20))
    with CheckpointWriter(1, SINGLE_SHARD) as writer:
        first = _seconds(lambda: writer.write(folder, state))
        writer.finish()
        save = _seconds(lambda: (writer.write(folder, state), writer.finish()))
        before = _seconds(lambda: _products(matrix, steps))
        start = time.monotonic()
        call = _seconds(lambda: writer.write(folder, state))
        _products(matrix, steps)
        writer.finish()
        beside = time.monotonic() - start
        after = _seconds(lambda: _products(matrix, steps))
    stall = beside - (before + after) / 2
    return {"save": save, "training stalls": stall, "the call": call, "the first call": first}


def _products(matrix: Tensor, steps: int) -> None:
    for _ in range(steps):
        matrix @ matrix


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


if __name__ == "__main__":
    main()
