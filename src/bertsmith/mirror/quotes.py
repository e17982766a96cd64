"""Answers that quote their input ↔ marked text that a tagger learns from."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.mirror.fields import ABSENT, AnswerShape
from bertsmith.mirror.learned_calls import LearnedCall
from bertsmith.tasks.examples.tagged_example import WordOffsets, word_offsets


def tags_of(shape: AnswerShape) -> dict[str, tuple[str, str]]:
    """The tagger's label → path and kind, for all spans fields together."""
    pairs = [
        (field.path, str(kind)) for field in shape.fields if field.kind == "spans" for kind in field.values
    ]
    return {f"T{number}": pair for number, pair in enumerate(pairs)}


def quoted_rows(
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
        spans = _spans(call, paths, labels)
        if spans is not None:
            found.append({"text": call.text, "spans": spans})
    return found


def _spans(
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
            at = _free(call.text, quote, place, offsets, taken)
            if at is None or (path, kind) not in labels:
                return None
            place = at + len(quote)
            taken.append(_words(at, place, offsets))
            spans.append({"start": at, "end": place, "label": labels[path, kind]})
    return sorted(spans, key=lambda span: span["start"])


def _free(
    text: str, quote: str, place: int, offsets: WordOffsets, taken: Sequence[tuple[int, int]]
) -> int | None:
    """Where the quote stands outside of the words that are taken."""
    best: tuple[bool, bool, int] | None = None
    before, after = len(quote) - len(quote.lstrip()), len(quote) - len(quote.rstrip())
    at = text.find(quote) if quote.strip() else -1
    while at >= 0:
        end = at + len(quote)
        start, stop = _words(at, end, offsets)
        if start < stop and all(stop <= first or start >= last for first, last in taken):
            is_part = (start, stop) != (at + before, end - after)
            found = is_part, at < place, at
            best = found if best is None else min(best, found)
        at = text.find(quote, at + 1)
    return best[2] if best is not None else None


def _words(start: int, end: int, offsets: WordOffsets) -> tuple[int, int]:
    """Where the words that share a character with this place begin and end; (0, 0) where none does."""
    first, last = bisect_right(offsets.ends, start), bisect_left(offsets.starts, end)
    return (offsets.starts[first], offsets.ends[last - 1]) if first < last else (0, 0)
