"""Windows cover a text whatever its length, and each token is read in exactly one of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.examples.encoding import owner, windows

SIZES = st.integers(1, 40).flatmap(lambda room: st.tuples(st.just(room), st.integers(0, room - 1)))


@settings(deadline=None)
@given(tokens=st.integers(0, 400), sizes=SIZES)
def test_windows_cover_every_token_in_order(tokens: int, sizes: tuple[int, int]) -> None:
    room, stride = sizes
    ranges = windows(range(tokens), room, stride)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == tokens
    assert all(left[0] < right[0] <= left[1] for left, right in itertools.pairwise(ranges))


@settings(deadline=None)
@given(tokens=st.integers(0, 400), sizes=SIZES)
def test_windows_are_full_and_share_exactly_the_stride(tokens: int, sizes: tuple[int, int]) -> None:
    """Only the last one may share more: it is moved back so that it is full too."""
    room, stride = sizes
    ranges = windows(range(tokens), room, stride)
    assert {end - start for start, end in ranges} == {min(room, tokens)}
    shared = [left[1] - right[0] for left, right in itertools.pairwise(ranges)]
    assert all(overlap == stride for overlap in shared[:-1])
    assert all(stride <= overlap < room for overlap in shared[-1:])


@settings(deadline=None)
@given(tokens=st.integers(0, 400), sizes=SIZES)
def test_no_window_could_be_left_out(tokens: int, sizes: tuple[int, int]) -> None:
    room, stride = sizes
    expected = 1 if tokens <= room else 1 + -(-(tokens - room) // (room - stride))
    assert len(windows(range(tokens), room, stride)) == expected


@settings(deadline=None)
@given(tokens=st.integers(0, 300), sizes=SIZES)
def test_every_token_is_read_where_it_has_most_context(tokens: int, sizes: tuple[int, int]) -> None:
    ranges = windows(range(tokens), *sizes)
    owners = owner(ranges)
    assert len(owners) == tokens
    for token, chosen in enumerate(owners.tolist()):
        context = [min(token - start, end - 1 - token) for start, end in ranges]
        assert chosen == context.index(max(context))


def test_a_known_case() -> None:
    """Ten tokens, six at a time, two shared: the last window would have been (4, 10) anyway."""
    assert windows(list(range(10)), 6, 2) == [(0, 6), (4, 10)]
    assert owner([(0, 6), (4, 10)]).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert windows(np.arange(9), 6, 2) == [(0, 6), (3, 9)]
    assert owner([(0, 6), (3, 9)]).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_without_a_stride_the_text_is_cut() -> None:
    assert windows(range(10), 6, None) == [(0, 6)]
    assert windows(range(4), 6, None) == [(0, 4)]


def test_an_empty_text_is_one_empty_window() -> None:
    assert windows([], 6, 2) == windows([], 6, None) == [(0, 0)]
    assert owner([(0, 0)]).tolist() == []


def test_a_token_outside_every_window_has_no_owner() -> None:
    assert owner([(0, 2), (3, 5)]).tolist() == [0, 0, -1, 1, 1]


@pytest.mark.parametrize(("room", "stride"), [(0, None), (-3, None), (6, 6), (6, 9), (6, -1), (1, 1)])
def test_impossible_settings_are_refused(room: int, stride: int | None) -> None:
    with pytest.raises(ValueError, match=rf"found (room = )?{room if room < 1 else stride}$"):
        windows(range(10), room, stride)
