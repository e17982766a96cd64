"""Examples as sequences: one window or several each, packed end to end, and what a head reads of them.

N   tokens in the packed batch     W   windows     E   examples     R   rows that the head reads
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.data.batch import Sequences, to_device
from bertsmith.data.windows import windows
from bertsmith.text.tokens.tokenizer import Pieces, Tokenizer


@dataclass(frozen=True)
class Window:
    """One sequence of an example, special tokens included.

    token_ids (L,), segment_ids (L,); `rows` are the places in 0 … L-1 whose hidden states the head reads,
    ascending. `text` says which of an example's texts it shows, where they are encoded apart.
    """

    token_ids: Ints
    segment_ids: Ints
    rows: Ints
    text: int = 0


@dataclass(frozen=True)
class Encoded:
    """An example as its windows.

    `target` is what the loss compares the head's outputs with, None without a label; `decoding` is what
    decoding must know of the windows, where it must.
    """

    windows: tuple[Window, ...]
    target: Any = None
    decoding: Any = None


@dataclass(frozen=True)
class Layout:
    """Where the rows that a head reads come from.

    rows (R,) in the packed batch, None for all of them; window_of_row (R,); example_of_window (W,);
    text_of_window (W,) counts through the texts of all examples; on the host rows_of_example (E,) and
    texts_of_example (E,), how many texts each has that are encoded apart.
    """

    rows: Tensor | None
    window_of_row: Tensor
    example_of_window: Tensor
    text_of_window: Tensor
    rows_of_example: tuple[int, ...]
    texts_of_example: tuple[int, ...]

    @property
    def examples(self) -> int:
        return len(self.rows_of_example)

    @property
    def windows(self) -> int:
        return len(self.example_of_window)


def pack_examples(encoded: Sequence[Encoded], numbers: Sequence[int]) -> Sequences:
    """The windows of many examples as one batch; its keys are the examples' `numbers`."""
    sequences = [window for each in encoded for window in each.windows]
    keys = np.repeat(np.asarray(numbers, np.uint64), [len(each.windows) for each in encoded])
    return Sequences(
        np.concatenate([window.token_ids for window in sequences]),
        np.concatenate([window.segment_ids for window in sequences]),
        np.array([len(window.token_ids) for window in sequences], np.int64),
        keys,
        np.array([window.text for window in sequences], np.int64),
    )


def lay_out(encoded: Sequence[Encoded], device: torch.device | str = "cpu") -> Layout:
    """The layout of the batch that `pack_examples` makes of the same examples."""
    sequences = [window for each in encoded for window in each.windows]
    lengths = np.array([len(window.token_ids) for window in sequences])
    counts = np.array([len(window.rows) for window in sequences])
    starts = np.cumsum(lengths) - lengths
    rows = np.concatenate([window.rows for window in sequences]) + np.repeat(starts, counts)
    numbers = np.repeat(np.arange(len(encoded)), [len(each.windows) for each in encoded])
    texts = np.array([window.text for window in sequences])
    begins = (np.diff(numbers, prepend=-1) != 0) | (np.diff(texts, prepend=-1) != 0)
    return Layout(
        None if len(rows) == lengths.sum() else to_device(rows, device),
        to_device(np.repeat(np.arange(len(sequences)), counts), device),
        to_device(numbers, device),
        to_device(np.cumsum(begins) - 1, device),
        tuple(np.bincount(numbers, counts, len(encoded)).astype(int).tolist()),
        tuple(np.bincount(numbers[begins], minlength=len(encoded)).tolist()),
    )


def windows_apart(
    tokenizer: Tokenizer, pieces: Sequence[Pieces], max_length: int, stride: int | None
) -> tuple[Window, ...]:
    """The windows of each text by itself, those of the first before those of the second; the head reads every
    row.
    """
    room = max_length - special_tokens(tokenizer, 1)
    made = []
    for number, piece in enumerate(pieces):
        for start, end in windows(piece.ids, room, stride):
            token_ids, segment_ids = join_segments(tokenizer, piece.ids[start:end])
            made.append(Window(token_ids, segment_ids, np.arange(len(token_ids)), number))
    return tuple(made)


def join_segments(
    tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int] | None = None
) -> tuple[Ints, Ints]:
    """[CLS] first [SEP], or [CLS] first [SEP] second [SEP]: (token_ids, segment_ids).

    RoBERTa has two separators between the texts and one segment (Liu et al. 2019, and its tokenizer).
    """
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    if second is None:
        ids = [cls, *first, sep]
        return np.array(ids, np.int64), np.zeros(len(ids), np.int64)
    between = [sep, sep] if tokenizer.family == "byte-level" else [sep]
    before, after = [cls, *first, *between], [*second, sep]
    segments = np.zeros(len(before) + len(after), np.int64)
    if tokenizer.family == "wordpiece":
        segments[len(before) :] = 1
    return np.array(before + after, np.int64), segments


def special_tokens(tokenizer: Tokenizer, texts: int) -> int:
    """How many special tokens `join_segments` adds to one text, or to two."""
    return 2 * texts if tokenizer.family == "byte-level" else 1 + texts
