"""What to do with the next hour of labelling: rows to label, labels to look at, and texts that come twice.

E rows, F features, C labels.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bertsmith.arrays import Floats, Ints
from bertsmith.door import door, function, optional, place, text, whole
from bertsmith.errors import InputError
from bertsmith.inference.provenance import TrainedOn, encoder_before
from bertsmith.inference.suggesting.label_doubts import (
    FEWEST_LABELLED,
    MOST_COMPARED,
    AnsweringModel,
    Contradiction,
    Doubt,
    LabelJudge,
    find_contradictions,
    joined_text,
)
from bertsmith.inference.suggesting.near_copies import CharacterNgrams
from bertsmith.machine import device_of
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.registry import find_task, is_ours
from bertsmith.tasks.task import Task
from bertsmith.text.files.values import is_blank
from bertsmith.validation import check

MOST_READ = 100_000  # rows without a label: more would take gigabytes, and hardly give others
_SPARE = 1.5  # rows drawn for each that is wanted, for some are near copies


class NextRow(NamedTuple):
    """A row to label, what the model takes it for, and how sure it is, from 0 to 1."""

    example: TextExample
    guess: str
    confidence: float


@dataclass(frozen=True)
class Suggestions:
    """`rows` in the order in which to label them, `doubts` over all labelled rows, the most doubtful first.
    `columns` are the names of an example's texts, of what is read beside them, and of its label.
    `without_label` counts the rows there were to choose from, `copies` those passed over as near copies.
    """

    task: str
    columns: tuple[str, ...]
    rows: list[NextRow]
    without_label: int
    copies: int
    doubts: list[Doubt]
    contradictions: list[Contradiction]
    notes: list[str]
    separator: str = ","

    def label_of(self, row: TextExample) -> str:
        """As a file has it: of several labels all, with the `separator` between them."""
        return self.separator.join(row.label) if isinstance(row.label, tuple) else str(row.label)

    @property
    def wrong(self) -> list[Doubt]:
        """The labels that are probably wrong."""
        return [doubt for doubt in self.doubts if doubt.wrong]


@door(
    file=place,
    labelled=optional(place),
    task=text,
    count=whole(1),
    seed=whole(0),
    progress=optional(function),
)
def suggest(
    model: str | Path,
    file: Path | str,
    *,
    labelled: Path | str | None = None,
    task: str = "classification",
    count: int = 50,
    seed: int = 0,
    progress: Progress | None = None,
    **columns: Any,
) -> Suggestions:
    """Rows of `file` to label next, and labels that are probably wrong.

    `model`: a fine-tuned one of classification or multi-label, or any encoder, under which a linear model
    learns from the labelled rows for `task`. A row of `file` without a label may be suggested; one that has a
    label is learned from, and doubted, as are those of `labelled`, by default what the model was fine-tuned
    on, if it still is where it was. Of a row that the model was fine-tuned on too, the label in `file`
    counts. Labels are doubted by cross-validation: by a linear model of the pre-trained encoder's features
    that has not seen them. `columns` as for `Predictor.predict_file`, and label. Raises InputError,
    ModelError and RecipeError.
    """
    folder = locate_model(model).folder
    trained = _open_trained_model(folder, find_task(task))
    reading = _reading_task(trained, task, columns)
    known, pool, notes = _read_rows(
        trained, folder, reading, file, labelled, columns.get("label") is not None
    )
    unlabelled = len(pool)
    if unlabelled > MOST_READ:
        pool = random.Random(seed).sample(pool, MOST_READ)
        notes.append(f"of {unlabelled:,} rows without a label {MOST_READ:,} were drawn by chance, and read")
    before = folder if trained is None else encoder_before(folder)
    judge = LabelJudge.over(known, reading, before or folder, before is not None, notes, progress)
    if trained is None and judge is None:
        raise InputError(
            f"{model} has no head, so a linear model has to learn from labelled rows: at least "
            f"{FEWEST_LABELLED}, with two different labels, each of several texts; found {len(known)} rows. "
            "Label some in the same file, or give a file of them with --labelled."
        )
    chosen, copies = _choose_next_rows(trained or judge, pool, known, count, seed, progress)
    doubts = judge.doubts() if judge is not None else []
    names = tuple(_column_names(reading))
    return Suggestions(
        reading.name,
        names,
        chosen,
        unlabelled,
        copies,
        doubts,
        find_contradictions(known),
        notes,
        reading.separator,
    )


# -- the rows ------------------------------------------------------------------------------------------------


def _open_trained_model(folder: Path, kind: type[Task[Any]]) -> AnsweringModel | None:
    """None for an encoder without a head of a task; `kind` is for a task of one's own."""
    if model_kind(folder) != "task":
        load_encoder(folder)  # or it has no encoder either, or is broken
        return None
    model, task = load_task_model(folder, None if is_ours(kind) else kind)
    if not task.has_probabilities:
        raise InputError(
            f"{folder} is a model of {task.name}. suggest works for classification and multi-label, and for "
            "tasks of your own that have probabilities."
        )
    return AnsweringModel(model.to(device_of("auto")), cast(TextTask, task), folder)


def _reading_task(trained: AnsweringModel | None, task: str, columns: dict[str, Any]) -> TextTask:
    """It reads the files, with the columns given."""
    given = {name: value for name, value in columns.items() if value is not None}
    if trained is None:
        kind = find_task(task)
        if not kind.has_probabilities:
            raise InputError(f"--task is classification or multi-label, found {task}.")
        return cast(TextTask, kind(check(kind.Settings, given, "suggest")))
    known = trained.task.settings.model_dump() | given
    settings = check(type(trained.task.settings), known, "suggest")
    again = type(trained.task)(settings, trained.task.labels)
    again.is_trained, again.pairs = True, trained.task.pairs
    return again


def _read_rows(
    trained: AnsweringModel | None,
    folder: Path,
    reading: TextTask,
    file: Path | str,
    labelled: Path | str | None,
    is_label_named: bool,
) -> tuple[list[TextExample], list[TextExample], list[str]]:
    """The rows with a label, those of `file` last; those without; and sentences on what is missing. A label's
    column that the user named is in one of the files.
    """
    asked = reading.settings
    has_more = labelled is not None and Path(labelled).resolve() != Path(file).resolve()
    rows = reading.read_partly_labelled(file, needs_label=is_label_named and not has_more)
    own = [row for row in rows if row.label is not None]
    known, notes = list[TextExample](), list[str]()
    if labelled is not None and has_more:
        reading.settings = asked  # its columns may be called otherwise
        known = reading.read(labelled)
    elif labelled is None and trained is not None:
        known, notes = _read_training_rows(trained, folder, file)
        newer = {_row_content(row) for row in own}
        known = [row for row in known if _row_content(row) not in newer]
    notes += reading.left_out
    _require_alike([*known, *rows])
    pool = [row for row in rows if row.label is None]
    # without text, and without columns beside it, there is nothing to tell a label by
    filled = [row for row in pool if row.columns or not (is_blank(row.text) and is_blank(row.text_pair))]
    if len(filled) < len(pool):
        blank = len(pool) - len(filled)
        notes.append(f"{blank:,} rows without a label have no text, and were left out")
    return [*known, *own], filled, notes


def _read_training_rows(
    trained: AnsweringModel, folder: Path, file: Path | str
) -> tuple[list[TextExample], list[str]]:
    """And sentences on what is missing; no rows where they are those of `file`, or where nobody knows."""
    source = TrainedOn.of_folder(folder)
    if source is None or [path.resolve() for path in source.paths] == [Path(file).resolve()]:
        return [], []
    if not source.are_at(source.paths):
        return [], [f"{source.name}, which the model was fine-tuned on, is not there, or was changed"]
    try:
        return source.rows(trained.task, source.paths), []  # by the columns that it was trained on
    except InputError as error:
        return [], [f"what the model was fine-tuned on can't be read as it was: {error}"]


def _require_alike(rows: Sequence[TextExample]) -> None:
    """Raises InputError where some rows are pairs and others are not: no model learns from both."""
    one = next((row for row in rows if row.text_pair is None), None)
    two = next((row for row in rows if row.text_pair is not None), None)
    if one is not None and two is not None:
        raise InputError(
            f"{two.where} is a pair of texts, but {one.where} is one text. Name the columns with --text and, "
            "for pairs, --text-pair."
        )


def _row_content(row: TextExample) -> tuple[Any, ...]:
    """All but its label."""
    return row.text, row.text_pair, row.columns


def _column_names(task: TextTask) -> list[str]:
    """As the labelled rows had them, so that what is filled in can stand beside them."""
    settings = task.settings
    given = (settings.text, settings.text_pair, settings.label)
    usual = ("text", "text_pair", "label")
    *texts, label = [
        name if isinstance(name, str) else other
        for name, other in zip(given, usual, strict=True)
        if name is not None or other != "text_pair"
    ]
    return [*texts, *task.column_names, label]


# -- what to label -------------------------------------------------------------------------------------------


def _choose_next_rows(
    model: AnsweringModel | LabelJudge | None,
    pool: Sequence[TextExample],
    known: Sequence[TextExample],
    count: int,
    seed: int,
    progress: Progress | None,
) -> tuple[list[NextRow], int]:
    """The rows, and how many near copies were passed over."""
    if not pool or model is None:
        return [], 0
    answering = model if isinstance(model, AnsweringModel) else model.answering
    features, probabilities = answering.answer(pool, progress)
    likeliest, confidence = answering.task.likeliest(probabilities)
    drawn = choose_rows(features, probabilities - likeliest, round(_SPARE * count), seed).tolist()
    near = known[:MOST_COMPARED]
    characters = CharacterNgrams([joined_text(row) for row in (*near, *(pool[row] for row in drawn))])
    places = range(len(near), len(near) + len(drawn))
    kept = [drawn[place - len(near)] for place in characters.first_of_each(places, range(len(near)))]
    labels = np.array(answering.task.labels)
    guesses = [answering.task.separator.join(labels[likeliest[row] > 0].tolist()) for row in kept[:count]]
    rows = [
        NextRow(pool[row], guess, float(confidence[row])) for row, guess in zip(kept, guesses, strict=False)
    ]
    return rows, len(drawn) - len(kept)


def choose_rows(features: Floats, residuals: Floats, count: int, seed: int = 0) -> Ints:
    """Which rows to label next? Those the model is unsure of, unlike each other (BADGE: Ash et al. 2020).
    Up to `count`, in the order in which they were drawn.

    A row's place is the gradient that its likeliest answer would have on the last layer: `residuals` (E, C),
    probabilities less that answer, times `features` (E, F). It is long where the model is unsure, and points
    where the row differs. Rows are drawn by k-means++ (Arthur and Vassilvitskii 2007): the longest first,
    each next with a chance as the square of its distance to the nearest one drawn. The products are never
    made: distances follow from those of features and of residuals.
    """
    squares = np.square(features).sum(1) * np.square(residuals).sum(1)
    nearest = np.full(len(features), np.inf)
    draw = np.random.default_rng(seed)
    chosen: list[int] = []
    while len(chosen) < min(count, len(features)):
        if not chosen:
            row = int(squares.argmax())
        else:
            total = nearest.sum()
            if total <= 0:  # no other row tells anything new
                break
            row = int(draw.choice(len(nearest), p=nearest / total))
        chosen.append(row)
        products = (features @ features[row]) * (residuals @ residuals[row])
        nearest = np.minimum(nearest, np.maximum(squares + squares[row] - 2 * products, 0.0))
        nearest[chosen] = 0.0
    return np.array(chosen, np.int64)
