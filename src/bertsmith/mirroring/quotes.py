"""Answers that quote their input ↔ marked text that a tagger learns from."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.mirroring.learned_calls import LearnedCall
from bertsmith.serving.mirror.fields import AnswerShape


def tags_of(shape: AnswerShape) -> dict[str, tuple[str, str]]:
    """The tagger's label → path and kind, for all spans fields together."""
    pairs = [
        (field.path, str(kind)) for field in shape.fields if field.kind == "spans" for kind in field.values
    ]
    return {f"T{number}": pair for number, pair in enumerate(pairs)}


def quoted_rows(
    calls: Sequence[LearnedCall], shape: AnswerShape, tags: Mapping[str, tuple[str, str]]
) -> list[dict[str, Any]]:
    """Text and spans of each call whose quotes are all found. Each is looked for behind those before it, then
    from the text's beginning; quotes that would overlap leave the call out.
    """
    labels = {pair: label for label, pair in tags.items()}
    paths = [field.path for field in shape.fields if field.kind == "spans"]
    found = []
    for call in calls:
        spans = _spans(call, paths, labels)
        if spans is not None:
            found.append({"text": call.text, "spans": spans})
    return found


def _spans(
    call: LearnedCall, paths: Sequence[str], labels: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]] | None:
    taken: list[tuple[int, int]] = []
    spans = []
    for path in paths:
        value, place = call.values[path], 0
        for kind, quote in value if isinstance(value, tuple) else ():
            at = _free(call.text, quote, place, taken)
            if at is None or (path, kind) not in labels:
                return None
            place = at + len(quote)
            taken.append((at, place))
            spans.append({"start": at, "end": place, "label": labels[path, kind]})
    return sorted(spans, key=lambda span: span["start"])


def _free(text: str, quote: str, place: int, taken: Sequence[tuple[int, int]]) -> int | None:
    """Where the quote stands outside of what is taken: from `place` on, else anywhere."""
    if not quote:
        return None
    for begin in (place, 0):
        at = text.find(quote, begin)
        while at >= 0:
            if all(at + len(quote) <= start or at >= end for start, end in taken):
                return at
            at = text.find(quote, at + 1)
    return None
