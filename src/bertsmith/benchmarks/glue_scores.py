"""The scores of the tasks of GLUE and SuperGLUE (Wang et al. 2019, table 1 of both), and task classes that
choose the best weights by them.

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
    """All metrics of predicted labels (E,); F1 is that of the second of `labels`."""
    number = {label: index for index, label in enumerate(labels)}
    return scores.classification(
        np.array([number[label] for label in gold]), np.array([number[label] for label in predicted]), labels
    )


def make_figures(metrics: Mapping[str, float], measures: Sequence[str]) -> Figures:
    """A task's figures: `score`, the mean of its measures, and each measure."""
    values = {name: metrics[name] for name in measures}
    return {SCORE: float(np.mean([*values.values()])), **values}


def format_measures(measures: Sequence[str]) -> str:
    """The name of a task's score in tables: "f1 and accuracy, their mean"."""
    return " and ".join(measures).replace("_", " ") + (", their mean" if len(measures) > 1 else "")


class Matthews(Classification):
    """Classification whose weights are chosen by Matthews' correlation: CoLA and the diagnostics."""

    main_metric = MATTHEWS


class F1AndAccuracy(Classification):
    """Classification whose weights are chosen by the mean of F1 and accuracy: MRPC and QQP."""

    main_metric = "f1_and_accuracy"

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """The metrics of a classification with two classes, and the mean of F1 and accuracy."""
        metrics = super().metrics(predictions, examples)
        return {self.main_metric: (metrics[F1] + metrics[ACCURACY]) / 2, **metrics}


class PearsonAndSpearman(Regression):
    """Regression whose weights are chosen by the mean of both correlations: STS-B."""

    main_metric = "pearson_and_spearman"

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """The metrics of a regression, and the mean of both correlations."""
        metrics = super().metrics(predictions, examples)
        return {self.main_metric: (metrics[PEARSON] + metrics[SPEARMAN]) / 2, **metrics}


class MacroF1AndAccuracy(Classification):
    """Classification whose weights are chosen by the mean of macro-F1, over all classes, and accuracy: CB."""

    main_metric = "macro_f1_and_accuracy"

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """The metrics of a classification, and the mean of macro-F1 and accuracy."""
        metrics = super().metrics(predictions, examples)
        return {self.main_metric: (metrics[MACRO_F1] + metrics[ACCURACY]) / 2, **metrics}


class F1Alone(Classification):
    """Classification whose weights are chosen by F1 over all answers: MultiRC, where pairs don't tell which
    answers belong to one question.
    """

    main_metric = F1


class Alternatives(Reranking):
    """Re-ranking whose weights are chosen by the share of questions whose right alternative has the highest
    score: COPA. Equal scores count as a random choice among them.
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


def choose_head(measures: Sequence[str]) -> str:
    """The name in `finetune` of the task whose weights are chosen by these measures."""
    task_class = _CHOSEN_BY.get(tuple(measures))
    return Classification.name if task_class is None else f"{task_class.__module__}:{task_class.__name__}"
