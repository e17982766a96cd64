"""A model's metrics on labelled examples, beside its baselines', and their standard errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertsmith.arrays import Floats, Ints
from bertsmith.metrics.baselines import baseline_title
from bertsmith.metrics.scores import standard_errors
from bertsmith.tasks.evaluating.error_analysis import ScoredPrediction
from bertsmith.tasks.examples.held_out import names_groups
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task

THE_MODEL = "the model"  # its name in tables, beside its baselines
_SCORED_AGAIN = 100_000  # examples that all resamples may score: takes seconds for any size of file


@dataclass(frozen=True)
class Evaluation:
    """The metrics on one file: the model's, and each baseline's, the most frequent answer first.
    `data_warnings` are sentences on the reliability of the metrics; `remarks` say how the file was
    understood.
    """

    model: Metrics
    baselines: dict[str, Metrics]
    predictions: list[Prediction]
    split: EncodedExamples
    data_warnings: tuple[str, ...] = ()
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.split)

    @property
    def by_name(self) -> dict[str, Metrics]:
        """The metrics of the model, then of each baseline."""
        return {THE_MODEL: self.model, **self.baselines}

    def best(self, metric: str) -> list[str]:
        """The names of the best: several if they are equal at the precision that is shown."""
        scores = {
            name: _round_as_shown(metrics.get(metric, math.nan)) for name, metrics in self.by_name.items()
        }
        highest = max((score for score in scores.values() if not math.isnan(score)), default=math.nan)
        return [name for name, score in scores.items() if score == highest]

    def warnings(self, name: str, metric: str) -> list[str]:
        """The data's warnings, and a sentence if the model is no better than the first baseline, which knows
        nothing, or worse than another one at the precision that is shown; or if nothing can be better.
        """
        ours, scores = self.model[metric], {by: metrics.get(metric) for by, metrics in self.baselines.items()}
        simplest, simple = next(iter(scores.items()), ("", None))
        labels = [getattr(example, "label", None) for example in self.split.examples]
        says_nothing = len(labels) > 1 and labels[0] is not None and labels.count(labels[0]) == len(labels)
        if simple is not None and (says_nothing or is_always_right(self.baselines[simplest], metric)):
            return [
                *self.data_warnings,
                f"on {name} the baseline {baseline_title(simplest)!r} has {metric} {simple:.4f}, the model "
                f"{ours:.4f}: the rows have one answer only, and figures on them tell nothing",
            ]
        if simple is not None and ours <= simple + 1e-6:
            return [
                *self.data_warnings,
                f"on {name} the model's {metric} of {ours:.4f} is no better than the baseline "
                f"{baseline_title(simplest)!r} ({simple:.4f}): it has learned nothing",
            ]
        beaten = [
            f"on {name} {baseline_title(by)} has {metric} {score:.4f}, the model {ours:.4f}: on few rows the "
            "simpler one may be the better choice. If all of the encoder was trained, more epochs or a "
            "higher rate may help"
            for by, score in scores.items()
            if score is not None and _round_as_shown(score) > _round_as_shown(ours)
        ]
        return [*self.data_warnings, *beaten]


def _round_as_shown(score: float) -> float:
    """Rounds to the precision of tables and sentences, so that scores that look alike there count as
    equal.
    """
    return round(score, 4)


def is_always_right(baseline: Metrics, metric: str) -> bool:
    """Whether no score can be better than the baseline's, so that it tells nothing about the model. Accuracy
    counts too, because Matthews' correlation is 0 for rows of one answer.
    """
    return any(math.isclose(baseline.get(name) or 0.0, 1) for name in (metric, "accuracy"))


def evaluate(
    task: Task[Any],
    outputs: Sequence[Outputs],
    train: Sequence[Any] | None,
    split: EncodedExamples,
    others: Mapping[str, list[Prediction]] | None = None,
) -> Evaluation:
    """The metrics of the model and of its baselines, which learn from `train`; with None, baselines that
    learn are left out. `others` are predictions of further baselines by name.
    """
    predictions = task.decode(outputs, split.examples, split.encoded)
    has_baselines = train is not None or not task.baselines_learn
    baselines = dict(task.baselines(train or (), split.examples) if has_baselines else {}) | dict(
        others or {}
    )
    return Evaluation(
        task.metrics(predictions, split.examples),
        {name: task.metrics(predicted, split.examples) for name, predicted in baselines.items()},
        predictions,
        split,
    )


def standard_error(
    task: Task[Any], evaluation: Evaluation, answers: Sequence[ScoredPrediction]
) -> float | None:
    """The standard error of the main metric. None for a single example, and if no example differs from
    another, because agreement of a few rows says nothing about others. `answers` are those of the error
    analysis.

    If the metric is the mean of the answers' scores, or of the scores of groups (a query's candidates), it is
    the error of that mean. Otherwise a bootstrap estimates it, with 25 resamples for large files (accurate to
    a seventh) up to 200 for small ones. If the file names groups of rows (group=), each group counts once,
    whatever the metric.
    """
    if evaluation.rows < 2:
        return None
    resamples = min(max(_SCORED_AGAIN // evaluation.rows, 25), 200)
    if names_groups(task):
        return _jackknife_error(task, evaluation, resamples)
    for scores in (np.array([answer.score for answer in answers]), _score_groups(task, evaluation)):
        if len(scores) > 1 and math.isclose(scores.mean(), evaluation.model[task.main_metric], abs_tol=1e-9):
            return float(scores.std(ddof=1) / math.sqrt(len(scores))) or None

    score = task.scorer(evaluation.predictions, evaluation.split.examples)

    def of_some(rows: Ints) -> dict[str, float]:
        return {"score": score(rows)}

    return standard_errors(of_some, evaluation.rows, resamples).get("score") or None


def score_of(task: Task[Any], evaluation: Evaluation, rows: Ints) -> float:
    """The main metric of these examples."""
    numbers = rows.tolist()
    predictions = [evaluation.predictions[number] for number in numbers]
    return task.metrics(predictions, [evaluation.split.examples[number] for number in numbers])[
        task.main_metric
    ]


def groups_of(task: Task[Any], examples: Sequence[Any]) -> list[Ints]:
    """The rows of each group; each row is its own group if the task has no rule for groups."""
    if type(task).group_key is Task.group_key and not names_groups(task):
        return [np.array([row]) for row in range(len(examples))]
    rows_of_group: dict[tuple[str, ...], list[int]] = {}
    for row, example in enumerate(examples):
        rows_of_group.setdefault(tuple(task.group_key(example)), []).append(row)
    return [np.array(rows) for rows in rows_of_group.values()]


def _jackknife_error(task: Task[Any], evaluation: Evaluation, most_parts: int) -> float | None:
    """The jackknife (Tukey 1958): each group is left out in turn, or a random part of them if there are many.
    A bootstrap would draw a query's candidates twice, and rank them against each other.
    """
    groups = groups_of(task, evaluation.split.examples)
    order = np.random.default_rng(0).permutation(len(groups))
    score, scores = task.scorer(evaluation.predictions, evaluation.split.examples), list[float]()
    for part in np.array_split(order, min(len(groups), most_parts)):
        remaining = np.setdiff1d(order, part).tolist()
        if remaining:
            scores.append(score(np.concatenate([groups[number] for number in remaining])))
    finite = [one for one in scores if math.isfinite(one)]
    if len(finite) < 2:
        return None
    return float(np.std(finite) * math.sqrt(len(finite) - 1)) or None


def _score_groups(task: Task[Any], evaluation: Evaluation) -> Floats:
    """The main metric of each group that has one; empty if rows stand alone."""
    groups = groups_of(task, evaluation.split.examples)
    if len(groups) == evaluation.rows:
        return np.zeros(0)
    scores: Floats = np.array([score_of(task, evaluation, rows) for rows in groups])
    measured: Floats = scores[~np.isnan(scores)]
    return measured
