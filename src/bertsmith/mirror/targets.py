"""What a model's outputs are for each field, and what they should have been for each call.

E calls, C outputs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.mirror.field_heads import FieldHead, place_of_number
from bertsmith.mirror.fields import AnswerShape, Field, is_number, written
from bertsmith.mirror.learned_calls import LearnedCall

LEAST = 0.02  # share of a class, below which it is left out
_RANGES = 24  # of a number's values
_LIKELY = 0.5  # of what the teacher said has to be what outputs stand for


def heads_of(shape: AnswerShape, train: Sequence[LearnedCall]) -> tuple[FieldHead, ...]:
    """A head for each field but spans, with the values that the training calls had: of labels perhaps none.
    Raises InputError for a field that no answer fits.
    """
    fields = [field for field in shape.fields if field.kind != "spans"]
    heads = tuple(_head(field, train) for field in fields)
    for head, field in zip(heads, fields, strict=True):
        is_empty = field.kind == "labels" and any(call.values[field.path] == field.nothing for call in train)
        if not head.classes and not is_empty:
            raise InputError(
                f"{field.path}: none of the {len(train):,} answers to learn from has a value it allows. "
                "Correct the schema, or record calls whose answers follow it."
            )
    return heads


def targets_of(head: FieldHead, field: Field, calls: Sequence[LearnedCall]) -> Floats:
    """(E, C): the probability of each class, or of each label. Rows of NaN where the teacher said what no
    output stands for.
    """
    rows = [_row(head, field, call) for call in calls]
    return np.array(rows, np.float64).reshape(len(calls), len(head.classes))


def _head(field: Field, train: Sequence[LearnedCall]) -> FieldHead:
    values = [call.values[field.path] for call in train]
    if field.kind == "labels":
        given = {written(label) for value in values if isinstance(value, tuple) for label in value}
        return FieldHead(path=field.path, classes=_numbers(field.values, given))
    seen = {written(value) for value in values}
    for call in train:
        seen |= {written(value) for value, share in call.spreads.get(field.path, ()) if share >= LEAST}
    classes = _numbers(field.classes, seen)
    if field.kind != "number":
        return FieldHead(path=field.path, classes=classes)
    centres = _centres([value for value in values if is_number(value)])
    return FieldHead(
        path=field.path,
        classes=(*(-1 for _ in centres), *classes),
        centres=(*centres, *(0.0 for _ in classes)),
    )


def _numbers(values: Sequence[Any], seen: set[bytes]) -> tuple[int, ...]:
    return tuple(number for number, value in enumerate(values) if written(value) in seen)


def _centres(numbers: Sequence[Any]) -> tuple[float, ...]:
    """Few numbers are their own centres; of many, medians of ranges that hold as many each: always numbers
    that the teacher has said, which the schema allows.
    """
    values = np.sort(np.array(numbers, np.float64))
    if len(np.unique(values)) <= _RANGES:
        return tuple(np.unique(values).tolist())
    middles = [float(np.quantile(part, 0.5, method="lower")) for part in np.array_split(values, _RANGES)]
    return tuple(dict.fromkeys(middles))


def _row(head: FieldHead, field: Field, call: LearnedCall) -> Floats:
    row = np.zeros(len(head.classes))
    value = call.values[field.path]
    if field.kind == "labels":
        value = () if value == field.nothing else value
        if not isinstance(value, tuple):
            return np.full(len(head.classes), np.nan)
        given = {written(label) for label in value}
        return np.array([written(field.values[number]) in given for number in head.classes], np.float64)
    if field.kind == "number":
        place = place_of_number(head, field, value)
        if place is not None:
            row[place] = 1.0
    else:
        places = {written(field.classes[number]): place for place, number in enumerate(head.classes)}
        for each, share in call.spreads.get(field.path) or [(value, 1.0)]:
            if written(each) in places:
                row[places[written(each)]] += share
    return row / row.sum() if row.sum() >= _LIKELY else np.full(len(head.classes), np.nan)
