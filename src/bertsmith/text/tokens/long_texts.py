"""Long texts tokenised part by part: the library holds some hundred bytes of each token that it is at.

T tokens of a text.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from bertsmith.arrays import Ints

PART = 1 << 14  # characters
_CHARACTERS_OF_A_TOKEN = 16  # English has about 5
_AT_ONCE = 8  # parts
_NEAR_ITS_END = 1 << 10  # characters in which a part's last blank mostly is

#: Where a text may be cut: at one blank between two words, or where each Chinese character is one.
BLANK = re.compile(r"(?<=\S)[ \t\n\r](?=\S)")
BLANK_OR_CHINESE = re.compile(r"(?<=\S)[ \t\n\r](?=\S)|(?=[\u4e00-\u9fff])")
SPACE = re.compile(r"(?<=\S) (?=\S)")  # a byte-level piece may begin with it


class Pieces(Protocol):
    """One text of many, tokenised: what of it is used."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def offsets(self) -> Sequence[tuple[int, int]] | Ints: ...


@dataclass(frozen=True)
class LongPieces:
    """The same in 4 bytes a token and, where offsets (T, 2) were asked for, 16 more."""

    ids: Sequence[int]
    offsets: Ints


Encode = Callable[[list[str]], Sequence[Pieces]]


def encode_in_parts(
    encode: Encode, texts: Sequence[str], where: re.Pattern[str], enough: int | None, offsets: bool
) -> list[Pieces]:
    """What `encode` makes of each text, cut at `where`; of those not longer than a part in one go. With
    `enough`, of a longer one at least so many ids: it is not read to its end.
    """
    size = PART if enough is None else min(PART, _CHARACTERS_OF_A_TOKEN * enough)
    firsts = [text[: _cut(text, 0, where, size)] for text in texts]
    found: list[Pieces] = list(encode(firsts))
    for number, (text, first) in enumerate(zip(texts, firsts, strict=True)):
        if len(first) < len(text) and (enough is None or len(found[number].ids) < enough):
            found[number] = _long(encode, _parts(text, where, size), enough, offsets)
    return found


def _long(encode: Encode, parts: Iterator[tuple[int, str]], enough: int | None, offsets: bool) -> LongPieces:
    ids, places = array("i"), [np.zeros((0, 2), np.int64)]
    while some := list(islice(parts, _AT_ONCE)):
        for (start, _), pieces in zip(some, encode([part for _, part in some]), strict=True):
            ids.extend(pieces.ids)
            if offsets:
                places.append(np.array(pieces.offsets, np.int64).reshape(-1, 2) + start)
        if enough is not None and len(ids) >= enough:
            break
    return LongPieces(ids, np.concatenate(places))


def _parts(text: str, where: re.Pattern[str], size: int) -> Iterator[tuple[int, str]]:
    """Each with the number of characters before it."""
    start = 0
    while start < len(text):
        end = _cut(text, start, where, size)
        yield start, text[start:end]
        start = end


def _cut(text: str, start: int, where: re.Pattern[str], size: int) -> int:
    """The last place within a part of this size, else the first one behind it, else the text's end."""
    limit = start + size
    if limit >= len(text):
        return len(text)
    for begin in (max(limit - _NEAR_ITS_END, start + 1), start + 1):
        places = [found.start() for found in where.finditer(text, begin, limit)]
        if places:
            return places[-1]
    found = where.search(text, limit)
    return len(text) if found is None else found.start()
