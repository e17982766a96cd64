"""A global batch divided over ranks and, within a rank, into micro-batches: the same division everywhere.

The sum over all parts is what counts, so how a batch is divided changes speed only.
"""

import numpy as np
import numpy.typing as npt

from bertsmith.data.batch import Sequences


def split(sequences: Sequences, ranks: int, micro_batch_tokens: int) -> list[list[Sequences]]:
    """Micro-batches for each rank, of about equal tokens and at most `micro_batch_tokens` plus one sequence.

    Sequences are sorted by length, so that neighbours are equally long and attention runs on few, large
    groups. Raises ValueError when there are fewer sequences than ranks.
    """
    if len(sequences) < ranks:
        raise ValueError(f"a batch of {len(sequences)} sequences can't be divided over {ranks} ranks")
    by_length = np.argsort(-sequences.lengths, kind="stable")
    shares = [by_length] if ranks == 1 else _deal(sequences.lengths, by_length, ranks)
    return [_micro_batches(sequences, share, micro_batch_tokens) for share in shares]


def _deal(
    lengths: npt.NDArray[np.int64], order: npt.NDArray[np.int64], ranks: int
) -> list[npt.NDArray[np.int64]]:
    """Longest first, each to the rank with the fewest tokens."""
    loads = [0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for row in order.tolist():
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += int(lengths[row])
    return [np.array(share, np.int64) for share in shares]


def _micro_batches(
    sequences: Sequences, rows: npt.NDArray[np.int64], micro_batch_tokens: int
) -> list[Sequences]:
    """Neighbours in the given order, cut where an equal share of the tokens is reached."""
    ends = np.cumsum(sequences.lengths[rows])
    parts = -(-int(ends[-1]) // micro_batch_tokens)
    part_of = (ends - 1) * parts // int(ends[-1])
    return [sequences.take(rows[part_of == part]) for part in range(parts) if (part_of == part).any()]
