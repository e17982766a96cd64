"""Examples as sequences: one window or several each, packed end to end, and the rows that a head reads.

N tokens in the packed batch, W windows, E examples, R rows that the head reads, F features of columns beside
the text, T tokens of a text.

A text that is longer than the model can read is read in overlapping windows: ranges (start, end) of its
tokens, by one rule for every head. Each token counts in the window that shows most of its context, in
training as in prediction.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Bools, Float32s, Int32s, Ints
from bertsmith.data.batch import Sequences, joined_values, to_device
from bertsmith.errors import InputError
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.sequence_rules import USUAL_TRUNCATION, Truncation
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import RowEncoding

if TYPE_CHECKING:  # who computes without torch encodes too
    import torch
    from torch import Tensor

Pooling = Literal["mean", "cls", "max"]  # of a text's hidden states to its vector


@dataclass(frozen=True, slots=True)
class Window:
    """One sequence of an example, special tokens included.

    token_ids (L,) int32, segment_ids (L,); `rows` are the positions in 0 … L-1 whose hidden states the head
    reads, ascending. `text` is the index of the example's text that it shows, if texts are encoded
    separately.
    """

    token_ids: Int32s
    segment_ids: Ints
    rows: Ints
    text: int = 0
    values: npt.NDArray[np.float32] | None = None  # (L, P) if tokens are patches


@dataclass(frozen=True)
class EncodedExample:
    """An example as its windows.

    `target` is what the loss compares the head's outputs with, None without a label; `decoding` is what
    decoding needs to know about the windows, if anything. `columns` (F,) are the features of a table's
    columns beside the texts.
    """

    windows: tuple[Window, ...]
    target: Any = None
    decoding: Any = None
    columns: Float32s | None = None

    @cached_property
    def tokens(self) -> int:
        """The number of tokens in all windows together."""
        return sum(len(window.token_ids) for window in self.windows)

    def parts(self, tokens: int) -> list[EncodedExample]:
        """Divides the windows into examples of at most this many tokens, or of one window; each of a single
        text.
        """
        parts, size = list[list[Window]](), 0
        for window in self.windows:
            size += len(window.token_ids)
            if not parts or size > tokens or window.text != parts[-1][0].text:
                parts.append([])
                size = len(window.token_ids)
            parts[-1].append(window)
        return [EncodedExample(tuple(part)) for part in parts]


Encoded = EncodedExample  # the name by which programs have known it


@dataclass(frozen=True)
class Layout:
    """Maps the rows that a head reads to windows, texts and examples of the batch that `pack_examples` makes.

    Each mapping is computed on first use: embedding a short text takes less time than computing all of them.
    """

    encoded: Sequence[EncodedExample]
    device: torch.device | str = "cpu"

    @property
    def examples(self) -> int:
        """E, the number of examples in the batch."""
        return len(self.encoded)

    @property
    def windows(self) -> int:
        """W, the number of windows in the batch."""
        return len(self._windows)

    @cached_property
    def rows(self) -> Tensor | None:
        """The positions (R,) of the rows in the packed batch; None if all tokens are read."""
        lengths = [len(window.token_ids) for window in self._windows]
        if sum(self._row_counts) == sum(lengths):
            return None
        starts = np.cumsum(lengths) - lengths
        rows = np.concatenate([window.rows for window in self._windows]) + np.repeat(starts, self._row_counts)
        return to_device(rows, self.device)

    @cached_property
    def window_of_row(self) -> Tensor:
        """The window of each row: (R,)."""
        return to_device(np.repeat(np.arange(self.windows), self._row_counts), self.device)

    @cached_property
    def window_of_token(self) -> Tensor:
        """The window of each token, read or not: (N,)."""
        lengths = [len(window.token_ids) for window in self._windows]
        return to_device(np.repeat(np.arange(self.windows), lengths), self.device)

    @cached_property
    def example_of_window(self) -> Tensor:
        """The example of each window: (W,)."""
        return to_device(self._window_examples, self.device)

    @cached_property
    def text_of_window(self) -> Tensor:
        """The text of each window, counted through all examples: (W,)."""
        return to_device(np.cumsum(self._begins_text) - 1, self.device)

    @cached_property
    def rows_of_example(self) -> tuple[int, ...]:
        """How many rows each example has: (E,), on the host."""
        return tuple(sum(len(window.rows) for window in example.windows) for example in self.encoded)

    @cached_property
    def texts_of_example(self) -> tuple[int, ...]:
        """How many separately encoded texts each example has: (E,), on the host."""
        return tuple(np.bincount(self._window_examples[self._begins_text], minlength=self.examples).tolist())

    @cached_property
    def columns(self) -> Tensor:
        """The features of each example's columns: (E, F). F is 0 if there are no columns."""
        none = np.zeros(0, np.float32)
        features = [none if example.columns is None else example.columns for example in self.encoded]
        return to_device(np.stack(features), self.device)

    @cached_property
    def _windows(self) -> list[Window]:
        return [window for example in self.encoded for window in example.windows]

    @cached_property
    def _row_counts(self) -> list[int]:
        return [len(window.rows) for window in self._windows]

    @cached_property
    def _window_examples(self) -> Ints:
        """The example of each window: (W,)."""
        return np.repeat(np.arange(self.examples), [len(example.windows) for example in self.encoded])

    @cached_property
    def _begins_text(self) -> Bools:
        """Whether each window is the first of a text: (W,)."""
        texts = np.array([window.text for window in self._windows])
        other_example, other_text = np.diff(self._window_examples, prepend=-1), np.diff(texts, prepend=-1)
        return np.logical_or(other_example, other_text)


def pack_examples(encoded: Sequence[EncodedExample], numbers: Sequence[int]) -> Sequences:
    """Packs the windows of many examples into one batch; its keys are the examples' `numbers`."""
    sequences = [window for example in encoded for window in example.windows]
    keys = np.repeat(np.asarray(numbers, np.uint64), [len(example.windows) for example in encoded])
    return Sequences(
        np.concatenate([window.token_ids for window in sequences], dtype=np.int64),
        np.concatenate([window.segment_ids for window in sequences]),
        np.array([len(window.token_ids) for window in sequences], np.int64),
        keys,
        np.array([window.text for window in sequences], np.int64),
        joined_values([window.values for window in sequences]),
    )


TokenRange = tuple[int, int]


def windows(
    token_ids: Sized, room: int, stride: int | None, truncation: Truncation = USUAL_TRUNCATION
) -> list[TokenRange]:
    """Ranges of at most `room` tokens that cover the whole text, each sharing `stride` tokens with the next.

    The last range is moved back until it is full, so that no window has little context; it may share more. A
    text that fits is one window, also an empty text: (0, 0). With `stride` None the text is cut to `room`
    tokens instead, at the end that `truncation` names. Raises ValueError for a room below 1 and a stride
    outside 0 … room - 1.
    """
    if room < 1:
        raise ValueError(f"a window needs room for at least one token, found room = {room}")
    if stride is not None and not 0 <= stride < room:
        raise ValueError(
            f"expected a stride from 0 to {room - 1}, below the {room} tokens of a window, found {stride}"
        )
    tokens = len(token_ids)
    if stride is None or tokens <= room:
        return [truncation.kept_range(tokens, min(tokens, room))]
    last = tokens - room
    starts = [*range(0, last, room - stride), last]
    return [(start, start + room) for start in starts]


def owner(ranges: Sequence[TokenRange]) -> npt.NDArray[np.int64]:
    """(T,): for each token up to the last window's end, the index of the window that reads it.

    It is the window in which the token is farthest from the nearer end, the first of several. A token that no
    window covers has -1.
    """
    tokens = max((end for _, end in ranges), default=0)
    most_context = np.full(tokens, -1, np.int64)
    owners = np.full(tokens, -1, np.int64)
    for index, (start, end) in enumerate(ranges):
        from_start = np.arange(end - start)
        context = np.minimum(from_start, from_start[::-1])
        better = context > most_context[start:end]
        most_context[start:end][better] = context[better]
        owners[start:end][better] = index
    return owners


def join_pooled(
    vectors: npt.NDArray[np.float32], text: Ints, size: Ints, pooling: Pooling
) -> npt.NDArray[np.float32]:
    """Combines pooled vectors (W, H) of windows, or of runs of windows, into (T, H): the same as pooling all
    rows of a text at once.

    `text` (W,) is the number of each vector's text, ascending; `size` (W,) its number of rows for "mean", and
    of windows for "cls".
    """
    starts = np.flatnonzero(np.diff(text, prepend=-1))
    if pooling == "max":
        return np.asarray(np.maximum.reduceat(vectors, starts))
    weight = size.astype(np.float32)[:, None]
    return np.asarray(np.add.reduceat(vectors * weight, starts) / np.add.reduceat(weight, starts))


def windows_apart(
    tokenizer: Tokenizer, pieces: Sequence[TextEncoding], max_length: int, stride: int | None
) -> tuple[Window, ...]:
    """Encodes each text in windows of its own, in the order of texts. The head reads every row."""
    room = max_length - special_tokens(tokenizer, 1)
    text_windows = []
    for text, text_pieces in enumerate(pieces):
        if isinstance(text_pieces, RowEncoding):
            raise InputError("A model of numbers is fine-tuned for classification or regression only.")
        for start, end in windows(text_pieces.ids, room, stride, tokenizer.truncation):
            token_ids, segment_ids = join_segments(tokenizer, text_pieces.ids[start:end])
            text_windows.append(Window(token_ids, segment_ids, every_row(len(token_ids)), text))
    return tuple(text_windows)


def single_windows(
    ids: Sequence[int], room: int, stride: int | None, truncation: Truncation = USUAL_TRUNCATION
) -> list[tuple[Sequence[int], ...]]:
    """The token ids in each window of one text."""
    return [(ids[start:end],) for start, end in windows(ids, room, stride, truncation)]


def pair_windows(
    first: Sequence[int],
    second: Sequence[int],
    room: int,
    stride: int | None,
    truncation: Truncation = USUAL_TRUNCATION,
) -> list[tuple[Sequence[int], ...]]:
    """The token ids of both texts in each window of a pair. Without a stride both are cut as `truncation`
    says. With a stride the first text is repeated before each window of the second; it is cut only if it
    takes more than half of the room.
    """
    if len(first) + len(second) <= room:
        return [(first, second)]
    if stride is None:
        lengths = truncation.divide_room(len(first), len(second), room)
        ranges = (
            truncation.kept_range(len(ids), count)
            for ids, count in zip((first, second), lengths, strict=True)
        )
        (start, end), (other_start, other_end) = ranges
        return [(first[start:end], second[other_start:other_end])]
    start, end = truncation.kept_range(len(first), min(len(first), room // 2))
    first = first[start:end]
    second_room = room - len(first)
    return [
        (first, second[start:end])
        for start, end in windows(second, second_room, min(stride, second_room - 1))
    ]


def join_segments(
    tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int] | None = None
) -> tuple[Int32s, Ints]:
    """Puts one text or two between the tokenizer's special tokens: (token_ids, segment_ids). The segment ids
    are shared by all sequences of the same lengths, and read-only.
    """
    template = tokenizer.template
    before = [*template.before, *first]
    if second is None:
        ids = [*before, *template.behind]
        return np.array(ids, np.int32), _segments((0,), (len(ids),))
    before, after = [*before, *template.between], [*second, *template.behind]
    return np.array(before + after, np.int32), _segments(template.segments, (len(before), len(after)))


@lru_cache(maxsize=1024)
def every_row(length: int) -> Ints:
    """0 … length - 1, one shared array for all windows of a length, which saves memory."""
    return _read_only(np.arange(length))


def rows_behind(prompt: str, tokenizer: Tokenizer, tokens: int) -> Ints:
    """The rows of a window of so many tokens that are pooled where the prompt before its text isn't: neither
    the prompt's tokens nor the special ones before them; at least one.
    """
    skipped = len(tokenizer.template.before) + len(tokenizer.encode(prompt).ids) if prompt else 0
    return every_row(tokens)[min(skipped, tokens - 1) :]


@lru_cache(maxsize=1024)
def _segments(numbers: tuple[int, ...], lengths: tuple[int, ...]) -> Ints:
    return _read_only(np.repeat(np.array(numbers, np.int64), lengths))


def _read_only(array: Ints) -> Ints:
    array.setflags(write=False)
    return array


def special_tokens(tokenizer: Tokenizer, texts: int) -> int:
    """How many special tokens `join_segments` adds to one text, or to two."""
    return tokenizer.template.count_special_tokens(texts)
