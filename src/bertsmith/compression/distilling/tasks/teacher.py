"""A fine-tuned model as a teacher, and the cache of its outputs on disk."""

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
from bertsmith.model.checkpoint import refuse_adapter
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
_SHARD_TOKENS = 1 << 17  # a small teacher computes a shard in some seconds on two cores
_KEY_LENGTH = 16


@dataclass(frozen=True)
class TaskTeacher:
    """A fine-tuned model prepared for inference. `sha256` covers all files that its outputs depend on."""

    folder: Path
    model: TaskModel
    task: Task[Any]
    tokenizer: Tokenizer
    sha256: str

    @classmethod
    def open(cls, name: str, task: type[Task[Any]] | None, device: torch.device) -> "TaskTeacher":
        """Opens a model by path, alias or hub name; `task` is the class of a task of one's own. Raises as
        `Predictor.load` does.
        """
        folder = locate_model(name).folder
        refuse_adapter(folder)  # its student's first weights, and its size, would be those of the parts alone
        model, saved_task = load_task_model(folder, task)
        teacher_task = saved_task.as_teacher()
        if teacher_task is not saved_task:  # its head is another one, with the same weights
            head = teacher_task.head(model.config)
            head.load_state_dict(model.head.state_dict())
            model = TaskModel(model.encoder, head)
        engine = start_engine(model, folder, device)
        return cls(folder, model, teacher_task, engine.tokenizer, hash_model_folder(folder))

    def outputs(self, encoded: Sequence[EncodedExample], progress: Progress | None = None) -> list[Outputs]:
        """The head's outputs of each example: (C,), (R, C) for a head of rows, or (T, H) for one of texts,
        without padding.
        """
        outputs = outputs_of(self.model, encoded, progress=progress)
        if not self.model.head.per_text:
            return outputs
        texts = (1 + max(window.text for window in example.windows) for example in encoded)
        return [output[:count] for output, count in zip(outputs, texts, strict=True)]


def open_teachers(names: Sequence[str], task: str | None, device: torch.device) -> list[TaskTeacher]:
    """Opens the teachers. Raises RecipeError where their tasks, labels, scales or columns differ."""
    task_class = None if task is None else find_task(task)
    teachers = [TaskTeacher.open(name, task_class, device) for name in names]
    first = teachers[0].task
    for name, teacher in zip(names[1:], teachers[1:], strict=True):
        other = teacher.task
        if other.name != first.name or other.labels != first.labels:
            raise RecipeError(
                f"The teachers must answer the same question: {names[0]} does {_describe(first)}, {name} "
                f"{_describe(other)}. Leave one out."
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


def hash_model_folder(folder: Path) -> str:
    """The SHA-256 of a model folder's files and their names."""
    paths = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    lines = "".join(f"{path.name} {sha256(path)}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()


def _describe(task: Task[Any]) -> str:
    shown = ", ".join(task.labels[:4]) + (", …" if len(task.labels) > 4 else "")
    return f"{task.name} ({shown})" if shown else task.name


def compute_cached_outputs(
    teacher: TaskTeacher, encoded: Sequence[EncodedExample], folder: Path, progress: Progress | None = None
) -> list[Outputs]:
    """The teacher's outputs of each example, from `folder` where it has them. A missing or damaged shard is
    computed.
    """
    cache = folder / make_cache_key(teacher, encoded)
    make_folder(cache)
    all_outputs: list[Outputs] = []
    tokens_before = [*accumulate((example.tokens for example in encoded), initial=0)][:-1]
    shard_of = [tokens // _SHARD_TOKENS for tokens in tokens_before]
    starts = [n for n in range(len(encoded)) if n == 0 or shard_of[n] != shard_of[n - 1]]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(encoded)], strict=True)):
        path = cache / f"{number:05d}.safetensors"
        outputs = _read_shard(path, end - start)
        if outputs is None:
            outputs = teacher.outputs(encoded[start:end])
            atomic_write(path, _shard_bytes(outputs))
        all_outputs += outputs
        if progress is not None:
            progress(end, len(encoded), "texts")
    return all_outputs


def make_cache_key(teacher: TaskTeacher, encoded: Sequence[EncodedExample]) -> str:
    """The cache's key: a hash of the teacher and of all of the examples' inputs."""
    digest = hashlib.sha256(teacher.sha256.encode())
    for example in encoded:
        digest.update(len(example.windows).to_bytes(4, "little"))
        for window in example.windows:
            for array in (window.token_ids, window.segment_ids, window.rows):
                _add(digest, array, np.int32)
            digest.update(window.text.to_bytes(4, "little"))
            if window.values is not None:  # patches, whose ids are all alike
                _add(digest, window.values, np.float32)
        if example.columns is not None:
            _add(digest, example.columns, np.float32)
    return digest.hexdigest()[:_KEY_LENGTH]


def _add(digest: "hashlib._Hash", array: npt.NDArray[Any], kind: type[np.generic]) -> None:
    digest.update(array.size.to_bytes(4, "little"))
    digest.update(np.ascontiguousarray(array, kind).tobytes())


def _shard_bytes(outputs: Sequence[Outputs]) -> bytes:
    """The outputs as safetensors: all in one array, with the number of rows of each where they have rows."""
    has_rows = outputs[0].ndim > 1
    values = np.concatenate(outputs) if has_rows else np.stack(outputs)
    tensors = {"values": np.ascontiguousarray(values)}
    if has_rows:
        tensors["rows"] = np.array([len(output) for output in outputs], np.int64)
    return save(tensors)


def _read_shard(path: Path, count: int) -> list[Outputs] | None:
    """The `count` outputs of a shard; None where the file is missing or damaged."""
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError):
        return None
    values: Outputs = tensors["values"]
    rows: Ints | None = tensors.get("rows")
    outputs = list(values) if rows is None else np.split(values, np.cumsum(rows)[:-1])
    return outputs if len(outputs) == count else None
