"""Reads texts chunk by chunk, so that memory doesn't grow with their number.

`TextWindows` makes token sequences for an encoder. `TableReader` makes vectors by a static table, which looks
tokens up and sums their rows, a hundred times as fast as an encoder.

E texts of a chunk, W windows: one a text, or several of a long one; N tokens, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np

from bertsmith.arrays import Float32s, Ints
from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Window,
    every_row,
    join_segments,
    rows_behind,
    special_tokens,
    windows,
)
from bertsmith.text.tokens.tokenizer import Tokenizer

_CHARACTERS = 1 << 17  # tokenised at a time; a chunk keeps only the ids of its texts
_TOKENS = 1 << 21  # of a chunk; more than 4,096 usual texts have
_FIRST_ROW = np.zeros(1, np.int64)
_CHARACTERS_OF_TABLE = 1 << 20  # in memory as text; a chunk keeps only the ids of its texts
_LONG = 20  # characters a token: a text with more is longer than the limit, or made of endless words
Item = TypeVar("Item")


@dataclass(frozen=True)
class Chunk:
    """Encoded texts: W `sequences`, and for each the index of its text in the chunk, ascending (W,). `texts`
    is the number of texts.
    """

    sequences: Sequence[EncodedExample]
    text_of_sequence: Ints
    texts: int

    @cached_property
    def lengths(self) -> Ints:
        """The number of tokens of each sequence, special tokens included: (W,)."""
        return np.array([len(sequence.windows[0].token_ids) for sequence in self.sequences], np.int64)

    @cached_property
    def row_counts(self) -> Ints:
        """The number of tokens of each sequence that are pooled: (W,)."""
        return np.array([len(sequence.windows[0].rows) for sequence in self.sequences], np.int64)


@dataclass(frozen=True)
class TextWindows:
    """Encodes texts as windows of at most `max_length` tokens, special tokens included.

    Longer texts are truncated, or with a `stride` split into windows that share that many tokens.
    `first_row_only`: the pooling reads [CLS] alone. `of_table`: for a static table `max_length` counts a
    text's own tokens, because special tokens have no part in its vector. `skips_prompt`: a prompt is read,
    but its tokens aren't pooled.
    """

    tokenizer: Tokenizer
    max_length: int
    stride: int | None
    first_row_only: bool = False
    of_table: bool = False
    skips_prompt: bool = False

    @property
    def room(self) -> int:
        """How many tokens of a text fit into a window, beside the special tokens."""
        return self.max_length - (0 if self.of_table else special_tokens(self.tokenizer, 1))

    def chunks(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[Chunk]:
        """Encodes `size` texts at a time, in order; the last chunk may have fewer. Long texts are divided
        into several chunks that have `size` texts together. A thread reads and tokenises ahead of the caller.
        Raises InputError for an item that is no text.
        """
        return _prefetched(self._chunks(texts, prefix, size), texts, size)

    def _chunks(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[Chunk]:
        numbered_texts, remaining = iter(enumerate(texts, 1)), size
        while True:
            sequences, text_indices, text_count, token_count = list[EncodedExample](), list[int](), 0, 0
            for batch in _split_by_characters(islice(numbered_texts, remaining), prefix, _CHARACTERS):
                for ids in self.tokenizer.encode_batch(batch, self.room if self.stride is None else None):
                    for start, end in windows(ids, self.room, self.stride, self.tokenizer.truncation):
                        is_first = start == 0 or self.stride is None
                        sequences.append(self.sequence(ids[start:end], prefix if is_first else ""))
                        text_indices.append(text_count)
                        token_count += end - start
                    text_count += 1
                if token_count > _TOKENS:
                    break
            if not text_count:
                return
            yield Chunk(sequences, np.array(text_indices, np.int64), text_count)
            remaining = remaining - text_count or size

    def sequence(self, ids: Sequence[int], prompt: str = "") -> EncodedExample:
        """A sequence of one window: the token ids between the tokenizer's special tokens. `prompt` is the one
        that the ids begin with, if there is one.
        """
        token_ids, segment_ids = join_segments(self.tokenizer, ids)
        if self.skips_prompt and prompt:
            rows = rows_behind(prompt, self.tokenizer, len(token_ids))
            rows = rows[:1] if self.first_row_only else rows
        else:
            rows = _FIRST_ROW if self.first_row_only else every_row(len(token_ids))
        return EncodedExample((Window(token_ids, segment_ids, rows),))


class VectorTable(Protocol):
    """A static table of vectors, one a piece."""

    def sums(self, token_ids: Ints, starts: Ints) -> Float32s:
        """The sums (E, D) of the rows of tokens (N,), of which each text begins at its start (E,)."""


class TableReader:
    """Embeds texts of any length by a static table; `room` is how many tokens of a text count, None for all.

    A vector is the sum of the rows of a text's tokens, divided by their number plus that of the special
    tokens: the same as the packed batch of a service gives.
    """

    def __init__(self, table: VectorTable, tokenizer: Tokenizer, room: int | None) -> None:
        self.table = table
        self.tokenizer = tokenizer
        self.room = room
        from bertsmith.text.tokens.word_cache import WordCache

        self._around = special_tokens(tokenizer, 1)
        self._words = WordCache(tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the cache of words out: another process fills its own."""
        return {name: value for name, value in vars(self).items() if name != "_words"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from bertsmith.text.tokens.word_cache import WordCache

        vars(self).update(state)
        self._words = WordCache(self.tokenizer)

    def batches(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[tuple[Vectors, int]]:
        """Yields the vectors (E, D) of `size` texts at a time, in order, and their number of tokens; the last
        chunk may have fewer. A thread looks words up while rows are summed. Raises InputError for an item
        that is no text.
        """
        for ids, lengths in _prefetched(self._token_ids(texts, prefix, size), texts, size):
            starts = np.cumsum(lengths) - lengths
            sums = self.table.sums(ids, starts)
            counts = np.maximum(lengths + self._around, 1).astype(np.float32)
            vectors = np.asarray(sums / counts[:, None], np.float32)
            yield vectors, int(lengths.sum()) + len(lengths) * self._around

    def _token_ids(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[tuple[Ints, Ints]]:
        """For `size` texts at a time: their token ids end to end (N,), and the number for each text (E,)."""
        iterator, first_number, room = iter(texts), 1, self.room
        while chunk := list(islice(iterator, size)):
            ids, lengths = list[Ints](), list[Ints]()
            for batch in _split_by_characters(enumerate(chunk, first_number), prefix, _CHARACTERS_OF_TABLE):
                if room is not None:
                    batch = [self._cut_long_text(text, room) for text in batch]
                token_ids, counts = self._words.encode(batch)
                if room is not None and (counts > room).any():
                    positions = np.arange(len(token_ids)) - np.repeat(np.cumsum(counts) - counts, counts)
                    token_ids, counts = token_ids[positions < room], np.minimum(counts, room)
                ids.append(token_ids.astype(np.int64))
                lengths.append(counts)
            first_number += len(chunk)
            yield np.concatenate(ids), np.concatenate(lengths)

    def _cut_long_text(self, text: str, room: int) -> str:
        """The beginning of a long text, more than `room` tokens of it: the rest isn't tokenised in vain."""
        end = room * _LONG
        while end < len(text):
            part = text[: text.rfind(" ", 0, end) + 1 or end]
            if len(self.tokenizer.encode_batch([part], room + 1)[0]) > room:
                return part
            end *= 4
        return text


def _prefetched(chunks: Iterator[Item], texts: Iterable[str], size: int) -> Iterator[Item]:
    """Makes chunks in a thread, one ahead; not for a list of at most `size` texts, where that costs more than
    it saves.
    """
    if isinstance(texts, Sequence) and len(texts) <= size:
        return chunks
    from bertsmith.data.stream import prefetch

    return prefetch(chunks, ahead=1)


def _split_by_characters(texts: Iterable[tuple[int, str]], prefix: str, most: int) -> Iterator[list[str]]:
    """Puts the prefix before numbered texts and yields about `most` characters of them at a time."""
    batch, characters = list[str](), 0
    for number, text in texts:
        if not isinstance(text, str):
            raise InputError(f"text {number}: expected a string, found {type(text).__name__}.")
        batch.append(prefix + text)
        characters += len(text)
        if characters >= most:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
