"""Is one system better than another, or were these queries kind to it? Tests over the queries both answered.

Paired, for queries differ more than systems do. A randomisation test gives the p-value, since it assumes no
distribution (Smucker, Allan and Carterette 2007); the bootstrap gives intervals (Efron 1979, Sakai 2006).

Q queries, S systems, T trials.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats
from bertsmith.errors import InputError

TRIALS = 10_000  # p-values down to 0.0001; with another seed an interval's ends move by 1 % of its width
_AT_ONCE = 4_000_000  # random numbers in memory

# Sums of the same numbers in another order differ by this share at most.
_ROUNDING = 1e-12


class Interval(NamedTuple):
    """From `low` to `high`."""

    low: float
    high: float


def p_value(differences: npt.ArrayLike, trials: int = TRIALS, seed: int = 0) -> float:
    """How often the mean of differences (Q,) is as far from 0 when each keeps or changes its sign by chance.

    Two-sided. Exact where all 2^Q choices of signs are no more than `trials`; else of as many random ones,
    the observed one counted among them, so that the p-value is never 0 (Phipson and Smyth 2010).
    Raises InputError without queries.
    """
    values = _queries(differences)
    observed = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    if 2 ** len(values) <= trials:
        return float((np.abs(_all_signs(len(values)) @ values) >= observed).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for part in _parts(trials, len(values)):
        signs = generator.integers(0, 2, (part, len(values)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ values) >= observed).sum())
    return (extreme + 1) / (trials + 1)


def intervals_of_means(
    values: npt.ArrayLike, confidence: float = 0.95, trials: int = TRIALS, seed: int = 0
) -> list[Interval]:
    """The bootstrap's percentile interval of the mean of each column of (Q, S), all from the same resamples
    of the queries: of systems' scores, or of the differences between two. Raises InputError without queries.
    """
    columns = np.asarray(values, np.float64)
    queries = len(_queries(columns[:, 0]))
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [_drawn(generator, part, queries) @ columns / queries for part in _parts(trials, queries)]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [Interval(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _drawn(generator: np.random.Generator, trials: int, queries: int) -> Floats:
    """(T, Q): how often each query occurs in a resample of as many, drawn with replacement."""
    drawn = generator.integers(0, queries, (trials, queries))
    drawn += np.arange(trials)[:, None] * queries
    counts = np.bincount(drawn.ravel(), minlength=trials * queries)
    return counts.reshape(trials, queries).astype(np.float64)


def _parts(trials: int, queries: int) -> Iterator[int]:
    """Trials in parts that bound the memory."""
    most = max(1, _AT_ONCE // queries)
    for start in range(0, trials, most):
        yield min(most, trials - start)


def _all_signs(queries: int) -> Floats:
    """(2^Q, Q) of -1 and 1."""
    choices = np.arange(2**queries)[:, None] >> np.arange(queries) & 1
    return (2.0 * choices - 1).astype(np.float64)


def _queries(values: npt.ArrayLike) -> Floats:
    found = np.asarray(values, np.float64)
    if found.ndim != 1:
        raise ValueError(f"expected one value a query, (Q,), found the shape {found.shape}")
    if not len(found):
        raise InputError("There are no queries, so there is nothing to compare.")
    return found
