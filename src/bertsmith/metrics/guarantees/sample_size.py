"""How many calls a claim needs: before there are enough, to say how many more; and to plan an audit."""

import math

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.door import door
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import binomial_p_value
from bertsmith.metrics.guarantees.levels import share

_MOST = 2**24  # calls; no calibration is larger


@door(epsilon=share, delta=share)
def fewest_calls(epsilon: float, delta: float) -> int:
    """The fewest answered calls, none of them differing, that prove a risk of at most `epsilon`: with fewer
    there is no claim, whatever they say. (1 - epsilon)^n <= delta; for 5 % at 95 % it is 59 (Wilks 1941).
    """
    return math.ceil(math.log(delta) / math.log1p(-epsilon))


@door(epsilon=share, delta=share, power=share)
def calls_to_prove(risk: float, epsilon: float, delta: float, power: float = 0.9) -> int | None:
    """So many answered calls prove "at most `epsilon`" with probability `power`, if the rate is `risk`.

    The fewest from which on the binomial test at `delta` of one threshold succeeds that often. None if risk
    >= epsilon, or if it would be more than 16 million. A share c of calls being answered, divide by c for the
    calls to record. Raises InputError for values outside of 0 to 1.
    """
    if not 0 <= risk <= 1:
        raise InputError(f"A risk must lie from 0 to 1, found {risk}.")
    if risk >= epsilon:
        return None
    first = fewest_calls(epsilon, delta)
    last = first
    while _chance(np.array([last]), risk, epsilon, delta)[0] < power:
        first, last = last, 2 * last
        if last > _MOST:
            return None
    # The chance rises in saw teeth. Where it first is enough and where it stays so differ by a few calls.
    while last - first > 1000:
        middle = np.arange((first + last) // 2, (first + last) // 2 + 100)
        enough = bool((_chance(middle, risk, epsilon, delta) >= power).any())
        first, last = (first, int(middle[-1])) if enough else (int(middle[0]), last)
    span = np.arange(first, last + 1)
    return int(span[np.argmax(_chance(span, risk, epsilon, delta) >= power)])


def _chance(calls: Ints, risk: float, epsilon: float, delta: float) -> Ints:
    """Of the test's success for each number of calls: of at most as many errors as it allows."""
    from scipy.special import bdtr
    from scipy.stats import binom

    allowed = binom.ppf(delta, calls, epsilon)
    allowed = np.where(binomial_p_value(allowed, calls, epsilon) <= delta, allowed, allowed - 1)
    chance = bdtr(np.maximum(allowed, 0), calls, risk)
    return np.where(allowed >= 0, chance, 0.0)
