"""Who teaches: a fine-tuned model, whose outputs are computed once and kept, or a file of answers, an LLM's
or any model's (labels, or the probabilities of all labels, as `bertsmith predict` writes them).
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
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
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import atomic_write, make_folder, sha256
from bertsmith.inference.engine import start_engine
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.files.columns import listed
from bertsmith.text.files.rows import are_lines, are_objects, read_column_names, read_keys, read_rows
from bertsmith.text.files.values import shown
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import check

_FILES = ("*.safetensors", "bertsmith.json", "config.json", "tokenizer.json", "vocab.txt")
_SHARD_TOKENS = 1 << 17  # some seconds of a small teacher on two cores
_LONGEST_KEY = 16
_PROBABILITIES = "probabilities"
_LEAST = 1e-6  # of a probability that was rounded to nothing


@dataclass(frozen=True)
class Teacher:
    """`model` is packed for inference. `sha256` is that of all files which decide what it answers."""

    folder: Path
    model: TaskModel
    task: Task[Any]
    tokenizer: Tokenizer
    sha256: str

    @classmethod
    def open(cls, name: str, task: type[Task[Any]] | None, device: torch.device) -> "Teacher":
        """By path, alias or hub name; `task` for a task of one's own. Raises as `Predictor.load` does."""
        folder = locate_model(name).folder
        model, saved = load_task_model(folder, task)
        opened = saved.as_teacher()
        if opened is not saved:  # neither head has weights
            model = TaskModel(model.encoder, opened.head(model.config))
        engine = start_engine(model, folder, device)
        return cls(folder, model, opened, engine.tokenizer, hash_of(folder))

    def outputs(self, encoded: Sequence[Encoded], progress: Progress | None = None) -> list[Outputs]:
        """The head's, of each example (C,), (R, C), or (T, H) without what fills it up."""
        outputs = outputs_of(self.model, encoded, progress=progress)
        if not self.model.head.per_text:
            return outputs
        texts = (1 + max(window.text for window in each.windows) for each in encoded)
        return [output[:count] for output, count in zip(outputs, texts, strict=True)]


def open_teachers(names: Sequence[str], task: str | None, device: torch.device) -> list[Teacher]:
    """Raises RecipeError where they don't answer the same question."""
    kind = None if task is None else find_task(task)
    teachers = [Teacher.open(name, kind, device) for name in names]
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
        columns, read = _columns(other), _columns(first)
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


def _columns(task: Task[Any]) -> tuple[str, ...]:
    """Those beside the text."""
    found: tuple[str, ...] = getattr(task, "column_names", ())
    return found


def _described(task: Task[Any]) -> str:
    shown = ", ".join(task.labels[:4]) + (", …" if len(task.labels) > 4 else "")
    return f"{task.name} ({shown})" if shown else task.name


def cached_outputs(
    teacher: Teacher, encoded: Sequence[Encoded], folder: Path, progress: Progress | None = None
) -> list[Outputs]:
    """The teacher's outputs of each example, from `folder` where it has them. A damaged shard is computed
    again.
    """
    own = folder / key_of(teacher, encoded)
    make_folder(own)
    found: list[Outputs] = []
    for number, (start, end) in enumerate(_shards(encoded)):
        path = own / f"{number:05d}.safetensors"
        outputs = _read(path, end - start)
        if outputs is None:
            outputs = teacher.outputs(encoded[start:end])
            atomic_write(path, _as_bytes(outputs))
        found += outputs
        if progress is not None:
            progress(end, len(encoded), "texts")
    return found


def key_of(teacher: Teacher, encoded: Sequence[Encoded]) -> str:
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


def _shards(encoded: Sequence[Encoded]) -> Iterator[tuple[int, int]]:
    """Where each begins and ends."""
    shard_of = [before // _SHARD_TOKENS for before in accumulate((e.tokens for e in encoded), initial=0)][:-1]
    starts = [n for n in range(len(encoded)) if n == 0 or shard_of[n] != shard_of[n - 1]]
    yield from zip(starts, [*starts[1:], len(encoded)], strict=True)


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


@dataclass(frozen=True)
class AnswerFile:
    """`examples` have the answers for labels; `answers` are what is learned of them, None of a row where the
    label is all there is.
    """

    path: Path
    task: Task[Any]
    examples: list[Any]
    answers: list[Outputs | None]

    def answers_to(self, examples: Sequence[Any]) -> list[Outputs | None]:
        """Of some of them, in their order."""
        place = {id(example): number for number, example in enumerate(self.examples)}
        return [self.answers[place[id(example)]] for example in examples]


def is_answer_file(teachers: Sequence[str]) -> bool:
    """Whether what teaches is a file. Raises RecipeError for one among several teachers."""
    files = [name for name in teachers if Path(name).is_file()]
    if files and len(teachers) > 1:
        raise RecipeError(
            f"{files[0]} is a file of answers, which teaches alone. Put the answers of several into one "
            "file, or name folders of models."
        )
    return bool(files)


def read_answer_file(path: Path, name: str | None, settings: Mapping[str, Any]) -> AnswerFile:
    """The rows of a file, read as the task of this `name` reads labelled ones.

    Raises RecipeError without a name, InputError naming file and line for what is no answer.
    """
    if name is None:
        raise RecipeError(
            f"{path} is a file of answers: say with --task what they answer, as classification."
        )
    kind = find_task(name)
    task = kind(check(kind.Settings, dict(settings), name))
    examples = task.read_files([path])
    task.fit(examples)
    answers: list[Outputs | None] = [None] * len(examples)
    if task.has_probabilities and _has_probabilities(task, path):
        answers = _soft_answers(task, path, examples)
    return AnswerFile(path, task, examples, answers)


def _has_probabilities(task: Task[Any], path: Path) -> bool:
    layout = task.settings.model_dump(include={"format", "header", "encoding"})
    of_rows = {"format": layout["format"], "encoding": layout["encoding"]}
    if are_lines(path, **of_rows):
        return False
    objects = are_objects(path, **of_rows)
    names = read_keys(path, **of_rows) if objects else read_column_names(path, **layout)
    return _PROBABILITIES in names


def _soft_answers(task: Task[Any], path: Path, examples: Sequence[Any]) -> list[Outputs | None]:
    layout = task.settings.model_dump(include={"format", "header", "encoding"})
    rows = read_rows(path, [], optional=[_PROBABILITIES], **layout)
    first = next((row for row in rows if row.values[0] is not None), None)
    if first is not None and isinstance(named := first.values[0], Mapping):
        if missing := sorted(set(task.labels) - set(named)):
            raise InputError(
                f"{first.where}: the probabilities lack the label {missing[0]!r}, which occurs in the file."
            )
        task.labels = tuple(named)  # labels that are nowhere the likeliest too
    by_place = {row.where: row.values[0] for row in rows}  # of rows that were left out nobody asks
    return [_as_answer(task, by_place[example.where], example.where) for example in examples]


def _as_answer(task: Task[Any], found: Any, where: str) -> Outputs | None:
    """The head's that would have these probabilities."""
    if found is None:
        return None
    known = isinstance(found, Mapping) and set(found) == set(task.labels)
    if not known or not all(_is_share(found[label]) for label in task.labels):
        raise InputError(
            f"{where}: expected the probability of each of the {len(task.labels)} labels, from 0 to 1; found "
            f"{shown(found)}."
        )
    return task.answer_of(np.clip([found[label] for label in task.labels], _LEAST, 1 - _LEAST).tolist())


def _is_share(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 <= value <= 1
