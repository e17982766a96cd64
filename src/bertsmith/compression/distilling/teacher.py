"""A fine-tuned model that teaches: its answers to many examples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import RecipeError
from bertsmith.files import sha256
from bertsmith.inference.engine import start_engine
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.files.columns import listed
from bertsmith.text.tokens.tokenizer import Tokenizer

_FILES = ("*.safetensors", "bertsmith.json", "config.json", "tokenizer.json", "vocab.txt")
_LEAST = 1e-9  # of a probability, so that its logarithm is a number


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
