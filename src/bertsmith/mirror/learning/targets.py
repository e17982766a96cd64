"""What a model's outputs are for each field, and what they should have been for each call; answers that quote
their input as marked text, from which a tagger learns.

E calls, C outputs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.mirror.fields import ABSENT, AnswerShape, Field, FieldHead, is_number, place_of_number, written
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.tasks.examples.tagged_example import WordOffsets, word_offsets

MIN_SHARE = 0.02  # share of a class, below which it is left out
_RANGES = 24  # of a number's values
_LIKELY = 0.5  # of what the teacher said has to be what outputs stand for


def build_heads(shape: AnswerShape, train: Sequence[LearnedCall]) -> tuple[FieldHead, ...]:
    """A head for each field but spans, with the values that the training calls had: of labels perhaps none.
    Raises InputError for a field that no answer fits.
    """
    fields = [field for field in shape.fields if field.kind != "spans"]
    heads = tuple(_build_head(field, train) for field in fields)
    for head, field in zip(heads, fields, strict=True):
        is_empty = field.kind == "labels" and any(call.values[field.path] == field.nothing for call in train)
        if not head.classes and not is_empty:
            raise InputError(
                f"{field.path}: none of the {len(train):,} answers to learn from has a value it allows. "
                "Correct the schema, or record calls whose answers follow it."
            )
    return heads


def build_targets(head: FieldHead, field: Field, calls: Sequence[LearnedCall]) -> Floats:
    """(E, C): the probability of each class, or of each label. Rows of NaN where the teacher said what no
    output stands for.
    """
    rows = [_build_target_row(head, field, call) for call in calls]
    return np.array(rows, np.float64).reshape(len(calls), len(head.classes))


def _build_head(field: Field, train: Sequence[LearnedCall]) -> FieldHead:
    values = [call.values[field.path] for call in train]
    if field.kind == "labels":
        given = {written(label) for value in values if isinstance(value, tuple) for label in value}
        return FieldHead(path=field.path, classes=_class_indices(field.values, given))
    seen = {written(value) for value in values}
    for call in train:
        seen |= {written(value) for value, share in call.spreads.get(field.path, ()) if share >= MIN_SHARE}
    classes = _class_indices(field.classes, seen)
    if field.kind != "number":
        return FieldHead(path=field.path, classes=classes)
    centres = _choose_centres([value for value in values if is_number(value)])
    return FieldHead(
        path=field.path,
        classes=(*(-1 for _ in centres), *classes),
        centres=(*centres, *(0.0 for _ in classes)),
    )


def _class_indices(values: Sequence[Any], seen: set[bytes]) -> tuple[int, ...]:
    return tuple(number for number, value in enumerate(values) if written(value) in seen)


def _choose_centres(numbers: Sequence[Any]) -> tuple[float, ...]:
    """Few numbers are their own centres; of many, medians of ranges that hold as many each: always numbers
    that the teacher has said, which the schema allows.
    """
    values = np.sort(np.array(numbers, np.float64))
    if len(np.unique(values)) <= _RANGES:
        return tuple(np.unique(values).tolist())
    middles = [float(np.quantile(part, 0.5, method="lower")) for part in np.array_split(values, _RANGES)]
    return tuple(dict.fromkeys(middles))


def _build_target_row(head: FieldHead, field: Field, call: LearnedCall) -> Floats:
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


def build_tags(shape: AnswerShape) -> dict[str, tuple[str, str]]:
    """The tagger's label → path and kind, for all spans fields together."""
    pairs = [
        (field.path, str(kind)) for field in shape.fields if field.kind == "spans" for kind in field.values
    ]
    return {f"T{number}": pair for number, pair in enumerate(pairs)}


def build_tagging_rows(
    calls: Sequence[LearnedCall], shape: AnswerShape, tags: Mapping[str, tuple[str, str]]
) -> list[dict[str, Any]]:
    """Text and spans of each call whose quotes are all found: as whole words where they are, so that `art` is
    not looked for in `start`. Each is looked for behind those before it, then from the text's beginning.
    Quotes that would share a word leave the call out, and so does an answer of another form.
    """
    labels = {pair: label for label, pair in tags.items()}
    paths = [field.path for field in shape.fields if field.kind == "spans"]
    found = []
    for call in calls:
        spans = _locate_quotes(call, paths, labels)
        if spans is not None:
            found.append({"text": call.text, "spans": spans})
    return found


def _locate_quotes(
    call: LearnedCall, paths: Sequence[str], labels: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]] | None:
    offsets = word_offsets(call.text)
    taken: list[tuple[int, int]] = []  # the words of the quotes so far
    spans = []
    for path in paths:
        value, place = call.values[path], 0
        if value is None or value is ABSENT:
            continue
        if not isinstance(value, tuple):
            return None
        for kind, quote in value:
            at = _find_quote(call.text, quote, place, offsets, taken)
            if at is None or (path, kind) not in labels:
                return None
            place = at + len(quote)
            taken.append(_covering_words(at, place, offsets))
            spans.append({"start": at, "end": place, "label": labels[path, kind]})
    return sorted(spans, key=lambda span: span["start"])


def _find_quote(
    text: str, quote: str, place: int, offsets: WordOffsets, taken: Sequence[tuple[int, int]]
) -> int | None:
    """Where the quote stands outside of the words that are taken."""
    best: tuple[bool, bool, int] | None = None
    before, after = len(quote) - len(quote.lstrip()), len(quote) - len(quote.rstrip())
    at = text.find(quote) if quote.strip() else -1
    while at >= 0:
        end = at + len(quote)
        start, stop = _covering_words(at, end, offsets)
        if start < stop and all(stop <= first or start >= last for first, last in taken):
            is_part = (start, stop) != (at + before, end - after)
            found = is_part, at < place, at
            best = found if best is None else min(best, found)
        at = text.find(quote, at + 1)
    return best[2] if best is not None else None


def _covering_words(start: int, end: int, offsets: WordOffsets) -> tuple[int, int]:
    """Where the words that share a character with this place begin and end; (0, 0) where none does."""
    first, last = bisect_right(offsets.ends, start), bisect_left(offsets.starts, end)
    return (offsets.starts[first], offsets.ends[last - 1]) if first < last else (0, 0)
