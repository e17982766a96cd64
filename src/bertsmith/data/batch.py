"""The one layout for a batch: sequences concatenated, nothing padded; and a global batch divided over ranks
and, within a rank, into micro-batches.

The sum over all parts is what counts, so how a batch is divided changes speed only. Neighbours of the same
key (the windows of a long text, the two texts of a pair) belong to one example and stay together.

    N   tokens in the packed batch    B   sequences    G   examples, each one or more neighbouring sequences
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.arrays import Ints


def usual_batch_tokens(device: str) -> int:
    """Tokens computed at once on "cpu" or "cuda" where nobody says how many: a processor's should stay in its
    cache, a GPU's fill it.
    """
    return 32_768 if device == "cuda" else 4096


@dataclass(frozen=True)
class Sequences:
    """Sequences on the host, concatenated: what the data layer makes and splits over ranks.

    token_ids (N,) int64, segment_ids (N,) int64, lengths (B,) int64 with N = sum(lengths);
    keys (B,) uint64 names each sequence's place in the whole run: masks are drawn from it;
    labels (B,) int64, of a pair 0 = the next one, 1 = random, or swapped (as in Hugging Face);
    values (N, P) float32 of tokens that are patches, zeros for others; None for text.
    """

    token_ids: npt.NDArray[np.int64]
    segment_ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    labels: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: npt.NDArray[np.int64]) -> "Sequences":
        """The sequences of the given rows, in that order."""
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
    """Sequences on the device where the model runs.

    token_ids (N,), segment_ids (N,), position_ids (N,) int64; cumulative_lengths (B + 1,) int32;
    `lengths` stays on the host so that shapes are known without asking the device. Tokens after the last
    sequence are padding, whose states say nothing. values (N, P) of patches, None for text.
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
    ) -> "PackedBatch":
        """Spare tokens make N a multiple. Raises TypeError for what are no integers, ValueError when the
        lengths don't add up to the tokens, or a sequence is empty.
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
        of_tokens = to_device(ids, device).unbind()
        on_device = None
        if values is not None:
            on_device = to_device(np.pad(values, ((0, ids.shape[1] - total), (0, 0))), device)
        return PackedBatch(
            *(of_tokens[0], of_tokens[1], of_tokens[2]),
            *(to_device(cumulative, device), tuple(lengths.tolist()), on_device),
        )

    @staticmethod
    def of(sequences: Sequences, device: torch.device | str = "cpu", multiple: int = 1) -> "PackedBatch":
        """The same sequences on the device."""
        of_tokens = sequences.token_ids, sequences.segment_ids
        return PackedBatch.pack(*of_tokens, sequences.lengths, device, multiple, sequences.values)

    @cached_property
    def padding(self) -> int:
        """Tokens that are no sequence's."""
        return len(self.token_ids) - sum(self.lengths)

    @property
    def first_rows(self) -> Tensor:
        """(B,) row of each sequence's first token, [CLS]."""
        return self.cumulative_lengths[:-1].long()

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(length, count) of each run of neighbours of equal length; few when sorted by length."""
        return tuple((length, len(list(same))) for length, same in groupby(self.lengths))


def to_device(array: npt.NDArray[np.generic], device: torch.device | str) -> Tensor:
    """Copies without waiting: from pinned memory when the device is a GPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def concatenate(parts: list[Sequences]) -> Sequences:
    """Joins batches end to end."""
    return Sequences(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.segment_ids for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.labels for part in parts]),
        joined_values([part.values for part in parts]),
    )


def joined_values(parts: Sequence[npt.NDArray[np.float32] | None]) -> npt.NDArray[np.float32] | None:
    """The values of patches end to end; None for text, which has none."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None


def ragged_range(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """starts[0], starts[0] + 1, … (lengths[0] of them), starts[1], …: the indices of many spans at once."""
    indices: npt.NDArray[np.int64] = np.arange(int(lengths.sum()))
    indices += np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return indices


@dataclass(frozen=True)
class Division:
    """Which of a global batch's sequences make each micro-batch of each rank.

    Only what is asked for is copied: with eight ranks and 4 M tokens, copying all of it takes longer than
    the division itself.
    """

    sequences: Sequences
    rows: list[list[Ints]]

    def of(self, rank: int) -> list[Sequences]:
        """The micro-batches of one rank."""
        return [self.sequences.take(rows) for rows in self.rows[rank]]

    def spare(self) -> Sequences:
        """The first micro-batch of the first rank that has any."""
        return self.sequences.take(next(filter(None, self.rows))[0])

    @property
    def most(self) -> int:
        """How many micro-batches the rank with the most of them has."""
        return max(map(len, self.rows))


def split(sequences: Sequences, ranks: int, micro_batch_tokens: int) -> list[list[Sequences]]:
    """The micro-batches of every rank, as `divide` makes them."""
    division = divide(sequences, ranks, micro_batch_tokens)
    return [division.of(rank) for rank in range(ranks)]


def divide(sequences: Sequences, ranks: int, micro_batch_tokens: int) -> Division:
    """Micro-batches for each rank, of about equal tokens and at most `micro_batch_tokens` plus one example.

    Examples are sorted by length, so that neighbours are equally long and attention runs on few, large
    groups. Where there are fewer examples than ranks, as at an epoch's end, the last ranks have none.
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
    """Longest first, each to the rank with the fewest tokens."""
    loads = [0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for example in order.tolist():
        rank = loads.index(min(loads))
        shares[rank].append(example)
        loads[rank] += int(tokens[example])
    return [np.array(share, np.int64) for share in shares]


def _cut_micro_batches(tokens: Ints, examples: Ints, micro_batch_tokens: int) -> list[Ints]:
    """Neighbours in the given order, cut where an equal share of the tokens is reached."""
    if not len(examples):
        return []
    ends = np.cumsum(tokens[examples])
    parts = -(-int(ends[-1]) // micro_batch_tokens)
    part_of = (ends - 1) * parts // int(ends[-1])
    return [examples[part_of == part] for part in range(parts) if (part_of == part).any()]
