"""A model's figures on labelled examples, beside those of what it has to beat, and how far they would move on
other examples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertsmith.arrays import Floats, Ints
from bertsmith.metrics.scores import standard_errors
from bertsmith.tasks.evaluating.error_analysis import ScoredPrediction
from bertsmith.tasks.examples.held_out import names_groups
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task

THE_MODEL = "the model"  # as tables call it, beside its baselines
_SCORED_AGAIN = 100_000  # examples that resamples may score: seconds, whatever the size of the file


@dataclass(frozen=True)
class Evaluation:
    """One file's figures: the model's, and each baseline's, the most frequent answer first. `data_warnings`
    are sentences on what the figures rest on, `remarks` say how the file was understood.
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
        """Figures of the model, then of each baseline."""
        return {THE_MODEL: self.model, **self.baselines}

    def best(self, metric: str) -> str:
        """Which of them is the best; the model, if it is best as figures are shown."""
        scores = {name: _as_shown(figures.get(metric, math.nan)) for name, figures in self.by_name.items()}
        return max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])

    def warnings(self, name: str, metric: str) -> list[str]:
        """Those of the data, and a sentence when the model does no better than the first baseline, which
        knows nothing, or worse than another one, as figures are shown; or when nothing can be better.
        """
        ours, scores = self.model[metric], {by: given.get(metric) for by, given in self.baselines.items()}
        simplest, simple = next(iter(scores.items()), ("", None))
        labels = [getattr(example, "label", None) for example in self.split.examples]
        says_nothing = len(labels) > 1 and labels[0] is not None and labels.count(labels[0]) == len(labels)
        if simple is not None and (says_nothing or is_always_right(self.baselines[simplest], metric)):
            return [
                *self.data_warnings,
                f"on {name} the baseline {simplest!r} has {metric} {simple:.4f}, the model {ours:.4f}: the "
                "rows have one answer only, and figures on them tell nothing",
            ]
        if simple is not None and ours <= simple + 1e-6:
            return [
                *self.data_warnings,
                f"on {name} the model's {metric} of {ours:.4f} is no better than the baseline "
                f"{simplest!r} ({simple:.4f}): it has learned nothing",
            ]
        beaten = [
            f"on {name} {by} has {metric} {score:.4f}, the model {ours:.4f}: on few rows the simpler one "
            "may be the better choice; an encoder that is trained may need more epochs, or a higher rate"
            for by, score in scores.items()
            if score is not None and _as_shown(score) > _as_shown(ours)
        ]
        return [*self.data_warnings, *beaten]


def _as_shown(score: float) -> float:
    """As tables and sentences have it: two scores that look alike there are told as equal."""
    return round(score, 4)


def is_always_right(baseline: Metrics, metric: str) -> bool:
    """Whether no score can be better than the baseline's, which says nothing of the model then. By accuracy
    too, for Matthews of rows of one answer is 0.
    """
    return any(math.isclose(baseline.get(name) or 0.0, 1) for name in (metric, "accuracy"))


def evaluate(
    task: Task[Any],
    outputs: Sequence[Outputs],
    train: Sequence[Any] | None,
    split: EncodedExamples,
    others: Mapping[str, list[Prediction]] | None = None,
) -> Evaluation:
    """The model's metrics and its baselines', which learn from `train`; None leaves out those that learn.
    `others` are predictions of more baselines by name.
    """
    predictions = task.decode(outputs, split.examples, split.encoded)
    possible = train is not None or not task.baselines_learn
    baselines = dict(task.baselines(train or (), split.examples) if possible else {}) | dict(others or {})
    return Evaluation(
        task.metrics(predictions, split.examples),
        {name: task.metrics(guessed, split.examples) for name, guessed in baselines.items()},
        predictions,
        split,
    )


def standard_error(
    task: Task[Any], evaluation: Evaluation, answers: Sequence[ScoredPrediction]
) -> float | None:
    """Of the main metric; None for a single example, and where no example differs from another: that the few
    rows there are agree says nothing about others. `answers` are those of the task's details.

    Where the metric is the mean of the answers' scores, or of those of rows that belong together (a query's
    candidates), the error of that mean; else by bootstrap, of 25 resamples for large files, which give it to
    a seventh of itself, to 200 for small ones. Where the file names the rows of one source (group=), each
    source counts once, whatever the metric.
    """
    if evaluation.rows < 2:
        return None
    resamples = min(max(_SCORED_AGAIN // evaluation.rows, 25), 200)
    if names_groups(task):
        return _error_over_groups(task, evaluation, resamples)
    for scores in (np.array([answer.score for answer in answers]), _scores_of_groups(task, evaluation)):
        if len(scores) > 1 and math.isclose(scores.mean(), evaluation.model[task.main_metric], abs_tol=1e-9):
            return float(scores.std(ddof=1) / math.sqrt(len(scores))) or None

    score = task.scorer(evaluation.predictions, evaluation.split.examples)

    def of_some(rows: Ints) -> dict[str, float]:
        return {"score": score(rows)}

    return standard_errors(of_some, evaluation.rows, resamples).get("score") or None


def score_of(task: Task[Any], evaluation: Evaluation, rows: Ints) -> float:
    """The main metric of some of the examples."""
    numbers = rows.tolist()
    predictions = [evaluation.predictions[number] for number in numbers]
    return task.metrics(predictions, [evaluation.split.examples[number] for number in numbers])[
        task.main_metric
    ]


def groups_of(task: Task[Any], examples: Sequence[Any]) -> list[Ints]:
    """The rows that belong together, group by group; each alone where the task has no rule for that."""
    if type(task).group_key is Task.group_key and not names_groups(task):
        return [np.array([row]) for row in range(len(examples))]
    found: dict[tuple[str, ...], list[int]] = {}
    for row, example in enumerate(examples):
        found.setdefault(tuple(task.group_key(example)), []).append(row)
    return [np.array(rows) for rows in found.values()]


def _error_over_groups(task: Task[Any], evaluation: Evaluation, most_parts: int) -> float | None:
    """By the jackknife (Tukey 1958): each group is left out in turn or, of many, a part of them, drawn by
    chance. A bootstrap would draw a query's candidates twice, which rank among each other.
    """
    groups = groups_of(task, evaluation.split.examples)
    order = np.random.default_rng(0).permutation(len(groups))
    score, scores = task.scorer(evaluation.predictions, evaluation.split.examples), list[float]()
    for part in np.array_split(order, min(len(groups), most_parts)):
        kept = np.setdiff1d(order, part).tolist()
        if kept:
            scores.append(score(np.concatenate([groups[number] for number in kept])))
    found = [each for each in scores if math.isfinite(each)]
    if len(found) < 2:
        return None
    return float(np.std(found) * math.sqrt(len(found) - 1)) or None


def _scores_of_groups(task: Task[Any], evaluation: Evaluation) -> Floats:
    """The main metric of each group that has one; none where rows stand alone."""
    groups = groups_of(task, evaluation.split.examples)
    if len(groups) == evaluation.rows:
        return np.zeros(0)
    scores: Floats = np.array([score_of(task, evaluation, rows) for rows in groups])
    measured: Floats = scores[~np.isnan(scores)]
    return measured
