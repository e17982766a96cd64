"""The score of each task of GLUE and SuperGLUE (Wang et al. 2019, table 1 of both), as what the weights are
chosen by.

Where a task has two metrics its score is their mean, as on their servers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertsmith.benchmarks.benchmark import SCORE, Figures
from bertsmith.metrics import scores
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.reranking import Reranking
from bertsmith.tasks.task import Metrics, Prediction

MATTHEWS, ACCURACY, F1 = "matthews", "accuracy", "f1"
MACRO_F1, EXACT_MATCH = "macro_f1", "exact_match"
PEARSON, SPEARMAN = "pearson", "spearman"


def class_scores(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Every metric of labels (E,), all among `labels`; F1 is that of the second label."""
    number = {label: place for place, label in enumerate(labels)}
    return scores.classification(
        np.array([number[label] for label in gold]), np.array([number[label] for label in predicted]), labels
    )


def scored(found: Mapping[str, float], measures: Sequence[str]) -> Figures:
    """`score`, the mean of the measures, and each."""
    kept = {name: found[name] for name in measures}
    return {SCORE: float(np.mean([*kept.values()])), **kept}


def in_words(measures: Sequence[str]) -> str:
    """The name of a task's score in tables: "f1 and accuracy, their mean"."""
    return " and ".join(measures).replace("_", " ") + (", their mean" if len(measures) > 1 else "")


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
    """STS-B's score: the mean of both correlations."""

    main_metric = "pearson_and_spearman"

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """The metrics of a regression, and the mean of both correlations."""
        found = super().metrics(predictions, examples)
        return {self.main_metric: (found[PEARSON] + found[SPEARMAN]) / 2, **found}


class MacroF1AndAccuracy(Classification):
    """CB: the mean of both; macro-F1 is the mean over the three classes."""

    main_metric = "macro_f1_and_accuracy"

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Those of a classification, and the mean of macro-F1 and accuracy."""
        found = super().metrics(predictions, examples)
        return {self.main_metric: (found[MACRO_F1] + found[ACCURACY]) / 2, **found}


class F1Alone(Classification):
    """MultiRC: F1 over all answers. Which of them are of one question, pairs don't say."""

    main_metric = F1


class Alternatives(Reranking):
    """COPA: the share of questions whose right alternative is scored highest; of equal scores each counts by
    chance.
    """

    main_metric = ACCURACY

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """The metrics of re-ranking, and the accuracy of the best-scored alternative of each question."""
        questions: dict[str, list[tuple[float, bool]]] = {}
        for prediction, example in zip(predictions, examples, strict=True):
            questions.setdefault(example.text, []).append((prediction["score"], example.label > 0))
        shares = []
        for alternatives in questions.values():
            highest = max(score for score, _ in alternatives)
            right = [is_right for score, is_right in alternatives if score == highest]
            shares.append(sum(right) / len(right))
        return {self.main_metric: float(np.mean(shares)), **super().metrics(predictions, examples)}


_CHOSEN_BY: Mapping[tuple[str, ...], type[Any]] = {
    (MATTHEWS,): Matthews,
    (F1, ACCURACY): F1AndAccuracy,
    (PEARSON, SPEARMAN): PearsonAndSpearman,
    (MACRO_F1, ACCURACY): MacroF1AndAccuracy,
    (F1, EXACT_MATCH): F1Alone,
}


def head_of(measures: Sequence[str]) -> str:
    """The task that chooses by these measures, as `finetune` is told it."""
    found = _CHOSEN_BY.get(tuple(measures))
    return Classification.name if found is None else f"{found.__module__}:{found.__name__}"
