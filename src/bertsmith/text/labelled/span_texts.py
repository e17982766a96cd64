"""Spans held against the text that they are of, for offsets may count something else than characters: by the
text that a span says it has, or else by the words that its ends would divide.
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bertsmith.errors import InputError

Place = Callable[[str, int], int]  # an offset in other units -> characters; -1 where none is meant


class SpanText(NamedTuple):
    """A span of `text`, the words that the file says it has, if it does, its place in the file, and whether
    these are its words for certain: else they may be its name, or its value in a normal form.
    """

    text: str
    label: str
    start: int
    end: int
    words: str | None
    where: str
    is_certain: bool = True

    @property
    def found(self) -> str:
        return self.text[self.start : self.end] if 0 <= self.start <= self.end else ""


def _unit_converter(size: Callable[[str], int]) -> Place:
    """By how many units each character has."""

    def characters(text: str, offset: int) -> int:
        units = 0
        for place, character in enumerate(text):
            if units >= offset:
                return place if units == offset else -1
            units += size(character)
        return len(text) if units == offset else -1

    return characters


def _keep_offset(text: str, offset: int) -> int:
    return offset


#: What offsets may count: the first that explains most spans is said.
_UNITS: dict[str, Place] = {
    "characters": _keep_offset,
    "UTF-16 units, as JavaScript and Java do": _unit_converter(lambda each: 2 if each > "\uffff" else 1),
    "bytes of UTF-8": _unit_converter(lambda each: len(each.encode("utf-8", "surrogatepass"))),
    "a line feed as two (CRLF), which is one here": _unit_converter(lambda each: 1 + (each == "\n")),
    "the two characters of a line's end (CRLF) as one": _unit_converter(lambda each: int(each != "\r")),
}
_ENDS = {
    "": (0, 0),
    "the last character as the end": (0, 1),
    "from 1": (-1, -1),
    "from 1, with the last character as the end": (-1, 0),
}


_FEWEST = 3  # divided words that are no slips of an annotator's
_MOST_SEEN = 300  # of them
_RULE = "Offsets must count Unicode characters from 0, the end not included."


def require_texts(spans: Sequence[SpanText]) -> None:
    """Raises InputError where a span is not what its text says, naming the units if many are off by them; and
    where spans that don't say it divide words, and hardly one would in other units.
    """
    said = [span for span in spans if span.words is not None]
    strange = [span for span in said if not _fits(span, _keep_offset, 0, 0)]
    if not any(span.is_certain for span in strange) and not _explain_units(strange):
        strange = []  # names or values, which the text has elsewhere by chance
    if strange:
        first = strange[0]
        raise InputError(
            f"{first.where}: the span {first.label} from {first.start} to {first.end} is {first.found!r}, "
            f"but its text says {first.words!r}. So it is with {len(strange):,} of the {len(said):,} spans "
            f"that say their text.{_explain_units(strange)} {_RULE}"
        )
    _require_words([span for span in spans if span.words is None])


def _require_words(spans: Sequence[SpanText]) -> None:
    strange = [span for span in spans if _divides_words(span.text, span.start, span.end)][:_MOST_SEEN]
    if len(strange) < _FEWEST:
        return
    name, reading, count = _find_best_reading(strange)
    if not name or count < _FEWEST or count * 10 < len(strange) * 9:
        return
    against = sum(_fits(span, _keep_offset, 0, 0) and not _fits(span, *reading) for span in spans)
    if against * 10 <= count:
        first = strange[0]
        raise InputError(
            f"{first.where}: the span {first.label} from {first.start} to {first.end} is {first.found!r}, "
            f"which divides a word. {count:,} such spans would be whole words if offsets count {name}. "
            f"{_RULE}"
        )


def _explain_units(strange: Sequence[SpanText]) -> str:
    """What offsets count instead, if that explains half of the spans."""
    best, _, count = _find_best_reading(strange)
    if not best or count * 2 < len(strange):
        return ""
    return f" {count:,} of them fit if offsets count {best}."


def _find_best_reading(strange: Sequence[SpanText]) -> tuple[str, tuple[Place, int, int], int]:
    """What offsets may count instead: its name, how it is read, and how many of the spans fit."""
    readings: dict[str, tuple[Place, int, int]] = {
        " and ".join(part for part in (unit * (unit != "characters"), end) if part): (place, *shifts)
        for end, shifts in _ENDS.items()
        for unit, place in _UNITS.items()
    }
    counted = {name: sum(_fits(span, *reading) for span in strange) for name, reading in readings.items()}
    best = max(counted, key=counted.__getitem__)
    return best, readings[best], counted[best]


def _fits(span: SpanText, place: Place, before: int, behind: int) -> bool:
    start, end = place(span.text, span.start + before), place(span.text, span.end + behind)
    if not 0 <= start <= end:
        return False
    found = span.text[start:end]
    if span.words is not None:
        return _normalise_text(found) == _normalise_text(span.words)
    is_whole = end <= len(span.text) and not _divides_words(span.text, start, end)
    return is_whole and found == found.strip() != ""


def _divides_words(text: str, start: int, end: int) -> bool:
    """Whether a letter or digit stands on both sides of an end. Where blanks don't divide words it mostly
    does, in any units.
    """
    places = (place for place in (start, end) if 0 < place < len(text))
    return any(text[place - 1].isalnum() and text[place].isalnum() for place in places)


def _normalise_text(text: str) -> str:
    """Blanks and composed accents may have been changed on the way."""
    return " ".join(unicodedata.normalize("NFC", text).split())
