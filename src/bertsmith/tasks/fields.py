"""Several labels for a text, each of its own kind, by one encoder: a field is one class of several, or any
number of labels. [CLS] → pooler → dropout → dense, whose outputs are those of all fields side by side.

A label is an object, or its JSON: {"intent": "card", "topics": ["fees", "cards"]}. A class may be said with
probabilities, {"intent": {"card": 0.8, "transfer": 0.2}}; a field that is left out teaches nothing.

E examples, C outputs of all fields, L labels of one.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Floats
from bertsmith.data.batch import to_device
from bertsmith.errors import InputError, ModelError
from bertsmith.metrics.baselines import majority_class, majority_labels, tfidf_classes, tfidf_labels
from bertsmith.metrics.calibration import confidence_of, probabilities_of
from bertsmith.model.config import BertConfig
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.text_settings import PooledSettings
from bertsmith.tasks.examples.text_task import TextExample, TextTask, as_text_or_pair
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.task import Head, Metrics, Outputs, Prediction, TaskSettings
from bertsmith.text.files.values import as_label, shown
from bertsmith.validation import describe_problem

FieldLabel = Mapping[str, float] | tuple[str, ...]  # shares of classes, or labels that hold
_KIND_WORDS = {"one": "one class", "any": "a list of labels"}  # of the kinds of fields


class FieldSchema(BaseModel):
    """A field's name and its possible labels. `kind`: "one" class out of the labels, or "any" number of
    them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Literal["one", "any"]
    labels: tuple[str, ...]


class Fields(TextTask):
    """Several fields of a text, each a class or a set of labels, predicted by one encoder and head."""

    name = "fields"
    main_metric = "mean_accuracy"
    Settings: ClassVar[type[TaskSettings]] = PooledSettings
    settings: PooledSettings
    fields: tuple[FieldSchema, ...] = ()
    _log_odds: Floats | None = None  # (C,) of the labels' frequency in training, 0 for classes

    def as_target(self, value: Any, where: str) -> dict[str, FieldLabel]:
        """Reads an example's label from a cell: an object of fields, or its JSON. `target` then encodes it
        for the loss. Raises InputError naming file and line.
        """
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise InputError(f"{where}: expected an object of fields, found {shown(value)}.") from None
        if not isinstance(value, Mapping) or not value:
            raise InputError(f"{where}: expected an object of fields, found {shown(value)}.")
        return {str(name): _read_field(label, f"{where}: {name}") for name, label in value.items()}

    def fit(self, train: Sequence[TextExample]) -> None:
        """Learns the fields and their labels from the training examples (sorted by name, numbers by value),
        and the log odds with which the biases of the head begin.
        """
        kinds: dict[str, str] = {}
        labels: dict[str, set[str]] = {}
        for example in train:
            for name, label in example.label.items():
                kind = "any" if isinstance(label, tuple) else "one"
                if kinds.setdefault(name, kind) != kind:
                    raise InputError(
                        f"{example.where}: the field {name!r} has a list of labels here and one class in "
                        "other rows. Give one or the other everywhere."
                    )
                labels.setdefault(name, set()).update(label)
        self._set_fields(
            FieldSchema(name=name, kind=kinds[name], labels=tuple(sorted(labels[name], key=_sort_key)))
            for name in sorted(kinds, key=_sort_key)
            if labels[name]
        )
        if sum(len(field.labels) - (field.kind == "one") for field in self.fields) < 1:
            raise InputError(
                f"All {len(train):,} training texts have the same labels, from {train[0].where} on: there is "
                "nothing to tell apart."
            )
        targets = np.stack([self.target(example.label) for example in train])  # biases as in multi_label.py
        frequencies = np.nansum(targets, axis=0) + 0.5
        odds = np.log(frequencies / (len(train) + 1 - np.minimum(frequencies, len(train))))
        is_any = np.concatenate([np.full(len(field.labels), field.kind == "any") for field in self.fields])
        self._log_odds = np.where(is_any, odds, 0.0)

    def _set_fields(self, fields: Any) -> None:
        self.fields = tuple(fields)
        self.labels = tuple(f"{field.name}={label}" for field in self.fields for label in field.labels)

    def check(self, examples: Sequence[TextExample]) -> None:
        """Raises InputError if a field has a list of labels here and one class in training, or the reverse.
        Labels that the training data doesn't have are allowed: they can't be predicted, and count as missed.
        """
        kinds = {field.name: field.kind for field in self.fields}
        for example in examples:
            for name, label in (example.label or {}).items():
                kind = "any" if isinstance(label, tuple) else "one"
                if kinds.get(name, kind) != kind:
                    here, in_training = _KIND_WORDS[kind], _KIND_WORDS[kinds[name]]
                    raise InputError(
                        f"{example.where}: the field {name!r} has {here} here and {in_training} in the "
                        "training data. Give one or the other everywhere."
                    )

    def labels_of(self, example: TextExample) -> tuple[str, ...]:
        """The likeliest class of each field with a class, and all labels of the others."""
        field_labels = []
        for name, label in example.label.items():
            names = label if isinstance(label, tuple) else (max(label, key=label.__getitem__),)
            field_labels += [f"{name}={value}" for value in names]
        return tuple(field_labels)

    def target(self, label: Mapping[str, FieldLabel]) -> Floats:
        """Probabilities of classes and truth values of labels (C,); NaN for a field that teaches nothing."""
        return np.concatenate([_target(field, label.get(field.name)) for field in self.fields]).astype(
            np.float32
        )

    def head(self, config: BertConfig) -> Head:
        head = PooledHead(config, len(self.labels), self.settings.linear_pooling)
        if self._log_odds is not None:
            head.out.bias = torch.nn.Parameter(torch.from_numpy(self._log_odds).float())
        return head

    def loss(self, outputs: Tensor, targets: Sequence[Floats]) -> Tensor:
        """Cross-entropy of each field, averaged over fields and summed over examples."""
        gold = to_device(np.stack(targets).astype(np.float32), outputs.device)
        total = outputs.new_zeros((), dtype=torch.float32)
        for field, (start, end) in zip(self.fields, self._ranges(), strict=True):
            logits, target = outputs[:, start:end].float(), gold[:, start:end]
            is_known = ~target.isnan()
            target = target.nan_to_num()
            if field.kind == "one":
                total = total - (target * F.log_softmax(logits, dim=1)).sum()
            else:
                losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
                total = total + (losses * is_known).sum() / len(field.labels)
        return total / len(self.fields)

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """Predictions with the value of each field and its confidence: the probability of the class or, for a
        list, the product over all its possible labels of the probability that the answer is right on each.
        """
        logits = np.stack(outputs)
        predictions: list[dict[str, Any]] = [{"fields": {}, "confidence": {}} for _ in examples]
        for field, (start, end) in zip(self.fields, self._ranges(), strict=True):
            is_any = field.kind == "any"
            probabilities = probabilities_of(logits[:, start:end], multi_label=is_any)
            confidences = confidence_of(probabilities, np.full(len(field.labels), 0.5) if is_any else None)
            for prediction, row, confidence in zip(predictions, probabilities, confidences, strict=True):
                labels = [label for label, share in zip(field.labels, row, strict=True) if share >= 0.5]
                prediction["fields"][field.name] = labels if is_any else field.labels[int(row.argmax())]
                prediction["confidence"][field.name] = round(float(confidence), 6)
        return list(predictions)

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """The share of a field's texts with the right value, averaged over fields; and the share of texts
        with all fields right. A field that a text leaves out doesn't count.
        """
        right = np.array(
            [
                [
                    _is_right(prediction["fields"][field.name], example.label.get(field.name))
                    for field in self.fields
                ]
                for prediction, example in zip(predictions, examples, strict=True)
            ]
        )  # NaN for what is left out
        of_fields = [float(np.nanmean(column)) for column in right.T if not np.isnan(column).all()]
        mean = sum(of_fields) / len(of_fields) if of_fields else 0.0
        return {"mean_accuracy": mean, "all_right": float((right != 0).all(axis=1).mean())}

    def baselines(
        self, train: Sequence[TextExample], dev: Sequence[TextExample]
    ) -> dict[str, list[Prediction]]:
        """Each field's most frequent value, and logistic regression over TF-IDF."""
        train_texts = [as_text_or_pair(example) for example in train]
        dev_texts = [as_text_or_pair(example) for example in dev]
        baselines: dict[str, list[dict[str, Any]]] = {
            name: [{"fields": {}} for _ in dev] for name in ("majority", "TF-IDF + logistic regression")
        }
        targets = np.stack([self.target(example.label) for example in train])
        for field, (start, end) in zip(self.fields, self._ranges(), strict=True):
            has_field = ~np.isnan(targets[:, start])
            field_targets = targets[has_field, start:end]
            field_texts = [text for text, is_known in zip(train_texts, has_field) if is_known]
            predicted: tuple[Any, Any]
            if field.kind == "one":
                gold = field_targets.argmax(axis=1)
                predicted = (
                    majority_class(gold, len(dev)).predictions,
                    tfidf_classes(field_texts, gold, dev_texts).predictions,
                )
                values = [[field.labels[index] for index in indices] for indices in predicted]
            else:
                predicted = (
                    majority_labels(field_targets > 0.5, len(dev)).predictions,
                    tfidf_labels(field_texts, field_targets > 0.5, dev_texts).predictions,
                )
                values = [[np.array(field.labels)[row].tolist() for row in rows] for rows in predicted]
            for predictions, field_values in zip(baselines.values(), values, strict=True):
                for prediction, value in zip(predictions, field_values, strict=True):
                    prediction["fields"][field.name] = value
        return {name: list(predictions) for name, predictions in baselines.items()}

    def state(self) -> dict[str, Any]:
        return super().state() | {"fields": [field.model_dump(mode="json") for field in self.fields]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        task = super().from_state(state, where)
        try:
            task._set_fields(FieldSchema.model_validate(field) for field in state["fields"])
        except (KeyError, TypeError, ValidationError) as error:
            problem = (
                describe_problem(error, FieldSchema) if isinstance(error, ValidationError) else str(error)
            )
            raise ModelError(
                f"{where}: fields: {problem} Take the file from a copy, or train again."
            ) from error
        return task

    def _ranges(self) -> list[tuple[int, int]]:
        """(start, end) of each field's outputs."""
        ends = np.cumsum([0, *(len(field.labels) for field in self.fields)]).tolist()
        return list(pairwise(ends))


def _read_field(value: Any, where: str) -> FieldLabel:
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(_label_name(label, where) for label in value))
    if not isinstance(value, Mapping):
        return {_label_name(value, where): 1.0}
    shares = {_label_name(name, where): share for name, share in value.items()}
    numbers = [share for share in shares.values() if isinstance(share, int | float) and 0 <= share <= 1]
    if len(numbers) < len(shares) or sum(numbers) <= 0:
        raise InputError(f"{where}: expected labels with probabilities from 0 to 1, found {shown(value)}.")
    return {name: float(share) / sum(numbers) for name, share in shares.items()}


def _label_name(value: Any, where: str) -> str:
    """A label's name. Text is stripped, but not respelled as by `as_label`: in a schema the text "true" is
    another value than the boolean true, which becomes "True".
    """
    return value.strip() if isinstance(value, str) and value.strip() else as_label(value, where)


def _target(field: FieldSchema, label: FieldLabel | None) -> Floats:
    if label is None:
        return np.full(len(field.labels), np.nan)
    if isinstance(label, tuple):
        return np.isin(field.labels, label).astype(np.float64)
    row = np.array([label.get(name, 0.0) for name in field.labels])
    return row / row.sum() if row.sum() > 0 else np.full(len(field.labels), np.nan)


def _is_right(predicted: Any, label: FieldLabel | None) -> float:
    """1 or 0; NaN for a field that the row leaves out."""
    if label is None:
        return np.nan
    right = (
        set(predicted) == set(label)
        if isinstance(label, tuple)
        else predicted == max(label, key=label.__getitem__)
    )
    return float(right)


def _sort_key(label: str) -> tuple[int, int, str]:
    """Sorts whole numbers before words, and by value: 2 before 10."""
    return (0, int(label), label) if label.isdecimal() else (1, 0, label)
