"""What labelled rows say of each other: labels that are probably wrong, by confident learning (Northcutt et
al. 2021, sections 3.1 and 3.2), and rows that contradict each other.

E rows, F features, C labels. Probabilities are those of a model that hasn't learned from the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.inference.suggesting.near_copies import CharacterNgrams
from bertsmith.machine import device_of
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.linear_start import LinearProbe, features_of
from bertsmith.tasks.task import Outputs
from bertsmith.tasks.task_model import TaskModel, outputs_of

FEWEST_LABELLED = 10  # to learn from, and to doubt
MOST_COMPARED = 20_000  # labelled rows, each with each
_FOLDS = 5


class AnsweringModel(NamedTuple):
    """A model that answers, and what reads for it."""

    model: TaskModel
    task: TextTask
    folder: Path

    def encode(self, rows: Sequence[TextExample]) -> EncodedExamples:
        tokenizer = load_own_tokenizer(self.folder, self.model.config)
        return encode_examples(self.task, rows, tokenizer)

    def answer(self, rows: Sequence[TextExample], progress: Progress | None) -> tuple[Floats, Floats]:
        """(E, F) what the head's last layer reads of the rows, and (E, C) the probabilities of the labels."""
        encoded = self.encode(rows).encoded
        features = torch.stack(features_of(self.model, encoded, progress))
        with torch.inference_mode():
            found = self.model.head.answer_features(features)
        outputs = np.stack(outputs_of(self.model, encoded)) if found is None else found.cpu().numpy()
        return features.numpy().astype(np.float64), self.task.label_probabilities(outputs)


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
class LabelJudge:
    """What the labelled rows say of each other. `outputs` (E, C) are those of a linear model that learned
    from other rows; `answering` learned from all.
    """

    rows: list[TextExample]
    answering: AnsweringModel
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
    ) -> "LabelJudge | None":
        """None where there are too few rows, or too few labels. Adds to `notes`."""
        task = type(reading)(reading.settings.model_copy(update={"pooling": None}))
        labels = {label for row in rows for label in task.labels_of(row)}
        if len(rows) < FEWEST_LABELLED or len(labels) < 2:
            notes.append(f"{len(rows)} labelled rows of {len(labels)} labels: too few to doubt any of them")
            return None
        folds = folds_of(task, rows, _FOLDS)
        for fold in set(folds.tolist()):
            others = [row for row, own in zip(rows, folds.tolist(), strict=True) if own != fold]
            if len({label for row in others for label in task.labels_of(row)}) < 2:
                notes.append(
                    f"{len(rows)} labelled rows of too few texts to doubt any of them: the other texts must "
                    "have two labels, whichever text is looked at"
                )
                return None
        if not unseen:
            notes.append("the encoder has seen these labels in training, and doubts too few of them")
        choose_pooling(task, encoder)
        task.fit(rows)
        model = begin_task_model(encoder, task).model.eval().to(device_of("auto"))
        answering = AnsweringModel(model, task, encoder)
        train = answering.encode(rows)
        probe = LinearProbe.of(task, model, train, len(train), progress)
        if probe is None:
            notes.append(f"labels are not doubted: the head of {task.name} is no linear model of features")
            return None
        found = probe.best()
        outputs = probe.judge(folds, found.strength)
        found.apply(model)
        return cls(rows, answering, outputs)

    def doubts(self) -> list[Doubt]:
        """All rows, the most doubtful first."""
        task = self.answering.task
        probabilities = task.label_probabilities(np.stack(self.outputs))
        labels = np.stack([task.target(row.label) for row in self.rows])
        if labels.ndim == 2:
            return self._doubts_of_sets(labels, probabilities)
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

    def _doubts_of_sets(self, gold: Bools, probabilities: Floats) -> list[Doubt]:
        """A label that is there or not is a question of its own: a row is as doubtful as its worst. `gold`
        (E, C) says which are there.
        """
        task = self.answering.task
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
            guess = task.separator.join(np.array(task.labels)[otherwise].tolist())
            found.append(Doubt(self.rows[row], guess, float(own[row].min()), rank < doubtful))
        return found


class DoubtOrder(NamedTuple):
    """`order` (E,): the examples' numbers, the most doubtful label first. The first `wrong` of them are
    probably wrong.
    """

    order: Ints
    wrong: int


def find_doubts(probabilities: Floats, labels: Ints) -> DoubtOrder:
    """(E, C) and (E,) -> the labels to look at.

    Doubtful is a label of little probability, measured by what its class usually has. How many are wrong is
    counted off the diagonal; which, this order knows better: of 500 planted among 10,003 of banking77 the
    first 500 hold 91 %, those off the diagonal 77 %.
    """
    usual = np.maximum(class_thresholds(probabilities, labels)[labels], np.finfo(np.float64).tiny)
    order = np.argsort(_pick_labels(probabilities, labels) / usual, kind="stable")
    return DoubtOrder(order, int(off_diagonal(probabilities, labels).sum()))


def off_diagonal(probabilities: Floats, labels: Ints) -> Bools:
    """(E,) whether an example counts for another class than its label in the confident joint.

    A class's threshold is its mean probability among the examples that bear it, so that a class of which the
    model is never sure isn't doubted for that. An example counts for the likeliest of the classes that reach
    their threshold, and for its label where that is the likeliest of all.
    """
    reached = probabilities >= class_thresholds(probabilities, labels)
    confident = np.where(reached, probabilities, -1.0)
    counted = np.where(reached.any(1), confident.argmax(1), labels)
    return np.asarray((counted != labels) & (probabilities.argmax(1) != labels))


def class_thresholds(probabilities: Floats, labels: Ints) -> Floats:
    """(C,) the mean probability of each class where it is the label; 1 where it never is."""
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, _pick_labels(probabilities, labels), minlength=probabilities.shape[1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)


def _pick_labels(values: Floats, labels: Ints) -> Floats:
    return np.asarray(values[np.arange(len(labels)), labels])


def find_contradictions(rows: Sequence[TextExample]) -> list[Contradiction]:
    """The likest first. Of very many rows the first are compared."""
    compared = rows[:MOST_COMPARED]
    labels = dict[Any, int]()  # several labels are a set: their order says nothing
    kinds = [
        labels.setdefault(frozenset(row.label) if isinstance(row.label, tuple) else row.label, len(labels))
        for row in compared
    ]
    found = [
        Contradiction(compared[first], compared[second], likeness)
        for first, second, likeness in CharacterNgrams([joined_text(row) for row in compared]).pairs(kinds)
    ]
    return sorted(found, key=lambda each: -each.likeness)


def joined_text(row: TextExample) -> str:
    return row.text if row.text_pair is None else f"{row.text} {row.text_pair}"
