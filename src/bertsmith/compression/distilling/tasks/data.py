"""Reads the data of a task's distillation: labelled rows, texts without labels, dev and test; and a file of
answers in place of a teacher, from an LLM or any model (labels, or the probabilities of all labels as
`bertsmith predict` writes them).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import sha256
from bertsmith.inference.provenance import TrainedOn
from bertsmith.tasks.classification import label_order
from bertsmith.tasks.examples.columns import comparable_cells
from bertsmith.tasks.examples.held_out import hold_out, remove_held, shared_texts, shared_with_train
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs, Task, TaskSettings, reading_columns
from bertsmith.text.files.rows import are_lines, are_objects, read_column_names, read_keys, read_rows
from bertsmith.text.files.values import shown
from bertsmith.text.labelled.labelled_files import describe_files
from bertsmith.training.finetuning.labelled_data import FEW_ROWS
from bertsmith.training.finetuning.results import hash_files
from bertsmith.validation import check

_MOST_HELD_OUT = 2000  # unlabelled texts for dev: more would only be missing from training
_PROBABILITIES = "probabilities"
_LEAST = 1e-6  # in place of a probability that was rounded to 0


@dataclass(frozen=True)
class DistilData:
    """The examples of a distillation: `labelled` rows and unlabelled `texts` to learn from, `dev` to choose
    by, `test` to report on. Where `dev_is_unlabelled`, the teacher's answers serve as its labels. `written`
    are the answers to `labelled` and `texts` from a file of answers, None where models are the teachers.
    `columns` are the columns of the labelled rows, `dev_share` the share of these that is held out where no
    dev file is given. `warnings` are sentences for the user.
    """

    labelled: list[Any]
    texts: list[Any]
    written: list[Outputs | None] | None
    dev: list[Any]
    dev_is_unlabelled: bool
    test: list[Any] | None
    columns: Mapping[str, Any]
    dev_share: float
    warnings: tuple[str, ...]


def read_distil_data(
    task: Task[Any], recipe: DistilRecipe, teachers: Sequence[TaskTeacher], file: "AnswerFile | None" = None
) -> DistilData:
    """Reads all files of a recipe. Texts that are also in dev or test are left out of training; with a `file`
    of answers, its rows are the texts.

    Raises InputError that names file and line, also for labels that the teacher doesn't know; RecipeError
    where there is nothing to learn from.
    """
    if file is not None and recipe.texts:
        raise RecipeError(f"{file.path} has the answers to its own texts alone: leave --texts out.")
    labelled, columns = _read_labelled(task, recipe, recipe.train_files)
    task.check_taught(labelled)
    dev, test = (
        _read_labelled(task, recipe, [path] if path else [])[0] for path in (recipe.dev, recipe.test)
    )
    texts, blank = _read_texts(task, recipe) if file is None else (file.examples, [])
    warnings = [*task.left_out]
    if blank:
        warnings.append(
            f"{len(blank):,} of the texts are blank, the first in {blank[0].where}, and were not learned from"
        )
    training_data = []  # of the teachers, where it is known and its files haven't changed
    for teacher in teachers:
        source = TrainedOn.of_folder(teacher.folder)
        if source is not None and source.are_at(source.paths):
            training_data.append((teacher, source))
    # where a teacher was trained on the same files, hold out only rows that the teacher held out too
    hashes = sorted(sha256(Path(file)) for file in recipe.train_files)  # sorted: their order changes nothing
    shares = [
        source.dev_share
        for _, source in training_data
        if sorted(source.sha256) == hashes and source.dev_share is not None
    ]
    dev_share = min([recipe.dev_share, *shares])
    if not dev and labelled:
        labelled, dev = hold_out(task, labelled, dev_share)
    texts, left_out = _remove_known(task, texts, labelled, [*dev, *test], answered=file is not None)
    if left_out:
        warnings.append(f"{left_out:,} of the texts stand in dev or test too, and were not learned from")
    unlabelled = not dev
    if unlabelled:
        share = min(recipe.dev_share, _MOST_HELD_OUT / max(len(texts), 1))
        texts, dev = hold_out(task, texts, share)
    if not (labelled or texts) or not dev:
        files = describe_files(recipe.train or recipe.texts or recipe.teacher)
        raise InputError(
            f"{files} has too few rows to learn from and to hold some out as dev. Give more, or a file of "
            "its own with --dev."
        )
    if len(dev) < FEW_ROWS:
        warnings.append(f"dev has {len(dev)} rows: too few to choose weights by, and its figures say little")
    for name, path, examples in (("dev", recipe.dev, dev), ("test", recipe.test, test)):
        if path is not None and recipe.train:
            warnings += shared_with_train(task, labelled, examples, name, describe_files(recipe.train))
    warnings += _warn_of_rows_seen(task, training_data, {"dev": [] if unlabelled else dev, "test": test})
    written = None if file is None else file.answers_to([*labelled, *texts])
    parts = labelled, texts, written, dev, unlabelled, test or None
    return DistilData(*parts, columns, dev_share, tuple(warnings))


def _read_texts(task: Task[Any], recipe: DistilRecipe) -> tuple[list[Any], list[Any]]:
    """The examples of the recipe's texts: those with a text, and those whose text is blank."""
    if not recipe.texts and not recipe.train:
        raise RecipeError("There is nothing to learn from: give --texts, labelled rows as --train, or both.")
    examples = [
        example
        for path in recipe.texts
        for example in task.for_file(Path(path), recipe.settings).read(path, labelled=False)
    ]
    keeps_blank = getattr(task.settings, "missing", "refuse") == "keep"
    filled = [example for example in examples if keeps_blank or task.has_text(example)]
    if examples and not any(text.strip() for example in filled for text in task.texts(example)):
        raise InputError(f"{', '.join(recipe.texts)}: every text is empty. Is --text the right column?")
    filled_ids = {id(example) for example in filled}
    return filled, [example for example in examples if id(example) not in filled_ids]


def _warn_of_rows_seen(
    task: Task[Any],
    training_data: Sequence[tuple[TaskTeacher, TrainedOn]],
    evaluated: Mapping[str, Sequence[Any]],
) -> list[str]:
    """Warnings about dev and test rows that a teacher was trained on, where its score is too good."""
    warnings = list[str]()
    for teacher, source in training_data:
        try:
            rows = source.rows(reading_columns(teacher.task, {}), source.paths)
        except InputError as error:
            warnings.append(f"what {teacher.folder} learned from can't be read as it was: {error}")
            continue
        for name, examples in evaluated.items():
            shared = shared_texts(map(task.texts, rows), map(task.texts, examples))
            if shared:
                warnings.append(
                    f"{len(shared):,} of the {len(examples):,} {name} texts are among those that the teacher "
                    f"learned from, in {source.name}: there it is better, and surer, than elsewhere, and so "
                    f"is a student chosen by them. Give other rows with --{name}"
                )
    return list(dict.fromkeys(warnings))  # several teachers are often trained on the same file


def hash_data_files(recipe: DistilRecipe) -> dict[str, str]:
    """The SHA-256 of each file that a distillation reads, by its role."""
    others = {"dev": recipe.dev, "test": recipe.test}
    others |= {f"texts {number}": path for number, path in enumerate(recipe.texts, 1)}
    if is_answer_file(recipe.teacher):
        others["teacher"] = recipe.teacher[0]
    return hash_files(recipe.train_files, others)


def _read_labelled(
    task: Task[Any], recipe: DistilRecipe, paths: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """The labelled rows of files, and the columns that they were read from. Where columns are given by
    number, the task gets their names.
    """
    if not paths:
        return [], {}
    reader = task.for_file(Path(paths[0]), recipe.settings)
    examples = reader.read_files(paths)
    reader.check(examples)
    settings = task.settings.model_dump()
    names = {
        role: name
        for role, name in reader.named_columns.items()
        if settings[role] == recipe.settings.get(role)
    }
    task.named_columns = names | dict(task.named_columns)  # train is read first, and its names stay
    columns = {*TaskSettings.model_fields, "missing"} - {"max_length", "stride"}
    return examples, reader.settings.model_dump(include=columns)


def _remove_known(
    task: Task[Any], texts: Sequence[Any], labelled: Sequence[Any], held: Sequence[Any], *, answered: bool
) -> tuple[list[Any], int]:
    """The distinct texts that are neither among the `labelled` rows nor among those `held` out, and the
    number left out for the latter reason. Where the texts are `answered`, each row has an answer of its own,
    and repeated texts stay.

    The same text with other columns is another example, but is held out with the text, and so is one that
    differs in case, white space, punctuation or Unicode's form alone.
    """
    labelled_keys = {_example_key(task, example) for example in labelled}
    distinct = texts if answered else {_example_key(task, example): example for example in texts}.values()
    unlabelled = [example for example in distinct if _example_key(task, example) not in labelled_keys]
    remaining = remove_held(task, unlabelled, held)
    return remaining, len(unlabelled) - len(remaining)


def _example_key(task: Task[Any], example: Any) -> tuple[Any, ...]:
    (columns,) = comparable_cells([getattr(example, "columns", ())], task.column_kinds)
    return (*task.identity(example), columns)


# -- a file of answers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerFile:
    """A file of answers as a teacher. `examples` are its rows with the answers as labels; `answers` are the
    outputs to learn, None for a row that has only a label.
    """

    path: Path
    task: Task[Any]
    examples: list[Any]
    answers: list[Outputs | None]

    def answers_to(self, examples: Sequence[Any]) -> list[Outputs | None]:
        """The answers to some of the file's examples and to labelled rows, in the order of these. A labelled
        row has the first output for the same text, None without one: of two labels its own counts.
        """
        own, first = dict[int, Outputs | None](), dict[tuple[Any, ...], Outputs]()
        for example, answer in zip(self.examples, self.answers, strict=True):
            own[id(example)] = answer
            if answer is not None:
                first.setdefault(_example_key(self.task, example), answer)
        return [
            own[id(example)] if id(example) in own else first.get(_example_key(self.task, example))
            for example in examples
        ]


def is_answer_file(teachers: Sequence[str]) -> bool:
    """Whether the teacher is a file of answers. Raises RecipeError for a file among several teachers."""
    files = [name for name in teachers if Path(name).is_file()]
    if files and len(teachers) > 1:
        raise RecipeError(
            f"{files[0]} is a file of answers, which teaches alone. Put the answers of several into one "
            "file, or name folders of models."
        )
    return bool(files)


def read_answer_file(path: Path, name: str | None, settings: Mapping[str, Any]) -> AnswerFile:
    """Reads a file of answers as labelled rows of the task `name`.

    Raises RecipeError without a name, InputError that names file and line for what isn't an answer.
    """
    if name is None:
        raise RecipeError(
            f"{path} is a file of answers: say with --task what they answer, as classification."
        )
    task_class = find_task(name)
    task = task_class(check(task_class.Settings, dict(settings), name))
    examples = task.read_files([path])
    task.fit(examples)
    answers: list[Outputs | None] = [None] * len(examples)
    if task.has_probabilities:
        answers = _read_probabilities(task, path, examples)
    return AnswerFile(path, task, examples, answers)


def _read_probabilities(task: Task[Any], path: Path, examples: Sequence[Any]) -> list[Outputs | None]:
    """The outputs of a head that would give the file's probabilities; None for each row without them."""
    layout = task.settings.model_dump(include={"format", "header", "encoding"})
    file_format = {"format": layout["format"], "encoding": layout["encoding"]}
    if are_lines(path, **file_format):
        return [None] * len(examples)
    has_keys = are_objects(path, **file_format)
    names = read_keys(path, **file_format) if has_keys else read_column_names(path, **layout)
    if _PROBABILITIES not in names:
        return [None] * len(examples)
    rows = read_rows(path, [], optional=[_PROBABILITIES], **layout)
    first = next((row for row in rows if row.values[0] is not None), None)
    if first is not None and isinstance(probabilities := first.values[0], Mapping):
        if missing := sorted(set(task.labels) - set(probabilities)):
            raise InputError(
                f"{first.where}: the probabilities lack the label {missing[0]!r}, which occurs in the file."
            )
        # also labels that are the likeliest of no row, in the order of `fit`: f1 is that of the second
        task.labels = tuple(sorted(probabilities, key=label_order))
    by_location = {row.where: row.values[0] for row in rows}
    return [_invert_probabilities(task, by_location[example.where], example.where) for example in examples]


def _invert_probabilities(task: Task[Any], probabilities: Any, where: str) -> Outputs | None:
    """The output of a head that would give these probabilities; None for None. Raises InputError for a value
    that isn't a probability of each label.
    """
    if probabilities is None:
        return None
    has_labels = isinstance(probabilities, Mapping) and set(probabilities) == set(task.labels)
    values = probabilities.values() if has_labels else ()
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    shares = [number for number in numbers if math.isfinite(number) and 0 <= number <= 1]
    if len(shares) < len(task.labels):
        raise InputError(
            f"{where}: expected the probability of each of the {len(task.labels)} labels, from 0 to 1; found "
            f"{shown(probabilities)}."
        )
    shares = [probabilities[label] for label in task.labels]
    return task.answer_of(np.clip(shares, _LEAST, 1 - _LEAST).tolist())
