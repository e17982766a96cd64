"""What a distillation reads: labelled rows, texts without labels, and what it is measured on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.distil_recipe import DistilRecipe
from bertsmith.compression.distilling.teacher import AnswerFile, Teacher, is_answer_file
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import sha256
from bertsmith.inference.provenance import TrainedOn
from bertsmith.tasks.examples.held_out import hold_out, shared_texts, shared_with_train
from bertsmith.tasks.task import Outputs, Task, TaskSettings, reading_columns
from bertsmith.text.labelled.labelled_files import named_files
from bertsmith.training.finetuning.labelled_data import FEW_ROWS
from bertsmith.training.finetuning.results import file_hashes

_MOST_HELD_OUT = 2000  # texts whose answers are the teacher's: more would only be taken from learning


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
    task: Task[Any], recipe: DistilRecipe, teachers: Sequence[Teacher], file: AnswerFile | None = None
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
    known = [(each, found) for each in teachers if (found := _learned_from(each)) is not None]
    warnings = [*task.left_out]
    if blank:
        warnings.append(
            f"{len(blank):,} of the texts are blank, the first in {blank[0].where}, and were not learned from"
        )
    unlabelled = False
    dev_share = _share_held_out(recipe, [source for _, source in known])
    if not dev and labelled:
        labelled, dev = hold_out(task, labelled, dev_share)
    texts, left_out = _fresh(task, texts, labelled, [*dev, *test], answered=file is not None)
    if left_out:
        warnings.append(f"{left_out:,} of the texts stand in dev or test too, and were not learned from")
    if not dev:
        share = min(recipe.dev_share, _MOST_HELD_OUT / max(len(texts), 1))
        texts, dev = hold_out(task, texts, share)
        unlabelled = True
    if not (labelled or texts) or not dev:
        learned = named_files(recipe.train or recipe.texts or recipe.teacher)
        raise InputError(
            f"{learned} has too few rows to learn from and to hold some out as dev. Give more, or a file of "
            "its own with --dev."
        )
    if len(dev) < FEW_ROWS:
        warnings.append(f"dev has {len(dev)} rows: too few to choose weights by, and its figures say little")
    for name, path, examples in (("dev", recipe.dev, dev), ("test", recipe.test, test)):
        if path is not None and recipe.train:
            warnings += shared_with_train(task, labelled, examples, name, named_files(recipe.train))
    for teacher, source in known:
        try:
            rows = source.rows(reading_columns(teacher.task, {}), source.paths)
        except InputError as error:
            warnings.append(f"what {teacher.folder} learned from can't be read as it was: {error}")
            continue
        for name, examples in (("dev", [] if unlabelled else dev), ("test", test)):
            said = _known_to_teacher(task, rows, source.name, name, examples)
            warnings += [each for each in said if each not in warnings]  # teachers often learn from one file
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


def _learned_from(teacher: Teacher) -> TrainedOn | None:
    """What a teacher learned from, where that is known and still there."""
    found = TrainedOn.of_folder(teacher.folder)
    return found if found is not None and found.are_at(found.paths) else None


def _share_held_out(recipe: DistilRecipe, known: Sequence[TrainedOn]) -> float:
    """Of the rows as dev: of a teacher's own training file those that the teacher held out too."""
    own = sorted(sha256(Path(file)) for file in recipe.train_files)  # in any order they are divided alike
    shares = [each.dev_share for each in known if sorted(each.sha256) == own and each.dev_share is not None]
    return min([recipe.dev_share, *shares]) if shares else recipe.dev_share


def _known_to_teacher(
    task: Task[Any], learned: Sequence[Any], path: str, name: str, examples: Sequence[Any]
) -> list[str]:
    """Rows that a teacher has learned by heart say little about others."""
    shared = shared_texts(map(task.texts, learned), map(task.texts, examples))
    if not shared:
        return []
    return [
        f"{len(shared):,} of the {len(examples):,} {name} texts are among those that the teacher learned "
        f"from, in {path}: there it is better, and surer, than elsewhere, and so is a student chosen by "
        f"them. Give other rows with --{name}"
    ]


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
