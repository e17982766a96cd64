"""The output heads of a model, the training targets for each call, and the rows from which a tagger learns to
find quotes. Read `build_heads` and `build_targets` first.

E calls, C outputs.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.mirror.call import CompletionRequest
from bertsmith.mirror.fields import (
    ABSENT,
    AnswerShape,
    Field,
    FieldHead,
    canonical_json,
    is_number,
    nearest_output,
)
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.tasks.examples.tagged_example import WordOffsets, word_offsets
from bertsmith.text.labelled.label_names import are_mostly_codes, humanise_label, is_code

NAMED = "name"  # the source of an example that is a value's name
MIN_SHARE = 0.02  # probability of a class, below which it is left out
_RANGES = 24  # most centres of a number field
_LIKELY = 0.5  # least probability that a target's classes must have together
_NAMED_UP_TO = 20  # texts a value, from which on a value's name teaches nothing more


def build_heads(shape: AnswerShape, train: Sequence[LearnedCall]) -> tuple[FieldHead, ...]:
    """A head for each field except quotes, with the values of the training calls as classes; a head of labels
    may have none. Raises InputError for a field that no answer fits.
    """
    fields = [field for field in shape.fields if field.kind != "spans"]
    heads = tuple(_build_head(field, train) for field in fields)
    for head, field in zip(heads, fields, strict=True):
        is_empty = field.kind == "labels" and any(
            call.values[field.path] == field.empty_value for call in train
        )
        if not head.classes and not is_empty:
            raise InputError(
                f"{field.path}: none of the {len(train):,} answers to learn from has a value it allows. "
                "Correct the schema, or record calls whose answers follow it."
            )
    return heads


def build_targets(head: FieldHead, field: Field, calls: Sequence[LearnedCall]) -> Floats:
    """(E, C): the probability of each class, or of each label. A row is NaN where no class stands for the
    teacher's answer.
    """
    rows = [_build_target_row(head, field, call) for call in calls]
    return np.array(rows, np.float64).reshape(len(calls), len(head.classes))


def _build_head(field: Field, train: Sequence[LearnedCall]) -> FieldHead:
    values = [call.values[field.path] for call in train]
    if field.kind == "labels":
        used = {canonical_json(label) for value in values if isinstance(value, tuple) for label in value}
        return FieldHead(path=field.path, classes=_class_indices(field.values, used))
    seen = {canonical_json(value) for value in values}
    for call in train:
        seen |= {
            canonical_json(value)
            for value, share in call.probabilities.get(field.path, ())
            if share >= MIN_SHARE
        }
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
    return tuple(number for number, value in enumerate(values) if canonical_json(value) in seen)


def _choose_centres(numbers: Sequence[Any]) -> tuple[float, ...]:
    """The numbers that a head can answer: the given ones where they are few, else the lower medians of ranges
    with equally many. Each is a number that the teacher has given, so the schema allows it.
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
        value = () if value == field.empty_value else value
        if not isinstance(value, tuple):
            return np.full(len(head.classes), np.nan)
        chosen = {canonical_json(label) for label in value}
        return np.array(
            [canonical_json(field.values[number]) in chosen for number in head.classes], np.float64
        )
    if field.kind == "number":
        index = nearest_output(head, field, value)
        if index is not None:
            row[index] = 1.0
    else:
        indices = {canonical_json(field.classes[number]): index for index, number in enumerate(head.classes)}
        for candidate, share in call.probabilities.get(field.path) or [(value, 1.0)]:
            if canonical_json(candidate) in indices:
                row[indices[canonical_json(candidate)]] += share
    return row / row.sum() if row.sum() >= _LIKELY else np.full(len(head.classes), np.nan)


def build_name_calls(shape: AnswerShape, train: Sequence[LearnedCall]) -> list[LearnedCall]:
    """The values of the one field as examples beside few calls, each with its name in words as the text:
    "card arrival" is answered with card_arrival. Empty for several fields, and where names are codes.
    """
    if len(shape.fields) != 1 or shape.fields[0].kind != "enum":
        return []
    field = shape.fields[0]
    names = [value for value in field.values if isinstance(value, str)]
    codes = [name for name in names if is_code(name)]
    if are_mostly_codes(codes, len(names)) or len(train) > _NAMED_UP_TO * len(names):
        return []
    return [
        LearnedCall(f"name {name}", 0.0, NAMED, humanise_label(name), {field.path: name}, {})
        for name in names
        if name not in codes
    ]


def find_value_names(shape: AnswerShape, request: CompletionRequest) -> dict[str, str]:
    """The values of the one field with their descriptions, "" for none, as the schema of a request gives them
    (`anyOf` or `oneOf` of constants), or a line such as "- card_arrival: the card hasn't come" of the field's
    description or the system prompt. Raises InputError where the answer isn't one of several named values.
    """
    field = shape.fields[0] if len(shape.fields) == 1 else None
    names = [] if field is None or field.kind != "enum" else [v for v in field.values if isinstance(v, str)]
    schema: Any = request.schema
    for key in field.keys if field is not None else ():
        schema = schema.get("properties", {}).get(key, {}) if isinstance(schema, Mapping) else {}
    schema = schema if isinstance(schema, Mapping) else {}
    told = {
        option["const"]: str(option["description"])
        for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
        if isinstance(option, Mapping) and option.keys() >= {"const", "description"}
    }
    prompt = [part for message in request.system for part in message.parts]
    lines = "\n".join([str(schema.get("description", "")), *prompt])
    for name in names:
        line = re.search(rf"(?im)^\W*{re.escape(name)}\W*?(?::| [-–—] )[ *]*(\S.*)$", lines)
        told.setdefault(name, line[1].strip() if line is not None else "")
    codes = [name for name in names if is_code(name) and not told[name]]
    if len(names) < 2 or are_mostly_codes(codes, len(names)):
        paths = ", ".join(f"{one.path} ({one.kind})" for one in shape.fields)
        raise InputError(
            "A student from names takes answers with one field of several values whose names, or their "
            f"descriptions in the schema or the prompt, say what they mean; found {paths}"
            f"{f' with {codes[0]!r}' if codes else ''}. Record more calls and train without --from-names."
        )
    return {name: told[name] for name in names}


def build_tags(shape: AnswerShape) -> dict[str, tuple[str, str]]:
    """The tagger's label → (path, kind of quote), over all fields of quotes."""
    pairs = [
        (field.path, str(kind)) for field in shape.fields if field.kind == "spans" for kind in field.values
    ]
    return {f"T{number}": pair for number, pair in enumerate(pairs)}


def build_tagging_rows(
    calls: Sequence[LearnedCall], shape: AnswerShape, tags: Mapping[str, tuple[str, str]]
) -> list[dict[str, Any]]:
    """{"text", "spans"} of each call whose quotes all occur in its text. A quote is searched as whole words
    first, so that `art` doesn't match in `start`, and after the quote before it, then from the beginning of
    the text. A call is left out where two quotes would share a word, or the answer has another form.
    """
    labels = {pair: label for label, pair in tags.items()}
    paths = [field.path for field in shape.fields if field.kind == "spans"]
    rows = []
    for call in calls:
        spans = _locate_quotes(call, paths, labels)
        if spans is not None:
            rows.append({"text": call.text, "spans": spans})
    return rows


def _locate_quotes(
    call: LearnedCall, paths: Sequence[str], labels: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]] | None:
    offsets = word_offsets(call.text)
    occupied: list[tuple[int, int]] = []  # the words of the quotes so far
    spans = []
    for path in paths:
        value, position = call.values[path], 0
        if value is None or value is ABSENT:
            continue
        if not isinstance(value, tuple):
            return None
        for kind, quote in value:
            start = _find_quote(call.text, quote, position, offsets, occupied)
            if start is None or (path, kind) not in labels:
                return None
            position = start + len(quote)
            occupied.append(_covering_words(start, position, offsets))
            spans.append({"start": start, "end": position, "label": labels[path, kind]})
    return sorted(spans, key=lambda span: span["start"])


def _find_quote(
    text: str, quote: str, position: int, offsets: WordOffsets, occupied: Sequence[tuple[int, int]]
) -> int | None:
    """Where the quote begins, outside the occupied words; whole words and matches from `position` on come
    first. None where it doesn't occur.
    """
    best: tuple[bool, bool, int] | None = None
    before, after = len(quote) - len(quote.lstrip()), len(quote) - len(quote.rstrip())
    at = text.find(quote) if quote.strip() else -1
    while at >= 0:
        end = at + len(quote)
        start, stop = _covering_words(at, end, offsets)
        if start < stop and all(stop <= first or start >= last for first, last in occupied):
            is_part = (start, stop) != (at + before, end - after)
            match = is_part, at < position, at
            best = match if best is None else min(best, match)
        at = text.find(quote, at + 1)
    return best[2] if best is not None else None


def _covering_words(start: int, end: int, offsets: WordOffsets) -> tuple[int, int]:
    """The start of the first and the end of the last word that overlap [start, end); (0, 0) without any."""
    first, last = bisect_right(offsets.ends, start), bisect_left(offsets.starts, end)
    return (offsets.starts[first], offsets.ends[last - 1]) if first < last else (0, 0)
