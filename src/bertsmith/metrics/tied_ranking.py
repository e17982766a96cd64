"""What a ranking is worth whose scores are tied: the expectation over all orders of the ties (McSherry and
Najork 2008). So a constant score is worth a random order, never the order of the file.

    C   candidates of one query    G   groups of equal scores, the highest first
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Group(NamedTuple):
    """Candidates of one score: how many, how many relevant ones, and as many of both before them."""

    size: int
    relevant: int
    before: int
    relevant_before: int


def average_precision(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> float:
    """Of scores (C,) and truth values (C,), of which at least one holds; without ties the usual one."""
    total = sum(map(_precisions, _groups(scores, relevant)))
    return float(total / np.count_nonzero(relevant))


def reciprocal_rank(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> float:
    """Of scores (C,) and truth values (C,), of which at least one holds."""
    group = next(group for group in _groups(scores, relevant) if group.relevant)
    # The first relevant one stands at place p in a share of the orders that is in proportion to the binomial
    # coefficient of size - p over relevant - 1; the coefficients themselves would have thousands of digits.
    share, found = group.relevant / group.size, 0.0
    for place in range(1, group.size - group.relevant + 2):
        found += share / (group.before + place)
        share *= (group.size - group.relevant + 1 - place) / max(group.size - place, 1)
    return found


def _groups(scores: npt.ArrayLike, relevant: npt.ArrayLike) -> Iterator[Group]:
    """(C,) and (C,) -> G groups."""
    _, group = np.unique(-np.asarray(scores, np.float64), return_inverse=True)
    sizes = np.bincount(group)
    hits = np.bincount(group, np.asarray(relevant, np.float64)).astype(np.int64)
    before, hits_before = np.cumsum(sizes) - sizes, np.cumsum(hits) - hits
    for values in zip(sizes.tolist(), hits.tolist(), before.tolist(), hits_before.tolist(), strict=True):
        yield Group(*values)


def _precisions(group: Group) -> float:
    """The expected sum of the precisions at the group's relevant candidates."""
    if not group.relevant:
        return 0.0
    others_before = np.arange(group.size)  # candidates of the group that stand before each place
    share = (group.relevant - 1) / max(group.size - 1, 1)
    found = group.relevant_before + 1 + others_before * share
    places = group.before + 1 + others_before
    return float((found / places).sum() * group.relevant / group.size)
