"""The layout of a batch, sequences concatenated without padding, and the division of a global batch over
ranks and into micro-batches.

Losses are summed over all parts, so how a batch is divided changes only the speed. Neighbouring sequences
with the same key (the windows of a long text, the two texts of a pair) belong to one example and stay
together.

    N   tokens in the packed batch    B   sequences    G   examples, each one or more neighbouring sequences
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Ints

if TYPE_CHECKING:  # who computes without torch packs sequences too
    import torch
    from torch import Tensor


def usual_batch_tokens(device: str) -> int:
    """The default number of tokens in a micro-batch on "cpu" or "cuda": few enough for a processor's cache,
    and enough to keep a GPU busy.
    """
    return 32_768 if device == "cuda" else 4096


@dataclass(frozen=True)
class Sequences:
    """Concatenated sequences on the host, before they are divided over ranks.

    token_ids (N,) int64, segment_ids (N,) int64, lengths (B,) int64 with N = sum(lengths);
    keys (B,) uint64: a key identifies a sequence in the whole run, masks are drawn from it;
    labels (B,) int64, for a pair 0 = the next segment, 1 = random, or swapped (as in Hugging Face);
    values (N, P) float32 of tokens that carry values, zeros for others; None for text.
    """

    token_ids: npt.NDArray[np.int64]
    segment_ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    labels: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: npt.NDArray[np.int64]) -> Sequences:
        """The sequences at the given indices (rows,), in that order."""
        ends = np.cumsum(self.lengths)
        spans = [np.arange(ends[row] - self.lengths[row], ends[row]) for row in rows]
        tokens = np.concatenate(spans) if spans else np.zeros(0, np.int64)
        return Sequences(
            self.token_ids[tokens],
            self.segment_ids[tokens],
            self.lengths[rows],
            self.keys[rows],
            self.labels[rows],
            None if self.values is None else self.values[tokens],
        )


@dataclass(frozen=True)
class PackedBatch:
    """Concatenated sequences on the device where the model runs.

    token_ids (N,), segment_ids (N,), position_ids (N,) int64; cumulative_lengths (B + 1,) int32; `lengths`
    stays on the host, so that shapes are known without waiting for the device. Tokens after the last sequence
    are padding, whose hidden states are meaningless. values (N, P) of patches, None for text.
    """

    token_ids: Tensor
    segment_ids: Tensor
    position_ids: Tensor
    cumulative_lengths: Tensor
    lengths: tuple[int, ...]
    values: Tensor | None = None

    @staticmethod
    def pack(
        token_ids: npt.NDArray[np.int64],
        segment_ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        device: torch.device | str = "cpu",
        multiple: int = 1,
        values: npt.NDArray[np.float32] | None = None,
    ) -> PackedBatch:
        """Copies sequences to the device, padded at the end to a multiple of `multiple` tokens.

        token_ids (N,), segment_ids (N,), lengths (B,), values (N, P). Raises TypeError for arrays that aren't
        integers, ValueError if the lengths don't add up to the tokens or a sequence is empty.
        """
        for name, numbers in (("token ids", token_ids), ("segment ids", segment_ids), ("lengths", lengths)):
            if not np.issubdtype(np.asarray(numbers).dtype, np.integer):
                raise TypeError(f"expected integers as {name}, found {np.asarray(numbers).dtype}")
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        if not (total == len(token_ids) == len(segment_ids)):
            raise ValueError(
                f"lengths sum to {total}, but there are {len(token_ids)} token ids "
                f"and {len(segment_ids)} segment ids"
            )
        if (lengths < 1).any():
            raise ValueError("every sequence of a packed batch needs at least one token")
        ids = np.zeros((3, total + -total % multiple), np.int64)
        ids[0, :total] = token_ids
        ids[1, :total] = segment_ids
        ids[2, :total] = np.arange(total) - np.repeat(ends - lengths, lengths)
        cumulative = np.zeros(len(ends) + 1, np.int32)
        cumulative[1:] = ends
        packed_tokens, packed_segments, packed_positions = to_device(ids, device).unbind()
        packed_values = None
        if values is not None:
            packed_values = to_device(np.pad(values, ((0, ids.shape[1] - total), (0, 0))), device)
        return PackedBatch(
            packed_tokens,
            packed_segments,
            packed_positions,
            to_device(cumulative, device),
            tuple(lengths.tolist()),
            packed_values,
        )

    @staticmethod
    def of(sequences: Sequences, device: torch.device | str = "cpu", multiple: int = 1) -> PackedBatch:
        """Copies sequences of the host to the device, as `pack` does."""
        return PackedBatch.pack(
            sequences.token_ids,
            sequences.segment_ids,
            sequences.lengths,
            device,
            multiple,
            sequences.values,
        )

    @cached_property
    def padding(self) -> int:
        """How many tokens at the end belong to no sequence."""
        return len(self.token_ids) - sum(self.lengths)

    @property
    def first_rows(self) -> Tensor:
        """(B,) the index of each sequence's first token, [CLS]."""
        return self.cumulative_lengths[:-1].long()

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(length, count) of each run of neighbouring sequences of equal length; few if sorted by length."""
        return tuple((length, len(list(same))) for length, same in groupby(self.lengths))


def to_device(array: npt.NDArray[np.generic], device: torch.device | str) -> Tensor:
    """Copies an array to the device; to a CUDA GPU from pinned memory, without waiting. float64 becomes the
    `widest_float` of the device.
    """
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    if tensor.dtype == torch.float64:
        tensor = tensor.to(widest_float(device))
    return tensor.to(device)


def widest_float(device: torch.device | str) -> torch.dtype:
    """float64, but float32 on Apple's GPU (MPS), which refuses float64."""
    import torch

    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def concatenate(parts: list[Sequences]) -> Sequences:
    """Joins sequences of several parts end to end, in the order of the parts."""
    return Sequences(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.segment_ids for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.labels for part in parts]),
        joined_values([part.values for part in parts]),
    )


def joined_values(parts: Sequence[npt.NDArray[np.float32] | None]) -> npt.NDArray[np.float32] | None:
    """The values (N, P) of all parts end to end; None if no part has values, as for text."""
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Divides examples of the given numbers of tokens into batches of indices: longest first, at most
    `batch_tokens` in total, at least one example.
    """
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and tokens + lengths[index] > batch_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def ragged_range(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The indices of many spans, one after the other: starts[0], starts[0] + 1, … (lengths[0] of them),
    starts[1], …
    """
    indices: npt.NDArray[np.int64] = np.arange(int(lengths.sum()))
    indices += np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return indices


@dataclass(frozen=True)
class Division:
    """The sequences of a global batch that form each micro-batch of each rank: `rows[rank][micro_batch]`.

    Only the micro-batches that are used are copied: with eight ranks and 4 M tokens, copying all of them
    takes longer than the division itself.
    """

    sequences: Sequences
    rows: list[list[Ints]]

    def of(self, rank: int) -> list[Sequences]:
        """The micro-batches of one rank, copied from the global batch."""
        return [self.sequences.take(rows) for rows in self.rows[rank]]

    def spare(self) -> Sequences:
        """The first micro-batch of the first rank that has any, for ranks that have none."""
        return self.sequences.take(next(filter(None, self.rows))[0])

    @property
    def most(self) -> int:
        """The largest number of micro-batches of any rank."""
        return max(map(len, self.rows))


def split(sequences: Sequences, ranks: int, micro_batch_tokens: int) -> list[list[Sequences]]:
    """The micro-batches of every rank, as `divide` divides the sequences."""
    division = divide(sequences, ranks, micro_batch_tokens)
    return [division.of(rank) for rank in range(ranks)]


def divide(sequences: Sequences, ranks: int, micro_batch_tokens: int) -> Division:
    """Divides sequences into micro-batches for each rank, of about equally many tokens.

    A micro-batch has at most `micro_batch_tokens` plus one example. Examples are sorted by length, so that
    neighbours are equally long and attention runs on few, large groups. If there are fewer examples than
    ranks, as at the end of an epoch, the last ranks have no micro-batch.
    """
    keys, starts = sequences.keys, np.zeros(0, int)
    if len(keys):  # (G,) the first sequence of each example
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    tokens = np.add.reduceat(sequences.lengths, starts)
    by_length = np.argsort(-tokens, kind="stable")
    shares = [by_length] if ranks == 1 else _deal_examples(tokens, by_length, ranks)
    sizes = np.diff(starts, append=len(sequences))
    rows = [
        [
            ragged_range(starts[part], sizes[part])
            for part in _cut_micro_batches(tokens, share, micro_batch_tokens)
        ]
        for share in shares
    ]
    return Division(sequences, rows)


def _deal_examples(tokens: Ints, order: Ints, ranks: int) -> list[Ints]:
    """The examples of each rank: in the given order, each one goes to the rank with the fewest tokens."""
    loads = [0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for example in order.tolist():
        rank = loads.index(min(loads))
        shares[rank].append(example)
        loads[rank] += int(tokens[example])
    return [np.array(share, np.int64) for share in shares]


def _cut_micro_batches(tokens: Ints, examples: Ints, micro_batch_tokens: int) -> list[Ints]:
    """The examples of each micro-batch: neighbours in the given order, cut at equal shares of the tokens."""
    if not len(examples):
        return []
    ends = np.cumsum(tokens[examples])
    parts = -(-int(ends[-1]) // micro_batch_tokens)
    part_of = (ends - 1) * parts // int(ends[-1])
    return [examples[part_of == part] for part in range(parts) if (part_of == part).any()]
