"""What to do with the next hour of labelling: rows to label, labels to look at, and texts that come twice.

E rows, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Floats, Ints
from bertsmith.door import door, function, optional, place, text, whole
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.frozen_baseline import encoder_before
from bertsmith.inference.suggesting.label_doubts import find_doubts, off_diagonal
from bertsmith.inference.suggesting.near_copies import Characters
from bertsmith.inference.suggesting.next_rows import choose_rows
from bertsmith.inference.trained_on import TrainedOn
from bertsmith.machine.hardware import device_of
from bertsmith.metrics.calibration import probabilities_of
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model, load_task_model
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.computing.task_model import TaskModel, outputs_of
from bertsmith.tasks.examples.calibrated_task import CalibratedTask
from bertsmith.tasks.examples.folds import folds_of
from bertsmith.tasks.examples.text_task import TextExample, TextTask, choose_pooling
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.linear_start import LinearProbe, features_of
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Outputs
from bertsmith.validation import check

FEWEST_LABELLED = 10  # to learn from, and to doubt
_FOLDS = 5
_SPARE = 1.5  # rows drawn for each that is wanted, for some are near copies
_MOST_COMPARED = 20_000  # labelled rows, each with each


class NextRow(NamedTuple):
    """A row to label, what the model takes it for, and how sure it is, from 0 to 1."""

    example: TextExample
    guess: str
    confidence: float


class Doubt(NamedTuple):
    """A labelled row, what the other rows take it for, and the probability they give its label. `wrong`: it
    is among as many as are estimated to be wrong.
    """

    example: TextExample
    guess: str
    confidence: float
    wrong: bool


class Contradiction(NamedTuple):
    """Two rows of nearly the same text and different labels."""

    first: TextExample
    second: TextExample
    likeness: float


@dataclass(frozen=True)
class Suggestions:
    """`rows` in the order in which to label them, `doubts` over all labelled rows, the most doubtful first.
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
    on, if it still is where it was. Labels are doubted by cross-validation: by a linear model of the
    pre-trained encoder's features that has not seen them. `columns` as for `Predictor.predict_file`, and
    label. Raises InputError, ModelError and RecipeError.
    """
    folder = locate_model(model).folder
    trained = _trained_model(folder)
    reading = _task(trained, task, columns)
    rows = reading.read_partly_labelled(file)
    known, notes = _labelled_rows(trained, folder, reading, file, labelled)
    known += [row for row in rows if row.label is not None]
    pool = [row for row in rows if row.label is None]
    before = folder if trained is None else encoder_before(folder)
    judge = _Judge.over(known, reading, before or folder, before is not None, notes, progress)
    if trained is None and judge is None:
        raise InputError(
            f"{model} has no head, and there are {len(known)} labelled rows: at least {FEWEST_LABELLED}, of "
            "two labels, are needed to learn what is unsure. Label some, in the same file or with --labelled."
        )
    chosen, copies = _next_rows(trained or judge, pool, known, count, seed, progress)
    doubts = judge.doubts() if judge is not None else []
    names = tuple(_column_names(reading))
    return Suggestions(reading.name, names, chosen, len(pool), copies, doubts, _contradictions(known), notes)


# -- the rows ------------------------------------------------------------------------------------------------


class _Model(NamedTuple):
    """A model that answers, and what reads for it."""

    model: TaskModel
    task: TextTask
    folder: Path

    def encode(self, rows: Sequence[TextExample]) -> EncodedExamples:
        tokenizer = load_own_tokenizer(self.folder, self.model.config)
        return encode_examples(self.task, rows, tokenizer)


def _trained_model(folder: Path) -> _Model | None:
    """None for an encoder without a head of a task."""
    try:
        model, task = load_task_model(folder)
    except ModelError:
        load_encoder(folder)  # or it has no encoder either, or is broken
        return None
    if not isinstance(task, Classification | MultiLabel):
        raise InputError(
            f"{folder} is a model of {task.name}. Rows are suggested for classification and multi-label."
        )
    return _Model(model.to(device_of("auto")), task, folder)


def _task(trained: _Model | None, task: str, columns: dict[str, Any]) -> TextTask:
    """It reads the files, with the columns given."""
    given = {name: value for name, value in columns.items() if value is not None}
    if trained is None:
        kind = find_task(task)
        if not issubclass(kind, Classification | MultiLabel):
            raise InputError(f"--task is classification or multi-label, found {task}.")
        settings = check(kind.Settings, given, "suggest")
        found: TextTask = kind(settings)
        return found
    known = trained.task.settings.model_dump() | given
    settings = check(type(trained.task.settings), known, "suggest")
    return type(trained.task)(settings, trained.task.labels)


def _labelled_rows(
    trained: _Model | None, folder: Path, reading: TextTask, file: Path | str, labelled: Path | str | None
) -> tuple[list[TextExample], list[str]]:
    """Besides those of `file`, and sentences on what is missing."""
    if labelled is not None:
        if Path(labelled).resolve() == Path(file).resolve():
            return [], []
        return reading.read(labelled), []
    source = TrainedOn.of_folder(folder) if trained is not None else None
    if source is None or source.path.resolve() == Path(file).resolve():
        return [], []
    if not source.is_at(source.path):
        return [], [f"{source.path}, which the model was fine-tuned on, is not there, or was changed"]
    return source.rows(reading, source.path), []


def _column_names(task: TextTask) -> list[str]:
    """As the labelled rows had them, so that what is filled in can stand beside them."""
    settings = task.settings
    given = (settings.text, settings.text_pair, settings.label)
    usual = ("text", "text_pair", "label")
    return [
        name if isinstance(name, str) else other
        for name, other in zip(given, usual, strict=True)
        if name is not None or other != "text_pair"
    ]


# -- what to label -------------------------------------------------------------------------------------------


def _next_rows(
    model: "_Model | _Judge | None",
    pool: Sequence[TextExample],
    known: Sequence[TextExample],
    count: int,
    seed: int,
    progress: Progress | None,
) -> tuple[list[NextRow], int]:
    """The rows, and how many near copies were passed over."""
    if not pool or model is None:
        return [], 0
    answering = model if isinstance(model, _Model) else model.answering
    encoded = answering.encode(pool).encoded
    features = features_of(answering.model, encoded, progress)
    outputs = outputs_of(answering.model, encoded)
    probabilities = _probabilities(answering.task, outputs)
    likeliest = _likeliest(answering.task, probabilities)
    vectors = np.stack([each.numpy() for each in features]).astype(np.float64)
    drawn = choose_rows(vectors, probabilities - likeliest, round(_SPARE * count), seed).tolist()
    near = known[:_MOST_COMPARED]
    characters = Characters([_joined(row) for row in (*near, *(pool[row] for row in drawn))])
    places = range(len(near), len(near) + len(drawn))
    kept = [drawn[place - len(near)] for place in characters.first_of_each(places, range(len(near)))]
    rows = [
        NextRow(pool[row], *_guess(answering.task, probabilities[row], likeliest[row]))
        for row in kept[:count]
    ]
    return rows, len(drawn) - len(kept)


def _probabilities(task: TextTask, outputs: Sequence[Outputs]) -> Floats:
    """(E, C)."""
    temperature = task.temperature if isinstance(task, CalibratedTask) else 1.0
    return probabilities_of(np.stack(outputs), temperature, multi_label=isinstance(task, MultiLabel))


def _likeliest(task: TextTask, probabilities: Floats) -> Floats:
    """(E, C) of 0 and 1: the answer that each row would get."""
    if isinstance(task, MultiLabel):
        return (probabilities >= 0.5).astype(np.float64)
    return np.asarray(np.eye(probabilities.shape[1])[probabilities.argmax(1)])


def _guess(task: TextTask, probabilities: Floats, likeliest: Floats) -> tuple[str, float]:
    """The answer as a file has it, and its probability: of several labels that of the least sure one."""
    names = [label for label, given in zip(task.labels, likeliest, strict=True) if given]
    sure = np.where(likeliest > 0, probabilities, 1 - probabilities)
    confidence = sure.min() if isinstance(task, MultiLabel) else probabilities.max()
    return _separator(task).join(names), float(confidence)


def _separator(task: TextTask) -> str:
    return task.settings.separator if isinstance(task, MultiLabel) else ","


# -- which labels to doubt -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judge:
    """What the labelled rows say of each other. `outputs` (E, C) are those of a linear model that learned
    from other rows; `answering` learned from all.
    """

    rows: list[TextExample]
    answering: _Model
    outputs: list[Outputs]

    @classmethod
    def over(
        cls,
        rows: list[TextExample],
        reading: TextTask,
        encoder: Path,
        unseen: bool,
        notes: list[str],
        progress: Progress | None,
    ) -> "_Judge | None":
        """None where there are too few rows, or too few labels. Adds to `notes`."""
        task = type(reading)(reading.settings.model_copy(update={"pooling": None}))
        labels = {label for row in rows for label in task.labels_of(row)}
        if len(rows) < FEWEST_LABELLED or len(labels) < 2:
            notes.append(f"{len(rows)} labelled rows of {len(labels)} labels: too few to doubt any of them")
            return None
        if not unseen:
            notes.append("the encoder has seen these labels in training, and doubts too few of them")
        choose_pooling(task, encoder)
        task.fit(rows)
        model = begin_task_model(encoder, task).model.eval().to(device_of("auto"))
        answering = _Model(model, task, encoder)
        train = answering.encode(rows)
        probe = LinearProbe.of(task, model, train, len(train), progress)
        assert probe is not None
        found = probe.best()
        outputs = probe.judge(folds_of(task, rows, _FOLDS), found.strength)
        found.apply(model)
        return cls(rows, answering, outputs)

    def doubts(self) -> list[Doubt]:
        """All rows, the most doubtful first."""
        task = self.answering.task
        probabilities = _probabilities(task, self.outputs)
        if isinstance(task, MultiLabel):
            return self._doubts_of_sets(task, probabilities)
        labels = np.array([task.label_ids[row.label] for row in self.rows])
        found = find_doubts(probabilities, labels)
        return [
            Doubt(
                self.rows[row],
                task.labels[int(probabilities[row].argmax())],
                float(probabilities[row, labels[row]]),
                place < found.wrong,
            )
            for place, row in enumerate(found.order.tolist())
        ]

    def _doubts_of_sets(self, task: MultiLabel, probabilities: Floats) -> list[Doubt]:
        """A label that is there or not is a question of its own: a row is as doubtful as its worst."""
        gold = np.stack([task.target(row.label) for row in self.rows])
        wrong = np.zeros(gold.shape, np.bool_)
        for label in range(len(task.labels)):
            chances = np.stack([1 - probabilities[:, label], probabilities[:, label]], 1)
            wrong[:, label] = off_diagonal(chances, gold[:, label].astype(np.int64))
        own = np.where(gold, probabilities, 1 - probabilities)
        worst: Ints = own.argmin(1)
        order, doubtful = np.argsort(own.min(1), kind="stable"), int(wrong.any(1).sum())
        found = []
        for rank, row in enumerate(order.tolist()):
            otherwise = gold[row].copy()
            otherwise[worst[row]] ^= True
            guess = task.settings.separator.join(np.array(task.labels)[otherwise].tolist())
            found.append(Doubt(self.rows[row], guess, float(own[row].min()), rank < doubtful))
        return found


def _contradictions(rows: Sequence[TextExample]) -> list[Contradiction]:
    """The likest first. Of very many rows the first are compared."""
    compared = rows[:_MOST_COMPARED]
    pairs = Characters([_joined(row) for row in compared]).pairs() if compared else []
    found = [
        Contradiction(compared[first], compared[second], likeness)
        for first, second, likeness in pairs
        if compared[first].label != compared[second].label
    ]
    return sorted(found, key=lambda each: -each.likeness)


def _joined(row: TextExample) -> str:
    return row.text if row.text_pair is None else f"{row.text} {row.text_pair}"
