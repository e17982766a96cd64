"""How many calls a claim needs: before there are enough, to say how many more; to plan an audit; and to plan
the graph of claims that `learn_then_test.certify_by_graph` tests.

A plan is made by development calls, which may be looked at as often as one likes. Calls to prove by are drawn
from them again and again, as uncertain as so few make them, and the thresholds to start at are those that
answer most on average.

S simulations, T thresholds, P plans.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bertsmith.argument_checks import check_arguments, integer_from
from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import binomial_p_value, share
from bertsmith.metrics.guarantees.learn_then_test import (
    CallGroup,
    GroupShare,
    calibration,
    fallback_test,
    falling,
)
from bertsmith.metrics.scores import Interval

_MOST = 1_000_000  # calls; no calibration is larger
_AT_ONCE = 1000
_SIMULATIONS = 100
_PLACES = 12  # thresholds at which a plan may start
_TAIL = 0.05  # on either side of a forecast's interval
_SAFE = 0.75  # the stricter start's part, where there are two


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


class StartForecast(NamedTuple):
    """The best `starts` (T,) for a group's share of delta, the `coverage` of the group's calls to expect from
    them, the probability that nothing is proven (`unproven`), and the `interval` in which the coverage lies
    with a probability of 90 %.
    """

    starts: Floats
    coverage: float
    unproven: float
    interval: Interval


@check_arguments(delta=share, calls=integer_from(0))
def forecast_starts(development: CallGroup, calls: int, delta: float, seed: int = 0) -> StartForecast:
    """Where to start with `delta` on so many `calls` to prove by, if they are like those of `development`.

    One start or two: a strict one, that surely holds, and a laxer one that would answer more. Each simulation
    draws a rate of calls and differences between thresholds (Dirichlet, by the counts of development and half
    a difference among the surest), then the calls. Without calls nothing is expected.
    """
    thresholds = falling(development.thresholds)
    last = len(thresholds) - 1
    places = np.unique(np.linspace(0, last, min(_PLACES, last + 1)).round().astype(np.int64))
    plans = np.eye(last + 1)[places]
    pairs = np.triu_indices(len(places), 1)
    plans = np.concatenate([plans, _SAFE * plans[pairs[0]] + (1 - _SAFE) * plans[pairs[1]]])
    if not np.size(development.confidence) or not calls:
        return StartForecast(plans[len(places) // 2], 0.0, 1.0, Interval(0.0, 0.0))
    confidence, losses = calibration(development.confidence, development.losses)
    between = np.searchsorted(-thresholds, -confidence, side="left")  # the strictest that answers
    counts = np.zeros((last + 2, 2))
    np.add.at(counts, between, np.stack([1 - losses, losses], axis=1))
    counts[0, 1] += 0.5
    draws = np.random.default_rng(seed)
    rates = draws.standard_gamma(counts, (_SIMULATIONS, *counts.shape)).reshape(_SIMULATIONS, -1)
    drawn = draws.multinomial(calls, rates / rates.sum(axis=1, keepdims=True))
    sums = drawn.reshape(-1, *counts.shape).cumsum(axis=1)[:, :-1]  # (S, T, 2)
    answered = sums.sum(axis=2)
    p_values = binomial_p_value(sums[..., 1], answered, development.epsilon)
    refuted, _ = fallback_test(p_values[:, None], delta * plans)  # (S, P, T)
    laxest = last - refuted[..., ::-1].argmax(axis=2)
    coverage = np.take_along_axis(answered, laxest, axis=1) * refuted.any(axis=2) / calls
    best = int(coverage.mean(axis=0).argmax())
    low, high = np.quantile(coverage[:, best], [_TAIL, 1 - _TAIL])
    return StartForecast(
        plans[best],
        float(coverage[:, best].mean()),
        float((coverage[:, best] == 0).mean()),
        Interval(float(low), float(high)),
    )


@check_arguments(delta=share, calls=integer_from(0))
def plan_graph(
    development: Mapping[str, CallGroup], calls: int, delta: float, seed: int = 0
) -> dict[str, GroupShare]:
    """A graph of claims by which the groups together answer as many of the `calls` as can be expected, in the
    order in which the groups help. No call is in two groups.

    Delta is divided among as many groups as is best by the calls of `development`; each passes its share on
    to one that has none yet. Raises InputError as `certify_each` does.
    """
    if not development:
        raise InputError("There are no groups to plan for.")
    total = sum(np.size(group.confidence) for group in development.values())
    expected = {
        name: round(calls * np.size(group.confidence) / max(total, 1)) for name, group in development.items()
    }

    def forecast(name: str, part: float) -> StartForecast:
        return forecast_starts(development[name], expected[name], delta * part, seed)

    def answered(name: str, part: float) -> float:
        return expected[name] * forecast(name, part).coverage

    alone = {name: answered(name, 1.0) for name in development}
    order = sorted(development, key=lambda name: -alone[name])
    lanes, most = 1, alone[order[0]]
    helping = sum(gain > 0 for gain in alone.values())
    while lanes < helping:
        more = min(2 * lanes, helping)
        gain = sum(answered(name, 1 / more) for name in order[:more])
        if gain <= most:
            break
        lanes, most = more, gain
    return {
        name: GroupShare(
            1 / lanes if place < lanes else 0.0,
            forecast(name, 1 / lanes).starts,
            {order[place + lanes]: 1.0} if place + lanes < len(order) else {},
        )
        for place, name in enumerate(order)
    }
