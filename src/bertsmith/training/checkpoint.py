"""Training state on disk: everything the next step depends on, written whole or not at all.

    checkpoints/step-00001000/
        weights.safetensors     the model, in our names
        optimizer.safetensors   AdamW's moments, or Muon's one, by parameter name
        state.json              step, cursor, time spent, and the CRC-32 of these and of the other files

A model that is divided between processes is written by all of them, each a file of its neighbouring rows of
each tensor, the first process the first ones: weights-00001-of-00004.safetensors and so on. The rows of a
whole tensor are therefore those of all files in their order, and any number of processes reads either, each
its own rows. A tensor without dimensions is in every file.

R rows of a whole tensor.

There is no random state to keep: dropout is seeded by (seed, step, rank), masks by the sequence's key.
"""

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor

from bertsmith.data.stream import Cursor
from bertsmith.errors import BertsmithError, ModelError, ResourceError
from bertsmith.files import atomic_folder, crc32_of, read_json, write_json
from bertsmith.training.tensor_file import allocate_like, write_tensors

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


@dataclass(frozen=True)
class Shard:
    """What one process of several holds: part `number` (from 0) of `count`.

    `gather` gives the texts that all of them say, in their order, and so waits for all of them.
    """

    number: int = 0
    count: int = 1
    gather: Callable[[str], list[str]] = lambda text: [text]

    def rows(self, length: int) -> slice:
        """Which of `length` rows, divided as torch.chunk and FSDP do: the last parts are shorter or empty."""
        share = -(-length // self.count)
        return slice(min(self.number * share, length), min((self.number + 1) * share, length))


WHOLE = Shard()


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
        names = sorted(entry.name for entry in folder.glob("step-*"))
        kept = [name for name in names if name <= path.name][-keep:]
        for name in names:
            if name not in kept:
                shutil.rmtree(folder / name)
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


# -- files of several processes ------------------------------------------------------------------------


def part_names(kind: str, count: int) -> list[str]:
    """The files of `count` parts, numbered as Hugging Face numbers those of large models."""
    if count == 1:
        return [f"{kind}.safetensors"]
    return [f"{kind}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def read_part(paths: Sequence[Path], part: Shard) -> dict[str, Tensor]:
    """The rows of `part` of each tensor in the files `paths`, all parts of the process that wrote them."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        names = files[0].keys()
        return {name: _rows([file.get_slice(name) for file in files], part) for name in names}


def _rows(pieces: Sequence[Any], part: Shard) -> Tensor:
    """(R, …) in pieces -> the part's (r, …)."""
    if not pieces[0].get_shape():
        scalar: Tensor = pieces[0][...]
        return scalar
    lengths = [piece.get_shape()[0] for piece in pieces]
    wanted = part.rows(sum(lengths))
    found, start = [], 0
    for piece, length in zip(pieces, lengths, strict=True):
        first, end = max(wanted.start - start, 0), min(wanted.stop - start, length)
        if first < end:
            found.append(piece[first:end])
        start += length
    return torch.cat(found) if found else pieces[0][:0]


# -- written beside the training -----------------------------------------------------------------------


class CheckpointWriter:
    """Writes one process's `part` of each state it is given, and keeps the newest `keep`.

    The training waits for a copy in memory and not for the disk. One is written at a time, and memory holds
    one copy: as much again as weights and moments. A run that ends, however it ends, waits for the one that
    is being written.
    """

    def __init__(self, keep: int, part: Shard) -> None:
        self.keep, self.part = keep, part
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None
        self._weights: dict[str, Tensor] = {}  # the copies' memory, kept: the system gives new memory slowly
        self._optimizer: dict[str, Tensor] = {}

    def write(self, folder: Path, state: TrainingState) -> None:
        """Copies the state, which may change from then on, and begins to write it under `folder`.

        Waits for the one before, and raises what that one failed with.
        """
        self.finish()
        self._weights = _copied(state.weights, self._weights)
        self._optimizer = _copied(state.optimizer, self._optimizer)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        copy = TrainingState(state.progress, self._weights, self._optimizer)
        self._writing = self._thread.submit(save_training_state, folder, copy, self.keep, self.part)

    def check(self) -> None:
        """Raises what the writing has failed with, as soon as that is known.

        Processes that write together would know it in different steps: they hear of it in `finish`.
        """
        if self._writing is not None and self._writing.done() and self.part.count == 1:
            self.finish()

    def finish(self) -> None:
        """Waits until what was given stands. Raises ResourceError when the disk is full."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()


def _copied(tensors: dict[str, Tensor], room: dict[str, Tensor]) -> dict[str, Tensor]:
    """Into this memory, or into new memory where it is another state's."""
    if room.keys() != tensors.keys():
        room = allocate_like(tensors)
    for name, tensor in tensors.items():
        room[name].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
    return room
