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
from bertsmith.validation import first_problem

FieldLabel = Mapping[str, float] | tuple[str, ...]  # shares of classes, or labels that hold


class FieldOutputs(BaseModel):
    """What a field tells apart: `one` class of these labels, or `any` of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Literal["one", "any"]
    labels: tuple[str, ...]


class Fields(TextTask):
    """Fulfils the contract for fields that share an encoder."""

    name = "fields"
    main_metric = "mean_accuracy"
    Settings: ClassVar[type[TaskSettings]] = PooledSettings
    settings: PooledSettings
    fields: tuple[FieldOutputs, ...] = ()
    _log_odds: Floats | None = None  # (C,) of labels among the training texts, 0 for classes

    def as_target(self, value: Any, where: str) -> dict[str, FieldLabel]:
        """Raises InputError naming file and line."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise InputError(f"{where}: expected an object of fields, found {shown(value)}.") from None
        if not isinstance(value, Mapping) or not value:
            raise InputError(f"{where}: expected an object of fields, found {shown(value)}.")
        return {str(name): _field_label(each, f"{where}: {name}") for name, each in value.items()}

    def fit(self, train: Sequence[TextExample]) -> None:
        """Fields and labels in the order of their names, numbers by value."""
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
        self._set(
            FieldOutputs(name=name, kind=kinds[name], labels=tuple(sorted(labels[name], key=_natural)))
            for name in sorted(kinds, key=_natural)
            if labels[name]
        )
        if sum(len(field.labels) - (field.kind == "one") for field in self.fields) < 1:
            raise InputError(
                f"All {len(train):,} training texts have the same labels, from {train[0].where} on: there is "
                "nothing to tell apart."
            )
        targets = np.stack([self.target(example.label) for example in train])  # as multi_label.py begins
        held = np.nansum(targets, axis=0) + 0.5
        odds = np.log(held / (len(train) + 1 - np.minimum(held, len(train))))
        is_any = np.concatenate([np.full(len(field.labels), field.kind == "any") for field in self.fields])
        self._log_odds = np.where(is_any, odds, 0.0)

    def _set(self, fields: Any) -> None:
        self.fields = tuple(fields)
        self.labels = tuple(f"{field.name}={label}" for field in self.fields for label in field.labels)

    def check(self, examples: Sequence[TextExample]) -> None:
        """Labels that training never showed can't be predicted: they count as missed, and are no error."""

    def labels_of(self, example: TextExample) -> tuple[str, ...]:
        """The likeliest class of each field, and all labels."""
        found = []
        for name, label in example.label.items():
            names = label if isinstance(label, tuple) else (max(label, key=label.__getitem__),)
            found += [f"{name}={each}" for each in names]
        return tuple(found)

    def target(self, label: Mapping[str, FieldLabel]) -> Floats:
        """(C,) shares of classes and truth values of labels; NaN for a field that teaches nothing."""
        return np.concatenate([_target(field, label.get(field.name)) for field in self.fields]).astype(
            np.float32
        )

    def head(self, config: BertConfig) -> Head:
        head = PooledHead(config, len(self.labels), self.settings.linear_pooling)
        if self._log_odds is not None:
            head.out.bias = torch.nn.Parameter(torch.from_numpy(self._log_odds).float())
        return head

    def loss(self, outputs: Tensor, targets: Sequence[Floats]) -> Tensor:
        """Cross-entropy of each field, the mean over fields and the sum over examples."""
        gold = to_device(np.stack(targets).astype(np.float32), outputs.device)
        total = outputs.new_zeros((), dtype=torch.float32)
        for each, (start, end) in zip(self.fields, self._ranges(), strict=True):
            own, wanted = outputs[:, start:end].float(), gold[:, start:end]
            taught = ~wanted.isnan()
            wanted = wanted.nan_to_num()
            if each.kind == "one":
                total = total - (wanted * F.log_softmax(own, dim=1)).sum()
            else:
                losses = F.binary_cross_entropy_with_logits(own, wanted, reduction="none")
                total = total + (losses * taught).sum() / len(each.labels)
        return total / len(self.fields)

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        """fields, and the confidence of each."""
        whole = np.stack(outputs)
        found: list[dict[str, Any]] = [{"fields": {}, "confidence": {}} for _ in examples]
        for each, (start, end) in zip(self.fields, self._ranges(), strict=True):
            is_any = each.kind == "any"
            shares = probabilities_of(whole[:, start:end], multi_label=is_any)
            sure = confidence_of(shares, np.full(len(each.labels), 0.5) if is_any else None)
            for prediction, row, confidence in zip(found, shares, sure, strict=True):
                labels = [label for label, share in zip(each.labels, row, strict=True) if share >= 0.5]
                prediction["fields"][each.name] = labels if is_any else each.labels[int(row.argmax())]
                prediction["confidence"][each.name] = round(float(confidence), 6)
        return list(found)

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """The share of a field's texts with the right value, the mean over fields; and the share of texts
        with all fields right. What a text leaves out counts for nothing.
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
        texts = [as_text_or_pair(each) for each in train], [as_text_or_pair(each) for each in dev]
        found: dict[str, list[dict[str, Any]]] = {
            name: [{"fields": {}} for _ in dev] for name in ("majority", "TF-IDF + logistic regression")
        }
        wanted = np.stack([self.target(example.label) for example in train])
        for each, (start, end) in zip(self.fields, self._ranges(), strict=True):
            known = ~np.isnan(wanted[:, start])
            own, some = (
                wanted[known, start:end],
                [text for text, is_known in zip(texts[0], known) if is_known],
            )
            values: tuple[Any, Any]
            if each.kind == "one":
                gold = own.argmax(axis=1)
                values = (
                    majority_class(gold, len(dev)).predictions,
                    tfidf_classes(some, gold, texts[1]).predictions,
                )
                names = [[each.labels[number] for number in of] for of in values]
            else:
                values = (
                    majority_labels(own > 0.5, len(dev)).predictions,
                    tfidf_labels(some, own > 0.5, texts[1]).predictions,
                )
                names = [[np.array(each.labels)[row].tolist() for row in of] for of in values]
            for predictions, of in zip(found.values(), names, strict=True):
                for prediction, value in zip(predictions, of, strict=True):
                    prediction["fields"][each.name] = value
        return {name: list(predictions) for name, predictions in found.items()}

    def state(self) -> dict[str, Any]:
        return super().state() | {"fields": [field.model_dump(mode="json") for field in self.fields]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        task = super().from_state(state, where)
        try:
            task._set(FieldOutputs.model_validate(each) for each in state["fields"])
        except (KeyError, TypeError, ValidationError) as error:
            told = first_problem(error, FieldOutputs) if isinstance(error, ValidationError) else str(error)
            raise ModelError(f"{where}: fields: {told} Take the file from a copy, or train again.") from error
        return task

    def _ranges(self) -> list[tuple[int, int]]:
        """Where each field's outputs begin and end."""
        ends = np.cumsum([0, *(len(field.labels) for field in self.fields)]).tolist()
        return list(pairwise(ends))


def _field_label(value: Any, where: str) -> FieldLabel:
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(_name(label, where) for label in value))
    if not isinstance(value, Mapping):
        return {_name(value, where): 1.0}
    shares = {_name(name, where): share for name, share in value.items()}
    numbers = [share for share in shares.values() if isinstance(share, int | float) and 0 <= share <= 1]
    if len(numbers) < len(shares) or sum(numbers) <= 0:
        raise InputError(f"{where}: expected labels with probabilities from 0 to 1, found {shown(value)}.")
    return {name: float(share) / sum(numbers) for name, share in shares.items()}


def _name(value: Any, where: str) -> str:
    """A schema's "true" is another value than true: text is a name as it stands."""
    return value.strip() if isinstance(value, str) and value.strip() else as_label(value, where)


def _target(field: FieldOutputs, label: FieldLabel | None) -> Floats:
    if label is None:
        return np.full(len(field.labels), np.nan)
    if isinstance(label, tuple):
        return np.isin(field.labels, label).astype(np.float64)
    row = np.array([label.get(each, 0.0) for each in field.labels])
    return row / row.sum() if row.sum() > 0 else np.full(len(field.labels), np.nan)


def _is_right(said: Any, label: FieldLabel | None) -> float:
    """1 or 0; NaN for a field that the row leaves out."""
    if label is None:
        return np.nan
    right = set(said) == set(label) if isinstance(label, tuple) else said == max(label, key=label.__getitem__)
    return float(right)


def _natural(label: str) -> tuple[int, int, str]:
    """Whole numbers before words, by value: 2 before 10."""
    return (0, int(label), label) if label.isdecimal() else (1, 0, label)
