"""Measures what the text adds to the columns beside it, and what the columns add to the text.

Three linear models are trained on the same rows and scored on the same others: of the frozen encoder's
vectors, of the columns, and of both. A small gradient boosting of the columns is a fourth. Then each column
is shuffled among the scored rows (permutation importance: Breiman 2001, section 10). The column is worth
to the model what the score loses.

E examples, H features of a text, F features of its columns, C outputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.arrays import Float32s, Floats, Ints
from bertsmith.metrics.baselines import boosted_classes, boosted_labels, boosted_numbers, boosted_rounds
from bertsmith.tasks.evaluating.evaluation import Evaluation, standard_error
from bertsmith.tasks.examples.columns import FittedColumns
from bertsmith.tasks.examples.held_out import names_groups
from bertsmith.tasks.examples.text_task import TextTask
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.classifier_head import ClassifierHead
from bertsmith.tasks.heads.linear_start import LinearProbe, compute_features
from bertsmith.tasks.task import Outputs, Prediction
from bertsmith.tasks.task_model import TaskModel
from bertsmith.training.finetuning.choosing import main_score, measure_gain

TEXT, COLUMNS, BOOSTED, BOTH = "text alone", "columns alone", "columns alone, gradient boosting", "both"
THE_TEXT = "the text"  # beside the columns' names
_SHUFFLES = 5
_MOST_ROWS = 2000  # scored: more would change the figures less than their errors
_SURE = 1.96  # standard deviations: 95 % of a normal distribution


@dataclass(frozen=True)
class ColumnScore:
    """The main metric of the model of `name`, and its standard error; None if all rows agree."""

    name: str
    score: float
    error: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval of the score; None without a standard error."""
        if self.error is None:
            return None
        return self.score - _SURE * self.error, min(self.score + _SURE * self.error, 1.0)


@dataclass(frozen=True)
class Gain:
    """By how much one model's main metric is higher than another's, and this difference's standard error."""

    gain: float
    error: float


@dataclass(frozen=True)
class Worth:
    """What the main metric loses if a column, or the text, is shuffled among the rows, and the standard error
    of this loss. `kind` is the kind of column that the training rows showed, `showed` what they showed in
    words.
    """

    name: str
    kind: str
    showed: str
    loss: float
    error: float


@dataclass(frozen=True)
class ColumnStudy:
    """The results on `rows` rows of `judge` (dev or cross-validation). `reached` has the score of each model,
    `text_adds` the text's gain over the better model of columns alone, and `columns_add` the columns' gain
    over the text. `worths` are those for `model`, the text first, then the columns by falling loss.
    """

    judge: str
    rows: int
    reached: tuple[ColumnScore, ...]
    text_adds: Gain
    columns_add: Gain
    model: str
    worths: tuple[Worth, ...]

    def as_sentence(self, metric: str) -> str:
        """Formats as 'The text adds +0.45 ± 0.02 accuracy to the columns, the columns +0.47 ± 0.02 to …'."""
        text, columns = self.text_adds, self.columns_add
        return (
            f"The text adds {text.gain:+.4f} ± {text.error:.4f} {metric} to the columns, the columns "
            f"{columns.gain:+.4f} ± {columns.error:.4f} to the text."
        )


def study_by_folds(
    task: TextTask, probe: LinearProbe, strength: float, train: EncodedExamples, folds: Ints, judge: str
) -> ColumnStudy:
    """Studies the columns by cross-validation: each row of `train` is scored by models of the other folds.
    `folds` (E,) has the fold of each row, `strength` is the regularisation of the model of both.
    """
    rows = _sample_rows(len(train))
    alone = {TEXT: probe.with_zeroed(columns=True), COLUMNS: probe.with_zeroed(text=True)}
    outputs = {name: part.predict_held_out(folds, part.fit_best().strength) for name, part in alone.items()}
    boosted = _boost_by_folds(task, train, folds)
    if boosted is not None:
        outputs[BOOSTED] = boosted
    fold_weights, generator = list(probe.fit_folds(folds, strength)), np.random.default_rng(0)

    def predict(shuffled_features: slice | None) -> list[Outputs]:
        by_row: list[Outputs] = [np.empty(0, np.float32)] * len(train)
        for held_out, weights in fold_weights:
            features = probe.features(held_out)
            if shuffled_features is not None:
                features = _shuffle(features, shuffled_features, generator)
            answers = probe.predict(weights, features).numpy()
            for row, answer in zip(held_out.tolist(), answers, strict=True):
                by_row[row] = answer
        return by_row

    def predict_shuffled(features: slice) -> Iterator[list[Outputs]]:
        for _ in range(_SHUFFLES):
            by_row = predict(features)
            yield [by_row[row] for row in rows.tolist()]

    outputs[BOTH] = predict(None)
    sampled = {name: [by_row[row] for row in rows.tolist()] for name, by_row in outputs.items()}
    slices = _feature_slices(task, int(probe.features(rows[:1]).shape[1]))
    shuffled = [(name, predict_shuffled(features)) for name, features in slices]
    return _build_study(
        task, train.some(rows), sampled, sampled[BOTH], shuffled, judge, "linear models of both"
    )


def study_on_dev(
    task: TextTask,
    probe: LinearProbe,
    strength: float,
    start: TaskModel,
    model: TaskModel,
    train: EncodedExamples,
    dev: EncodedExamples,
    judge: str,
) -> ColumnStudy:
    """Studies the columns on rows of `dev`. `start` is the model whose features the probe has, `strength` the
    regularisation of the linear model of both, and `model` the trained one, for which the columns are worth
    what their shuffling costs.
    """
    dev = dev.some(_sample_rows(len(dev)))
    features = torch.stack(compute_features(start, dev.encoded))
    width = features.shape[1] - task.column_width
    text, columns = features.clone(), features.clone()
    text[:, width:], columns[:, :width] = 0, 0
    alone = {TEXT: (probe.with_zeroed(columns=True), text), COLUMNS: (probe.with_zeroed(text=True), columns)}
    outputs = {
        name: _fit_and_predict(part, part.fit_best().strength, part_features)
        for name, (part, part_features) in alone.items()
    }
    rounds = boosted_rounds(max(len(task.labels), 1), 1)
    if rounds:
        outputs[BOOSTED] = list(_boost_columns(task, train, dev, rounds))
    outputs[BOTH] = _fit_and_predict(probe, strength, features)
    trained_features, generator = torch.stack(compute_features(model, dev.encoded)), np.random.default_rng(0)

    def predict_shuffled(columns: slice) -> Iterator[list[Outputs]]:
        for _ in range(_SHUFFLES):
            yield _predict_from_features(model, _shuffle(trained_features, columns, generator))

    slices = _feature_slices(task, features.shape[1])
    shuffled = [(name, predict_shuffled(columns)) for name, columns in slices]
    unshuffled = _predict_from_features(model, trained_features)
    return _build_study(task, dev, outputs, unshuffled, shuffled, judge, "the model")


def _build_study(
    task: TextTask,
    split: EncodedExamples,
    outputs: Mapping[str, Sequence[Outputs]],
    unshuffled: Sequence[Outputs],
    shuffled: Sequence[tuple[str, Iterator[list[Outputs]]]],
    judge: str,
    model: str,
) -> ColumnStudy:
    """Scores each model's outputs for `split`, and one model's `unshuffled` outputs beside its `shuffled`
    ones: for the text, which comes first, and each column the outputs of every shuffle.
    """
    task = copy(task)
    task.uncalibrate()

    def decode(split_outputs: Sequence[Outputs]) -> list[Prediction]:
        return task.decode(split_outputs, split.examples, split.encoded)

    predictions = {name: decode(of_model) for name, of_model in outputs.items()}
    scores = []
    for name, of_model in predictions.items():
        evaluation = Evaluation(task.metrics(of_model, split.examples), {}, of_model, split)
        answers = task.error_analysis(of_model, split.examples).answers
        error = standard_error(task, evaluation, answers)
        scores.append(ColumnScore(name, main_score(task, of_model, split.examples), error))
    best_columns = max(
        (score for score in scores if score.name in (COLUMNS, BOOSTED)), key=lambda score: score.score
    )
    reference = decode(unshuffled)
    assert task.columns is not None
    showed = {column.name: (column.kind, column.in_words()) for column in task.columns.columns}
    worths = [
        Worth(
            name,
            *(showed[name] if number else ("", "")),  # a column may be called "the text" too
            *_measure_loss(task, reference, map(decode, of_shuffles), split.examples),
        )
        for number, (name, of_shuffles) in enumerate(shuffled)
    ]
    return ColumnStudy(
        judge,
        len(split),
        tuple(scores),
        _compare(task, predictions[BOTH], predictions[best_columns.name], split.examples),
        _compare(task, predictions[BOTH], predictions[TEXT], split.examples),
        model,
        (worths[0], *sorted(worths[1:], key=lambda worth: -worth.loss)),
    )


def _compare(
    task: TextTask, ours: list[Prediction], theirs: list[Prediction], examples: Sequence[Any]
) -> Gain:
    """The gain of `ours` over `theirs`. If the metric is the mean of independent rows' scores, the error is
    that of the mean of their differences; else it comes from a bootstrap.
    """
    our_scores, their_scores = (_row_scores(task, predictions, examples) for predictions in (ours, theirs))
    if our_scores is None or their_scores is None or len(examples) < 2 or names_groups(task):
        _, gain, error = measure_gain(task, ours, theirs, examples)
        return Gain(gain, error)
    differences = our_scores - their_scores
    return Gain(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences))))


def _row_scores(task: TextTask, predictions: list[Prediction], examples: Sequence[Any]) -> Floats | None:
    """The rows' scores (E,) if the main metric is their mean, else None."""
    scores = np.array([answer.score for answer in task.error_analysis(predictions, examples).answers])
    metric = main_score(task, predictions, examples)
    is_mean = len(scores) == len(examples) and np.isclose(scores.mean(), metric)
    return scores if is_mean else None


def _measure_loss(
    task: TextTask,
    reference: list[Prediction],
    shuffled: Iterator[list[Prediction]],
    examples: Sequence[Any],
) -> tuple[float, float]:
    """The mean loss over the shuffles, and its standard error, from the rows and from the few shuffles."""
    first, *others = shuffled
    loss, score = _compare(task, reference, first, examples), main_score(task, reference, examples)
    losses = [loss.gain, *(score - main_score(task, predictions, examples) for predictions in others)]
    error = np.hypot(loss.error, np.std(losses, ddof=1) / np.sqrt(len(losses)))
    return float(np.mean(losses)), float(error)


def _feature_slices(task: TextTask, width: int) -> list[tuple[str, slice]]:
    """The slices of `width` features that are the text's and each column's, by name. The text comes first."""
    columns = task.columns
    assert isinstance(columns, FittedColumns)
    first_column = width - columns.width
    slices = [(THE_TEXT, slice(0, first_column))]
    for name, column in zip(columns.names, columns.slices, strict=True):
        slices.append((name, slice(first_column + column.start, first_column + column.stop)))
    return slices


def _shuffle(features: Tensor, columns: slice, generator: np.random.Generator) -> Tensor:
    """A copy of features (E, H + F) whose `columns` are permuted together among the rows."""
    shuffled = features.clone()
    shuffled[:, columns] = features[torch.from_numpy(generator.permutation(len(features))), columns]
    return shuffled


def _fit_and_predict(probe: LinearProbe, strength: float, features: Tensor) -> list[Outputs]:
    """Outputs for the features (E, H + F) of other rows by a linear model of all of the probe's rows."""
    weights = probe.make_initial_weights()
    probe.solve(weights, np.arange(len(probe)), strength)
    return list(probe.predict(weights, features).numpy())


@torch.no_grad()
def _predict_from_features(model: TaskModel, features: Tensor) -> list[Outputs]:
    """Outputs of the model's head for features (E, H + F)."""
    head = model.head
    assert isinstance(head, ClassifierHead)
    weight, bias = head.out.weight.float().cpu(), head.out.bias.float().cpu()
    return list(head.to_label_units(features @ weight.T + bias).numpy())


def _boost_by_folds(task: TextTask, train: EncodedExamples, folds: Ints) -> list[Outputs] | None:
    """Outputs by row of gradient boosting on the columns of the other folds; None if too slow."""
    fold_ids = sorted(set(folds.tolist()))
    rounds = boosted_rounds(max(len(task.labels), 1), len(fold_ids))
    if not rounds:
        return None
    by_row: list[Outputs] = [np.empty(0, np.float32)] * len(train)
    for fold in fold_ids:
        held_out = np.flatnonzero(folds == fold)
        others = train.some(np.flatnonzero(folds != fold))
        outputs = _boost_columns(task, others, train.some(held_out), rounds)
        for row, output in zip(held_out.tolist(), outputs, strict=True):
            by_row[row] = output
    return by_row


def _boost_columns(task: TextTask, train: EncodedExamples, dev: EncodedExamples, rounds: int) -> Float32s:
    """Outputs (E, C) for dev of gradient boosting on train's columns, in the unit of a head's outputs."""
    train_features, dev_features = _column_features(train), _column_features(dev)
    gold = [example.target for example in train.encoded]
    if not task.labels:
        return boosted_numbers(train_features, gold, dev_features, rounds)
    if np.ndim(gold[0]):  # a vector that says which of several labels
        return boosted_labels(train_features, np.stack(gold), dev_features, rounds)
    return boosted_classes(train_features, gold, dev_features, len(task.labels), rounds)


def _column_features(examples: EncodedExamples) -> Float32s:
    """The features (E, F) of the examples' columns."""
    return np.stack([example.columns for example in examples.encoded if example.columns is not None])


def _sample_rows(count: int) -> Ints:
    """All of `count` rows, or at most `_MOST_ROWS` of them, drawn at random, always the same, in order."""
    if count <= _MOST_ROWS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _MOST_ROWS, replace=False))
