"""A global batch divided over ranks and micro-batches: every sequence once, in the same places every time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.data.batch import Sequences, divide, split

LENGTHS = st.lists(st.integers(1, 130), min_size=8, max_size=80)
RANKS = st.sampled_from([1, 2, 3, 4, 8])
TOKENS = st.integers(8, 3000)


def batch_of(lengths: list[int]) -> Sequences:
    """The sequence in row r has the key r, and the tokens r, r, …"""
    rows = np.arange(len(lengths))
    token_ids = np.repeat(rows, lengths)
    return Sequences(token_ids, token_ids % 2, np.array(lengths), rows.astype(np.uint64), rows % 2)


def rows_of(part: Sequences) -> list[int]:
    rows: list[int] = part.keys.astype(int).tolist()
    return rows


@given(lengths=LENGTHS, ranks=RANKS, tokens=TOKENS)
def test_every_sequence_is_in_one_part_and_whole(lengths: list[int], ranks: int, tokens: int) -> None:
    parts = [part for share in split(batch_of(lengths), ranks, tokens) for part in share]
    assert sorted(row for part in parts for row in rows_of(part)) == list(range(len(lengths)))
    for part in parts:
        rows = part.keys.astype(np.int64)
        assert part.lengths.tolist() == [lengths[row] for row in rows]
        assert part.token_ids.tolist() == np.repeat(rows, part.lengths).tolist()
        assert part.segment_ids.tolist() == (part.token_ids % 2).tolist()
        assert part.labels.tolist() == (rows % 2).tolist()


@given(lengths=LENGTHS, ranks=RANKS, tokens=TOKENS)
def test_parts_keep_to_their_size(lengths: list[int], ranks: int, tokens: int) -> None:
    for share in split(batch_of(lengths), ranks, tokens):
        assert all(part.lengths.sum() < tokens + max(lengths) for part in share)
        total = sum(int(part.lengths.sum()) for part in share)
        assert len(share) <= -(-total // tokens)


@given(lengths=LENGTHS, ranks=RANKS)
def test_ranks_have_about_equal_work(lengths: list[int], ranks: int) -> None:
    """The longest goes first to whoever has least: no two ranks differ by more than one sequence."""
    loads = [sum(int(part.lengths.sum()) for part in share) for share in split(batch_of(lengths), ranks, 256)]
    assert len(loads) == ranks
    assert min(loads) > 0
    assert max(loads) - min(loads) <= max(lengths)


@given(lengths=LENGTHS, ranks=RANKS, tokens=TOKENS)
def test_neighbours_are_equally_long(lengths: list[int], ranks: int, tokens: int) -> None:
    """Within a rank the longest come first, so that attention runs on few, large groups."""
    for share in split(batch_of(lengths), ranks, tokens):
        in_order = [length for part in share for length in part.lengths.tolist()]
        assert in_order == sorted(in_order, reverse=True)


@given(lengths=LENGTHS, ranks=RANKS, tokens=TOKENS)
def test_the_division_is_the_same_on_every_rank(lengths: list[int], ranks: int, tokens: int) -> None:
    """Each computes it for itself."""
    first, second = (
        [[rows_of(part) for part in share] for share in split(batch_of(lengths), ranks, tokens)]
        for _ in range(2)
    )
    assert first == second


def test_equal_lengths_are_cut_evenly() -> None:
    shares = split(batch_of([16] * 32), 1, 8 * 16)
    assert [rows_of(part) for part in shares[0]] == [list(range(n, n + 8)) for n in (0, 8, 16, 24)]


def test_of_fewer_sequences_than_ranks_the_last_ranks_get_none() -> None:
    assert [len(share) for share in split(batch_of([5, 6, 7, 8]), 4, 100)] == [1, 1, 1, 1]
    shares = split(batch_of([5, 6, 7]), 4, 100)
    assert [[rows_of(part) for part in share] for share in shares] == [[[2]], [[1]], [[0]], []]


def test_a_rank_copies_its_own_sequences_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = Sequences.take

    def counted(sequences: Sequences, rows: np.ndarray) -> Sequences:
        taken.extend(rows.tolist())
        return take(sequences, rows)

    monkeypatch.setattr(Sequences, "take", counted)
    division = divide(batch_of([5, 6, 7, 8, 9]), 4, 100)
    assert taken == []
    assert [rows_of(part) for part in division.of(2)] == [[2]]
    assert taken == [2]
    assert rows_of(division.spare()) == taken[1:] == [4]
    assert division.most == 1


def groups_of(sizes: list[int], lengths: list[int]) -> Sequences:
    """Examples of `sizes` neighbouring sequences each, which share a key; the labels count the sequences."""
    keys = np.repeat(np.arange(len(sizes)) * 7 % 1009, sizes)
    rows = np.arange(len(keys))
    each = np.resize(lengths, len(keys))
    token_ids = np.repeat(rows, each)
    return Sequences(token_ids, token_ids % 2, each, keys.astype(np.uint64), rows)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=8, max_size=40), lengths=LENGTHS, ranks=RANKS, tokens=TOKENS
)
def test_no_example_is_cut(sizes: list[int], lengths: list[int], ranks: int, tokens: int) -> None:
    """Windows of one text stay together and in order, however small the micro-batches."""
    batch = groups_of(sizes, lengths)
    heaviest = max(int(batch.lengths[batch.keys == key].sum()) for key in set(batch.keys.tolist()))
    seen: list[int] = []
    for part in (part for share in split(batch, ranks, tokens) for part in share):
        for key in dict.fromkeys(part.keys.tolist()):
            rows = part.labels[part.keys == key].tolist()
            assert rows == batch.labels[batch.keys == key].tolist()
            assert rows == list(range(rows[0], rows[0] + len(rows)))
            places = np.flatnonzero(part.keys == key)
            assert places.tolist() == list(range(places[0], places[0] + len(rows))), "not neighbours"
        assert part.lengths.sum() < tokens + heaviest
        seen += part.labels.tolist()
    assert sorted(seen) == list(range(len(batch)))


def test_windows_of_one_text_stay_on_one_rank_even_when_others_have_none() -> None:
    assert [len(share) for share in split(groups_of([5, 4], [6]), 3, 100)] == [1, 1, 0]
