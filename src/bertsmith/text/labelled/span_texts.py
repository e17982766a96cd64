"""Checks that marked spans fit their text: their offsets may count something else than characters.

A span fits if the text between its offsets is the span's own text, where the file has it, or else if its ends
don't divide words. Spans that don't fit, but would in other units, show which units the offsets count.
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bertsmith.errors import InputError

OffsetConverter = Callable[
    [str, int], int
]  # (text, offset in other units) -> characters; -1 within a character
_Reading = tuple[
    OffsetConverter, int, int
]  # how to convert offsets, and what to add to starts and to ends first


class SpanText(NamedTuple):
    """A marked span of `text`, from character `start` to `end`, and `own_text`, which the file says it has.

    `own_text` is None if the file doesn't say it. Unless it `is_certain` to be the span's text, it may also
    be the entity's name, or its value in a normal form.
    """

    text: str
    label: str
    start: int
    end: int
    own_text: str | None
    where: str
    is_certain: bool = True

    @property
    def marked_text(self) -> str:
        """The text between the offsets; "" if they are out of order."""
        return self.text[self.start : self.end] if 0 <= self.start <= self.end else ""


def _make_converter(units_of: Callable[[str], int]) -> OffsetConverter:
    """A converter of offsets in units of which a character has `units_of(character)`."""

    def to_characters(text: str, offset: int) -> int:
        units = 0
        for position, character in enumerate(text):
            if units >= offset:
                return position if units == offset else -1
            units += units_of(character)
        return len(text) if units == offset else -1

    return to_characters


def _keep_offset(text: str, offset: int) -> int:
    return offset


# What offsets may count. The first entry that explains the most spans is named in the message.
_UNITS: dict[str, OffsetConverter] = {
    "characters": _keep_offset,
    "UTF-16 units, as JavaScript and Java do": _make_converter(lambda character: 1 + (character > "\uffff")),
    "bytes of UTF-8": _make_converter(lambda character: len(character.encode("utf-8", "surrogatepass"))),
    "a line feed as two (CRLF), which is one here": _make_converter(
        lambda character: 1 + (character == "\n")
    ),
    "the two characters of a line's end (CRLF) as one": _make_converter(
        lambda character: int(character != "\r")
    ),
}
# What to add to a start and to an end, by how they are counted.
_SHIFTS = {
    "": (0, 0),
    "the last character as the end": (0, 1),
    "from 1": (-1, -1),
    "from 1, with the last character as the end": (-1, 0),
}


_FEWEST = 3  # spans that divide words; fewer may be an annotator's slips
_MOST_CHECKED = 300  # of these spans
_RULE = "Offsets must count Unicode characters from 0, the end not included."


def require_texts(spans: Sequence[SpanText]) -> None:
    """Raises InputError if a span's own text is not the text between its offsets, naming the units that would
    explain many such spans; and if spans without their own text divide words, and hardly any would in other
    units.
    """
    with_own_text = [span for span in spans if span.own_text is not None]
    misfits = [span for span in with_own_text if not _fits(span, (_keep_offset, 0, 0))]
    if not any(span.is_certain for span in misfits) and not _explain_units(misfits):
        misfits = []  # names or normal forms, which the text has elsewhere by chance
    if misfits:
        first = misfits[0]
        raise InputError(
            f"{first.where}: the span {first.label} from {first.start} to {first.end} is "
            f"{first.marked_text!r}, but its text says {first.own_text!r}. So it is with {len(misfits):,} of "
            f"the {len(with_own_text):,} spans that say their text.{_explain_units(misfits)} {_RULE}"
        )
    _require_whole_words([span for span in spans if span.own_text is None])


def _require_whole_words(spans: Sequence[SpanText]) -> None:
    dividing = [span for span in spans if _divides_words(span.text, span.start, span.end)][:_MOST_CHECKED]
    if len(dividing) < _FEWEST:
        return
    name, reading, count = _find_best_reading(dividing)
    if not name or count < _FEWEST or count * 10 < len(dividing) * 9:
        return
    only_as_characters = sum(_fits(span, (_keep_offset, 0, 0)) and not _fits(span, reading) for span in spans)
    if only_as_characters * 10 <= count:
        first = dividing[0]
        raise InputError(
            f"{first.where}: the span {first.label} from {first.start} to {first.end} is "
            f"{first.marked_text!r}, which divides a word. {count:,} such spans would be "
            f"whole words if offsets count {name}. {_RULE}"
        )


def _explain_units(misfits: Sequence[SpanText]) -> str:
    """A sentence on what the offsets count instead, if that explains half of the spans; else ""."""
    name, _, count = _find_best_reading(misfits)
    if not name or count * 2 < len(misfits):
        return ""
    return f" {count:,} of them fit if offsets count {name}."


def _find_best_reading(misfits: Sequence[SpanText]) -> tuple[str, _Reading, int]:
    """The reading of offsets by which the most spans fit: its name, the reading, and how many spans fit."""
    readings: dict[str, _Reading] = {
        " and ".join(part for part in (unit * (unit != "characters"), shift) if part): (converter, *shifts)
        for shift, shifts in _SHIFTS.items()
        for unit, converter in _UNITS.items()
    }
    counts = {name: sum(_fits(span, reading) for span in misfits) for name, reading in readings.items()}
    best = max(counts, key=counts.__getitem__)
    return best, readings[best], counts[best]


def _fits(span: SpanText, reading: _Reading) -> bool:
    convert, start_shift, end_shift = reading
    start, end = convert(span.text, span.start + start_shift), convert(span.text, span.end + end_shift)
    if not 0 <= start <= end:
        return False
    marked_text = span.text[start:end]
    if span.own_text is not None:
        return _normalise_text(marked_text) == _normalise_text(span.own_text)
    is_whole = end <= len(span.text) and not _divides_words(span.text, start, end)
    return is_whole and marked_text == marked_text.strip() != ""


def _divides_words(text: str, start: int, end: int) -> bool:
    """Whether `start` or `end` is between two letters or digits.

    In scripts without blanks most ends are, whatever the units.
    """
    positions = (position for position in (start, end) if 0 < position < len(text))
    return any(text[position - 1].isalnum() and text[position].isalnum() for position in positions)


def _normalise_text(text: str) -> str:
    """Folds white space and composes accents: both may have changed between text and annotation."""
    return " ".join(unicodedata.normalize("NFC", text).split())
