"""A global batch divided over ranks and, within a rank, into micro-batches: the same division everywhere.

The sum over all parts is what counts, so how a batch is divided changes speed only. Neighbours of the same
key (the windows of a long text, the two texts of a pair) belong to one example and stay together.

    G   examples, each one or more neighbouring sequences
"""

from dataclasses import dataclass

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.data.batch import Sequences, ragged_range


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
    starts = _example_starts(sequences)
    tokens = np.add.reduceat(sequences.lengths, starts)
    by_length = np.argsort(-tokens, kind="stable")
    shares = [by_length] if ranks == 1 else _deal(tokens, by_length, ranks)
    sizes = np.diff(starts, append=len(sequences))
    rows = [
        [
            ragged_range(starts[part], sizes[part])
            for part in _micro_batches(tokens, share, micro_batch_tokens)
        ]
        for share in shares
    ]
    return Division(sequences, rows)


def _example_starts(sequences: Sequences) -> Ints:
    """(G,) the first sequence of each example."""
    keys = sequences.keys
    return np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.zeros(0, int)


def _deal(tokens: Ints, order: Ints, ranks: int) -> list[Ints]:
    """Longest first, each to the rank with the fewest tokens."""
    loads = [0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for example in order.tolist():
        rank = loads.index(min(loads))
        shares[rank].append(example)
        loads[rank] += int(tokens[example])
    return [np.array(share, np.int64) for share in shares]


def _micro_batches(tokens: Ints, examples: Ints, micro_batch_tokens: int) -> list[Ints]:
    """Neighbours in the given order, cut where an equal share of the tokens is reached."""
    if not len(examples):
        return []
    ends = np.cumsum(tokens[examples])
    parts = -(-int(ends[-1]) // micro_batch_tokens)
    part_of = (ends - 1) * parts // int(ends[-1])
    return [examples[part_of == part] for part in range(parts) if (part_of == part).any()]
