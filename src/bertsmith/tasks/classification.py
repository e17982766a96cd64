"""One class for each text or pair of texts: [CLS] → pooler → dropout → dense → softmax (Devlin et al. 2019,
section 4.1 and figure 4 a, b).

E examples, C classes.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator
from torch import Tensor, nn

from bertsmith.data.batch import to_device
from bertsmith.errors import InputError
from bertsmith.metrics import scores
from bertsmith.metrics.baselines import majority_class, tfidf_classes
from bertsmith.metrics.thresholds import chow_threshold, threshold_for_coverage
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, class_errors, without_temperature
from bertsmith.tasks.examples.calibrated_task import CalibratedTask
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.text_settings import MixedSettings
from bertsmith.tasks.examples.text_task import TextExample, as_text_or_pair
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.losses.distillation import ClassLoss, DistillationLoss
from bertsmith.tasks.task import AnswerNumber, Head, Metrics, Outputs, Prediction, TaskSettings, some_of
from bertsmith.text.labelled.label_names import (
    are_multi_hot,
    are_scores,
    find_joined_labels,
    find_stand_ins,
    format_counts,
    has_fraction,
)

_MOST_SCORES = 20  # different numbers with fractions that may still be classes
_Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ClassificationSettings(MixedSettings):
    """Settings of classification.

    `class_weights`: "auto" weighs each class by the inverse of its frequency (mean 1); or a weight for each
    label. When to abstain from an answer: `coverage` is the share of texts to be answered, those with the
    highest confidence. Or `error_cost` and `abstain_cost`, in any unit: an answer is given if its expected
    cost of an error is at most that of leaving the text to someone else.
    """

    of_model: ClassVar[frozenset[str]] = MixedSettings.of_model | {
        "class_weights",
        "coverage",
        "error_cost",
        "abstain_cost",
    }
    class_weights: Literal["none", "auto"] | dict[str, _Weight] = "none"
    """`auto`, or a weight per label."""
    coverage: float | None = Field(None, gt=0, le=1)
    """Share of dev to be answered."""
    error_cost: float | None = Field(None, gt=0, allow_inf_nan=False)
    """What a wrong answer costs."""
    abstain_cost: float | None = Field(None, ge=0, allow_inf_nan=False)
    """What no answer costs."""

    @model_validator(mode="after")
    def _require_one_rule(self) -> Self:
        costs = self.error_cost is not None, self.abstain_cost is not None
        if costs[0] != costs[1] or (all(costs) and self.coverage is not None):
            raise ValueError("expected coverage, or error_cost and abstain_cost together")
        return self

    @property
    def abstains(self) -> bool:
        """Whether there is a rule for leaving texts to someone else."""
        return self.coverage is not None or self.error_cost is not None

    def threshold(self, confidence: npt.ArrayLike) -> float:
        """The lowest confidence that is answered, given dev's (E,). Without a rule every text is answered.

        Costs go through Chow's rule, which takes confidence for a probability: it is temperature-scaled
        before.
        """
        if self.coverage is not None:
            return threshold_for_coverage(confidence, self.coverage)
        if self.error_cost is not None and self.abstain_cost is not None:
            return chow_threshold(self.error_cost, self.abstain_cost)
        return 0.0


class Classification(CalibratedTask):
    """One class for each text or pair, out of classes that exclude each other."""

    name = "classification"
    main_metric = "accuracy"
    activation = "softmax"
    decided = ("label",)
    relevance = "label"
    learns_unlabelled = True
    is_linear = True
    answers_are_labels = True
    has_probabilities = True
    Settings: ClassVar[type[TaskSettings]] = ClassificationSettings
    settings: ClassificationSettings
    _weights: tuple[float, ...] | None = None

    @property
    def teachings(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.settings.linear_pooling is None else ("contrastive", "cloze")

    @property
    def learns_names(self) -> bool:
        """Only beside single texts, without other columns."""
        return not self.features and not self.reads_pairs

    @property
    def fits_static_table(self) -> bool:
        """Only for single texts, and not for a subclass."""
        return type(self) is Classification and self.settings.text_pair is None

    def as_target(self, value: Any, where: str) -> str:
        return self.as_own_label(value, where)

    def stand_ins(self, labels: Collection[str]) -> Collection[str]:
        return find_stand_ins(labels, self.labels)

    def fit(self, train: Sequence[TextExample]) -> None:
        """The labels that occur in `train`: numbers sorted by value, then others by name."""
        counts = Counter(example.label for example in train)
        if len(counts) < 2:
            only = next(iter(counts))
            raise InputError(
                f"Every one of the {len(train):,} training texts has the label {only!r}, from "
                f"{train[0].where} on: there is nothing to tell apart. Is --label the right column?"
            )
        scores = [label for label in counts if has_fraction(label)]
        if len(scores) > _MOST_SCORES and 2 * len(scores) > len(counts):
            raise InputError(
                f"The labels of the {len(train):,} training texts are {len(counts):,} different numbers "
                f"such as {scores[0]}, from {train[0].where} on: each would be a class of its own. Train "
                "regression instead; or, if they are names, put a letter before each."
            )
        self.labels = tuple(sorted(counts, key=label_order))
        self._weights = self._class_weights(counts)
        self.fit_columns(train)

    def know_labelled(self, labelled: Sequence[TextExample]) -> None:
        counts = Counter(example.label for example in labelled)
        if (weights := self._class_weights(counts)) is not None:
            # of mean 1 over the rows: a teacher's loss, which has no weights, stands beside theirs
            mean = sum(counts[label] * weights[self.label_ids[label]] for label in counts) / counts.total()
            self._weights = tuple(weight / mean for weight in weights)

    def check(self, examples: Sequence[TextExample]) -> None:
        for example in examples:
            self.require_known(example.label, example.where)

    def labels_of(self, example: TextExample) -> tuple[str, ...]:
        return (example.label,)

    def label_warnings(self, counts: Mapping[str, int]) -> list[str]:
        """Warns of labels that look like several labels in one, multi-hot digits, or scores."""
        shown = format_counts(counts, [*counts][:1])
        several = [label for separator in "|;," for label in find_joined_labels(counts, separator)]
        if several:
            return [
                f"labels such as {format_counts(counts, several[:1])} are others joined, and each is learned "
                "as a class of its own: several labels a text are for multi-label"
            ]
        if are_multi_hot(counts):
            return [
                f"labels such as {shown} look like a 0 or 1 for each of several labels, and are learned as "
                "classes of their own: multi-label reads them, with labels=NAME,NAME,…"
            ]
        if are_scores(counts):
            return [
                f"the {len(counts):,} labels are numbers with fractions, each learned as a class of its own: "
                "regression learns which is more"
            ]
        return []

    def target(self, label: str) -> int:
        return self.label_ids[label]

    def head(self, config: BertConfig) -> Head:
        return PooledHead(config, len(self.labels), self.settings.linear_pooling, self.column_width)

    def loss(self, outputs: Tensor, targets: Sequence[int]) -> Tensor:
        """Summed cross-entropy of logits (E, C), weighted by class if the settings say so."""
        device = outputs.device
        weights = None if self._weights is None else to_device(np.array(self._weights, np.float32), device)
        gold = to_device(np.array(targets, np.int64), device)
        return nn.functional.cross_entropy(outputs.float(), gold, weights, reduction="sum")

    def count(self, targets: Sequence[int]) -> float:
        """The sum of the examples' weights, so that the loss is their weighted mean."""
        return len(targets) if self._weights is None else sum(self._weights[target] for target in targets)

    def threshold(self, confidence: npt.ArrayLike) -> float:
        """The lowest confidence (E,) that is answered, by the rule of the settings."""
        return self.settings.threshold(confidence)

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return ClassLoss(temperature)

    def answer_of(self, probabilities: Sequence[float]) -> Outputs:
        """Log-probabilities (C,) of the given probabilities."""
        shares = np.array(probabilities, np.float64)
        return np.asarray(np.log(shares / shares.sum()), np.float32)

    def answer_number(
        self, example: TextExample, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """The calibrated probability of a class."""
        number = self.label_number(outputs[0], target)
        return self.labels[number], lambda logits: (logits / self.temperature).softmax(1)[:, number]

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with label, its calibrated probability, the probabilities of all labels, and whether to
        abstain.
        """
        return [self._prediction(row) for row in self.label_probabilities(np.stack(outputs))]

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Accuracy, macro F1 and Matthews' correlation; for two classes also the F1 of the second."""
        gold = np.array([self.target(example.label) for example in examples])
        predicted = np.array([self.target(prediction["label"]) for prediction in predictions])
        return scores.classification(gold, predicted, self.labels)

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """The confusion matrix, figures by class, and confidence with and without the temperature."""
        probabilities = np.array([list(prediction["probabilities"].values()) for prediction in predictions])
        return class_errors(
            self.labels,
            [example.label for example in examples],
            [prediction["label"] for prediction in predictions],
            [prediction["confidence"] for prediction in predictions],
            without_temperature(probabilities, self.temperature).max(axis=1) if self.confidence else None,
        )

    def baselines(
        self, train: Sequence[TextExample], dev: Sequence[TextExample]
    ) -> dict[str, list[Prediction]]:
        """The most frequent class, and logistic regression over TF-IDF."""
        gold = [self.target(example.label) for example in train]
        texts = [as_text_or_pair(example) for example in train]
        baselines = (
            majority_class(gold, len(dev)),
            tfidf_classes(texts, gold, [as_text_or_pair(example) for example in dev]),
        )
        return {
            baseline.name: [{"label": self.labels[index]} for index in baseline.predictions]
            for baseline in baselines
        }

    def _prediction(self, probabilities: npt.NDArray[np.float64]) -> Prediction:
        best = int(probabilities.argmax())
        prediction: dict[str, Any] = {
            "label": self.labels[best],
            "confidence": round(float(probabilities[best]), 6),
            "probabilities": dict(zip(self.labels, np.round(probabilities, 6).tolist(), strict=True)),
        }
        if self.confidence is not None and self.settings.abstains:
            prediction["abstain"] = bool(probabilities[best] < self.confidence.threshold)
        return prediction

    def _class_weights(self, counts: Counter[str]) -> tuple[float, ...] | None:
        weights = self.settings.class_weights
        if weights == "none":
            return None
        if weights == "auto":
            mean = counts.total() / len(counts)
            return tuple(mean / max(counts[label], 1) for label in self.labels)
        if weights.keys() != set(self.labels):
            raise InputError(
                f"class_weights has weights for {some_of(sorted(weights))}, but the labels are "
                f"{some_of(self.labels)}. Give one for each."
            )
        return tuple(weights[label] for label in self.labels)


def label_order(label: str) -> tuple[int, float, str]:
    """Sorts numbers before words, and numbers by value: 2 before 10."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    return (1, 0.0, label) if math.isnan(number) else (0, number, label)  # "nan" has no place among numbers
