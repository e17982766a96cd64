"""Answers that stand in a file, an LLM's or any model's: labels, or the probabilities of all labels, as
`bertsmith predict` writes them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import InputError, RecipeError
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs, Task
from bertsmith.text.files.values import shown
from bertsmith.text.labelled.rows import are_lines, are_objects, read_column_names, read_keys, read_rows
from bertsmith.validation import check

_PROBABILITIES = "probabilities"
_LEAST = 1e-6  # of a probability that was rounded to nothing


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
