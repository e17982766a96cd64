"""What does the text add to the columns beside it, and what do they add to the text?

Three linear models learn from the same rows and are judged by the same others: of the frozen encoder's
vectors, of the columns, and of both; a small gradient boosting of the columns besides. Then each column is
shuffled among the rows judged (permutation importance: Breiman 2001, section 10): what the score loses is
what that column was worth to the model.

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
from bertsmith.tasks.heads.linear_start import LinearProbe, features_of
from bertsmith.tasks.task import Outputs, Prediction
from bertsmith.tasks.task_model import TaskModel
from bertsmith.training.finetuning.choosing import main_score, measure_gain

TEXT, COLUMNS, BOOSTED, BOTH = "text alone", "columns alone", "columns alone, gradient boosting", "both"
THE_TEXT = "the text"  # beside the columns' names
_SHUFFLES = 5
_MOST_ROWS = 2000  # judged: more move the figures less than their errors
_SURE = 1.96  # of a normal distribution, 95 %


@dataclass(frozen=True)
class ColumnScore:
    """The main metric of what learned from `name`, and its standard error, None where all rows agree."""

    name: str
    score: float
    error: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of 95 %."""
        if self.error is None:
            return None
        return self.score - _SURE * self.error, min(self.score + _SURE * self.error, 1.0)


@dataclass(frozen=True)
class Gain:
    """By how much the main metric is higher, and the standard error of this difference."""

    gain: float
    error: float


@dataclass(frozen=True)
class Worth:
    """What the main metric loses when a column, or the text, is shuffled among the rows. `kind` and `showed`
    say what the training rows showed of a column.
    """

    name: str
    kind: str
    showed: str
    loss: float
    error: float


@dataclass(frozen=True)
class ColumnStudy:
    """On `rows` rows of `judge`. `text_adds` to the better of the models of columns alone, `columns_add` to
    the text; `worths` are those of `model`, the text first.
    """

    judge: str
    rows: int
    reached: tuple[ColumnScore, ...]
    text_adds: Gain
    columns_add: Gain
    model: str
    worths: tuple[Worth, ...]

    def as_sentence(self, metric: str) -> str:
        """'The text adds +0.45 ± 0.02 accuracy to the columns, the columns +0.47 ± 0.02 to the text.'"""
        text, columns = self.text_adds, self.columns_add
        return (
            f"The text adds {text.gain:+.4f} ± {text.error:.4f} {metric} to the columns, the columns "
            f"{columns.gain:+.4f} ± {columns.error:.4f} to the text."
        )


def study_by_folds(
    task: TextTask, probe: LinearProbe, strength: float, train: EncodedExamples, folds: Ints, judge: str
) -> ColumnStudy:
    """Where the rows judge in turn, each by models of the other folds."""
    rows = _sample_rows(len(train))
    alone = {TEXT: probe.without(columns=True), COLUMNS: probe.without(text=True)}
    outputs = {name: each.judge(folds, each.best().strength) for name, each in alone.items()}
    boosted = _boost_by_folds(task, train, folds)
    if boosted is not None:
        outputs[BOOSTED] = boosted
    learned, draw = list(probe.learned(folds, strength)), np.random.default_rng(0)

    def shuffled(place: slice | None) -> list[Outputs]:
        found: list[Outputs] = [np.empty(0, np.float32)] * len(train)
        for held, weights in learned:
            features = probe.features(held)
            if place is not None:
                features = _shuffle(features, place, draw)
            for row, each in zip(held.tolist(), probe.answers(weights, features).numpy(), strict=True):
                found[row] = each
        return found

    def repeated(place: slice) -> Iterator[list[Outputs]]:
        for _ in range(_SHUFFLES):
            found = shuffled(place)
            yield [found[row] for row in rows.tolist()]

    outputs[BOTH] = shuffled(None)
    some = {name: [each[row] for row in rows.tolist()] for name, each in outputs.items()}
    places = _feature_slices(task, int(probe.features(rows[:1]).shape[1]))
    worths = {name: repeated(place) for name, place in places.items()}
    return _build_study(task, train.some(rows), some, some[BOTH], worths, judge, "linear models of both")


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
    """Where other rows judge: `start` has the features that the probe has, `model` is the trained one."""
    dev = dev.some(_sample_rows(len(dev)))
    features = torch.stack(features_of(start, dev.encoded))
    width = features.shape[1] - task.column_width
    text, columns = features.clone(), features.clone()
    text[:, width:], columns[:, :width] = 0, 0
    alone = {TEXT: (probe.without(columns=True), text), COLUMNS: (probe.without(text=True), columns)}
    outputs = {
        name: _fit_and_predict(each, each.best().strength, its_features)
        for name, (each, its_features) in alone.items()
    }
    rounds = boosted_rounds(max(len(task.labels), 1), 1)
    if rounds:
        outputs[BOOSTED] = list(_boost_columns(task, train, dev, rounds))
    outputs[BOTH] = _fit_and_predict(probe, strength, features)
    final, draw = torch.stack(features_of(model, dev.encoded)), np.random.default_rng(0)

    def repeated(place: slice) -> Iterator[list[Outputs]]:
        for _ in range(_SHUFFLES):
            yield _predict_from_features(model, _shuffle(final, place, draw))

    worths = {name: repeated(place) for name, place in _feature_slices(task, features.shape[1]).items()}
    return _build_study(task, dev, outputs, _predict_from_features(model, final), worths, judge, "the model")


def _build_study(
    task: TextTask,
    judged: EncodedExamples,
    outputs: Mapping[str, Sequence[Outputs]],
    whole: Sequence[Outputs],
    shuffled: Mapping[str, Iterator[list[Outputs]]],
    judge: str,
    model: str,
) -> ColumnStudy:
    """From what each model says of the rows judged, and what one says of them unshuffled and shuffled."""
    task = copy(task)
    task.uncalibrate()

    def predictions(of: Sequence[Outputs]) -> list[Prediction]:
        return task.decode(of, judged.examples, judged.encoded)

    said = {name: predictions(each) for name, each in outputs.items()}
    reached = []
    for name, each in said.items():
        evaluation = Evaluation(task.metrics(each, judged.examples), {}, each, judged)
        answers = task.error_analysis(each, judged.examples).answers
        error = standard_error(task, evaluation, answers)
        reached.append(ColumnScore(name, main_score(task, each, judged.examples), error))
    columns = max((each for each in reached if each.name in (COLUMNS, BOOSTED)), key=lambda each: each.score)
    usual = predictions(whole)
    assert task.columns is not None
    showed = {each.name: (each.kind, each.in_words()) for each in task.columns.columns}
    worths = [
        Worth(
            name,
            *showed.get(name, ("", "")),
            *_measure_loss(task, usual, map(predictions, each), judged.examples),
        )
        for name, each in shuffled.items()
    ]
    return ColumnStudy(
        judge,
        len(judged),
        tuple(reached),
        _compare(task, said[BOTH], said[columns.name], judged.examples),
        _compare(task, said[BOTH], said[TEXT], judged.examples),
        model,
        (worths[0], *sorted(worths[1:], key=lambda each: -each.loss)),
    )


def _compare(
    task: TextTask, ours: list[Prediction], theirs: list[Prediction], examples: Sequence[Any]
) -> Gain:
    """Where the metric is the mean of the scores of rows that stand alone, the error is that of the mean;
    else by bootstrap.
    """
    each = [_row_scores(task, said, examples) for said in (ours, theirs)]
    if each[0] is None or each[1] is None or len(examples) < 2 or names_groups(task):
        _, gain, error = measure_gain(task, ours, theirs, examples)
        return Gain(gain, error)
    differences = each[0] - each[1]
    return Gain(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences))))


def _row_scores(task: TextTask, said: list[Prediction], examples: Sequence[Any]) -> Floats | None:
    """(E,) of which the metric is the mean; None where it isn't."""
    scores = np.array([answer.score for answer in task.error_analysis(said, examples).answers])
    is_mean = len(scores) == len(examples) and np.isclose(scores.mean(), main_score(task, said, examples))
    return scores if is_mean else None


def _measure_loss(
    task: TextTask,
    usual: list[Prediction],
    shuffled: Iterator[list[Prediction]],
    examples: Sequence[Any],
) -> tuple[float, float]:
    """The mean over shuffles, and its standard error: that of the rows, and what is left of the shuffles'."""
    first, *others = shuffled
    found, reached = _compare(task, usual, first, examples), main_score(task, usual, examples)
    losses = [found.gain, *(reached - main_score(task, said, examples) for said in others)]
    error = np.hypot(found.error, np.std(losses, ddof=1) / np.sqrt(len(losses)))
    return float(np.mean(losses)), float(error)


def _feature_slices(task: TextTask, width: int) -> dict[str, slice]:
    """Where in all features the text is, and each column."""
    columns = task.columns
    assert isinstance(columns, FittedColumns)
    begin = width - columns.width
    found = {THE_TEXT: slice(0, begin)}
    for name, place in zip(columns.names, columns.slices, strict=True):
        found[name] = slice(begin + place.start, begin + place.stop)
    return found


def _shuffle(features: Tensor, place: slice, draw: np.random.Generator) -> Tensor:
    found = features.clone()
    found[:, place] = features[torch.from_numpy(draw.permutation(len(features))), place]
    return found


def _fit_and_predict(probe: LinearProbe, strength: float, features: Tensor) -> list[Outputs]:
    """What is learned from all of the probe's rows says of other rows' features."""
    weights = probe.begin()
    probe.solve(weights, np.arange(len(probe)), strength)
    return list(probe.answers(weights, features).numpy())


@torch.no_grad()
def _predict_from_features(model: TaskModel, features: Tensor) -> list[Outputs]:
    head = model.head
    assert isinstance(head, ClassifierHead)
    weight, bias = head.out.weight.float().cpu(), head.out.bias.float().cpu()
    return list(head.in_units(features @ weight.T + bias).numpy())


def _boost_by_folds(task: TextTask, train: EncodedExamples, folds: Ints) -> list[Outputs] | None:
    numbers = sorted(set(folds.tolist()))
    rounds = boosted_rounds(max(len(task.labels), 1), len(numbers))
    if not rounds:
        return None
    found: list[Outputs] = [np.empty(0, np.float32)] * len(train)
    for fold in numbers:
        held = np.flatnonzero(folds == fold)
        others = train.some(np.flatnonzero(folds != fold))
        for row, each in zip(
            held.tolist(), _boost_columns(task, others, train.some(held), rounds), strict=True
        ):
            found[row] = each
    return found


def _boost_columns(task: TextTask, train: EncodedExamples, dev: EncodedExamples, rounds: int) -> Float32s:
    """(E, C) of dev, in the shape and the unit of a head's outputs."""
    learned, asked = _column_features(train), _column_features(dev)
    gold = [each.target for each in train.encoded]
    if not task.labels:
        return boosted_numbers(learned, gold, asked, rounds)
    if np.ndim(gold[0]):  # which of several labels
        return boosted_labels(learned, np.stack(gold), asked, rounds)
    return boosted_classes(learned, gold, asked, len(task.labels), rounds)


def _column_features(examples: EncodedExamples) -> Float32s:
    """(E, F)."""
    return np.stack([each.columns for each in examples.encoded if each.columns is not None])


def _sample_rows(count: int) -> Ints:
    if count <= _MOST_ROWS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _MOST_ROWS, replace=False))
