"""Expected figures of tied rankings against all their orders, and without ties against the usual ones."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.metrics.ranking_scores import Graded
from bertsmith.metrics.ranking_scores import average_precision as plain_map
from bertsmith.metrics.ranking_scores import mrr as plain_mrr
from bertsmith.metrics.tied_ranking import average_precision, reciprocal_rank


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
            graded = Graded(relevant[list(order)][None].astype(float), np.ones((1, int(relevant.sum()))))
            found.append((plain_map(graded)[0], plain_mrr(graded)[0]))
    mean = np.mean(found, axis=0)
    return float(mean[0]), float(mean[1])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 8))
def test_figures_are_the_mean_over_all_orders(seed: int, size: int, scores: int) -> None:
    given_scores, relevant = drawn(seed, size, scores)
    wanted = over_all_orders(given_scores, relevant)
    assert average_precision(given_scores, relevant) == pytest.approx(wanted[0], abs=1e-12)
    assert reciprocal_rank(given_scores, relevant) == pytest.approx(wanted[1], abs=1e-12)


def test_a_constant_score_of_one_relevant_among_three_by_hand() -> None:
    wanted = (1 + 1 / 2 + 1 / 3) / 3
    assert average_precision([0, 0, 0], [False, False, True]) == pytest.approx(wanted)
    assert reciprocal_rank([0, 0, 0], [False, False, True]) == pytest.approx(wanted)
