"""Places in a run where a process sends itself a signal.

Everything here patches what the run is made of, in a process that is forked for one run and then gone.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from torch import Tensor

from bertsmith import files
from bertsmith.tasks.pretraining.objectives import MaskedLanguage, ReplacedTokens
from bertsmith.tasks.pretraining.pretraining import PretrainingTask
from bertsmith.training import checkpoint
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop
from bertsmith.training.optimizer import Muon, Optimizers

Strike = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """A signal at the `time`-th arrival of a process at a place; names of places are the keys of `PLACES`."""

    place: str
    time: int = 1
    signal: Signals = SIGKILL

    def install(self) -> None:
        left = self.time

        def strike() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), self.signal)

        self.places[self.place](strike)

    @property
    def places(self) -> dict[str, Callable[[Strike], None]]:
        return PLACES


def _before(owner: Any, name: str) -> Callable[[Strike], None]:
    return lambda strike: _wrap(owner, name, strike, lambda: None)


def _after(owner: Any, name: str) -> Callable[[Strike], None]:
    return lambda strike: _wrap(owner, name, lambda: None, strike)


def _wrap(owner: Any, name: str, before: Strike, after: Strike) -> None:
    original = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        before()
        result = original(*arguments, **named)
        after()
        return result

    setattr(owner, name, wrapped)


def _half_a_tensor_file(strike: Strike) -> None:
    """A file of tensors is cut where the process dies."""
    original = checkpoint.write_tensors

    def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
        original(path, tensors)
        os.truncate(path, path.stat().st_size // 2)
        strike()
        return original(path, tensors)

    checkpoint.write_tensors = write_tensors


def _half_a_removal(strike: Strike) -> None:
    """An old checkpoint loses a file before the process dies."""
    original = shutil.rmtree

    def rmtree(path: Path, *arguments: Any, **named: Any) -> None:
        if Path(path).name.startswith("step-"):
            (Path(path) / "weights.safetensors").unlink(missing_ok=True)
            strike()
        original(path, *arguments, **named)

    shutil.rmtree = rmtree


def _half_a_log_line(strike: Strike) -> None:
    """The log ends in the middle of a line."""
    original = RunLog.write

    def write(log: RunLog, kind: str, step: int, **values: Any) -> Any:
        end = log.path.stat().st_size
        original(log, kind, step, **values)
        whole = log.path.stat().st_size
        os.truncate(log.path, (end + whole) // 2)
        strike()
        os.truncate(log.path, end)
        return original(log, kind, step, **values)

    RunLog.write = write


def _saving(when: Callable[[Any, str], Callable[[Strike], None]], strike: Strike) -> None:
    """Of any way of pre-training."""
    for objective in (MaskedLanguage, ReplacedTokens):
        when(objective, "save")(strike)


def _phase_switch(strike: Strike) -> None:
    """Between the last step of one sequence length and the first of the next."""
    original = Loop._open_stream

    def open_stream(loop: Loop) -> Any:
        if loop._phase() != loop.progress.cursor.phase:
            strike()
        return original(loop)

    Loop._open_stream = open_stream


PLACES: dict[str, Callable[[Strike], None]] = {
    "before a micro-batch": _before(PretrainingTask, "loss"),
    "between forward and backward": _before(Tensor, "backward"),
    "between two micro-batches": _after(Tensor, "backward"),
    "before the weights change": _before(Optimizers, "step"),
    "between AdamW's step and Muon's": _before(Muon, "step"),
    "after the weights changed": _after(Optimizers, "step"),
    "at the switch of the sequence length": _phase_switch,
    "during evaluation": _before(PretrainingTask, "metrics"),
    "in the middle of a log line": _half_a_log_line,
    "before a checkpoint": _before(checkpoint, "atomic_folder"),
    "in the middle of a tensor file": _half_a_tensor_file,
    "before a folder gets its name": _before(Path, "rename"),
    "after a folder got its name": _after(Path, "rename"),
    "in the middle of removing a checkpoint": _half_a_removal,
    "after the last step": _before(Loop, "evaluate"),
    "before the model is saved": lambda strike: _saving(_before, strike),
    "after the model was saved": lambda strike: _saving(_after, strike),
    "while files are forced to disk": _before(files, "flush"),
}
