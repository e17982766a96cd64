"""LabelJudge: finds labels that are probably wrong, by confident learning (Northcutt et al. 2021, sections
3.1 and 3.2), and rows that contradict each other.

E rows, F features, C labels. Probabilities are those of a model that hasn't learned from the row.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.errors import InputError
from bertsmith.inference.suggesting.near_copies import CharacterNgrams
from bertsmith.machine import device_of
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model
from bertsmith.tasks.examples.columns import Kind, comparable_cells
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.heads.linear_start import LinearProbe, TextFeatures, compute_features
from bertsmith.tasks.heads.name_training import (
    MOST_TEXTS,
    NameTraining,
    name_examples,
    phrase_names,
    require_named,
)
from bertsmith.tasks.task import Outputs
from bertsmith.tasks.task_model import TaskModel, outputs_of

FEWEST_LABELLED = 10  # labelled rows that are needed to learn from them and to doubt any
MOST_COMPARED = 20_000  # labelled rows that are compared with each other
_FOLDS = 5


class AnsweringModel(NamedTuple):
    """A model with its task, and the folder that has its tokenizer."""

    model: TaskModel
    task: TextTask
    folder: Path

    @classmethod
    def of_names(
        cls,
        reader: TextTask,
        encoder: Path,
        labelled_rows: Sequence[TextExample],
        pool: Sequence[TextExample],
        names: Mapping[str, str],
        hint: str | None,
        seed: int,
    ) -> "AnsweringModel":
        """A model of the labels' names with their descriptions, the labelled rows, and the texts of the pool,
        or some of them, drawn by the seed. Raises InputError for a label without a name, and for pairs.
        """
        phrasings = phrase_names(names, hint)
        require_named(labelled_rows, phrasings)
        if pair := next((row for row in (*labelled_rows, *pool) if row.text_pair is not None), None):
            raise InputError(
                f"{pair.where} is a pair of texts, and names are learned beside single texts. Name the "
                "column of the text with --text, or leave --labels out."
            )
        different = dict[str, TextExample]()  # copies would be each other's neighbours
        for row in pool:
            different.setdefault(row.text, row)
        texts = list(different.values())
        if len(texts) > MOST_TEXTS:
            texts = random.Random(seed).sample(texts, MOST_TEXTS)
        task = type(reader)(reader.settings.model_copy(update={"pooling": None}))
        choose_pooling(task, encoder)
        task.fit([*labelled_rows, *name_examples(phrasings, list(phrasings))])
        answering = cls(begin_task_model(encoder, task).model.to(device_of("auto")), task, encoder)
        model, tokenizer = answering.model, load_own_tokenizer(encoder, answering.model.config)
        features = TextFeatures.of(model, answering.encode(texts))
        rows = answering.encode(labelled_rows)
        training = NameTraining.of(model, task, tokenizer, phrasings, rows, features)
        training.fit(texts=bool(texts)).apply(model)
        return answering

    def encode(self, rows: Sequence[TextExample]) -> EncodedExamples:
        tokenizer = load_own_tokenizer(self.folder, self.model.config)
        return encode_examples(self.task, rows, tokenizer)

    def answer(self, rows: Sequence[TextExample], progress: Progress | None) -> tuple[Floats, Floats]:
        """The features (E, F) that the head's last layer reads, and the labels' probabilities (E, C)."""
        encoded = self.encode(rows).encoded
        features = torch.stack(compute_features(self.model, encoded, progress))
        with torch.inference_mode():
            logits = self.model.head.answer_features(features)
        outputs = np.stack(outputs_of(self.model, encoded)) if logits is None else logits.cpu().numpy()
        return features.numpy().astype(np.float64), self.task.label_probabilities(outputs)


class Doubt(NamedTuple):
    """A labelled row, the most probable other label by a model of the other rows, and the probability that it
    gives the row's own label. `wrong`: the row is among the most doubtful, as many as are estimated to be
    wrong.
    """

    example: TextExample
    guess: str
    confidence: float
    wrong: bool


class Contradiction(NamedTuple):
    """Two rows with nearly the same text and different labels; `likeness` is the cosine of their n-grams."""

    first: TextExample
    second: TextExample
    likeness: float


@dataclass(frozen=True)
class LabelJudge:
    """Judges labelled rows by each other. `outputs` (E, C) are those of linear models that learned from other
    rows; `answering` is a model that learned from all rows.
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
        """Trains the linear models by cross-validation. None if there are too few rows or labels; then
        `notes` gets a sentence that says so.
        """
        task = type(reading)(reading.settings.model_copy(update={"pooling": None}))
        labels = {label for row in rows for label in task.labels_of(row)}
        if len(rows) < FEWEST_LABELLED or len(labels) < 2:
            notes.append(f"{len(rows)} labelled rows of {len(labels)} labels: too few to doubt any of them")
            return None
        folds = folds_of(task, rows, _FOLDS)
        for fold in set(folds.tolist()):
            others = [row for row, row_fold in zip(rows, folds.tolist(), strict=True) if row_fold != fold]
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
        best_start = probe.fit_best()
        outputs = probe.predict_held_out(folds, best_start.strength)
        best_start.apply(model)
        return cls(rows, answering, outputs)

    def doubts(self) -> list[Doubt]:
        """The doubts about all rows, the most doubtful first."""
        task = self.answering.task
        probabilities = task.label_probabilities(np.stack(self.outputs))
        labels = np.stack([task.target(row.label) for row in self.rows])
        if labels.ndim == 2:
            return self._doubts_of_sets(labels, probabilities)
        ranked = find_doubts(probabilities, labels)
        others = probabilities.copy()
        others[np.arange(len(labels)), labels] = -1
        return [
            Doubt(
                self.rows[row],
                task.labels[int(others[row].argmax())],
                float(probabilities[row, labels[row]]),
                rank < ranked.wrong,
            )
            for rank, row in enumerate(ranked.order.tolist())
        ]

    def _doubts_of_sets(self, gold: Bools, probabilities: Floats) -> list[Doubt]:
        """Doubts about rows with sets of labels, `gold` (E, C). Each label, present or absent, is doubted on
        its own, and a row is as doubtful as its most doubtful label.
        """
        task = self.answering.task
        wrong = np.zeros(gold.shape, np.bool_)
        for label in range(len(task.labels)):
            chances = np.stack([1 - probabilities[:, label], probabilities[:, label]], 1)
            wrong[:, label] = off_diagonal(chances, gold[:, label].astype(np.int64))
        label_chances = np.where(gold, probabilities, 1 - probabilities)
        worst: Ints = label_chances.argmin(1)
        order, doubtful = np.argsort(label_chances.min(1), kind="stable"), int(wrong.any(1).sum())
        doubts = []
        for rank, row in enumerate(order.tolist()):
            guessed_labels = gold[row].copy()
            guessed_labels[worst[row]] ^= True
            guess = task.separator.join(np.array(task.labels)[guessed_labels].tolist())
            doubts.append(Doubt(self.rows[row], guess, float(label_chances[row].min()), rank < doubtful))
        return doubts


class DoubtOrder(NamedTuple):
    """`order` (E,) has the examples' indices, the most doubtful label first. The labels of the first `wrong`
    of them are probably wrong.
    """

    order: Ints
    wrong: int


def find_doubts(probabilities: Floats, labels: Ints) -> DoubtOrder:
    """Orders examples by how doubtful their labels are, from `probabilities` (E, C) and `labels` (E,).

    A label is doubtful if its probability is small relative to its class's mean probability. How many labels
    are wrong is counted off the diagonal of the confident joint. Which ones are wrong, the order tells
    better: of 500 wrong labels planted among 10,003 of banking77, the first 500 hold 91 %, those off the
    diagonal 77 %.
    """
    usual = np.maximum(class_thresholds(probabilities, labels)[labels], np.finfo(np.float64).tiny)
    order = np.argsort(_pick_labels(probabilities, labels) / usual, kind="stable")
    return DoubtOrder(order, int(off_diagonal(probabilities, labels).sum()))


def off_diagonal(probabilities: Floats, labels: Ints) -> Bools:
    """Whether each example counts for another class than its label in the confident joint: (E,).

    A class's threshold is its mean probability among the examples labelled with it, so that labels aren't
    doubted only because the model is never sure of their class. An example counts for the likeliest of the
    classes whose probability reaches the threshold, but for its own label if that is the likeliest of all.
    """
    reaches_threshold = probabilities >= class_thresholds(probabilities, labels)
    confident = np.where(reaches_threshold, probabilities, -1.0)
    counted_label = np.where(reaches_threshold.any(1), confident.argmax(1), labels)
    return np.asarray((counted_label != labels) & (probabilities.argmax(1) != labels))


def class_thresholds(probabilities: Floats, labels: Ints) -> Floats:
    """The mean probability of each class among the examples labelled with it: (C,); 1 for unused classes."""
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, _pick_labels(probabilities, labels), minlength=probabilities.shape[1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)


def _pick_labels(values: Floats, labels: Ints) -> Floats:
    return np.asarray(values[np.arange(len(labels)), labels])


def find_contradictions(
    rows: Sequence[TextExample], kinds: Sequence[Kind | None] = ()
) -> list[Contradiction]:
    """Finds near copies with different labels among the first `MOST_COMPARED` rows, most similar first.
    `kinds` are those of the columns beside the text; see `comparable_cells`.
    """
    compared = rows[:MOST_COMPARED]
    labels = dict[Any, int]()  # several labels are a set: their order says nothing
    label_numbers = [
        labels.setdefault(frozenset(row.label) if isinstance(row.label, tuple) else row.label, len(labels))
        for row in compared
    ]
    contradictions = [
        Contradiction(compared[first], compared[second], likeness)
        for first, second, likeness in ngrams_of(compared, kinds).pairs(label_numbers)
    ]
    return sorted(contradictions, key=lambda pair: -pair.likeness)


def ngrams_of(rows: Sequence[TextExample], kinds: Sequence[Kind | None] = ()) -> CharacterNgrams:
    """The n-grams of rows' texts; those of a second text are others than the first's. Rows with other columns
    beside the text, of these `kinds`, are no copies of each other.
    """
    columns = comparable_cells([row.columns for row in rows], kinds)
    return CharacterNgrams([row.text for row in rows], columns, [row.text_pair or "" for row in rows])
