"""Training state on disk: everything the next step depends on, written whole or not at all.

    checkpoints/step-00001000/
        weights.safetensors     the model, in our names
        optimizer.safetensors   AdamW's moments, or Muon's one, by parameter name
        state.json              step, cursor, time spent, and the CRC-32 of these and of the other files

A model that is divided between processes is written by all of them, each its rows:
weights-00001-of-00004.safetensors and so on. Any number of processes reads either.

There is no random state to keep: dropout is seeded by (seed, step, rank), masks by the sequence's key.
"""

import json
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from bertsmith.data.stream import Cursor
from bertsmith.errors import BertsmithError, ModelError, ResourceError
from bertsmith.files import atomic_folder, crc32_of, read_json, write_json
from bertsmith.training.checkpoint_shards import WHOLE, Shard, part_names, read_part
from bertsmith.training.tensor_file import write_tensors

_FORMAT = 2
_KINDS = ("weights", "optimizer")
_STATE, _CHECKSUMS = "state.json", "crc32"
_DAMAGES = (BertsmithError, OSError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class RunProgress:
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
    """A checkpoint in memory, or one process's rows of it."""

    progress: RunProgress
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def save_training_state(folder: Path, state: TrainingState, keep: int, part: Shard = WHOLE) -> Path:
    """Writes `folder`/step-N and then removes all but the newest `keep` up to it.

    Later ones were damaged and passed over, or the run would not stand at this step: they go too. A divided
    state is written by all its processes together, each of which calls this with its own `part`.
    Raises ResourceError when the disk is full, in every process; what stood before still stands.
    """
    path = folder / f"step-{state.progress.step:08d}"
    if part.count > 1:
        _save_together(path, state, part)
    else:
        with atomic_folder(path, overwrite=True) as partial:
            _describe(partial, state.progress, part.count, _write_part(partial, state, part))
    if part.number == 0:
        _keep_newest(folder, path.name, keep)
    return path


def _save_together(path: Path, state: TrainingState, part: Shard) -> None:
    """Each process writes a folder beside `path`; when all of these stand, the first process makes one of
    them.
    """
    folders = [path.parent / f".{path.name}.part-{number}" for number in range(part.count)]
    own = folders[part.number]
    written: dict[str, Any] = {"checksums": {}, "error": None}
    try:
        with atomic_folder(own, overwrite=True) as partial:
            written["checksums"] = _write_part(partial, state, part)
    except (ResourceError, OSError) as error:
        written["error"] = str(error)
    of_all = [json.loads(text) for text in part.gather(json.dumps(written))]
    errors = [each["error"] for each in of_all if each["error"]]
    if errors:
        shutil.rmtree(own, ignore_errors=True)
        raise ResourceError(errors[0])
    if part.number == 0:
        with atomic_folder(path, overwrite=True) as partial:
            for folder, each in zip(folders, of_all, strict=True):
                for name in each["checksums"]:
                    (folder / name).rename(partial / name)
                folder.rmdir()
            checksums = {name: checksum for each in of_all for name, checksum in each["checksums"].items()}
            _describe(partial, state.progress, part.count, checksums)


def _write_part(folder: Path, state: TrainingState, part: Shard) -> dict[str, str]:
    """The files of one process; returns their checksums."""
    names = [part_names(kind, part.count)[part.number] for kind in _KINDS]
    return {
        name: write_tensors(folder / name, tensors)
        for name, tensors in zip(names, (state.weights, state.optimizer), strict=True)
    }


def _describe(folder: Path, progress: RunProgress, parts: int, checksums: dict[str, str]) -> None:
    values = {"format": _FORMAT, "parts": parts, **asdict(progress)}
    write_json(folder / _STATE, values | {_CHECKSUMS: checksums | {_STATE: _checksum(values)}})


def _keep_newest(folder: Path, newest: str, keep: int) -> None:
    names = sorted(entry.name for entry in folder.glob("step-*"))
    kept = [name for name in names if name <= newest][-keep:]
    for name in names:
        if name not in kept:
            shutil.rmtree(folder / name)


def load_training_state(folder: Path, part: Shard = WHOLE) -> tuple[TrainingState | None, list[str]]:
    """The newest whole checkpoint of a run, and a sentence about each newer one that was not whole.

    Of its tensors only the rows of `part` are read, whoever wrote them; whether all files are whole, every
    process finds out for itself.
    Partial folders left by a kill are removed. None when there is no checkpoint at all.
    Raises ModelError when there are checkpoints and none of them is whole.
    """
    for leftover in folder.glob(".*step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    complaints: list[str] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return _read(path, part), complaints
        except _DAMAGES as error:
            complaints.append(f"{path.name} is damaged and was passed over: {error}")
    if complaints:
        raise ModelError(
            f"No whole checkpoint is left in {folder}: {' '.join(complaints)} "
            "Begin the run anew in another folder (out=)."
        )
    return None, complaints


def read_training_state(path: Path, part: Shard = WHOLE) -> TrainingState:
    """The rows of `part` of the checkpoint in this folder. Raises ModelError when it is damaged or gone."""
    with _naming(path):
        return _read(path, part)


def read_progress(path: Path) -> RunProgress:
    """Where the run of a checkpoint stood. Raises ModelError when that is damaged or gone."""
    with _naming(path):
        return _progress(_values(path))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise ModelError(f"{path} is no whole checkpoint: {error}") from error


def _read(path: Path, part: Shard) -> TrainingState:
    values = _values(path)
    files = [part_names(kind, values.get("parts", 1)) for kind in _KINDS]
    for name in chain(*files):
        _require_whole(name, crc32_of(path / name), values)
    tensors = [read_part([path / name for name in each], part) for each in files]
    return TrainingState(_progress(values), *tensors)


def _values(path: Path) -> dict[str, Any]:
    """What state.json holds."""
    values: dict[str, Any] = read_json(path / _STATE)
    if values["format"] != _FORMAT:
        raise ModelError(f"expected format {_FORMAT}, found {values['format']}: another version wrote it.")
    unsigned = {key: value for key, value in values.items() if key != _CHECKSUMS}
    _require_whole(_STATE, _checksum(unsigned), values)
    return values


def _require_whole(name: str, found: str, values: dict[str, Any]) -> None:
    expected = values[_CHECKSUMS][name]
    if found != expected:
        raise ModelError(f"{name} has CRC-32 {found}, expected {expected}.")


def _progress(values: dict[str, Any]) -> RunProgress:
    known = {key: values[key] for key in RunProgress.__dataclass_fields__}
    known["cursor"] = Cursor.of(known["cursor"])
    known["skipped"] = tuple(map(Cursor.of, known["skipped"]))
    return RunProgress(**known)


def _checksum(values: dict[str, Any]) -> str:
    """Of the step and the cursor too: a flipped bit there would silently train on other text."""
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"
