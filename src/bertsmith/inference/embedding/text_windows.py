"""Texts → sequences for an encoder, chunk by chunk, so that memory doesn't grow with their number.

E texts of a chunk, W windows: one a text, or several of a long one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.data.windows import windows
from bertsmith.errors import InputError
from bertsmith.tasks.encoding import Encoded, Window, join_segments, special_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer

_CHARACTERS = 1 << 17  # tokenised at a time; of a chunk's texts only the ids are kept
# English has about 5 characters a token. A text that is to be cut is tokenised this far first.
_CHARACTERS_OF_A_TOKEN = 16
_BLANK = re.compile(r"(?s).*[ \t\n\r]")
_BLANK_OR_CHINESE = re.compile(r"(?s).*[ \t\n\r\u4e00-\u9fff]")  # where each such character is a word
_FIRST_ROW = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Chunk:
    """Texts ready to be computed: W sequences, and for each the number of its text, ascending (W,)."""

    sequences: Sequence[Encoded]
    text_of_sequence: Ints
    texts: int

    @cached_property
    def lengths(self) -> Ints:
        """(W,) tokens of each sequence, special ones included."""
        return np.array([len(each.windows[0].token_ids) for each in self.sequences], np.int64)


@dataclass(frozen=True)
class TextWindows:
    """`max_length` in tokens, special ones included. Longer texts are cut, or with a `stride` become windows
    that share so many tokens. `first_row_only`: [CLS] is all that the pooling reads.
    """

    tokenizer: Tokenizer
    max_length: int
    stride: int | None
    first_row_only: bool = False
    lowercase: bool = False

    @property
    def room(self) -> int:
        """Tokens of a window without special ones."""
        return self.max_length - special_tokens(self.tokenizer, 1)

    def chunks(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[Chunk]:
        """`size` texts at a time, in order; the last chunk has fewer. InputError for what is no text."""
        numbered = iter(enumerate(texts, 1))
        while chunk := self._chunk(islice(numbered, size), prefix):
            yield chunk

    def _chunk(self, texts: Iterator[tuple[int, str]], prefix: str) -> Chunk | None:
        made, owners, count = list[Encoded](), list[int](), 0
        for some in _few_characters(texts, prefix):
            for ids in self._ids([text.lower() for text in some] if self.lowercase else some):
                for start, end in windows(ids, self.room, self.stride):
                    made.append(self._sequence(ids[start:end]))
                    owners.append(count)
                count += 1
        return Chunk(made, np.array(owners, np.int64), count) if count else None

    def _sequence(self, ids: Sequence[int]) -> Encoded:
        token_ids, _ = join_segments(self.tokenizer, ids)
        rows = _FIRST_ROW if self.first_row_only else _every_row(len(token_ids))
        return Encoded((Window(token_ids, _first_segment(len(token_ids)), rows),))

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Of a text that is cut anyway, at least its first `room` ids: a long one is not read to its end."""
        if self.stride is not None or not self.tokenizer.splits_at_blanks:
            return self.tokenizer.encode_batch(texts)
        limit = _CHARACTERS_OF_A_TOKEN * self.room
        splits_chinese = self.tokenizer.backend.normalizer.handle_chinese_chars
        new_word = _BLANK_OR_CHINESE if splits_chinese else _BLANK
        shown = [_beginning(text, limit, new_word) for text in texts]
        found = self.tokenizer.encode_batch(shown)
        short = [
            number
            for number, (text, part, ids) in enumerate(zip(texts, shown, found, strict=True))
            if len(part) < len(text) and len(ids) < self.room
        ]
        whole = self.tokenizer.encode_batch([texts[number] for number in short]) if short else []
        for number, ids in zip(short, whole, strict=True):
            found[number] = ids
        return found


@lru_cache(maxsize=1024)
def _every_row(length: int) -> Ints:
    """One array for all sequences of a length: what is held of a chunk is little more than its ids."""
    return np.arange(length)


@lru_cache(maxsize=1024)
def _first_segment(length: int) -> Ints:
    return np.zeros(length, np.int64)


def _beginning(text: str, limit: int, new_word: re.Pattern[str]) -> str:
    """Up to where the last word before `limit` begins: there a vocabulary of words is cut without harm."""
    if len(text) <= limit:
        return text
    found = new_word.match(text, 0, limit)
    return text if found is None else text[: found.end() - 1]


def _few_characters(texts: Iterable[tuple[int, str]], prefix: str) -> Iterator[list[str]]:
    held, characters = list[str](), 0
    for number, text in texts:
        if not isinstance(text, str):
            raise InputError(f"text {number}: expected a string, found {type(text).__name__}.")
        held.append(prefix + text)
        characters += len(text)
        if characters >= _CHARACTERS:
            yield held
            held, characters = [], 0
    if held:
        yield held
