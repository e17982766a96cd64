"""The packed layout against loops over single sequences."""

from dataclasses import fields
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.data.batch import PackedBatch, Sequences, concatenate, ragged_range

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=8)
seeds = st.integers(0, 2**32)
examples = settings(max_examples=80, deadline=None)


def sequences_of(lengths: list[int], seed: int) -> Sequences:
    random = np.random.default_rng(seed)
    total, count = sum(lengths), len(lengths)
    return Sequences(
        random.integers(0, 1000, total),
        random.integers(0, 2, total),
        np.array(lengths, np.int64),
        random.integers(0, 2**64, count, np.uint64),
        random.integers(0, 2, count),
    )


def apart(sequences: Sequences) -> list[tuple[list[int], list[int], int, int, int]]:
    """One by one, by plain counting."""
    at, found = 0, []
    for row, length in enumerate(sequences.lengths.tolist()):
        ids, segments = (
            values[at : at + length].tolist() for values in (sequences.token_ids, sequences.segment_ids)
        )
        found.append((ids, segments, length, int(sequences.keys[row]), int(sequences.labels[row])))
        at += length
    assert at == len(sequences.token_ids) == len(sequences.segment_ids)
    return found


@examples
@given(lengths=sizes, rows=st.lists(st.integers(0, 7), max_size=10), seed=seeds)
def test_take_gives_the_named_sequences_in_that_order(lengths: list[int], rows: list[int], seed: int) -> None:
    """Also twice the same, and none."""
    sequences, rows = sequences_of(lengths, seed), [row % len(lengths) for row in rows]
    taken = sequences.take(np.array(rows, np.int64))
    whole = apart(sequences)
    assert apart(taken) == [whole[row] for row in rows]
    assert len(taken) == len(rows)
    assert_same_types(taken, sequences)


@examples
@given(parts=st.lists(sizes, min_size=1, max_size=4), seed=seeds)
def test_concatenate_is_one_after_the_other(parts: list[list[int]], seed: int) -> None:
    each = [sequences_of(lengths, seed + number) for number, lengths in enumerate(parts)]
    joined = concatenate(each)
    assert apart(joined) == [sequence for part in each for sequence in apart(part)]
    assert_same_types(joined, each[0])


def assert_same_types(left: Sequences, right: Sequences) -> None:
    for field in fields(Sequences):
        found, expected = getattr(left, field.name), getattr(right, field.name)
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None), field.name


@examples
@given(spans=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 6)), max_size=8))
def test_ragged_range_is_the_ranges_side_by_side(spans: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array(column, np.int64) for column in (list(zip(*spans)) or [(), ()]))
    expected = [place for start, length in spans for place in range(start, start + length)]
    assert ragged_range(starts, lengths).tolist() == expected


@examples
@given(lengths=sizes, seed=seeds)
def test_a_packed_batch_numbers_positions_from_zero_in_each_sequence(lengths: list[int], seed: int) -> None:
    sequences = sequences_of(lengths, seed)
    batch = PackedBatch.of(sequences)
    assert batch.token_ids.tolist() == sequences.token_ids.tolist()
    assert batch.segment_ids.tolist() == sequences.segment_ids.tolist()
    assert batch.position_ids.tolist() == [place for length in lengths for place in range(length)]
    assert batch.lengths == tuple(lengths)
    first_rows = [sum(lengths[:row]) for row in range(len(lengths))]
    assert batch.first_rows.tolist() == first_rows
    assert batch.cumulative_lengths.tolist() == [*first_rows, sum(lengths)]
    assert batch.cumulative_lengths.dtype == torch.int32
    assert {batch.token_ids.dtype, batch.segment_ids.dtype, batch.position_ids.dtype} == {torch.int64}


@examples
@given(lengths=st.lists(st.integers(1, 3), min_size=1, max_size=12))
def test_runs_are_neighbours_of_equal_length(lengths: list[int]) -> None:
    runs = PackedBatch.of(sequences_of(lengths, 0)).runs
    assert [length for length, count in runs for _ in range(count)] == lengths
    assert all(before != after for (before, _), (after, _) in pairwise(runs))


@examples
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), multiple=st.integers(1, 16))
def test_padding_comes_after_what_is_there(lengths: list[int], multiple: int) -> None:
    batch, filled = (PackedBatch.of(sequences_of(lengths, 0), multiple=each) for each in (1, multiple))
    tokens, padding = sum(lengths), -sum(lengths) % multiple
    assert (batch.padding, filled.padding) == (0, padding)
    assert filled.lengths == batch.lengths
    assert torch.equal(filled.cumulative_lengths, batch.cumulative_lengths)
    for name in ("token_ids", "segment_ids", "position_ids"):
        whole, part = getattr(filled, name), getattr(batch, name)
        assert torch.equal(whole[:tokens], part)
        assert whole[tokens:].tolist() == [0] * padding
        assert whole.dtype == part.dtype


@pytest.mark.parametrize(
    ("tokens", "segments", "lengths", "message"),
    [
        (5, 5, [2, 2], "sum to 4, but there are 5 token ids and 5 segment ids"),
        (4, 3, [2, 2], "sum to 4, but there are 4 token ids and 3 segment ids"),
        (0, 0, [1], "sum to 1, but there are 0 token ids"),
        (4, 4, [4, 0], "at least one token"),
        (3, 3, [4, -1], "at least one token"),
    ],
)
def test_lengths_that_do_not_fit_are_an_error(
    tokens: int, segments: int, lengths: list[int], message: str
) -> None:
    def zeros(count: int) -> npt.NDArray[np.int64]:
        return np.zeros(count, np.int64)

    with pytest.raises(ValueError, match=message):
        PackedBatch.pack(zeros(tokens), zeros(segments), np.array(lengths, np.int64))


def test_a_batch_of_nothing_is_empty_and_whole() -> None:
    nothing = np.zeros(0, np.int64)
    batch = PackedBatch.pack(nothing, nothing, nothing)
    assert batch.lengths == () and batch.runs == ()
    assert batch.cumulative_lengths.tolist() == [0]
    assert len(batch.token_ids) == len(batch.position_ids) == 0


@pytest.mark.parametrize("name", ["token ids", "segment ids", "lengths"])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.bool_])
def test_what_are_no_integers_are_refused(name: str, kind: type) -> None:
    """3.7 would be computed with as 3."""
    given = {"token ids": [5, 7, 9], "segment ids": [0, 0, 1], "lengths": [3]}
    arrays = {key: np.array(values, kind if key == name else np.int64) for key, values in given.items()}
    with pytest.raises(TypeError, match=f"expected integers as {name}, found {np.dtype(kind)}"):
        PackedBatch.pack(*arrays.values())
