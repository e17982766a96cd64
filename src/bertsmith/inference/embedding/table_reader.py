"""Texts → vectors by a static table: words looked up, rows summed. A hundred times the speed of an encoder.

E texts of a chunk, N tokens of them, D width of a vector.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.data.stream import prefetch
from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.model.static_table import StaticTable
from bertsmith.tasks.examples.encoding import special_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache

_CHARACTERS = 1 << 20  # held as text; of a chunk's texts only the ids are kept
_LONG = 20  # characters a token: a text with more is longer than the limit, or made of endless words


class Looked(NamedTuple):
    """Token ids (N,) of texts one after the other, and how many each has (E,)."""

    ids: Ints
    lengths: Ints


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
        found = self._chunks(texts, prefix, size)
        if not isinstance(texts, list) or len(texts) > size:  # else a thread costs more than it saves
            found = prefetch(found, ahead=1)
        for ids, lengths in found:
            yield self._means(ids, lengths), int(lengths.sum()) + len(lengths) * self._around

    def _means(self, ids: Ints, lengths: Ints) -> Vectors:
        """(N,), (E,) -> (E, D)."""
        starts = np.cumsum(lengths) - lengths
        with torch.inference_mode():
            sums = F.embedding_bag(
                torch.from_numpy(ids), self.table.table, torch.from_numpy(starts), mode="sum"
            )
        counts = np.maximum(lengths + self._around, 1).astype(np.float32)
        return np.asarray(sums.numpy() / counts[:, None], np.float32)

    def _chunks(self, texts: Iterable[str], prefix: str, size: int) -> Iterator[Looked]:
        numbered = iter(texts)
        number = 0
        while some := list(islice(numbered, size)):
            parts = [self._looked_up(few) for few in _few_characters(some, prefix, number)]
            number += len(some)
            yield Looked(
                np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts])
            )

    def _looked_up(self, texts: list[str]) -> Looked:
        if self.room is not None:
            longest = self.room * _LONG
            texts = [text if len(text) <= longest else self._beginning(text, self.room) for text in texts]
        found, lengths = self._words.encode(texts)
        ids = found.astype(np.int64)
        if self.room is None or not (lengths > self.room).any():
            return Looked(ids, lengths)
        place = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Looked(ids[place < self.room], np.minimum(lengths, self.room))

    def _beginning(self, text: str, room: int) -> str:
        """As much of a long text as has more tokens than are read, so that no time goes into the rest."""
        end = room * _LONG
        while end < len(text):
            part = text[: text.rfind(" ", 0, end) + 1 or end]
            if len(self.tokenizer.encode_batch([part], room + 1)[0]) > room:
                return part
            end *= 4
        return text


def _few_characters(texts: list[str], prefix: str, before: int) -> Iterator[list[str]]:
    held, characters = list[str](), 0
    for number, text in enumerate(texts, before + 1):
        if not isinstance(text, str):
            raise InputError(f"text {number}: expected a string, found {type(text).__name__}.")
        held.append(prefix + text)
        characters += len(text)
        if characters >= _CHARACTERS:
            yield held
            held, characters = [], 0
    if held:
        yield held
