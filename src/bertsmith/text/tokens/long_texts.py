"""Long texts tokenised part by part: the library holds some hundred bytes of each token that it is at.

T tokens of a text.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Protocol, overload

import numpy as np

from bertsmith.arrays import Int32s, Ints

PART = 1 << 14  # characters
_CHARACTERS_OF_A_TOKEN = 16  # English has about 5
_AT_ONCE = 8  # parts
_NEAR_ITS_END = 1 << 10  # characters in which a part's last blank mostly is
_WORDS_AT_ONCE = 1 << 12
_NO_OFFSETS = np.zeros((0, 2), np.int32)

ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"
#: Where a text may be cut: at one blank between two words, before BERT's marks, each of which is a word, and
#: where each Chinese character is one. So base64 or JSON without blanks needn't be read whole for few ids.
BLANK = re.compile(r"(?<=\S)[ \t\n\r](?=\S)")
BLANK_OR_MARK = re.compile(rf"(?<=\S)[ \t\n\r](?=\S)|(?={ASCII_PUNCTUATION})")
BLANK_OR_MARK_OR_CHINESE = re.compile(rf"{BLANK_OR_MARK.pattern}|(?=[\u4e00-\u9fff])")
SPACE = re.compile(r"(?<=\S) (?=\S)")  # a byte-level piece may begin with it
SPACE_OR_MARK = re.compile(rf"{SPACE.pattern}|(?<=[0-9A-Za-z])(?={ASCII_PUNCTUATION})")
WHITE_SPACE = re.compile(r"\s")


class TextEncoding(Protocol):
    """One text of many, tokenised: what of it is used."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def offsets(self) -> Sequence[tuple[int, int]] | Ints | Int32s: ...


@dataclass(frozen=True)
class CompactEncoding:
    """The same in 4 bytes a token and, where offsets (T, 2) were asked for, 8 more."""

    ids: Sequence[int]
    offsets: Int32s


class CachedEncoding:
    """A text's pieces that are read many times: the library makes their ids anew each time."""

    def __init__(self, pieces: TextEncoding) -> None:
        self._pieces = pieces

    @cached_property
    def ids(self) -> Sequence[int]:
        """(T,)"""
        return self._pieces.ids

    @cached_property
    def offsets(self) -> Sequence[tuple[int, int]] | Ints | Int32s:
        """(T, 2) characters."""
        return self._pieces.offsets


@dataclass(frozen=True)
class WordEncodings(Sequence[TextEncoding]):
    """The pieces of many words, without offsets, in 4 bytes a token and 4 a word. Those of one word are made
    when they are asked for; a slice shares the same memory.
    """

    ids: "array[int]"  # of all words, one after the other
    ends: "array[int]"  # how many ids the words up to this one have together
    words: range  # which of them this is about

    def __len__(self) -> int:
        return len(self.words)

    @overload
    def __getitem__(self, index: int) -> TextEncoding: ...
    @overload
    def __getitem__(self, index: slice) -> "WordEncodings": ...
    def __getitem__(self, index: int | slice) -> "TextEncoding | WordEncodings":
        if isinstance(index, slice):
            return replace(self, words=self.words[index])
        word = self.words[index]
        start = self.ends[word - 1] if word else 0
        return CompactEncoding(self.ids[start : self.ends[word]], _NO_OFFSETS)


Encode = Callable[[list[str]], Sequence[TextEncoding]]


def encode_in_parts(
    encode: Encode,
    texts: Sequence[str],
    where: re.Pattern[str],
    enough: int | None,
    offsets: bool,
    trims: bool = False,
) -> list[TextEncoding]:
    """What `encode` makes of each text, cut at `where`; of those not longer than a part in one go. With
    `enough`, of a longer one at least so many ids: it is not read to its end. `trims`: the blank that a part
    begins with, and a text wouldn't, is taken out of its first piece's span.
    """
    size = PART if enough is None else min(PART, _CHARACTERS_OF_A_TOKEN * enough)
    firsts = [text[: _find_cut(text, 0, where, size)] for text in texts]
    found: list[TextEncoding] = list(encode(firsts))
    for number, (text, first) in enumerate(zip(texts, firsts, strict=True)):
        if len(first) < len(text) and (enough is None or len(found[number].ids) < enough):
            found[number] = _encode_long_text(encode, split_text(text, where, size), enough, offsets, trims)
    return found


def _encode_long_text(
    encode: Encode, parts: Iterator[tuple[int, str]], enough: int | None, offsets: bool, trims: bool
) -> CompactEncoding:
    ids, places = array("i"), array("i")
    while some := list(islice(parts, _AT_ONCE)):
        for (start, _), pieces in zip(some, encode([part for _, part in some]), strict=True):
            ids.extend(pieces.ids)
            if offsets:
                spans = np.array(pieces.offsets, np.int32).reshape(-1, 2)
                if trims and start and len(spans):
                    spans[0] = 1, max(1, spans[0, 1])  # that of the blank alone is empty, behind it
                places.frombytes((spans + start).tobytes())
        if enough is not None and len(ids) >= enough:
            break
    return CompactEncoding(ids, np.frombuffer(places, np.int32).reshape(-1, 2))


def encode_words(
    encode: Callable[[Sequence[str]], list[Sequence[int]]], words: Sequence[str]
) -> WordEncodings:
    """Some thousand words at a time: the library's own object for each is of some hundred bytes."""
    ids, ends = array("i"), array("i")
    for start in range(0, len(words), _WORDS_AT_ONCE):
        for of_word in encode(words[start : start + _WORDS_AT_ONCE]):
            ids.extend(of_word)
            ends.append(len(ids))
    return WordEncodings(ids, ends, range(len(ends)))


def split_text(text: str, where: re.Pattern[str], size: int = PART) -> Iterator[tuple[int, str]]:
    """A text cut at `where` into parts of about `size` characters, each with how many stand before it."""
    start = 0
    while start < len(text):
        end = _find_cut(text, start, where, size)
        yield start, text[start:end]
        start = end


def _find_cut(text: str, start: int, where: re.Pattern[str], size: int) -> int:
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
