"""Expected figures of tied rankings against all their orders, and without ties against the usual ones."""

from itertools import pairwise, permutations
from math import comb
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.metrics.ranking_scores import GradedRankings, tied_average_precision, tied_reciprocal_rank
from bertsmith.metrics.ranking_scores import average_precision as plain_map
from bertsmith.metrics.ranking_scores import mrr as plain_mrr


def drawn(seed: int, size: int, scores: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    relevant = draw.random(size) < 0.4
    relevant[draw.integers(0, size)] = True
    return draw.permutation(scores)[:size] if scores >= size else draw.integers(0, scores, size), relevant


def over_all_orders(scores: np.ndarray, relevant: np.ndarray) -> tuple[float, float]:
    """The mean over every order that the scores allow."""
    found = []
    for order in permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            graded = GradedRankings(
                relevant[list(order)][None].astype(float), np.ones((1, int(relevant.sum())))
            )
            found.append((plain_map(graded)[0], plain_mrr(graded)[0]))
    mean = np.mean(found, axis=0)
    return float(mean[0]), float(mean[1])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 8))
def test_figures_are_the_mean_over_all_orders(seed: int, size: int, scores: int) -> None:
    given_scores, relevant = drawn(seed, size, scores)
    wanted = over_all_orders(given_scores, relevant)
    assert tied_average_precision(given_scores, relevant) == pytest.approx(wanted[0], abs=1e-12)
    assert tied_reciprocal_rank(given_scores, relevant) == pytest.approx(wanted[1], abs=1e-12)


def test_a_constant_score_of_one_relevant_among_three_by_hand() -> None:
    wanted = (1 + 1 / 2 + 1 / 3) / 3
    assert tied_average_precision([0, 0, 0], [False, False, True]) == pytest.approx(wanted)
    assert tied_reciprocal_rank([0, 0, 0], [False, False, True]) == pytest.approx(wanted)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_a_tied_group_s_first_relevant_place_counts_by_its_share_of_all_orders(
    size: int, relevant: int, before: int
) -> None:
    relevant = min(relevant, size)
    scores = [1] * before + [0] * size
    wanted = sum(
        comb(size - place, relevant - 1) / comb(size, relevant) / (before + place)
        for place in range(1, size - relevant + 2)
    )
    truths = [False] * before + [True] * relevant + [False] * (size - relevant)
    assert tied_reciprocal_rank(scores, truths) == pytest.approx(wanted, abs=1e-12)


def test_many_tied_candidates_of_one_query_take_no_time() -> None:
    """A coefficient of ten thousand candidates for each place took a minute."""
    begun = process_time()
    assert tied_reciprocal_rank(np.zeros(10_000), np.arange(10_000) % 4 == 0) == pytest.approx(
        0.4621, abs=1e-3
    )
    assert process_time() - begun < 1
