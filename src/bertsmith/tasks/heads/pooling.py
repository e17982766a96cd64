"""Pools the hidden states of a text into one vector, in however many windows it is read.

N tokens in the packed batch, R rows that are read, W windows, T texts, E examples, H hidden size.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.data.batch import PackedBatch, to_device
from bertsmith.tasks.examples.encoding import Layout

Pooling = Literal["mean", "cls", "max"]


def pool_examples(states: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(R, H) -> (E, H), over all windows of an example."""
    if layout.examples == 1 and pooling == "mean":  # a faster way to the same result
        if states.device.type != "cpu":
            return states.mean(0, keepdim=True)
        first = states.new_zeros(len(states), dtype=torch.int64)  # a sum in the same order, to the bit
        return states.new_zeros(1, states.shape[1]).index_add(0, first, states) / len(states)
    return _pool(states, layout.window_of_row, layout.example_of_window, layout.examples, pooling)


def pool_tokens(states: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(N, H) of all tokens, read or not -> (E, H), over all windows of an example."""
    return _pool(states, layout.window_of_token, layout.example_of_window, layout.examples, pooling)


def mean_of_windows(states: Tensor, layout: Layout) -> Tensor:
    """(N, H) of all tokens -> (W, H), the mean of each window."""
    window = layout.window_of_token  # (N,)
    tokens = torch.zeros(layout.windows, dtype=torch.int64, device=window.device)
    tokens = tokens.index_add(0, window, torch.ones_like(window))
    sums = torch.zeros(layout.windows, states.shape[1], dtype=states.dtype, device=states.device)
    return sums.index_add(0, window, states) / tokens[:, None]


def pool_texts(states: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(R, H) -> (T, H), each of an example's texts separately; T counts all texts of the batch."""
    return _pool(states, layout.window_of_row, layout.text_of_window, sum(layout.texts_of_example), pooling)


def _pool(
    states: Tensor, window_of_row: Tensor, text_of_window: Tensor, texts: int, pooling: Pooling
) -> Tensor:
    """(R, H) -> (T, H): over all rows of a text's windows, special tokens included, as in
    sentence-transformers. "cls" takes the mean of the windows' first rows.

    text_of_window (W,) has numbers below `texts`, each of which has a window; window_of_row (R,).
    """
    text = text_of_window[window_of_row]  # (R,)
    if pooling == "max":
        lowest = torch.full((texts, states.shape[1]), -torch.inf, dtype=states.dtype, device=states.device)
        return lowest.scatter_reduce(0, text[:, None].expand_as(states), states, "amax")
    if pooling == "cls":
        windows = torch.arange(len(text_of_window), device=text.device)
        firsts = torch.searchsorted(window_of_row, windows)
        states, text = states[firsts], text[firsts]
    sums = torch.zeros(texts, states.shape[1], dtype=states.dtype, device=states.device)
    # bincount would synchronise with the device to find the largest number
    rows = torch.zeros(texts, dtype=torch.int64, device=text.device).index_add(0, text, torch.ones_like(text))
    return sums.index_add(0, text, states) / rows[:, None]


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


def pool_sequences(states: Tensor, batch: PackedBatch, pooling: Pooling) -> Tensor:
    """(N, H) of all tokens -> (B, H), each sequence separately; padding tokens of the batch are ignored."""
    count = len(batch.lengths)
    lengths = to_device(np.array(batch.lengths, np.int64), states.device)
    numbers = torch.arange(count, device=states.device)
    sequence = numbers.repeat_interleave(lengths, output_size=sum(batch.lengths))  # (N,)
    return _pool(states[: len(sequence)], sequence, numbers, count, pooling)
