"""Spans that carry their own text, held against the text that they are of: offsets may count something else
than characters.
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bertsmith.errors import InputError

Place = Callable[[str, int], int]  # an offset in other units -> characters; -1 where none is meant


class SpanText(NamedTuple):
    """A span of `text`, the words that the file says it has, and its place in the file."""

    text: str
    label: str
    start: int
    end: int
    words: str
    where: str


def _counting(size: Callable[[str], int]) -> Place:
    """By how many units each character has."""

    def characters(text: str, offset: int) -> int:
        units = 0
        for place, character in enumerate(text):
            if units >= offset:
                return place if units == offset else -1
            units += size(character)
        return len(text) if units == offset else -1

    return characters


def _as_it_is(text: str, offset: int) -> int:
    return offset


def _utf16(character: str) -> int:
    return 2 if character > "\uffff" else 1


def _utf8(character: str) -> int:
    return len(character.encode("utf-8", "surrogatepass"))


#: What offsets may count: the first that explains most spans is said.
_UNITS: dict[str, Place] = {
    "characters": _as_it_is,
    "UTF-16 units, as JavaScript and Java do": _counting(_utf16),
    "bytes of UTF-8": _counting(_utf8),
    "a line feed as two (CRLF), which is one here": _counting(lambda each: 1 + (each == "\n")),
    "the two characters of a line's end (CRLF) as one": _counting(lambda each: int(each != "\r")),
}
_ENDS = {
    "": (0, 0),
    "the last character as the end": (0, 1),
    "from 1": (-1, -1),
    "from 1, with the last character as the end": (-1, 0),
}


def require_texts(spans: Sequence[SpanText]) -> None:
    """Raises InputError where a span is not what its text says, naming the units if many are off by them."""
    strange = [span for span in spans if not _fits(span, _as_it_is, 0, 0)]
    if not strange:
        return
    first = strange[0]
    found = first.text[first.start : first.end] if 0 <= first.start <= first.end else ""
    raise InputError(
        f"{first.where}: the span {first.label} from {first.start} to {first.end} is {found!r}, but its text "
        f"says {first.words!r}. So it is with {len(strange):,} of the {len(spans):,} spans that say their "
        f"text.{_explained(strange)} Offsets must count Unicode characters from 0, the end not included."
    )


def _explained(strange: Sequence[SpanText]) -> str:
    """What offsets count instead, if that explains half of the spans."""
    counted = {
        " and ".join(part for part in (unit * (unit != "characters"), end) if part): sum(
            _fits(span, place, *shifts) for span in strange
        )
        for end, shifts in _ENDS.items()
        for unit, place in _UNITS.items()
    }
    best = max(counted, key=counted.__getitem__)
    if not best or counted[best] * 2 < len(strange):
        return ""
    return f" {counted[best]:,} of them fit if offsets count {best}."


def _fits(span: SpanText, place: Place, before: int, behind: int) -> bool:
    start, end = place(span.text, span.start + before), place(span.text, span.end + behind)
    return 0 <= start <= end and _plain(span.text[start:end]) == _plain(span.words)


def _plain(text: str) -> str:
    """Blanks and composed accents may have been changed on the way."""
    return " ".join(unicodedata.normalize("NFC", text).split())
