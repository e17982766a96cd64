"""How far a score would move on other examples of the same kind."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertsmith.arrays import Floats, Ints
from bertsmith.metrics.scores import standard_errors
from bertsmith.tasks.evaluating.error_analysis import Answer
from bertsmith.tasks.evaluating.evaluation import Evaluation
from bertsmith.tasks.examples.held_out import names_groups
from bertsmith.tasks.task import Task

_SCORED_AGAIN = 100_000  # examples that resamples may score: seconds, whatever the size of the file


def standard_error(task: Task[Any], evaluation: Evaluation, answers: Sequence[Answer]) -> float | None:
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
