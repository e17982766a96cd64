"""Any number of labels for each text or pair: [CLS] → pooler → dropout → dense → a sigmoid and a threshold a
label.

E examples, C labels.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.data.batch import to_device
from bertsmith.errors import InputError
from bertsmith.metrics import scores
from bertsmith.metrics.baselines import majority_labels, tfidf_labels
from bertsmith.model.config import BertConfig
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis, label_set_errors
from bertsmith.tasks.examples.calibrated_task import CalibratedTask
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.text_settings import MixedSettings
from bertsmith.tasks.examples.text_task import TextExample, as_text_or_pair
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.losses.distillation import DistillationLoss, LabelLoss
from bertsmith.tasks.task import (
    UNBOUND,
    AnswerNumber,
    Bound,
    Head,
    Metrics,
    Outputs,
    Prediction,
    Task,
    TaskSettings,
    some_of,
)
from bertsmith.text.files.values import as_labels, is_multi_hot
from bertsmith.text.labelled.label_names import are_multi_hot, find_joined_labels, label_appearance
from bertsmith.validation import Listed

_OTHER_SEPARATORS = "|;"
_BETWEEN_LABELS = ",|;/\t "  # separators that may join labels which training has one by one


class MultiLabelSettings(MixedSettings):
    """Settings of multi-label classification. `separator` divides the labels in one cell of a table; JSON and
    Parquet may hold lists. `labels` names all labels: the columns of a table that has a column of 0 and 1 for
    each label, or the positions of multi-hot lists.
    """

    separator: str = Field(",", min_length=1)
    """Stands between labels in one cell."""
    labels: Listed[str] = ()
    """Names of all labels: a column for each, or the places of multi-hot lists."""


class MultiLabel(CalibratedTask):
    """Labels that don't exclude each other."""

    name = "multi-label"
    activation = "sigmoid"
    decided = ("labels",)
    is_linear = True
    answers_are_labels = True
    has_probabilities = True
    main_metric = "micro_f1"
    Settings: ClassVar[type[TaskSettings]] = MultiLabelSettings
    may_be_unlabelled = True
    settings: MultiLabelSettings
    log_odds: Floats | None = None  # (C,) of each label's frequency in the training texts

    def as_target(self, value: Any, where: str) -> tuple[str, ...]:
        labels = as_labels(value, where, self.settings.separator, self.settings.labels)
        for label in labels if self.settings.labels else ():
            if label not in self.settings.labels:
                raise InputError(
                    f"{where}: the label {label!r} is none of {some_of(self.settings.labels)}, which labels= "
                    "names. Mend the row or the setting."
                )
        return tuple(
            label if label in self.label_ids else self._by_category.get(label, label) for label in labels
        )

    def label_columns(self, path: Path | str) -> Sequence[str]:
        labels = self.settings.labels
        if not labels or self.settings.label is not None or not self.settings.header or str(path) == "-":
            return ()
        return labels if set(labels) <= {*self._read_names(path)} else ()

    def fit(self, train: Sequence[TextExample]) -> None:
        self._require_names(train)
        self.labels = tuple(sorted({label for example in train for label in example.label}))
        if not self.labels:
            raise InputError(
                f"None of the {len(train):,} training texts has a label, from {train[0].where} on. "
                "Is --label the right column?"
            )
        counts = Counter(label for example in train for label in set(example.label))
        frequencies = np.array([counts[label] for label in self.labels]) + 0.5
        self.log_odds = np.log(frequencies / (len(train) + 1 - frequencies))
        self.fit_columns(train)

    def _require_names(self, train: Sequence[TextExample]) -> None:
        """Raises InputError for labels that are digits of multi-hot lists, or several labels in one."""
        if self.settings.labels:
            return
        counts = Counter(label for example in train for label in example.label)
        if 0 < len(counts) < 3 and is_multi_hot(counts):
            raise InputError(
                f"The only labels of the {len(train):,} training texts, from {train[0].where} on, are "
                f"{' and '.join(sorted(counts))}. Of multi-hot lists name the labels (labels=NAME,NAME,…); "
                "of one yes or no a text train classification."
            )
        if are_multi_hot(counts) and all(len(example.label) < 2 for example in train):
            raise InputError(
                f"Labels such as {next(iter(counts))!r} look like a 0 or 1 for each of several labels. "
                "Name these in their order (labels=NAME,NAME,…), the digits with blanks between; or, if they "
                "are names themselves, name them so."
            )
        if "separator" in self.settings.model_fields_set:
            return
        for separator in _OTHER_SEPARATORS:
            if several := find_joined_labels(counts, separator):
                raise InputError(
                    f"Labels such as {several[0]!r} look like several with {separator!r} between them, and "
                    f"would be one. Say separator={separator!r} if they are, or separator={','!r} if not."
                )

    def check(self, examples: Sequence[TextExample]) -> None:
        """Labels that the training data doesn't have can't be predicted, and count as missed. Raises
        InputError for a label that is several known ones with another separator between them. If any example
        has two labels, the separator is right, and such a label is taken as it is.
        """
        if any(len(example.label or ()) > 1 for example in examples):
            return
        for example in examples:
            for label in self._count_unknown([example]):
                separators = (
                    separator for separator in _BETWEEN_LABELS if self._are_joined(label, separator)
                )
                if separator := next(separators, None):
                    raise InputError(
                        f"{example.where}: the label {label!r} is none of the training data, but several of "
                        f"them with {separator!r} between. Write {self.settings.separator!r} there, as in "
                        "training, or save the rows as JSON lines with lists."
                    )

    def warnings(self, examples: Sequence[TextExample]) -> list[str]:
        """Warns of labels that count as missed because the training data doesn't have them."""
        unknown = self._count_unknown(examples)
        if not self.labels or not unknown:
            return []
        first_label = next(iter(unknown))
        meant = next(
            (
                f". Is {name!r} meant?"
                for name in self.labels
                if label_appearance(name) == label_appearance(first_label)
            ),
            "",
        )
        return [
            f"{len(unknown):,} labels, on {unknown.total():,} occasions, never occur in the training data, "
            f"such as {first_label!r}: they can't be predicted, and count as missed{meant}"
        ]

    def _are_joined(self, label: str, separator: str) -> bool:
        """Whether the training data has all parts of a label, two or more."""
        parts = {part.strip() for part in label.split(separator)}
        return separator in label and self.label_ids.keys() >= parts

    def _count_unknown(self, examples: Sequence[TextExample]) -> Counter[str]:
        """How often each label occurs that the training data doesn't have."""
        labels = (label for example in examples for label in example.label or ())
        return Counter(label for label in labels if label not in self.label_ids)

    def labels_of(self, example: TextExample) -> tuple[str, ...]:
        return example.label or ()

    def target(self, label: Sequence[str]) -> Bools:
        return np.isin(self.labels, label)

    def head(self, config: BertConfig) -> Head:
        """A new head whose biases predict each label as often as it occurs in the training texts (the prior
        of Lin et al. 2017, section 4.1). With even odds the first thing to be learned is that texts have few
        labels, which drives the pooler to a state in which all texts look alike: with Reuters' 114 topics
        nothing more was learned in four epochs.
        """
        head = PooledHead(config, len(self.labels), self.settings.linear_pooling, self.column_width)
        if self.log_odds is not None:
            head.out.bias = nn.Parameter(torch.from_numpy(self.log_odds).float())
        return head

    def loss(self, outputs: Tensor, targets: Sequence[Bools]) -> Tensor:
        """Binary cross-entropy of (E, C) logits, the mean over labels and the sum over examples."""
        gold = to_device(np.stack(targets).astype(np.float32), outputs.device)
        loss = nn.functional.binary_cross_entropy_with_logits(outputs.float(), gold, reduction="sum")
        return loss / len(self.labels)

    def distillation_loss(self, temperature: float, head: Head) -> DistillationLoss:
        return LabelLoss(temperature)

    @property
    def teachings(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.settings.linear_pooling is None else ("contrastive",)

    @property
    def separator(self) -> str:  # type: ignore[override]
        return self.settings.separator

    def likeliest(self, probabilities: Floats) -> tuple[Floats, Floats]:
        """The labels above their thresholds; the confidence is that of the least certain label."""
        predicted = (probabilities >= self.thresholds).astype(np.float64)
        return predicted, np.asarray(np.where(predicted > 0, probabilities, 1 - probabilities).min(1))

    def average(
        self, teachers: Sequence[Task[TextExample]], outputs: Sequence[Sequence[Outputs]]
    ) -> Sequence[Sequence[Outputs]]:
        """Divides each teacher's outputs by its own temperature, because thresholds apply to calibrated
        probabilities.
        """
        multi_label_teachers = [teacher for teacher in teachers if isinstance(teacher, MultiLabel)]
        confidence = next(
            (teacher.confidence for teacher in multi_label_teachers if teacher.confidence is not None), None
        )
        if confidence is not None:
            thresholds = tuple(
                np.mean([teacher.thresholds for teacher in multi_label_teachers], axis=0).tolist()
            )
            self.confidence = confidence.model_copy(
                update={"temperature": 1.0, "label_thresholds": thresholds}
            )
        return [
            [row / teacher.temperature for row in rows]
            for teacher, rows in zip(multi_label_teachers, outputs, strict=True)
        ]

    def begin_student(self, answers: Sequence[Outputs]) -> None:
        shares = (1 / (1 + np.exp(-np.stack(answers).astype(np.float64)))).mean(0).clip(1e-4, 1 - 1e-4)
        self.log_odds = np.log(shares / (1 - shares))

    def as_label(self, example: TextExample, prediction: Prediction) -> TextExample:
        return super().as_label(example, {"label": tuple(prediction["labels"])})

    def check_taught(self, labelled: Sequence[TextExample]) -> None:
        """Raises InputError for a label that the teacher can't predict, for it would be learned as absent."""
        for example in labelled:
            if unknown := [label for label in self.labels_of(example) if label not in self.label_ids]:
                raise InputError(
                    f"{example.where}: the label {unknown[0]!r} is none of the teacher's {len(self.labels)} "
                    f"({some_of(self.labels)}). Take such labels out of the file, or fine-tune the teacher "
                    "on it."
                )

    def answer_of(self, probabilities: Sequence[float]) -> Outputs:
        """Log-odds (C,) of the given probabilities."""
        shares = np.array(probabilities, np.float64)
        return np.asarray(np.log(shares) - np.log1p(-shares), np.float32)

    def answer_number(
        self, example: TextExample, encoded: EncodedExample, outputs: Outputs, target: str | int | None
    ) -> AnswerNumber:
        """The calibrated probability of a label."""
        index = self.label_number(outputs[0], target)
        return self.labels[index], lambda logits: (logits[:, index] / self.temperature).sigmoid()

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with the labels above their thresholds, and the probability of each label."""
        thresholds = self.thresholds
        probabilities = self.label_probabilities(np.stack(outputs))
        return [
            {
                "labels": [
                    label for label, given in zip(self.labels, row >= thresholds, strict=True) if given
                ],
                "probabilities": dict(zip(self.labels, np.round(row, 6).tolist(), strict=True)),
            }
            for row in probabilities
        ]

    def decode_by_folds(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[TextExample],
        encoded: Sequence[EncodedExample],
        folds: Ints,
        bound: Mapping[int, Bound] = UNBOUND,
    ) -> list[Prediction]:
        """The thresholds that decide an example's labels are chosen on the other folds."""
        predictions = self.decode(outputs, examples, encoded)
        for judge, _, rows, own, others in self._judges(folds, outputs, examples, encoded):
            judge.confidence = None
            if others[0]:
                judge.calibrate(*others)
            for row, prediction in zip(rows, judge.decode(*own), strict=True):
                predictions[row] = {**predictions[row], "labels": prediction["labels"]}
        return predictions

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Micro and macro F1, and the share of texts whose labels are exactly right."""
        unknown = {label for example in examples for label in example.label} - set(self.labels)
        names = np.array([*self.labels, *sorted(unknown)])
        gold = np.stack([np.isin(names, example.label) for example in examples])
        predicted = np.stack([np.isin(names, prediction["labels"]) for prediction in predictions])
        return scores.multilabel(gold, predicted)

    def scorer(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> Callable[[Ints], float]:
        if type(self).metrics is not MultiLabel.metrics:  # a metric that may not follow from counts
            return super().scorer(predictions, examples)
        pairs = [
            ({*example.label}, {*prediction["labels"]})
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        counts = np.array(
            [(2 * len(gold & predicted), len(gold) + len(predicted)) for gold, predicted in pairs]
        )

        def micro_f1(rows: Ints) -> float:
            hits, both = counts[rows].sum(0).tolist()
            return hits / both if both else 0.0

        return micro_f1

    def error_analysis(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """Figures by label, and how often a label holds by its probability."""
        return label_set_errors(
            self.labels,
            [example.label for example in examples],
            [prediction["labels"] for prediction in predictions],
            np.array([list(prediction["probabilities"].values()) for prediction in predictions]),
            self.temperature,
        )

    def baselines(
        self, train: Sequence[TextExample], dev: Sequence[TextExample]
    ) -> dict[str, list[Prediction]]:
        """The most frequent set of labels, and a logistic regression for each label over TF-IDF."""
        gold = np.stack([self.target(example.label) for example in train])
        texts = [as_text_or_pair(example) for example in train]
        baselines = (
            majority_labels(gold, len(dev)),
            tfidf_labels(texts, gold, [as_text_or_pair(example) for example in dev]),
        )
        names = np.array(self.labels)
        return {
            baseline.name: [{"labels": names[row].tolist()} for row in baseline.predictions]
            for baseline in baselines
        }

    def config_labels(self) -> dict[str, Any]:
        return super().config_labels() | {"problem_type": "multi_label_classification"}
