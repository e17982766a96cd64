"""Texts → sequences for an encoder, chunk by chunk, so that memory doesn't grow with their number.

E texts of a chunk, W windows: one a text, or several of a long one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.data.windows import windows
from bertsmith.errors import InputError
from bertsmith.tasks.examples.encoding import Encoded, Window, every_row, join_segments, special_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer

_CHARACTERS = 1 << 17  # tokenised at a time; of a chunk's texts only the ids are kept
_TOKENS = 1 << 21  # of a chunk; more than 4,096 usual texts have
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
        have `size` together. InputError for what is no text.
        """
        numbered, left = iter(enumerate(texts, 1)), size
        while chunk := self._chunk(islice(numbered, left), prefix):
            yield chunk
            left = left - chunk.texts or size

    def _chunk(self, texts: Iterator[tuple[int, str]], prefix: str) -> Chunk | None:
        made, owners, count, tokens = list[Encoded](), list[int](), 0, 0
        for some in _few_characters(texts, prefix):
            for ids in self.tokenizer.encode_batch(some, self.room if self.stride is None else None):
                for start, end in windows(ids, self.room, self.stride, self.tokenizer.truncation):
                    made.append(self.sequence(ids[start:end]))
                    owners.append(count)
                    tokens += end - start
                count += 1
            if tokens > _TOKENS:
                break
        return Chunk(made, np.array(owners, np.int64), count) if count else None

    def sequence(self, ids: Sequence[int]) -> Encoded:
        """Token ids between the tokenizer's special ones."""
        token_ids, segment_ids = join_segments(self.tokenizer, ids)
        rows = _FIRST_ROW if self.first_row_only else every_row(len(token_ids))
        return Encoded((Window(token_ids, segment_ids, rows),))


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
