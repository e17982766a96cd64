"""Texts chunk by chunk, so that memory doesn't grow with their number: as sequences for an encoder, or as
vectors by a static table, whose words are looked up and whose rows are summed, at a hundred times the speed.

E texts of a chunk, W windows: one a text, or several of a long one; N tokens, D width of a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.data.stream import prefetch
from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.model.static_table import StaticTable
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Window,
    every_row,
    join_segments,
    special_tokens,
    windows,
)
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache

_CHARACTERS = 1 << 17  # tokenised at a time; of a chunk's texts only the ids are kept
_TOKENS = 1 << 21  # of a chunk; more than 4,096 usual texts have
_FIRST_ROW = np.zeros(1, np.int64)
_CHARACTERS_OF_TABLE = 1 << 20  # held as text; of a chunk's texts only the ids are kept
_LONG = 20  # characters a token: a text with more is longer than the limit, or made of endless words
Item = TypeVar("Item")


@dataclass(frozen=True)
class Chunk:
    """Texts ready to be computed: W sequences, and for each the number of its text, ascending (W,)."""

    sequences: Sequence[EncodedExample]
    text_of_sequence: Ints
    texts: int

    @cached_property
    def lengths(self) -> Ints:
        """(W,) tokens of each sequence, special ones included."""
        return np.array([len(each.windows[0].token_ids) for each in self.sequences], np.int64)


@dataclass(frozen=True)
class TextWindows:
    """`max_length` in tokens, special ones included. Longer texts are cut, or with a `stride` become windows
    that share so many tokens. `first_row_only`: [CLS] is all that the pooling reads. `of_table`: a static
    table's limit counts a text's own tokens, for special ones are none of its vector.
    """

    tokenizer: Tokenizer
    max_length: int
    stride: int | None
    first_row_only: bool = False
    of_table: bool = False

    @property
    def room(self) -> int:
        """Tokens of a window without special ones."""
        return self.max_length - (0 if self.of_table else special_tokens(self.tokenizer, 1))

    def chunks(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[Chunk]:
        """`size` texts at a time, in order; the last chunk has fewer. Long texts come in several chunks that
        have `size` together. A thread reads and tokenises beside whoever takes them. InputError for what is
        no text.
        """
        return _prefetched(self._chunks(texts, prefix, size), texts, size)

    def _chunks(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[Chunk]:
        numbered, left = iter(enumerate(texts, 1)), size
        while True:
            made, owners, count, tokens = list[EncodedExample](), list[int](), 0, 0
            for some in _split_by_characters(islice(numbered, left), prefix, _CHARACTERS):
                for ids in self.tokenizer.encode_batch(some, self.room if self.stride is None else None):
                    for start, end in windows(ids, self.room, self.stride, self.tokenizer.truncation):
                        made.append(self.sequence(ids[start:end]))
                        owners.append(count)
                        tokens += end - start
                    count += 1
                if tokens > _TOKENS:
                    break
            if not count:
                return
            yield Chunk(made, np.array(owners, np.int64), count)
            left = left - count or size

    def sequence(self, ids: Sequence[int]) -> EncodedExample:
        """Token ids between the tokenizer's special ones."""
        token_ids, segment_ids = join_segments(self.tokenizer, ids)
        rows = _FIRST_ROW if self.first_row_only else every_row(len(token_ids))
        return EncodedExample((Window(token_ids, segment_ids, rows),))


class TableReader:
    """Reads texts of any length; `room` is how many tokens of each count, None for all.

    A vector is the sum of the rows of a text's tokens, divided by their number and that of the special
    tokens, so that it is what the packed batch of a service gives.
    """

    def __init__(self, table: StaticTable, tokenizer: Tokenizer, room: int | None) -> None:
        self.table = table
        self.tokenizer = tokenizer
        self.room = room
        self._around = special_tokens(tokenizer, 1)
        self._words = WordCache(tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        """Without the words: another process finds its own."""
        return {name: value for name, value in vars(self).items() if name != "_words"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._words = WordCache(self.tokenizer)

    def batches(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[tuple[Vectors, int]]:
        """Vectors (E, D) of `size` texts at a time, in order, and their tokens; the last chunk has fewer.
        A thread looks words up beside the sums. InputError for what is no text.
        """
        for ids, lengths in _prefetched(self._token_ids(texts, prefix, size), texts, size):
            starts = np.cumsum(lengths) - lengths
            with torch.inference_mode():
                sums = F.embedding_bag(  # (N,), (E,) -> (E, D)
                    torch.from_numpy(ids), self.table.table, torch.from_numpy(starts), mode="sum"
                )
            counts = np.maximum(lengths + self._around, 1).astype(np.float32)
            vectors = np.asarray(sums.numpy() / counts[:, None], np.float32)
            yield vectors, int(lengths.sum()) + len(lengths) * self._around

    def _token_ids(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[tuple[Ints, Ints]]:
        """Of `size` texts at a time the ids (N,) one after the other, and how many each text has (E,)."""
        numbered, number, room = iter(texts), 1, self.room
        while some := list(islice(numbered, size)):
            ids, lengths = list[Ints](), list[Ints]()
            for few in _split_by_characters(enumerate(some, number), prefix, _CHARACTERS_OF_TABLE):
                if room is not None:
                    few = [self._beginning(text, room) for text in few]
                found, counts = self._words.encode(few)
                if room is not None and (counts > room).any():
                    place = np.arange(len(found)) - np.repeat(np.cumsum(counts) - counts, counts)
                    found, counts = found[place < room], np.minimum(counts, room)
                ids.append(found.astype(np.int64))
                lengths.append(counts)
            number += len(some)
            yield np.concatenate(ids), np.concatenate(lengths)

    def _beginning(self, text: str, room: int) -> str:
        """Of a long text as much as has more tokens than are read, so that no time goes into the rest."""
        end = room * _LONG
        while end < len(text):
            part = text[: text.rfind(" ", 0, end) + 1 or end]
            if len(self.tokenizer.encode_batch([part], room + 1)[0]) > room:
                return part
            end *= 4
        return text


def _prefetched(chunks: Iterator[Item], texts: Iterable[str], size: int) -> Iterator[Item]:
    """By a thread that is one ahead; for a list of `size` texts at most it would cost more than it saves."""
    few = isinstance(texts, Sequence) and len(texts) <= size
    return chunks if few else prefetch(chunks, ahead=1)


def _split_by_characters(texts: Iterable[tuple[int, str]], prefix: str, most: int) -> Iterator[list[str]]:
    """Numbered texts with the prefix before them, about `most` characters at a time."""
    held, characters = list[str](), 0
    for number, text in texts:
        if not isinstance(text, str):
            raise InputError(f"text {number}: expected a string, found {type(text).__name__}.")
        held.append(prefix + text)
        characters += len(text)
        if characters >= most:
            yield held
            held, characters = [], 0
    if held:
        yield held
