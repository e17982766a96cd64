"""How far a rate in a sample may be from the rate behind it: exact intervals and p-values, for any sample
size. And the checks that this folder shares: shares such as ε and δ, and arrays of one length.

The draws are independent and of one distribution. All functions work element by element and broadcast.
"""

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.argument_checks import check_arguments, describe_value
from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.metrics.scores import Interval


def share(value: Any, name: str) -> None:
    """Checks that a number is above 0 and below 1. Raises InputError."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < 1:
        raise InputError(f"{name} must lie above 0 and below 1 (0.05 is 5 %), found {describe_value(value)}.")


def shares(values: npt.ArrayLike, name: str) -> Floats:
    """Checks that values (E,) are from 0 to 1, and at least one. Raises InputError."""
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be one value a call and at least one, found the shape {array.shape}.")
    wrong = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if len(wrong):
        raise InputError(f"{name} must lie from 0 to 1, found {array[wrong[0]]} at call {wrong[0] + 1}.")
    return array


def numbers(values: npt.ArrayLike, name: str) -> Floats:
    """Checks that values (E,) are finite, and at least one. Raises InputError."""
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be one value a call and at least one, found the shape {array.shape}.")
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise InputError(f"{name} must be finite, found {array[wrong[0]]} at call {wrong[0] + 1}.")
    return array


def counts(part: npt.ArrayLike, whole: npt.ArrayLike, name: str) -> tuple[Floats, Floats]:
    """Whole numbers with 0 <= part <= whole. Raises InputError."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    if not ((part >= 0) & (part <= whole) & (part % 1 == 0) & (whole % 1 == 0)).all():
        raise InputError(f"{name} must be whole numbers, from 0 to the number of calls they are counted in.")
    return part, whole


@check_arguments(delta=share)
def clopper_pearson(errors: int, calls: int, delta: float) -> Interval:
    """The two-sided interval for a rate of which `errors` of `calls` were counted; it fails with probability
    at most `delta` (Clopper and Pearson 1934). Without calls it is 0 to 1.

    Each end is the one-sided bound at delta / 2. Raises InputError for counts that can't be.
    """
    return Interval(
        float(lower_bound(errors, calls, delta / 2)),
        float(upper_bound(errors, calls, delta / 2)),
    )


@check_arguments(delta=share)
def upper_bound(errors: npt.ArrayLike, calls: npt.ArrayLike, delta: float) -> Floats:
    """Clopper and Pearson's one-sided bound: the rate is above it with probability at most `delta`.

    It is the rate at which so few errors have probability `delta`, a quantile of Beta(errors + 1, calls -
    errors).
    """
    from scipy.special import betaincinv

    errors, calls = counts(errors, calls, "errors")
    open_end = errors < calls
    bound = betaincinv(errors + 1, np.where(open_end, calls - errors, 1.0), 1 - delta)
    return np.where(open_end, bound, 1.0)


@check_arguments(delta=share)
def lower_bound(errors: npt.ArrayLike, calls: npt.ArrayLike, delta: float) -> Floats:
    """Clopper and Pearson's one-sided bound from below: the rate is under it with probability at most
    `delta`.
    """
    errors, calls = counts(errors, calls, "errors")
    return 1 - upper_bound(calls - errors, calls, delta)


def binomial_p_value(errors: npt.ArrayLike, calls: npt.ArrayLike, epsilon: float) -> Floats:
    """Of "the rate is at least epsilon": the probability of so few errors if it were epsilon.

    P(Binomial(calls, epsilon) <= errors), exact for losses of 0 and 1, and 1 without calls.
    """
    share(epsilon, "epsilon")
    errors, calls = counts(errors, calls, "errors")
    return _binomial_cdf(errors, calls, epsilon)


def hoeffding_bentkus_p_value(mean_loss: npt.ArrayLike, calls: npt.ArrayLike, epsilon: float) -> Floats:
    """Of "the mean of a loss in [0, 1] is at least epsilon", given the mean over `calls` draws.

    The smaller of Hoeffding's bound in its form with the relative entropy, exp(-n KL(mean, epsilon)), and
    Bentkus's, e P(Binomial(n, epsilon) <= ceil(n mean)): Bates, Angelopoulos, Lei, Malik and Jordan 2021
    (arXiv 2101.02703, section 3.1), as a p-value in Angelopoulos et al. (arXiv 2110.01052, section 2). Valid
    for graded losses; for losses of 0 and 1 the binomial p-value is smaller.
    """
    share(epsilon, "epsilon")
    mean, calls = np.broadcast_arrays(np.asarray(mean_loss, np.float64), np.asarray(calls, np.float64))
    if not ((mean >= 0) & (mean <= 1)).all() or not ((calls >= 0) & (calls % 1 == 0)).all():
        raise InputError("A mean loss must lie from 0 to 1, and be taken over a whole number of calls.")
    hoeffding = np.exp(-calls * relative_entropy(np.minimum(mean, epsilon), epsilon))
    bentkus = np.e * _binomial_cdf(np.minimum(np.ceil(calls * mean), calls), calls, epsilon)
    return np.minimum(np.minimum(hoeffding, bentkus), 1.0)


def relative_entropy(first: npt.ArrayLike, second: npt.ArrayLike) -> Floats:
    """The relative entropy of one coin to another, in nats: a log(a / b) + (1 - a) log((1 - a) / (1 - b))."""
    from scipy.special import rel_entr

    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    return np.asarray(rel_entr(first, second) + rel_entr(1 - first, 1 - second))


def _binomial_cdf(errors: Floats, calls: Floats, rate: float) -> Floats:
    """By the incomplete beta function, which unlike a sum stays exact for large n."""
    from scipy.special import betainc

    open_end = errors < calls
    below = betainc(np.where(open_end, calls - errors, 1.0), errors + 1, 1 - rate)
    return np.where(open_end, below, 1.0)
