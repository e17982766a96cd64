"""suggest: says what to do with the next hour of labelling. Finds rows to label, labels that are probably
wrong, and near copies with different labels.

E rows, F features, C labels.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bertsmith.argument_checks import (
    check_arguments,
    check_function,
    check_path,
    check_text,
    integer_from,
    optional,
)
from bertsmith.arrays import Floats, Ints
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
    ngrams_of,
)
from bertsmith.machine import device_of
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.columns import Kind, comparable_cells
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.registry import find_task, is_ours
from bertsmith.tasks.task import Task
from bertsmith.text.files.values import is_blank
from bertsmith.text.labelled.label_names import find_missing_values, find_placeholders, read_label_names
from bertsmith.validation import check

MOST_READ = 100_000  # rows without a label: more would take gigabytes and hardly change what is suggested
_SPARE = (1.5, 3, 6, 12)  # rows drawn for each row to suggest: more, if too many of them are near copies


class NextRow(NamedTuple):
    """A row to label, the label that the model guesses, and its confidence, from 0 to 1."""

    example: TextExample
    guess: str
    confidence: float


@dataclass(frozen=True)
class Suggestions:
    """What `suggest` found.

    `rows` are in the order in which to label them. `doubts` cover all labelled rows, the most doubtful first.
    `columns` are the names of an example's texts, of the columns read beside them, and of its label.
    `without_label` is the number of rows to choose from, `copies` that of near copies passed over.
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
        """A row's label as a file has it; several labels are joined by the `separator`."""
        return self.separator.join(row.label) if isinstance(row.label, tuple) else str(row.label)

    @property
    def wrong(self) -> list[Doubt]:
        """The doubts about labels that are probably wrong, the most doubtful first."""
        return [doubt for doubt in self.doubts if doubt.wrong]


@check_arguments(
    file=check_path,
    labelled=optional(check_path),
    hint=optional(check_text),
    task=check_text,
    count=integer_from(1),
    seed=integer_from(0),
    progress=optional(check_function),
)
def suggest(
    model: str | Path,
    file: Path | str,
    *,
    labelled: Path | str | None = None,
    names: str | Sequence[str] | Mapping[str, str] | None = None,
    hint: str | None = None,
    task: str = "classification",
    count: int = 50,
    seed: int = 0,
    progress: Progress | None = None,
    **columns: Any,
) -> Suggestions:
    """Suggests rows of `file` to label next, and finds labels that are probably wrong.

    `model` is a model fine-tuned for classification or multi-label classification, or any encoder, on whose
    features a linear model for `task` learns from the labelled rows. Rows of `file` without a label may be
    suggested. Rows with a label are learned from and doubted, as are those of `labelled`, by default the
    files that the model was fine-tuned on, if they are still there. If a row is in both, the label in `file`
    counts. Labels are doubted by cross-validation: by linear models on the pre-trained encoder's features
    that haven't seen them. With the `names` of the labels, given as for `finetune`, an encoder needs no
    labelled row: it guesses by the names, in the `hint` if there is one. `columns` are as for
    `Predictor.predict_file`, and label.

    Raises InputError for files that can't be used and for too few labels, ModelError and RecipeError as
    loading the model does.
    """
    folder = locate_model(model).folder
    trained_model = _open_trained_model(folder, find_task(task))
    reader = _reading_task(trained_model, task, columns)
    if names is not None and (trained_model is not None or not reader.learns_names):
        known = f"{model} has learned its labels" if trained_model else f"{reader.name} learns from none"
        raise InputError(
            f"--labels names the labels of a classification for an encoder: {known}. Leave it out."
        )
    given_names = None if names is None else read_label_names(names)
    labelled_rows, pool, notes = _read_rows(
        trained_model, folder, reader, file, labelled, columns.get("label") is not None
    )
    _require_separable(reader, trained_model, labelled_rows)
    unlabelled = len(pool)
    if unlabelled > MOST_READ:
        pool = random.Random(seed).sample(pool, MOST_READ)
        notes.append(f"of {unlabelled:,} rows without a label {MOST_READ:,} were drawn by chance, and read")
    if (count_labelled := len(labelled_rows)) > MOST_COMPARED:
        notes.append(
            f"of {count_labelled:,} labelled rows the first {MOST_COMPARED:,} were searched for near copies"
        )
    pretrained = folder if trained_model is None else encoder_before(folder)
    judge = LabelJudge.over(
        labelled_rows, reader, pretrained or folder, pretrained is not None, notes, progress
    )
    named_model: AnsweringModel | None = None
    if given_names is not None:
        named_model = AnsweringModel.of_names(reader, folder, labelled_rows, pool, given_names, hint, seed)
    if trained_model is None and judge is None and named_model is None:
        raise InputError(
            f"{model} has no head, so a linear model has to learn from labelled rows: at least "
            f"{FEWEST_LABELLED}, with two different labels, each of several texts; found "
            f"{len(labelled_rows)} rows. Label some in the same file, give a file of them with --labelled, "
            "or the names of the labels with --labels."
        )
    chosen, copies = _choose_next_rows(
        trained_model or named_model or judge, pool, labelled_rows, count, seed, reader.separator, progress
    )
    doubts = judge.doubts() if judge is not None else []
    names = tuple(_column_names(reader))
    return Suggestions(
        reader.name,
        names,
        chosen,
        unlabelled,
        copies,
        doubts,
        find_contradictions(labelled_rows, reader.column_kinds),
        notes,
        reader.separator,
    )


# -- the rows ------------------------------------------------------------------------------------------------


def _open_trained_model(folder: Path, task_class: type[Task[Any]]) -> AnsweringModel | None:
    """Opens the fine-tuned model; None for an encoder without a task head. `task_class` is used for tasks
    that aren't Bertsmith's. Raises InputError for a task without probabilities.
    """
    if model_kind(folder) != "task":
        load_encoder(folder)  # raises if the folder has no encoder either, or is broken
        return None
    model, task = load_task_model(folder, None if is_ours(task_class) else task_class)
    if not task.has_probabilities:
        raise InputError(
            f"{folder} is a model of {task.name}. suggest works for classification and multi-label, and for "
            "tasks of your own that have probabilities."
        )
    return AnsweringModel(model.to(device_of("auto")), cast(TextTask, task), folder)


def _reading_task(trained: AnsweringModel | None, task: str, columns: dict[str, Any]) -> TextTask:
    """The task that reads the files: the model's own or a new one, with the columns given."""
    settings_given = {name: value for name, value in columns.items() if value is not None}
    if trained is None:
        task_class = find_task(task)
        if not task_class.has_probabilities:
            raise InputError(f"--task is classification or multi-label, found {task}.")
        return cast(TextTask, task_class(check(task_class.Settings, settings_given, "suggest")))
    if fixed := sorted(trained.task.settings.of_model & settings_given.keys()):
        raise InputError(
            f"{fixed[0]} is a setting of training, which the model keeps: it can't be changed for a file. "
            "Leave it out."
        )
    settings_known = trained.task.settings.model_dump() | settings_given
    settings = check(type(trained.task.settings), settings_known, "suggest")
    reader = type(trained.task)(settings, trained.task.labels)
    reader.is_trained, reader.pairs, reader.columns = True, trained.task.pairs, trained.task.columns
    return reader


def _read_rows(
    trained: AnsweringModel | None,
    folder: Path,
    reading: TextTask,
    file: Path | str,
    labelled: Path | str | None,
    is_label_named: bool,
) -> tuple[list[TextExample], list[TextExample], list[str]]:
    """Reads rows with a label, those of `file` last, rows without one, and notes on what is missing. A
    label's column that the user named must be in one of the files.
    """
    settings_before = reading.settings
    has_more = labelled is not None and Path(labelled).resolve() != Path(file).resolve()
    rows = reading.read_partly_labelled(file, needs_label=is_label_named and not has_more)
    known_rows, notes = list[TextExample](), list[str]()
    if labelled is not None and has_more:
        reading.settings = settings_before  # its columns may have other names
        known_rows = reading.read(labelled)
    elif labelled is None and trained is not None:
        known_rows, notes = _read_training_rows(trained, folder, file)
    notes += reading.left_out
    if trained is None and known_rows:  # a pool may have -1 in each row, where the labelled rows have 0 and 1
        known_labels = {label for row in known_rows for label in reading.labels_of(row)}
        knowing = type(reading)(reading.settings, tuple(known_labels))
        stand_ins = knowing.stand_ins({row.label for row in rows} - {None})
        rows = [replace(row, label=None) if row.label in stand_ins else row for row in rows]
    file_rows = [row for row in rows if row.label is not None]
    _require_alike([*known_rows, *rows])
    contents = _row_contents([*known_rows, *rows], reading.column_kinds)
    newer = {contents[id(row)] for row in file_rows}
    known_rows = [row for row in known_rows if contents[id(row)] not in newer]
    pool = [row for row in rows if row.label is None]
    # A row without text and without other columns has nothing to tell a label by. Of a pair with one text,
    # training learns if it keeps blank texts.
    keeps = getattr(reading.settings, "missing", "refuse") == "keep"
    with_text = [
        row
        for row in pool
        if (reading.has_text(row) or keeps)
        and not all(map(is_blank, (row.text, row.text_pair, *row.columns)))
    ]
    if len(with_text) < len(pool):
        blank = len(pool) - len(with_text)
        lacking = "lack a text" if reading.reads_pairs else "have no text"
        notes.append(f"{blank:,} rows without a label {lacking}, and were left out")
    labelled_rows = [*known_rows, *file_rows]
    counts = Counter(label for row in labelled_rows for label in reading.labels_of(row))
    notes += [
        f"the label {label!r} ({counts[label]:,} rows) is taken for a label. Elsewhere it says that there is "
        "none: if so, empty the cell in such rows, so that they may be suggested"
        for label in (*find_placeholders(counts), *find_missing_values(counts))
        if trained is None or label not in trained.task.labels
    ]
    answered = {contents[id(row)] for row in labelled_rows}
    unknown = [row for row in with_text if contents[id(row)] not in answered]
    if len(unknown) < len(with_text):
        count = len(with_text) - len(unknown)
        notes.append(f"{count:,} rows without a label are labelled in another row, and were left out")
    return labelled_rows, unknown, notes


def _read_training_rows(
    trained: AnsweringModel, folder: Path, file: Path | str
) -> tuple[list[TextExample], list[str]]:
    """The rows of the files that the model was fine-tuned on, also those held out of them, for they have a
    label; and notes on what is missing. No rows if there is only `file`, or the model doesn't name its files.
    """
    source = TrainedOn.of_folder(folder)
    if source is None or [path.resolve() for path in source.paths] == [Path(file).resolve()]:
        return [], []
    if not source.are_at(source.paths):
        return [], [f"{source.name}, which the model was fine-tuned on, is not there, or was changed"]
    try:
        return source.all_rows(trained.task, source.paths), []  # by the columns of its training
    except InputError as error:
        return [], [f"what the model was fine-tuned on can't be read as it was: {error}"]


def _require_alike(rows: Sequence[TextExample]) -> None:
    """Raises InputError if some rows are pairs and others aren't, because no model learns from both."""
    single = next((row for row in rows if row.text_pair is None), None)
    pair = next((row for row in rows if row.text_pair is not None), None)
    if single is not None and pair is not None:
        raise InputError(
            f"{pair.where} is a pair of texts, but {single.where} is one text. Name the columns with --text "
            "and, for pairs, --text-pair."
        )


def _row_contents(rows: Sequence[TextExample], kinds: Sequence[Kind | None]) -> dict[int, tuple[Any, ...]]:
    """Each row's texts and columns, without its label, to recognise the row in another file; by its id()."""
    cells = comparable_cells([row.columns for row in rows], kinds)
    return {id(row): (row.text, row.text_pair, *beside) for row, beside in zip(rows, cells, strict=True)}


def _require_separable(
    reading: TextTask, trained: AnsweringModel | None, labelled_rows: Sequence[TextExample]
) -> None:
    """Raises InputError if rows may have several labels, and one has the separator in its name, as it may in
    JSON: in the files written it would be two.
    """
    if reading.activation != "sigmoid":
        return
    names = [] if trained is None else list(trained.task.labels)
    names += [label for row in labelled_rows for label in reading.labels_of(row)]
    if joined := next((name for name in names if reading.separator in name), None):
        raise InputError(
            f"the label {joined!r} has {reading.separator!r} in it, which stands between several labels of a "
            "cell. Give another --separator, which no label has."
        )


def _column_names(task: TextTask) -> list[str]:
    """The names of the columns of labelled rows, so that newly labelled rows can be appended to them."""
    settings = task.settings
    named = (settings.text, settings.text_pair, settings.label)
    defaults = ("text", "text_pair", "label")
    *texts, label = [
        name if isinstance(name, str) else default
        for name, default in zip(named, defaults, strict=True)
        if name is not None or default != "text_pair"
    ]
    return [*texts, *task.column_names, label]


# -- what to label -------------------------------------------------------------------------------------------


def _choose_next_rows(
    model: AnsweringModel | LabelJudge | None,
    pool: Sequence[TextExample],
    labelled_rows: Sequence[TextExample],
    count: int,
    seed: int,
    separator: str,
    progress: Progress | None,
) -> tuple[list[NextRow], int]:
    """Chooses rows to label, and returns them with the number of near copies passed over. Several labels of a
    guess are joined by the `separator`.
    """
    if not pool or model is None:
        return [], 0
    answering = model if isinstance(model, AnsweringModel) else model.answering
    features, probabilities = answering.answer(pool, progress)
    likeliest, confidence = answering.task.likeliest(probabilities)
    compared = labelled_rows[:MOST_COMPARED]
    for spare in _SPARE:
        drawn = choose_rows(features, probabilities - likeliest, round(spare * count), seed).tolist()
        characters = ngrams_of([*compared, *(pool[row] for row in drawn)], answering.task.column_kinds)
        positions = range(len(compared), len(compared) + len(drawn))
        distinct = [
            drawn[position - len(compared)]
            for position in characters.first_of_each(positions, range(len(compared)))
        ]
        if len(distinct) >= count or len(drawn) < round(spare * count):
            break
    labels = np.array(answering.task.labels)
    rows = [
        NextRow(pool[row], separator.join(labels[likeliest[row] > 0].tolist()), float(confidence[row]))
        for row in distinct[:count]
    ]
    drawn_for_them = drawn.index(distinct[count - 1]) + 1 if len(distinct) >= count else len(drawn)
    return rows, drawn_for_them - len(rows)


def choose_rows(features: Floats, residuals: Floats, count: int, seed: int = 0) -> Ints:
    """Chooses up to `count` rows to label next, which the model is unsure of and which differ from each other
    (BADGE: Ash et al. 2020). Returns their indices in the order in which they were drawn.

    A row is represented by the gradient that its likeliest answer would have at the last layer: the outer
    product of `residuals` (E, C), the probabilities minus that answer, and `features` (E, F). The gradient is
    long where the model is unsure, and its direction shows how rows differ. Rows are drawn by k-means++
    (Arthur and Vassilvitskii 2007): the longest first, then each with a probability proportional to its
    squared distance to the nearest row drawn. The outer products are never formed: distances follow from the
    inner products of features and of residuals.
    """
    squares = np.square(features).sum(1) * np.square(residuals).sum(1)
    nearest = np.full(len(features), np.inf)
    generator = np.random.default_rng(seed)
    chosen: list[int] = []
    while len(chosen) < min(count, len(features)):
        if not chosen:
            row = int(squares.argmax())
        else:
            total = nearest.sum()
            if total <= 0:  # no other row differs from those drawn
                break
            row = int(generator.choice(len(nearest), p=nearest / total))
        chosen.append(row)
        products = (features @ features[row]) * (residuals @ residuals[row])
        nearest = np.minimum(nearest, np.maximum(squares + squares[row] - 2 * products, 0.0))
        nearest[chosen] = 0.0
    return np.array(chosen, np.int64)
