"""A fine-tuned model that teaches: its outputs are computed once, and kept."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bertsmith.arrays import Ints
from bertsmith.errors import RecipeError
from bertsmith.files import atomic_write, make_folder, sha256
from bertsmith.inference.engine import start_engine
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.files.columns import listed
from bertsmith.text.tokens.tokenizer import Tokenizer

_FILES = ("*.safetensors", "bertsmith.json", "config.json", "tokenizer.json", "vocab.txt")
_SHARD_TOKENS = 1 << 17  # some seconds of a small teacher on two cores
_LONGEST_KEY = 16


@dataclass(frozen=True)
class TaskTeacher:
    """`model` is packed for inference. `sha256` is that of all files which decide what it answers."""

    folder: Path
    model: TaskModel
    task: Task[Any]
    tokenizer: Tokenizer
    sha256: str

    @classmethod
    def open(cls, name: str, task: type[Task[Any]] | None, device: torch.device) -> "TaskTeacher":
        """By path, alias or hub name; `task` for a task of one's own. Raises as `Predictor.load` does."""
        folder = locate_model(name).folder
        model, saved = load_task_model(folder, task)
        opened = saved.as_teacher()
        if opened is not saved:  # neither head has weights
            model = TaskModel(model.encoder, opened.head(model.config))
        engine = start_engine(model, folder, device)
        return cls(folder, model, opened, engine.tokenizer, hash_of(folder))

    def outputs(self, encoded: Sequence[EncodedExample], progress: Progress | None = None) -> list[Outputs]:
        """The head's, of each example (C,), (R, C), or (T, H) without what fills it up."""
        outputs = outputs_of(self.model, encoded, progress=progress)
        if not self.model.head.per_text:
            return outputs
        texts = (1 + max(window.text for window in each.windows) for each in encoded)
        return [output[:count] for output, count in zip(outputs, texts, strict=True)]


def open_teachers(names: Sequence[str], task: str | None, device: torch.device) -> list[TaskTeacher]:
    """Raises RecipeError where they don't answer the same question."""
    kind = None if task is None else find_task(task)
    teachers = [TaskTeacher.open(name, kind, device) for name in names]
    first = teachers[0].task
    for name, teacher in zip(names[1:], teachers[1:], strict=True):
        other = teacher.task
        if other.name != first.name or other.labels != first.labels:
            raise RecipeError(
                f"The teachers must answer the same question: {names[0]} does {_described(first)}, {name} "
                f"{_described(other)}. Leave one out."
            )
        if other.activation != first.activation:  # outputs are averaged before it
            raise RecipeError(
                f"The teachers must answer on one scale: of {names[0]} and {name} only one puts its number "
                "through a sigmoid. Leave one out."
            )
        columns, read = (getattr(task, "column_names", ()) for task in (other, first))  # beside the text
        if columns and columns != read:  # cells are read once, and found by their place
            raise RecipeError(
                "The teachers must read the same columns in the same order, or the text alone: "
                f"{names[0]} reads {listed(read) if read else 'none'}; {name} reads {listed(columns)}. "
                "Leave one out, or name first the one that reads them."
            )
    return teachers


def hash_of(folder: Path) -> str:
    """SHA-256 of a model's files, by name."""
    paths = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    lines = "".join(f"{path.name} {sha256(path)}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()


def _described(task: Task[Any]) -> str:
    shown = ", ".join(task.labels[:4]) + (", …" if len(task.labels) > 4 else "")
    return f"{task.name} ({shown})" if shown else task.name


def cached_outputs(
    teacher: TaskTeacher, encoded: Sequence[EncodedExample], folder: Path, progress: Progress | None = None
) -> list[Outputs]:
    """The teacher's outputs of each example, from `folder` where it has them. A damaged shard is computed
    again.
    """
    own = folder / key_of(teacher, encoded)
    make_folder(own)
    found: list[Outputs] = []
    shard_of = [before // _SHARD_TOKENS for before in accumulate((e.tokens for e in encoded), initial=0)][:-1]
    starts = [n for n in range(len(encoded)) if n == 0 or shard_of[n] != shard_of[n - 1]]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(encoded)], strict=True)):
        path = own / f"{number:05d}.safetensors"
        outputs = _read(path, end - start)
        if outputs is None:
            outputs = teacher.outputs(encoded[start:end])
            atomic_write(path, _as_bytes(outputs))
        found += outputs
        if progress is not None:
            progress(end, len(encoded), "texts")
    return found


def key_of(teacher: TaskTeacher, encoded: Sequence[EncodedExample]) -> str:
    """Names what was read by whom: all of it that decides an answer."""
    digest = hashlib.sha256(teacher.sha256.encode())
    for each in encoded:
        digest.update(len(each.windows).to_bytes(4, "little"))
        for window in each.windows:
            for array in (window.token_ids, window.segment_ids, window.rows):
                _add(digest, array, np.int32)
            digest.update(window.text.to_bytes(4, "little"))
            if window.values is not None:  # patches, whose ids are all alike
                _add(digest, window.values, np.float32)
        if each.columns is not None:
            _add(digest, each.columns, np.float32)
    return digest.hexdigest()[:_LONGEST_KEY]


def _add(digest: "hashlib._Hash", array: npt.NDArray[Any], kind: type[np.generic]) -> None:
    digest.update(array.size.to_bytes(4, "little"))
    digest.update(np.ascontiguousarray(array, kind).tobytes())


def _as_bytes(outputs: Sequence[Outputs]) -> bytes:
    """One array, and the rows of each where these differ."""
    flat = outputs[0].ndim == 1
    values = np.stack(outputs) if flat else np.concatenate(outputs)
    tensors = {"values": np.ascontiguousarray(values)}
    if not flat:
        tensors["rows"] = np.array([len(each) for each in outputs], np.int64)
    return save(tensors)


def _read(path: Path, count: int) -> list[Outputs] | None:
    """None where it isn't there, or isn't whole."""
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError):
        return None
    values: Outputs = tensors["values"]
    rows: Ints | None = tensors.get("rows")
    outputs = list(values) if rows is None else np.split(values, np.cumsum(rows)[:-1])
    return outputs if len(outputs) == count else None
