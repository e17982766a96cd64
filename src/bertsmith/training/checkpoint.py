"""Training state on disk: everything that the next step depends on, written completely or not at all.

    checkpoints/step-00001000/
        weights.safetensors     the model's weights, by parameter name
        optimizer.safetensors   AdamW's two moments, or Muon's one, by parameter name
        state.json              step, cursor, time spent; CRC-32 of these values and of the other files

All processes of a sharded model write it together. Each writes consecutive rows of every tensor to files of
its own, in the order of the ranks: weights-00001-of-00004.safetensors and so on. A full tensor is the files'
rows one after the other, so that any number of processes can read the checkpoint, each its own rows. A tensor
without dimensions is in every file.

R rows of a full tensor, r of a shard.

No random state is saved: dropout is seeded by (seed, step, rank), masks by the sequence's key.
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
_FILE_KINDS = ("weights", "optimizer")
_STATE, _CHECKSUMS = "state.json", "crc32"
_DAMAGE_ERRORS = (BertsmithError, OSError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class RunProgress:
    """Where a run stands after `step` steps.

    cursor: where the next batch begins in the training data.
    elapsed: seconds of training, earlier parts of a resumed run included.
    tokens, sequences: how many the model has been trained on, padding not counted.
    recent_loss: the running mean that the loss guard compares with; None before the first step.
    skipped: where the batches begin that the loss guard has passed over.
    """

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    elapsed: float = 0.0
    tokens: int = 0
    sequences: int = 0
    recent_loss: float | None = None
    skipped: tuple[Cursor, ...] = ()


@dataclass(frozen=True)
class TrainingState:
    """A checkpoint in memory: all of it, or the rows of one process. Tensors are by their names on disk."""

    progress: RunProgress
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


@dataclass(frozen=True)
class Shard:
    """Which part of every tensor a process holds: number `number` (from 0) of `count`.

    `gather` takes this process's text and returns those of all processes, in the order of their numbers. It
    waits until all of them have called it.
    """

    number: int = 0
    count: int = 1
    gather: Callable[[str], list[str]] = lambda text: [text]

    def rows(self, length: int) -> slice:
        """The shard's range of `length` rows. Divides as torch.chunk and FSDP do: the last shards may be
        shorter, or empty.
        """
        share = -(-length // self.count)
        return slice(min(self.number * share, length), min((self.number + 1) * share, length))


SINGLE_SHARD = Shard()


def save_training_state(folder: Path, state: TrainingState, keep: int, shard: Shard = SINGLE_SHARD) -> Path:
    """Writes `folder`/step-N, then removes older checkpoints but the newest `keep`. Returns its path.

    Checkpoints of later steps are removed too: a run that stands at this step has passed them over as
    damaged. All processes of a sharded state call this together, each with its own `shard`.
    Raises ResourceError in every process when the disk is full; earlier checkpoints are kept then.
    """
    path = folder / f"step-{state.progress.step:08d}"
    if shard.count > 1:
        _save_sharded(path, state, shard)
    else:
        with atomic_folder(path, overwrite=True) as partial:
            _write_state_file(partial, state.progress, shard.count, _write_shard(partial, state, shard))
    if shard.number == 0:
        names = sorted(entry.name for entry in folder.glob("step-*"))
        newest = [name for name in names if name <= path.name][-keep:]
        for name in names:
            if name not in newest:
                shutil.rmtree(folder / name)
    return path


def _save_sharded(path: Path, state: TrainingState, shard: Shard) -> None:
    """Writes a folder per process beside `path`; the first process then moves all their files into `path`."""
    folders = [path.parent / f".{path.name}.part-{number}" for number in range(shard.count)]
    own = folders[shard.number]
    result: dict[str, Any] = {"checksums": {}, "error": None}
    try:
        with atomic_folder(own, overwrite=True) as partial:
            result["checksums"] = _write_shard(partial, state, shard)
    except (ResourceError, OSError) as error:
        result["error"] = str(error)
    results = [json.loads(text) for text in shard.gather(json.dumps(result))]
    errors = [result["error"] for result in results if result["error"]]
    if errors:
        shutil.rmtree(own, ignore_errors=True)
        raise ResourceError(errors[0])
    if shard.number == 0:
        with atomic_folder(path, overwrite=True) as partial:
            for folder, result in zip(folders, results, strict=True):
                for name in result["checksums"]:
                    (folder / name).rename(partial / name)
                folder.rmdir()
            checksums = {
                name: checksum for result in results for name, checksum in result["checksums"].items()
            }
            _write_state_file(partial, state.progress, shard.count, checksums)


def _write_shard(folder: Path, state: TrainingState, shard: Shard) -> dict[str, str]:
    """Writes one process's tensors into `folder`; returns the CRC-32 of each file by its name."""
    names = [shard_file_names(kind, shard.count)[shard.number] for kind in _FILE_KINDS]
    return {
        name: write_tensors(folder / name, tensors)
        for name, tensors in zip(names, (state.weights, state.optimizer), strict=True)
    }


def _write_state_file(folder: Path, progress: RunProgress, parts: int, checksums: dict[str, str]) -> None:
    values = {"format": _FORMAT, "parts": parts, **asdict(progress)}
    write_json(folder / _STATE, values | {_CHECKSUMS: checksums | {_STATE: _compute_checksum(values)}})


def load_training_state(folder: Path, shard: Shard = SINGLE_SHARD) -> tuple[TrainingState | None, list[str]]:
    """Reads the newest undamaged checkpoint below `folder`. Returns it, or None when there is no checkpoint,
    and a sentence about each newer one that is damaged.

    Reads only the rows of `shard`, whatever processes wrote them, but every process checks all files.
    Removes partial folders that a killed run left.
    Raises ModelError when there are checkpoints and all of them are damaged.
    """
    for leftover in folder.glob(".*step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    complaints: list[str] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return _read_checkpoint(path, shard), complaints
        except _DAMAGE_ERRORS as error:
            complaints.append(f"{path.name} is damaged and was passed over: {error}")
    if complaints:
        raise ModelError(
            f"No whole checkpoint is left in {folder}: {' '.join(complaints)} "
            "Begin the run anew in another folder (out=)."
        )
    return None, complaints


def read_training_state(path: Path, shard: Shard = SINGLE_SHARD) -> TrainingState:
    """Reads the rows of `shard` of the checkpoint in folder `path`. Raises ModelError when it is damaged or
    missing.
    """
    with _as_model_error(path):
        return _read_checkpoint(path, shard)


def read_progress(path: Path) -> RunProgress:
    """Reads where the run stood at the checkpoint in folder `path`. Raises ModelError when its state.json is
    damaged or missing.
    """
    with _as_model_error(path):
        return _parse_progress(_read_state_file(path))


@contextmanager
def _as_model_error(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE_ERRORS as error:
        raise ModelError(f"{path} is no whole checkpoint: {error}") from error


def _read_checkpoint(path: Path, shard: Shard) -> TrainingState:
    values = _read_state_file(path)
    files = [shard_file_names(kind, values.get("parts", 1)) for kind in _FILE_KINDS]
    for name in chain(*files):
        _require_checksum(name, crc32_of(path / name), values)
    tensors = [read_shard([path / name for name in names], shard) for names in files]
    return TrainingState(_parse_progress(values), *tensors)


def _read_state_file(path: Path) -> dict[str, Any]:
    """Reads state.json and checks its format and its own checksum; those of the tensors are checked later."""
    values: dict[str, Any] = read_json(path / _STATE)
    if values["format"] != _FORMAT:
        raise ModelError(f"expected format {_FORMAT}, found {values['format']}: another version wrote it.")
    unsigned = {key: value for key, value in values.items() if key != _CHECKSUMS}
    _require_checksum(_STATE, _compute_checksum(unsigned), values)
    return values


def _require_checksum(name: str, checksum: str, values: dict[str, Any]) -> None:
    expected = values[_CHECKSUMS][name]
    if checksum != expected:
        raise ModelError(f"{name} has CRC-32 {checksum}, expected {expected}.")


def _parse_progress(values: dict[str, Any]) -> RunProgress:
    known = {key: values[key] for key in RunProgress.__dataclass_fields__}
    known["cursor"] = Cursor.of(known["cursor"])
    known["skipped"] = tuple(map(Cursor.of, known["skipped"]))
    return RunProgress(**known)


def _compute_checksum(values: dict[str, Any]) -> str:
    """CRC-32 of state.json's values: a flipped bit in the cursor would silently train on other text."""
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


# -- files of several processes ------------------------------------------------------------------------


def shard_file_names(kind: str, count: int) -> list[str]:
    """The names of the files of `count` shards, numbered as Hugging Face numbers those of large models."""
    if count == 1:
        return [f"{kind}.safetensors"]
    return [f"{kind}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def read_shard(paths: Sequence[Path], shard: Shard) -> dict[str, Tensor]:
    """Reads the rows of `shard` of each tensor, by name. `paths` are the files of all shards that were
    written, in order; there may be more or fewer of them than `shard.count`.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        names = files[0].keys()
        return {name: _select_rows([file.get_slice(name) for file in files], shard) for name in names}


def _select_rows(pieces: Sequence[Any], shard: Shard) -> Tensor:
    """(R, …) in consecutive pieces -> the rows of `shard` (r, …)."""
    if not pieces[0].get_shape():
        scalar: Tensor = pieces[0][...]
        return scalar
    lengths = [piece.get_shape()[0] for piece in pieces]
    rows = shard.rows(sum(lengths))
    selected, start = [], 0
    for piece, length in zip(pieces, lengths, strict=True):
        first, end = max(rows.start - start, 0), min(rows.stop - start, length)
        if first < end:
            selected.append(piece[first:end])
        start += length
    return torch.cat(selected) if selected else pieces[0][:0]


# -- written beside the training -----------------------------------------------------------------------


class CheckpointWriter:
    """Writes one process's `shard` of checkpoints from a thread, and keeps the newest `keep` of them.

    Training waits only until the state is copied in memory, not for the disk. One checkpoint is written at a
    time, so that memory holds one copy: as much again as weights and moments. On leaving the `with` block,
    however the run ends, the writer waits for the checkpoint that is being written.
    """

    def __init__(self, keep: int, shard: Shard) -> None:
        self.keep, self.shard = keep, shard
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None
        self._weights: dict[
            str, Tensor
        ] = {}  # memory of the copies, reused: the system gives new memory slowly
        self._optimizer: dict[str, Tensor] = {}

    def write(self, folder: Path, state: TrainingState) -> None:
        """Copies the state and starts to write the copy below `folder`; the state may change afterwards.

        First waits for the checkpoint before, and raises the error that it failed with.
        """
        self.finish()
        self._weights = _copy_into(state.weights, self._weights)
        self._optimizer = _copy_into(state.optimizer, self._optimizer)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        copy = TrainingState(state.progress, self._weights, self._optimizer)
        self._writing = self._thread.submit(save_training_state, folder, copy, self.keep, self.shard)

    def check(self) -> None:
        """Raises the error of the last `write` if it has failed already; doesn't wait.

        Processes that write together would notice a failure in different steps: `finish` raises theirs.
        """
        if self._writing is not None and self._writing.done() and self.shard.count == 1:
            self.finish()

    def finish(self) -> None:
        """Waits until the last checkpoint is on disk. Raises ResourceError when the disk is full."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()


def _copy_into(tensors: dict[str, Tensor], room: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies into the tensors of `room`, or into new ones where `room` has other names."""
    if room.keys() != tensors.keys():
        room = allocate_like(tensors)
    for name, tensor in tensors.items():
        room[name].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
    return room
