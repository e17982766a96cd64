"""Training state on disk: everything the next step depends on, written whole or not at all.

    checkpoints/step-00001000/
        weights.safetensors     the model, in our names
        optimizer.safetensors   AdamW's moments by parameter name
        state.json              step, cursor, time spent, and the SHA-256 of these and of both files

There is no random state to keep: dropout is seeded by (seed, step, rank), masks by the sequence's key.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.data.stream import Cursor
from bertsmith.errors import BertsmithError, ModelError
from bertsmith.files import atomic_folder, read_json, sha256, tensors_written_to, write_json

_FORMAT = 1
_FILES = ("weights.safetensors", "optimizer.safetensors")
_STATE = "state.json"


@dataclass(frozen=True)
class Progress:
    """Where a run stands after `step` steps. `elapsed` is training time in seconds over all its parts."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    elapsed: float = 0.0
    tokens: int = 0
    sequences: int = 0
    recent_loss: float | None = None
    skipped: tuple[Cursor, ...] = ()


@dataclass(frozen=True)
class TrainingState:
    """A checkpoint in memory."""

    progress: Progress
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def save_training_state(folder: Path, state: TrainingState, keep: int) -> Path:
    """Writes `folder`/step-N and then removes all but the newest `keep` up to it.

    Later ones were damaged and passed over, or the run would not stand at this step: they go too.
    Raises ResourceError when the disk is full; what stood before still stands.
    """
    path = folder / f"step-{state.progress.step:08d}"
    with atomic_folder(path, replace=True) as partial:
        for name, tensors in zip(_FILES, (state.weights, state.optimizer), strict=True):
            _save(tensors, partial / name)
        values = {"format": _FORMAT, **asdict(state.progress)}
        hashes = {name: sha256(partial / name) for name in _FILES} | {_STATE: _digest(values)}
        write_json(partial / _STATE, values | {"sha256": hashes})
    names = sorted(entry.name for entry in folder.glob("step-*"))
    kept = [name for name in names if name <= path.name][-keep:]
    for name in names:
        if name not in kept:
            shutil.rmtree(folder / name)
    return path


def load_training_state(folder: Path) -> tuple[TrainingState | None, list[str]]:
    """The newest whole checkpoint of a run, and a sentence about each newer one that was not whole.

    Partial folders left by a kill are removed. None when there is no checkpoint at all.
    Raises ModelError when there are checkpoints and none of them is whole.
    """
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    complaints: list[str] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return _read(path), complaints
        except (BertsmithError, OSError, KeyError, TypeError, ValueError) as error:
            complaints.append(f"{path.name} is damaged and was passed over: {error}")
    if complaints:
        raise ModelError(
            f"No whole checkpoint is left in {folder}: {' '.join(complaints)} "
            "Begin the run anew in another folder (out=)."
        )
    return None, complaints


def _read(path: Path) -> TrainingState:
    values: dict[str, Any] = read_json(path / _STATE)
    hashes = values.pop("sha256")
    for name, found in {_STATE: _digest(values), **{name: sha256(path / name) for name in _FILES}}.items():
        if found != hashes[name]:
            raise ModelError(f"{name} has SHA-256 {found[:12]}…, expected {hashes[name][:12]}….")
    if values["format"] != _FORMAT:
        raise ModelError(f"expected format {_FORMAT}, found {values['format']}: another version wrote it.")
    known = {key: values[key] for key in Progress.__dataclass_fields__}
    known["cursor"] = Cursor(**known["cursor"])
    known["skipped"] = tuple(Cursor(**cursor) for cursor in known["skipped"])
    return TrainingState(Progress(**known), *(_load(path / name) for name in _FILES))


def _digest(values: dict[str, Any]) -> str:
    """Of the step and the cursor too: a flipped bit there would silently train on other text."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    with tensors_written_to(path):
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


def _load(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(path)
    return tensors
