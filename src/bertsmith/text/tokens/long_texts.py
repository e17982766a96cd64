"""Tokenizes long texts part by part: the library needs some hundred bytes for each token of a text.

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
_CHARACTERS_PER_TOKEN = 16  # English has about 5
_PARTS_AT_ONCE = 8
_NEAR_END = 1 << 10  # characters: the last blank of a part is mostly within these
_WORDS_AT_ONCE = 1 << 12
_NO_OFFSETS = np.zeros((0, 2), np.int32)

ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"
#: Where a text may be cut: at a single blank between two words; before punctuation, which BERT's rules make a
#: word of its own; and before Chinese characters. So only a part of base64 or JSON without blanks is read if
#: few ids are needed.
BLANK = re.compile(r"(?<=\S)[ \t\n\r](?=\S)")
BLANK_OR_MARK = re.compile(rf"(?<=\S)[ \t\n\r](?=\S)|(?={ASCII_PUNCTUATION})")
BLANK_OR_MARK_OR_CHINESE = re.compile(rf"{BLANK_OR_MARK.pattern}|(?=[\u4e00-\u9fff])")
SPACE = re.compile(r"(?<=\S) (?=\S)")  # a byte-level token may begin with it
SPACE_OR_MARK = re.compile(rf"{SPACE.pattern}|(?<=[0-9A-Za-z])(?={ASCII_PUNCTUATION})")
WHITE_SPACE = re.compile(r"\s")


class TextEncoding(Protocol):
    """The token ids (T,) of one text, and their offsets (T, 2) in characters."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def offsets(self) -> Sequence[tuple[int, int]] | Ints | Int32s: ...


@dataclass(frozen=True)
class CompactEncoding:
    """A TextEncoding in 4 bytes per token, and 8 more with offsets; without them these are (0, 2)."""

    ids: Sequence[int]
    offsets: Int32s


class CachedEncoding:
    """An encoding that is read many times: the library builds its ids and offsets again at each access."""

    def __init__(self, encoding: TextEncoding) -> None:
        self._encoding = encoding

    @cached_property
    def ids(self) -> Sequence[int]:
        """The token ids (T,), read from the library once."""
        return self._encoding.ids

    @cached_property
    def offsets(self) -> Sequence[tuple[int, int]] | Ints | Int32s:
        """The offsets (T, 2) in characters, read from the library once."""
        return self._encoding.offsets


@dataclass(frozen=True)
class WordEncodings(Sequence[TextEncoding]):
    """The token ids of many words, without offsets, in 4 bytes per token and 4 per word.

    The encoding of a word is built when it is accessed; a slice shares the same memory.
    """

    ids: "array[int]"  # of all words, one after the other
    ends: "array[int]"  # the end of each word's ids in `ids`
    words: range  # the indices of the words in this slice

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
    trim_blank: bool = False,
) -> list[TextEncoding]:
    """The encodings of texts by `encode`, with long texts cut where the pattern `where` matches.

    Texts not longer than a part are encoded at once. With `enough`, a longer one is read until it has at
    least that many ids. With `trim_blank`, the blank with which a later part begins is left out of its first
    token's offsets, since no text begins with it.
    """
    size = PART if enough is None else min(PART, _CHARACTERS_PER_TOKEN * enough)
    firsts = [text[: _find_cut(text, 0, where, size)] for text in texts]
    encodings: list[TextEncoding] = list(encode(firsts))
    for index, (text, first) in enumerate(zip(texts, firsts, strict=True)):
        if len(first) < len(text) and (enough is None or len(encodings[index].ids) < enough):
            parts = split_text(text, where, size)
            encodings[index] = _encode_long_text(encode, parts, enough, offsets, trim_blank)
    return encodings


def _encode_long_text(
    encode: Encode, parts: Iterator[tuple[int, str]], enough: int | None, offsets: bool, trim_blank: bool
) -> CompactEncoding:
    ids, all_spans = array("i"), array("i")
    while batch := list(islice(parts, _PARTS_AT_ONCE)):
        for (start, _), encoding in zip(batch, encode([part for _, part in batch]), strict=True):
            ids.extend(encoding.ids)
            if offsets:
                spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
                if trim_blank and start and len(spans):
                    spans[0] = (
                        1,
                        max(1, spans[0, 1]),
                    )  # empty, and after the blank, for a token that is the blank alone
                all_spans.frombytes((spans + start).tobytes())
        if enough is not None and len(ids) >= enough:
            break
    return CompactEncoding(ids, np.frombuffer(all_spans, np.int32).reshape(-1, 2))


def encode_words(
    encode: Callable[[Sequence[str]], list[Sequence[int]]], words: Sequence[str]
) -> WordEncodings:
    """Encodes each word on its own, some thousand at a time: the library's object for each one needs some
    hundred bytes.
    """
    ids, ends = array("i"), array("i")
    for start in range(0, len(words), _WORDS_AT_ONCE):
        for word_ids in encode(words[start : start + _WORDS_AT_ONCE]):
            ids.extend(word_ids)
            ends.append(len(ids))
    return WordEncodings(ids, ends, range(len(ends)))


def split_text(text: str, where: re.Pattern[str], size: int = PART) -> Iterator[tuple[int, str]]:
    """The parts of a text, cut where `where` matches, of about `size` characters: (start, part)."""
    start = 0
    while start < len(text):
        end = _find_cut(text, start, where, size)
        yield start, text[start:end]
        start = end


def _find_cut(text: str, start: int, where: re.Pattern[str], size: int) -> int:
    """The end of the part that begins at `start`: the last match of `where` within `size` characters, else
    the first one after these, else the text's end.
    """
    limit = start + size
    if limit >= len(text):
        return len(text)
    for begin in (max(limit - _NEAR_END, start + 1), start + 1):
        cuts = [match.start() for match in where.finditer(text, begin, limit)]
        if cuts:
            return cuts[-1]
    match = where.search(text, limit)
    return len(text) if match is None else match.start()
