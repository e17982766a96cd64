"""Several rankings of the same things → one, by their ranks alone (Cormack, Clarke, Büttcher 2009)."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Key]], k: float = 60.0) -> list[tuple[Key, float]]:
    """(key, score), best first: the score is the sum of 1 / (k + rank) over the rankings that hold the key.

    Ranks count from 1. k = 60 is the paper's: it keeps one first place from outweighing two good ones. Equal
    scores keep the order in which the keys are first met, ranking by ranking. Scores of the single rankings
    don't matter, so that cosines and BM25 need no common scale.
    """
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(dict.fromkeys(ranking), start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (k + rank)
    return sorted(scores.items(), key=lambda item: -item[1])
