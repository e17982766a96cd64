"""How many calls a claim needs: before there are enough, to say how many more; and to plan an audit."""

import math

import numpy as np

from bertsmith.argument_checks import check_arguments
from bertsmith.arrays import Bools, Ints
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import binomial_p_value, share

_MOST = 1_000_000  # calls; no calibration is larger
_AT_ONCE = 1000


@check_arguments(epsilon=share, delta=share)
def fewest_calls(epsilon: float, delta: float) -> int:
    """The fewest answered calls, none of them differing, that prove a risk of at most `epsilon`: with fewer
    there is no claim, whatever they say. (1 - epsilon)^n <= delta; for 5 % at 95 % it is 59 (Wilks 1941).
    """
    return math.ceil(math.log(delta) / math.log1p(-epsilon))


@check_arguments(epsilon=share, delta=share, power=share)
def calls_to_prove(risk: float, epsilon: float, delta: float, power: float = 0.9) -> int | None:
    """So many answered calls prove "at most `epsilon`" with probability `power`, if the rate is `risk`.

    The fewest with which the binomial test at `delta` of one threshold succeeds that often. None if risk
    >= epsilon, or for more than a million calls. `certify` begins at several places: whichever it is, delta /
    STARTS gives the calls that are enough there. A share c of calls being answered, divide by c for the calls
    to record. Raises InputError for values outside of 0 to 1.
    """
    if not 0 <= risk <= 1:
        raise InputError(f"A risk must lie from 0 to 1, found {risk}.")
    if risk >= epsilon:
        return None
    from scipy.special import bdtr

    def try_errors(errors: Ints) -> tuple[Ints, Bools]:
        # For a number of errors the fewest calls with which they still prove it: with more calls, and no more
        # errors allowed, the chance only falls.
        calls = _calls_allowing(errors, epsilon, delta)
        return calls, np.asarray(bdtr(errors, calls, risk)) >= power

    few, many = 0, 1
    while not try_errors(np.array([many]))[1][0]:
        few, many = many, 2 * many
        if try_errors(np.array([few]))[0][0] > _MOST:
            return None
    while many - few > _AT_ONCE:
        middle = (few + many) // 2
        few, many = (few, middle) if try_errors(np.array([middle]))[1][0] else (middle, many)
    calls, enough = try_errors(np.arange(few, many + 1))
    needed = int(calls[np.argmax(enough)])
    return needed if needed <= _MOST else None


def _calls_allowing(errors: Ints, epsilon: float, delta: float) -> Ints:
    """(N,) the fewest calls with which so many errors still prove a risk of at most `epsilon`."""
    from scipy.special import bdtrin

    # The inverse is exact to rounding; the calls next to it are looked at.
    near = np.ceil(bdtrin(errors, delta, epsilon)).astype(np.int64) - 1
    proven = [binomial_p_value(errors, near + more, epsilon) <= delta for more in range(3)]
    return np.asarray(near + np.argmax(proven, axis=0), np.int64)
