"""Pairs, segments and truncation: what must hold for every text (distributions: `test_pairs_statistics`)."""

import random
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_pairs import Pair, truncated
from stores import FIRST_ID, Lengths, numbered_store

from bertsmith.data.pairs import Instances, make_full_segments, make_next_sentence_pairs, truncate_pairs
from bertsmith.data.store import TokenStore

documents = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=8), min_size=2, max_size=6)
room = st.integers(3, 40)  # tokens without the special ones
seeds = st.integers(0, 2**32)
examples = settings(max_examples=60, deadline=None)  # a busy machine is no failure


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def store_of(folder: Path, lengths: Lengths) -> TokenStore:
    return numbered_store(Path(mkdtemp(dir=folder)) / "store", lengths)


def boundaries(lengths: Lengths) -> list[list[int]]:
    """The places where sentences of each document start, and its end."""
    starts = [0, *accumulate(map(sum, lengths))]
    return [
        list(accumulate(document, initial=start)) for document, start in zip(lengths, starts, strict=False)
    ]


def rows(instances: Instances) -> list[tuple[int, int, int, int, int]]:
    columns = ("first_start", "first_end", "second_start", "second_end", "is_random")
    return list(zip(*(getattr(instances, name).tolist() for name in columns), strict=True))


def document_at(place: int, sentences: list[list[int]]) -> int:
    return next(number for number, starts in enumerate(sentences) if starts[0] <= place < starts[-1])


@examples
@given(lengths=documents, max_tokens=room, short=st.sampled_from([0.0, 0.1, 1.0]), seed=seeds)
def test_every_sentence_is_used_once_and_in_order(
    folder: Path, lengths: Lengths, max_tokens: int, short: float, seed: int
) -> None:
    """As a first segment or as the true next one; what a random segment brings comes on top."""
    store = store_of(folder, lengths)
    order = np.random.default_rng(seed).permutation(len(lengths))
    pairs = make_next_sentence_pairs(store, order, max_tokens, short, np.random.default_rng(seed))
    used: list[int] = []
    for first_start, first_end, second_start, second_end, is_random in rows(pairs):
        used += range(first_start, first_end)
        used += [] if is_random else range(second_start, second_end)
    sentences = boundaries(lengths)
    assert used == [token for number in order for token in range(sentences[number][0], sentences[number][-1])]


@examples
@given(lengths=documents, max_tokens=room, short=st.sampled_from([0.0, 1.0]), seed=seeds)
def test_segments_are_whole_sentences_of_one_document_and_labels_are_true(
    folder: Path, lengths: Lengths, max_tokens: int, short: float, seed: int
) -> None:
    store, sentences = store_of(folder, lengths), boundaries(lengths)
    order = np.arange(len(lengths))
    pairs = make_next_sentence_pairs(store, order, max_tokens, short, np.random.default_rng(seed))
    for first_start, first_end, second_start, second_end, is_random in rows(pairs):
        own, other = document_at(first_start, sentences), document_at(second_start, sentences)
        assert {first_start, first_end} <= set(sentences[own]) and first_start < first_end
        assert {second_start, second_end} <= set(sentences[other]) and second_start < second_end
        assert (own != other) if is_random else (own == other and second_start == first_end)


@examples
@given(lengths=documents, max_tokens=room, seed=seeds)
def test_gathering_stops_at_the_sentence_that_reaches_the_target(
    folder: Path, lengths: Lengths, max_tokens: int, seed: int
) -> None:
    """Without its last sentence a segment, or a true pair, is below the target; short only at an end."""
    store, sentences = store_of(folder, lengths), boundaries(lengths)
    order = np.arange(len(lengths))
    pairs = make_next_sentence_pairs(store, order, max_tokens, 0.0, np.random.default_rng(seed))
    for first_start, first_end, second_start, second_end, is_random in rows(pairs):
        source = sentences[document_at(second_start, sentences)]
        before_last = source[source.index(second_end) - 1]
        length, without_last = (
            end - second_start + first_end - first_start for end in (second_end, before_last)
        )
        if before_last > second_start:
            assert without_last < max_tokens
        assert length >= max_tokens or second_end == source[-1]
        own = sentences[document_at(first_start, sentences)]
        assert own[own.index(first_end) - 1] - first_start < max_tokens
        if not is_random:
            assert own[own.index(second_end) - 1] - first_start < max_tokens


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([[7]] * 5, id="one sentence a document"),
        pytest.param([[1] * 40, [1]], id="sentences of one token"),
        pytest.param([[90, 100, 300], [200]], id="sentences above the limit"),
    ],
)
def test_extreme_documents_give_pairs_within_the_limit(folder: Path, lengths: Lengths) -> None:
    store, sentences = store_of(folder, lengths), boundaries(lengths)
    generator = np.random.default_rng(0)
    pairs = make_next_sentence_pairs(store, np.arange(len(lengths)), 32, 0.1, generator)
    cut = truncate_pairs(pairs, 32, generator)
    for (first_start, first_end, second_start, second_end, is_random), whole in zip(
        rows(cut), rows(pairs), strict=True
    ):
        assert first_end > first_start and second_end > second_start
        assert first_end - first_start + second_end - second_start <= 32
        lone = whole[1] == sentences[document_at(whole[0], sentences)][-1]
        assert is_random or not lone  # the last sentence of a document has no next one


def test_two_documents_serve_each_other(folder: Path) -> None:
    store = store_of(folder, [[3, 3, 3, 3], [2, 2]])
    pairs = make_next_sentence_pairs(store, np.zeros(2000, np.int64), 6, 0.0, np.random.default_rng(0))
    random_ones = pairs.is_random == 1
    assert 0 < random_ones.sum() < len(pairs)
    assert (pairs.second_start[random_ones] >= 12).all()
    assert (pairs.second_start[~random_ones] < 12).all()


@examples
@given(lengths=st.tuples(st.integers(1, 60), st.integers(1, 60)), max_tokens=st.integers(2, 130), seed=seeds)
def test_truncation_takes_from_the_longer_as_the_loop_of_single_tokens_does(
    lengths: tuple[int, int], max_tokens: int, seed: int
) -> None:
    first, second = lengths
    spans = np.array([[100], [100 + first], [500], [500 + second], [1]], np.int64)
    ((first_start, first_end, second_start, second_end, label),) = rows(
        truncate_pairs(Instances(*spans), max_tokens, np.random.default_rng(seed))
    )
    expected = truncated(Pair([0] * first, [0] * second, True), max_tokens, random.Random(seed))
    assert (first_end - first_start, second_end - second_start) == (len(expected.first), len(expected.second))
    assert 100 <= first_start <= first_end <= 100 + first
    assert 500 <= second_start <= second_end <= 500 + second
    assert label == 1


@examples
@given(lengths=documents, max_tokens=st.integers(1, 40))
def test_full_segments_hold_every_token_once_and_as_many_sentences_as_fit(
    folder: Path, lengths: Lengths, max_tokens: int
) -> None:
    order = np.arange(len(lengths))[::-1]
    segments = rows(make_full_segments(store_of(folder, lengths), order, max_tokens))
    starts = boundaries(lengths)
    expected = [
        span for number in order for span in plain_segments(lengths[number], starts[number][0], max_tokens)
    ]
    assert [(start, end) for start, end, *_ in segments] == expected
    assert all(second_start == second_end for _, _, second_start, second_end, _ in segments)
    assert all(0 < end - start <= max_tokens for start, end in expected)
    inside = sorted(expected)
    assert all(end == start for (_, end), (start, _) in pairwise(inside))  # side by side, none missing
    assert (inside[0][0], inside[-1][1]) == (0, sum(map(sum, lengths)))


def plain_segments(sentences: list[int], start: int, max_tokens: int) -> list[tuple[int, int]]:
    """Sentence by sentence: begin anew where one doesn't fit, divide one that never will."""
    spans, held = [], 0
    for sentence in sentences:
        if held and held + sentence > max_tokens:
            spans.append((start, start + held))
            start, held = start + held, 0
        while held + sentence > max_tokens:
            spans.append((start, start + max_tokens))
            start, sentence = start + max_tokens, sentence - max_tokens
        held += sentence
    return [*spans, (start, start + held)] if held else spans


def test_a_numbered_store_is_what_these_tests_take_it_for(folder: Path) -> None:
    store = store_of(folder, [[2, 3], [4]])
    assert store.tokens.tolist() == list(range(FIRST_ID, FIRST_ID + 9))
    assert boundaries([[2, 3], [4]]) == [[0, 2, 5], [5, 9]]
    store.verify()
