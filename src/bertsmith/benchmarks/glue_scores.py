"""GLUE's score of each task (Wang et al. 2019, table 1), as what the weights are chosen by.

Where a task has two metrics its score is their mean, as on GLUE's server.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertsmith.benchmarks.benchmark_task import SCORE, Figures
from bertsmith.errors import InputError
from bertsmith.metrics import scores
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.task import Metrics, Prediction

MATTHEWS, ACCURACY, F1 = "matthews", "accuracy", "f1"
PEARSON, SPEARMAN = "pearson", "spearman"


def class_figures(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], measures: Sequence[str]
) -> Figures:
    """`score` and the measures of labels (E,), all among `labels`; F1 is that of the second label."""
    number = {label: place for place, label in enumerate(labels)}
    found = scores.classification(
        np.array([number[label] for label in gold]), np.array([number[label] for label in predicted]), labels
    )
    return _scored(found, measures)


def number_figures(gold: Sequence[float], predicted: Sequence[float], measures: Sequence[str]) -> Figures:
    """`score` and the measures of numbers (E,)."""
    return _scored(scores.regression(gold, predicted), measures)


def _scored(found: Mapping[str, float], measures: Sequence[str]) -> Figures:
    if missing := [name for name in measures if name not in found]:
        raise InputError(f"{', '.join(missing)} can't be measured here. There are: {', '.join(found)}.")
    kept = {name: found[name] for name in measures}
    return {SCORE: float(np.mean([*kept.values()])), **kept}


class Matthews(Classification):
    """CoLA and the diagnostics: Matthews' correlation."""

    main_metric = MATTHEWS


class F1AndAccuracy(Classification):
    """MRPC and QQP: the mean of both."""

    main_metric = "f1_and_accuracy"

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Those of a classification of two classes, and the mean of F1 and accuracy."""
        found = super().metrics(predictions, examples)
        return {self.main_metric: (found[F1] + found[ACCURACY]) / 2, **found}


class PearsonAndSpearman(Regression):
    """STS-B: the mean of both."""

    main_metric = "pearson_and_spearman"

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Those of a regression, and the mean of both correlations."""
        found = super().metrics(predictions, examples)
        return {self.main_metric: (found[PEARSON] + found[SPEARMAN]) / 2, **found}


def head_of(measures: Sequence[str], number: bool) -> str:
    """The task that chooses by the mean of these measures, as `finetune` is told it."""
    if number:
        found: type[Any] = PearsonAndSpearman
    elif tuple(measures) == (ACCURACY,):
        return Classification.name
    else:
        found = Matthews if tuple(measures) == (MATTHEWS,) else F1AndAccuracy
    return f"{found.__module__}:{found.__name__}"
