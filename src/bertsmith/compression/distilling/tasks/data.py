"""What a distillation of a task reads: labelled rows, texts without labels, and what it is measured on; or a
file of answers in place of a teacher, an LLM's or any model's (labels, or the probabilities of all labels, as
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
from bertsmith.tasks.examples.held_out import hold_out, shared_texts, shared_with_train
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs, Task, TaskSettings, reading_columns
from bertsmith.text.files.rows import are_lines, are_objects, read_column_names, read_keys, read_rows
from bertsmith.text.files.values import shown
from bertsmith.text.labelled.labelled_files import describe_files
from bertsmith.training.finetuning.labelled_data import FEW_ROWS
from bertsmith.training.finetuning.results import file_hashes
from bertsmith.validation import check

_MOST_HELD_OUT = 2000  # texts whose answers are the teacher's: more would only be taken from learning
_PROBABILITIES = "probabilities"
_LEAST = 1e-6  # of a probability that was rounded to nothing


@dataclass(frozen=True)
class DistilData:
    """`labelled` rows and other `texts` to learn from; `dev` to choose by, and `test` to report on. Where
    `dev_is_unlabelled`, the teacher's answers are its labels. `written` are those of the texts that stand in
    a file, None where models are asked. `columns` are those that the labelled rows were read from, and
    `dev_share` of them was held out, if any was. `warnings` are sentences for the user.
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
    """All files of a recipe. Texts that stand in dev or test are not learned from; those of a `file` of
    answers are its rows.

    Raises InputError naming file and line, and for labels that the teacher doesn't know; RecipeError where
    nothing is given to learn from.
    """
    if file is not None and recipe.texts:
        raise RecipeError(f"{file.path} has the answers to its own texts alone: leave --texts out.")
    labelled, columns = _labelled(task, recipe, recipe.train_files)
    task.check_taught(labelled)
    dev, test = (_labelled(task, recipe, [path] if path else [])[0] for path in (recipe.dev, recipe.test))
    texts, blank = _texts(task, recipe) if file is None else (file.examples, [])
    warnings = [*task.left_out]
    if blank:
        warnings.append(
            f"{len(blank):,} of the texts are blank, the first in {blank[0].where}, and were not learned from"
        )
    known = []  # what teachers learned from, where that is known and still there
    for teacher in teachers:
        source = TrainedOn.of_folder(teacher.folder)
        if source is not None and source.are_at(source.paths):
            known.append((teacher, source))
    # of a teacher's own training file those rows as dev that the teacher held out too
    own = sorted(sha256(Path(file)) for file in recipe.train_files)  # in any order they are divided alike
    shares = [
        each.dev_share for _, each in known if sorted(each.sha256) == own and each.dev_share is not None
    ]
    dev_share = min([recipe.dev_share, *shares])
    if not dev and labelled:
        labelled, dev = hold_out(task, labelled, dev_share)
    texts, left_out = _fresh(task, texts, labelled, [*dev, *test], answered=file is not None)
    if left_out:
        warnings.append(f"{left_out:,} of the texts stand in dev or test too, and were not learned from")
    unlabelled = not dev
    if unlabelled:
        share = min(recipe.dev_share, _MOST_HELD_OUT / max(len(texts), 1))
        texts, dev = hold_out(task, texts, share)
    if not (labelled or texts) or not dev:
        learned = describe_files(recipe.train or recipe.texts or recipe.teacher)
        raise InputError(
            f"{learned} has too few rows to learn from and to hold some out as dev. Give more, or a file of "
            "its own with --dev."
        )
    if len(dev) < FEW_ROWS:
        warnings.append(f"dev has {len(dev)} rows: too few to choose weights by, and its figures say little")
    for name, path, examples in (("dev", recipe.dev, dev), ("test", recipe.test, test)):
        if path is not None and recipe.train:
            warnings += shared_with_train(task, labelled, examples, name, describe_files(recipe.train))
    warnings += _known_to_teachers(task, known, {"dev": [] if unlabelled else dev, "test": test})
    written = None if file is None else file.answers_to(texts)
    parts = labelled, texts, written, dev, unlabelled, test or None
    return DistilData(*parts, columns, dev_share, tuple(warnings))


def _texts(task: Task[Any], recipe: DistilRecipe) -> tuple[list[Any], list[Any]]:
    """Those with a text, and those without, which have no answer."""
    if not recipe.texts and not recipe.train:
        raise RecipeError("There is nothing to learn from: give --texts, labelled rows as --train, or both.")
    found = [
        example
        for path in recipe.texts
        for example in task.for_file(Path(path), recipe.settings).read(path, labelled=False)
    ]
    keeps = getattr(task.settings, "missing", "refuse") == "keep"
    filled = [example for example in found if keeps or task.has_text(example)]
    if found and not any(text.strip() for example in filled for text in task.texts(example)):
        raise InputError(f"{', '.join(recipe.texts)}: every text is empty. Is --text the right column?")
    kept = {id(example) for example in filled}
    return filled, [example for example in found if id(example) not in kept]


def _known_to_teachers(
    task: Task[Any], known: Sequence[tuple[TaskTeacher, TrainedOn]], judged: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Rows that a teacher has learned by heart say little about others."""
    warnings = list[str]()
    for teacher, source in known:
        try:
            rows = source.rows(reading_columns(teacher.task, {}), source.paths)
        except InputError as error:
            warnings.append(f"what {teacher.folder} learned from can't be read as it was: {error}")
            continue
        for name, examples in judged.items():
            shared = shared_texts(map(task.texts, rows), map(task.texts, examples))
            if shared:
                warnings.append(
                    f"{len(shared):,} of the {len(examples):,} {name} texts are among those that the teacher "
                    f"learned from, in {source.name}: there it is better, and surer, than elsewhere, and so "
                    f"is a student chosen by them. Give other rows with --{name}"
                )
    return list(dict.fromkeys(warnings))  # teachers often learn from one file


def data_hashes(recipe: DistilRecipe) -> dict[str, str]:
    """The SHA-256 of each file that a distillation was made from."""
    others = {"dev": recipe.dev, "test": recipe.test}
    others |= {f"texts {number}": path for number, path in enumerate(recipe.texts, 1)}
    if is_answer_file(recipe.teacher):
        others["teacher"] = recipe.teacher[0]
    return file_hashes(recipe.train_files, others)


def _labelled(
    task: Task[Any], recipe: DistilRecipe, paths: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """The rows of files, and the columns that they were read from. The task gets the names of the student's
    own columns, where they are given by number.
    """
    if not paths:
        return [], {}
    reader = task.for_file(Path(paths[0]), recipe.settings)
    examples = reader.read_files(paths)
    reader.check(examples)
    own = task.settings.model_dump()
    named = {
        role: name for role, name in reader.named_columns.items() if own[role] == recipe.settings.get(role)
    }
    task.named_columns = named | dict(task.named_columns)  # those of train come first
    columns = {*TaskSettings.model_fields, "missing"} - {"max_length", "stride"}
    return examples, reader.settings.model_dump(include=columns)


def _fresh(
    task: Task[Any], texts: Sequence[Any], labelled: Sequence[Any], held: Sequence[Any], *, answered: bool
) -> tuple[list[Any], int]:
    """Each once, without those that have a label; and how many are left out because they are `held` back.
    Where the texts are `answered`, each is a row with an answer of its own, and all of them count.

    The same text beside other columns is another example, but is held back as the text is.
    """

    def read(example: Any) -> tuple[str, ...]:
        return tuple(task.identity(example))

    def identity(example: Any) -> tuple[Any, ...]:
        return (*read(example), getattr(example, "columns", ()))

    known = set(map(identity, labelled))
    measured = set(map(read, held))
    once = texts if answered else {identity(example): example for example in texts}.values()
    fresh = [example for example in once if identity(example) not in known]
    kept = [example for example in fresh if read(example) not in measured]
    return kept, len(fresh) - len(kept)


# -- a file of answers --------------------------------------------------------------------------------


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
    if task.has_probabilities:
        answers = _soft_answers(task, path, examples)
    return AnswerFile(path, task, examples, answers)


def _soft_answers(task: Task[Any], path: Path, examples: Sequence[Any]) -> list[Outputs | None]:
    """The head's outputs that would have a file's probabilities; none in a file without any."""
    layout = task.settings.model_dump(include={"format", "header", "encoding"})
    of_rows = {"format": layout["format"], "encoding": layout["encoding"]}
    if are_lines(path, **of_rows):
        return [None] * len(examples)
    objects = are_objects(path, **of_rows)
    names = read_keys(path, **of_rows) if objects else read_column_names(path, **layout)
    if _PROBABILITIES not in names:
        return [None] * len(examples)
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
    """The head's output that would have these probabilities."""
    if found is None:
        return None
    values = found.values() if isinstance(found, Mapping) and set(found) == set(task.labels) else ()
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    shares = [each for each in numbers if math.isfinite(each) and 0 <= each <= 1]
    if len(shares) < len(task.labels):
        raise InputError(
            f"{where}: expected the probability of each of the {len(task.labels)} labels, from 0 to 1; found "
            f"{shown(found)}."
        )
    return task.answer_of(np.clip([found[label] for label in task.labels], _LEAST, 1 - _LEAST).tolist())
