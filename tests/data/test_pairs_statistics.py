"""The distribution of pairs against google-research/bert's algorithm, written plainly in `reference_pairs`.

Seeds are fixed, so a test fails or passes for good. P_VALUE bounds how unlikely what is seen may be if both
sides draw from the same distribution.
"""

import random
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from reference_pairs import Document, Pair, pairs_of, truncated
from scipy import stats
from stores import FIRST_ID, Lengths, numbered_store, random_lengths

from bertsmith.data.pairs import Instances, make_next_sentence_pairs, truncate_pairs
from bertsmith.data.store import TokenStore

P_VALUE = 1e-3
SHORT = 0.1
#: Ours and Google's, each before and after truncation.
Samples = tuple[tuple[Instances, Instances], tuple[list[Pair], list[Pair]]]


def token_lists(store: TokenStore) -> list[Document]:
    sentences = np.split(store.tokens, store.sentence_starts[1:-1])
    bounds = store.document_starts.tolist()
    return [[sentence.tolist() for sentence in sentences[start:end]] for start, end in pairwise(bounds)]


def ours(
    store: TokenStore, max_tokens: int, epochs: int, short: float = SHORT
) -> tuple[Instances, Instances]:
    """(before, after) truncation, of all documents so many times."""
    generator = np.random.default_rng(1)
    documents = np.tile(np.arange(len(store)), epochs)
    pairs = make_next_sentence_pairs(store, documents, max_tokens, SHORT, generator)
    return pairs, truncate_pairs(pairs, max_tokens, generator)


def theirs(documents: list[Document], max_tokens: int, epochs: int) -> tuple[list[Pair], list[Pair]]:
    draw = random.Random(2)
    pairs = [
        pair
        for _ in range(epochs)
        for index in range(len(documents))
        for pair in pairs_of(documents, index, max_tokens, SHORT, draw)
    ]
    return pairs, [truncated(pair, max_tokens, draw) for pair in pairs]


def same_distribution(left: Iterable[Hashable], right: Iterable[Hashable]) -> float:
    """p-value of a chi-square test of two samples of categories; rare ones are put together."""
    counts = Counter(left), Counter(right)
    table = np.array([[sample[name] for name in {*counts[0], *counts[1]}] for sample in counts])
    rare = table.sum(0) < 20
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
    return float(stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """80 documents, some with a lone sentence, some sentences above the limit of 40."""
    lengths = random_lengths(60, seed=3) + [[9]] * 10 + random_lengths(10, seed=4, tokens=(30, 60))
    return numbered_store(tmp_path_factory.mktemp("store") / "store", lengths)


@pytest.fixture(scope="module")
def samples(store: TokenStore) -> Samples:
    return ours(store, 40, epochs=40), theirs(token_lists(store), 40, epochs=40)


@pytest.mark.parametrize("when", [0, 1], ids=["whole", "truncated"])
def test_lengths_of_both_segments_are_distributed_as_googles(samples: Samples, when: int) -> None:
    mine, google = samples[0][when], samples[1][when]
    first, second = mine.first_end - mine.first_start, mine.second_end - mine.second_start
    lengths = {
        "first": (first, [len(pair.first) for pair in google]),
        "second": (second, [len(pair.second) for pair in google]),
        "both": (first + second, [len(pair.first) + len(pair.second) for pair in google]),
    }
    for name, (found, expected) in lengths.items():
        assert stats.ks_2samp(found, expected).pvalue > P_VALUE, name
        assert same_distribution(found.tolist(), expected) > P_VALUE, name


def test_share_of_random_and_number_of_pairs_are_googles(
    samples: Samples,
) -> None:
    mine, google = samples[0][0], samples[1][0]
    assert same_distribution(mine.is_random.tolist(), [int(pair.is_random) for pair in google]) > P_VALUE
    assert len(mine) == pytest.approx(len(google), rel=0.01)
    assert mine.is_random.mean() > 0.5  # a lone sentence has no next one


def test_truncation_takes_from_both_ends_as_google_does(
    samples: Samples,
) -> None:
    """Tokens missing at the front of each segment; ids tell where the second one began."""
    (whole, cut), (google_whole, google_cut) = samples
    fronts = (cut.first_start - whole.first_start, cut.second_start - whole.second_start)
    google_fronts = (
        [after.first[0] - before.first[0] for before, after in zip(google_whole, google_cut, strict=True)],
        [after.second[0] - before.second[0] for before, after in zip(google_whole, google_cut, strict=True)],
    )
    for found, expected in zip(fronts, google_fronts, strict=True):
        assert same_distribution(found.tolist(), expected) > P_VALUE


@pytest.mark.parametrize(("first", "second"), [(30, 9), (9, 30)], ids=["first", "second"])
def test_each_token_to_cut_comes_from_either_end_with_even_chance(first: int, second: int) -> None:
    """30 + 9 down to 20: the longer segment loses 19, so binomial(19, 1/2) at its front."""
    count = 20_000
    spans = np.repeat(np.array([[100], [100 + first], [100], [100 + second], [0]]), count, axis=1)
    cut = truncate_pairs(Instances(*spans), 20, np.random.default_rng(5))
    assert (cut.first_end - cut.first_start == min(first, 11)).all()
    assert (cut.second_end - cut.second_start == min(second, 11)).all()
    start = cut.first_start if first > second else cut.second_start
    observed = np.bincount(start - 100, minlength=20)
    expected = stats.binom.pmf(np.arange(20), 19, 0.5) * count
    common = expected > 5
    grouped = [np.append(counts[common], counts[~common].sum()) for counts in (observed, expected)]
    assert stats.chisquare(*grouped).pvalue > P_VALUE


def test_whole_divisions_of_a_document_are_as_frequent_as_googles(tmp_path: Path) -> None:
    """All of a document's pairs together: cuts, labels, what is put back, where random text comes from."""
    lengths: Lengths = [[2, 3, 1, 4], [1, 2], [3], [2, 2, 2]]
    store = numbered_store(tmp_path / "store", lengths)
    count, draw, documents = 20_000, random.Random(6), token_lists(store)
    pairs = make_next_sentence_pairs(store, np.zeros(count, np.int64), 6, 0.3, np.random.default_rng(7))
    found: list[tuple[tuple[int, ...], ...]] = []
    columns = (pairs.first_start, pairs.first_end, pairs.second_start, pairs.second_end, pairs.is_random)
    for row in zip(*(column.tolist() for column in columns), strict=True):
        if row[0] == 0:
            found.append((row,))
        else:
            found[-1] = (*found[-1], row)
    expected = [tuple(map(spans, pairs_of(documents, 0, 6, 0.3, draw))) for _ in range(count)]
    assert len(found) == count
    assert len(set(expected)) > 200
    assert same_distribution(found, expected) > P_VALUE


def spans(pair: Pair) -> tuple[int, int, int, int, int]:
    first, second = pair.first, pair.second
    places = first[0], first[-1] + 1, second[0], second[-1] + 1
    return (*(place - FIRST_ID for place in places), int(pair.is_random))  # type: ignore[return-value]


def test_half_of_the_pairs_that_have_a_choice_are_random(tmp_path: Path) -> None:
    """Sentences of 10 and a target of 40: every chunk has four, but the last ones of a document."""
    store = numbered_store(tmp_path / "store", [[10] * 401, [10] * 50])
    pairs = make_next_sentence_pairs(store, np.zeros(400, np.int64), 40, 0.0, np.random.default_rng(8))
    choice = pairs.first_start < 4000  # the last sentence may be alone
    count = int(choice.sum())
    chance = stats.binomtest(int(pairs.is_random[choice].sum()), count, 0.5).pvalue
    assert count > 40_000 and chance > P_VALUE
    inside = pairs.first_start <= 3970  # four sentences still follow
    cuts = np.bincount((pairs.first_end - pairs.first_start)[inside] // 10, minlength=5)
    assert cuts[0] == cuts[4:].sum() == 0
    assert stats.chisquare(cuts[1:4]).pvalue > P_VALUE


def test_random_text_comes_evenly_from_all_other_documents_and_places(tmp_path: Path) -> None:
    store = numbered_store(tmp_path / "store", [[5] * 4] * 6)
    pairs = make_next_sentence_pairs(store, np.full(10_000, 2), 10, 0.0, np.random.default_rng(9))
    random_ones: npt.NDArray[np.bool_] = pairs.is_random == 1
    starts = np.bincount(pairs.second_start[random_ones] // 5, minlength=24)
    assert starts[8:12].sum() == 0  # its own document
    assert stats.chisquare(np.delete(starts, range(8, 12))).pvalue > P_VALUE


@pytest.mark.parametrize("short", [0.0, 0.1, 0.5, 1.0])
def test_share_of_short_targets_is_the_setting(tmp_path: Path, short: float) -> None:
    """Sentences of one token fill any target exactly: a document's first pair shows it, if a true one."""
    store = numbered_store(tmp_path / "store", [[1] * 100, [1]])
    documents, max_tokens = np.zeros(8000, np.int64), 50
    pairs = make_next_sentence_pairs(store, documents, max_tokens, short, np.random.default_rng(10))
    true_first = (pairs.first_start == 0) & (pairs.is_random == 0)
    targets = (pairs.second_end - pairs.first_start)[true_first]
    assert targets.min() >= 2 and targets.max() <= max_tokens
    expected = np.full(max_tokens + 1, short / (max_tokens - 1))
    expected[:2] = 0
    expected[max_tokens] += 1 - short
    observed = np.bincount(targets, minlength=max_tokens + 1)
    possible = expected > 0
    assert observed[~possible].sum() == 0
    if short > 0:  # else all are the longest
        assert stats.chisquare(observed[possible], expected[possible] * len(targets)).pvalue > P_VALUE
