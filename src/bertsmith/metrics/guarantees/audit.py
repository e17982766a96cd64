"""How often a model in service disagrees with its teacher, and whether what comes in has changed: statements
from bets that hold at whatever time one looks.

**Audits.** Of the calls that the model answers, each is put to the teacher too with a known probability. For
a supposed rate m a bettor stakes a fraction f of the capital on each audit: against "the rate is at most m"
the capital is multiplied by 1 + f w (d - m) / m, against "the rate is at least m" by
1 - f w (d - m) / (1 - m), where d is the disagreement, 0 to 1, and w the weight of the audit. If the
supposition is true, neither grows on average, and that it ever reaches 1 / delta has probability at most
delta (Ville 1939): one may look after every audit, and stop whenever one likes. Rates that were refuted make
room for the interval. Stakes are spread over several fractions at once, the diversified Kelly bets of
Waudby-Smith and Ramdas ("Estimating means of bounded random variables by betting", arXiv 2010.09686).

The weight corrects for what is audited more often: w = least / probability, `least` being the smallest
probability that any call could have had at that moment. This is inverse-probability weighting, scaled so that
w is at most 1. A call that isn't audited changes nothing, for it is d - m and not d that is weighted. Where
all calls of a moment have the same probability, w is 1, however it changes over time.

**Drift.** A conformal test martingale on one number a call, such as its confidence or its distance from the
nearest text of the training data. Each number is ranked among all before it, beginning with a reference. As
long as the order of all of them is arbitrary (exchangeability), the ranks are independent and uniform: a
p-value between 0 and 1, ties broken by chance (Vovk, Gammerman and Shafer, "Algorithmic learning in a random
world"). A bettor stakes on where it falls: lower or higher, near the ends or in the middle. A part of the
capital moves from bet to bet at each step, as the Simple Jumper of Vovk, Petej, Nouretdinov, Ahlberg,
Carlsson and Gammerman 2021 ("Retrain or not retrain") does, so that it follows a change. That the capital
ever reaches 1 / delta has probability at most delta, so an alarm is false with no more than this, over all
time.

**The reserve.** A bettor who stakes all at the start loses nearly everything while nothing changes, and must
win it back before a change shows. So some is held back and a little of it joins the bets at each step: there
is always fresh capital. The sum of stakes and reserve is still a test supermartingale, a mixture over the
times of entry, and Ville's inequality holds for it.

F fractions; N bets, B bins. Leading dimensions, where there are any, are streams side by side.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertsmith.argument_checks import check_arguments, describe_value, integer_from
from bertsmith.arrays import Floats, Ints
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import numbers, share
from bertsmith.metrics.scores import Interval

Decision = Literal["promote", "keep", "demote"]
FRACTIONS: Floats = np.geomspace(0.002, 0.98, 16)
_HALVINGS = 40  # of the unit interval: 1e-12
_FORMAT = 1
_SLOPES = np.array([-0.9, -0.3, 0.3, 0.9])  # bets on low or high p-values
_BENDS = np.array([-0.8, 0.8])  # on p-values in the middle, or near 0 and 1
BETS = 1 + len(_SLOPES) + len(_BENDS)  # the first stakes nothing
_JUMPING = 0.002  # the share of the capital that changes its bet at a step
_MOST_BINS = 256
_FEWEST = 20  # numbers of a reference
_DRIFT_FORMAT = 1


class Audits:
    """The audits of one model, and three statements. Each fails with probability `delta` at most, at whatever
    time one looks or stops:

    - `interval()` holds the rate, if that doesn't change over time.
    - `decision() == "demote"` is not said while the rate has always been at most `epsilon`, changing or not.
    - `decision() == "promote"` is not said while it has always been at least `epsilon`.

    A rate is of the traffic that the model answers. `record` takes the same time however many audits there
    were. The state, and the time of `interval`, grow with the number of different pairs of disagreement and
    weight, so round the probabilities to a few values before drawing by them.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        share(epsilon, "epsilon")
        share(delta, "delta")
        self.epsilon, self.delta = epsilon, delta
        self.count = 0
        # How often each (disagreement, weight) came: the order of bets by fixed fractions doesn't matter.
        self._seen: Counter[tuple[float, float]] = Counter()
        # (F,) logarithms of the stakes against "at most epsilon", entering little by little, and against
        # "at least epsilon".
        self._above: Floats = np.full(len(FRACTIONS), -np.inf)
        self._below: Floats = np.full(len(FRACTIONS), -math.log(len(FRACTIONS)))
        self._most_above = self._most_below = 0.0

    def record(self, disagreement: float, probability: float, least: float) -> None:
        """One audit. `disagreement`: 1 where the teacher answered otherwise, 0 where not, or between; an
        audit that got no answer counts as 1, for what fails may be what is hard. `probability`: with which
        this call was to be audited; `least`: the smallest with which any call was to be at that moment, equal
        to `probability` where all were treated alike. Both were settled before the teacher was asked. Raises
        InputError for other values, and changes nothing then.
        """
        if not 0 <= disagreement <= 1:
            raise InputError(f"A disagreement must lie from 0 to 1, found {describe_value(disagreement)}.")
        if not 0 < least <= probability <= 1:
            raise InputError(
                "Expected 0 < least <= probability <= 1 for an audit's probability and any call's least; "
                f"found a probability of {describe_value(probability)} and a least of "
                f"{describe_value(least)}."
            )
        disagreement, weight = float(disagreement), float(least) / float(probability)
        self.count += 1
        self._seen[disagreement, weight] += 1
        self._above = after_audit(self._above, disagreement, weight, self.epsilon, self.count)
        self._below = self._below + log_gains_below(disagreement, weight, self.epsilon)
        self._most_above = max(self._most_above, float(log_capital(self._above, self.count)))
        self._most_below = max(self._most_below, float(np.logaddexp.reduce(self._below)))

    def decision(self) -> Decision:
        """What the audits so far have proven: once said, "demote" stays, and "promote" until "demote"."""
        needed = -math.log(self.delta)
        if self._most_above >= needed:
            return "demote"
        return "promote" if self._most_below >= needed else "keep"

    def evidence(self) -> tuple[float, float]:
        """The largest capital so far against "at most epsilon", and against "at least epsilon", as
        logarithms. Either is decided when it reaches log(1 / delta).
        """
        return self._most_above, self._most_below

    def rate(self) -> float:
        """The weighted share of disagreements; NaN before the first audit."""
        if not self.count:
            return math.nan
        values, weights, occurrences = self._table()
        return float((values * weights * occurrences).sum() / (weights * occurrences).sum())

    def disagreements(self) -> float:
        """How many audits disagreed, whatever they weigh."""
        return float(sum(value * times for (value, _), times in self._seen.items()))

    def interval(self) -> Interval:
        """The rates not refuted at delta / 2 from either side by the audits so far."""
        if not self.count:
            return Interval(0.0, 1.0)
        values, weights, times = self._table()
        needed = math.log(2 / self.delta)

        def refuted_as_high(rate: float) -> bool:
            return _capital(log_gains_below(values, weights, rate), times) >= needed

        def refuted_as_low(rate: float) -> bool:
            return _capital(log_gains_above(values, weights, rate), times) >= needed

        # Each capital is monotone in the rate, so that what is refuted is one piece at either end.
        low, high = _last(refuted_as_low), 1 - _last(lambda rest: refuted_as_high(1 - rest))
        return Interval(low, high)

    def as_json(self) -> dict[str, Any]:
        """The whole state as JSON values; `from_json` continues from it to the bit."""
        return {
            "format": _FORMAT,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "seen": [[value, weight, times] for (value, weight), times in self._seen.items()],
            "above": self._above.tolist() if self.count else None,
            "below": self._below.tolist(),
            "most_above": self._most_above,
            "most_below": self._most_below,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> "Audits":
        """Raises InputError for what `as_json` of this version didn't write."""
        try:
            if state["format"] != _FORMAT:
                raise ValueError(f"format {state['format']}")
            audits = cls(state["epsilon"], state["delta"])
            audits._seen.update({(float(d), float(w)): int(times) for d, w, times in state["seen"]})
            audits.count = audits._seen.total()
            audits._below = _bets(state["below"])
            if audits.count:
                audits._above = _bets(state["above"])
            audits._most_above, audits._most_below = float(state["most_above"]), float(state["most_below"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Expected the state of audits as this version's as_json writes it, found {error!r}. "
                "Begin with new audits."
            ) from error
        return audits

    def _table(self) -> tuple[Floats, Floats, Floats]:
        pairs = np.array(list(self._seen), np.float64)
        return pairs[:, 0], pairs[:, 1], np.array(list(self._seen.values()), np.float64)


def log_gains_above(
    disagreements: npt.ArrayLike, weights: npt.ArrayLike, rate: npt.ArrayLike, fractions: Floats = FRACTIONS
) -> Floats:
    """(..., F): the logarithm of what each bet against "the rate is at most `rate`" is multiplied by."""
    disagreements, weights, rate = np.broadcast_arrays(disagreements, weights, rate)
    return np.asarray(np.log1p((weights * (disagreements / rate - 1))[..., None] * fractions))


def log_gains_below(
    disagreements: npt.ArrayLike, weights: npt.ArrayLike, rate: npt.ArrayLike, fractions: Floats = FRACTIONS
) -> Floats:
    """(..., F): the logarithm of the factors for bets against "the rate is at least `rate`"."""
    disagreements, weights, rate = (
        np.asarray(values, np.float64) for values in (disagreements, weights, rate)
    )
    return log_gains_above(1 - disagreements, weights, 1 - rate, fractions)


def after_audit(
    log_stakes: Floats, disagreements: npt.ArrayLike, weights: npt.ArrayLike, rate: float, step: int
) -> Floats:
    """(..., F) stakes against "the rate has always been at most `rate`", as logarithms, after audit number
    `step`, counted from 1; at first all are -inf. Fresh capital enters at each, for the rate may rise late.
    """
    staked = np.logaddexp(log_stakes, math.log(entering(step) / len(FRACTIONS)))
    return np.asarray(staked + log_gains_above(disagreements, weights, rate))


def log_capital(log_stakes: Floats, steps: int) -> Floats:
    """(...) of such stakes and what is still held back, after so many audits."""
    return np.asarray(np.logaddexp(np.logaddexp.reduce(log_stakes, axis=-1), math.log(held_back(steps))))


def _capital(log_gains: Floats, times: Floats) -> float:
    """The logarithm of the capital spread over all fractions, of (P, F) gains that came (P,) times."""
    return float(np.logaddexp.reduce(times @ log_gains) - math.log(log_gains.shape[-1]))


def _last(refuted: Callable[[float], bool]) -> float:
    """The largest rate known to be refuted, where all are up to some rate; 0 if none is."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _bets(values: Any) -> Floats:
    array = np.array(values, np.float64)
    if array.shape != FRACTIONS.shape or np.isnan(array).any():
        raise ValueError(f"expected {len(FRACTIONS)} bets")
    return array


class Drift:
    """The test of one stream of numbers. False alarms over all time have probability `delta` at most; of
    several streams watched at once give each its part of it.

    `reference` (E,) is of the traffic that the model was certified on, in any order: every other number sets
    the bins, the rest is what the stream is compared with at first. The state is of one size for ever.
    """

    @check_arguments(delta=share, seed=integer_from(0))
    def __init__(self, reference: npt.ArrayLike, delta: float, seed: int = 0) -> None:
        values = numbers(reference, "reference")
        if len(values) < _FEWEST:
            raise InputError(f"Expected a reference of at least {_FEWEST} numbers, found {len(values)}.")
        self.delta, self.seed, self.steps = delta, seed, 0
        # Bins by the numbers that are compared would not treat these and new ones alike.
        self._edges = edges_of(values[::2])
        self._counts: Ints = np.bincount(self._places(values[1::2]), minlength=len(self._edges) + 1)
        self._log_stakes: Floats = np.full(BETS, -np.inf)
        self._most = 0.0

    def record(self, value: float) -> bool:
        """One number of the stream; whether there is an alarm, now or before. Raises InputError for NaN and
        infinity, and changes nothing then."""
        if not math.isfinite(value):
            raise InputError(f"Expected a finite number to watch, found {describe_value(value)}.")
        self.steps += 1
        place = int(self._places(np.array([value]))[0])
        # By the step's number, so that a resumed test draws as one that was never stopped.
        chance = np.random.default_rng((self.seed, self.steps)).random()
        p_value = conformal_p_value(self._counts, place, chance)
        self._counts[place] += 1
        self._log_stakes = after_bet(self._log_stakes, p_value, self.steps)
        self._most = max(self._most, float(log_capital(self._log_stakes, self.steps)))
        return self.alarm

    @property
    def alarm(self) -> bool:
        """Once given, it stays: a new model, or a new reference, begins a new test."""
        return self._most >= -math.log(self.delta)

    @property
    def evidence(self) -> float:
        """The logarithm of the largest capital so far; an alarm from log(1 / delta) on."""
        return self._most

    def as_json(self) -> dict[str, Any]:
        """The whole state as JSON values; `from_json` continues from it to the bit."""
        return {
            "format": _DRIFT_FORMAT,
            "delta": self.delta,
            "seed": self.seed,
            "steps": self.steps,
            "edges": self._edges.tolist(),
            "counts": self._counts.tolist(),
            "log_stakes": self._log_stakes.tolist() if self.steps else None,
            "most": self._most,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> "Drift":
        """Raises InputError for what `as_json` of this version didn't write."""
        test = cls.__new__(cls)
        try:
            if state["format"] != _DRIFT_FORMAT:
                raise ValueError(f"format {state['format']}")
            test.delta, test.seed, test.steps = float(state["delta"]), int(state["seed"]), int(state["steps"])
            share(test.delta, "delta")
            test._edges = np.array(state["edges"], np.float64)
            test._counts = np.array(state["counts"], np.int64)
            stakes = state["log_stakes"] if test.steps else [-math.inf] * BETS
            test._log_stakes = np.array(stakes, np.float64)
            if test._counts.shape != (len(test._edges) + 1,) or test._log_stakes.shape != (BETS,):
                raise ValueError("bins, counts and bets don't fit")
            test._most = float(state["most"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Expected the state of a test of drift as as_json of this version writes it, found a fault: "
                f"{error!r}. Begin a new one."
            ) from error
        return test

    def _places(self, values: Floats) -> Ints:
        return np.searchsorted(self._edges, values, side="left").astype(np.int64)


def gains(p_value: npt.ArrayLike) -> Floats:
    """(..., N) of p-values (...): what each bet is multiplied by. Their mean over uniform p-values is 1."""
    p = np.asarray(p_value, np.float64)[..., None]
    bent = 6 * p * (p - 1) + 1  # Legendre's second polynomial on 0 ... 1: mean 0, from -1/2 to 1
    return np.concatenate([np.ones_like(p), 1 + _SLOPES * (2 * p - 1), 1 + _BENDS * bent], axis=-1)


def after_bet(log_stakes: Floats, p_value: npt.ArrayLike, step: int) -> Floats:
    """(..., N) stakes, as logarithms, after the bet number `step`, counted from 1; at first all are -inf."""
    total = np.logaddexp.reduce(log_stakes, axis=-1, keepdims=True)
    spread = np.logaddexp(total + math.log(_JUMPING), math.log(entering(step))) - math.log(BETS)
    return np.asarray(np.logaddexp(log_stakes + math.log1p(-_JUMPING), spread) + np.log(gains(p_value)))


def conformal_p_value(counts: Ints, place: npt.ArrayLike, chance: npt.ArrayLike) -> Floats:
    """(...) of new numbers in bins `place` (...), given how many before them fell in each bin, (..., B): the
    share that lies above, and of the equal ones, the new one among them, a share by `chance` (...) in [0, 1).
    """
    place = np.asarray(place)[..., None]
    bins = np.arange(counts.shape[-1])
    above = (counts * (bins > place)).sum(axis=-1)
    equal = np.take_along_axis(counts, place, axis=-1)[..., 0] + 1
    return np.asarray((above + np.asarray(chance) * equal) / (counts.sum(axis=-1) + 1))


def edges_of(values: Floats) -> Floats:
    """(at most 255,) inner edges of bins with like many of these values in each."""
    return np.unique(np.quantile(values, np.arange(1, _MOST_BINS) / _MOST_BINS, method="lower"))


def held_back(steps: int) -> float:
    """The share of the capital that is not yet staked after so many bets: 1, then 1/2, then as 1 / log.

    So slow that a change at step t costs about log t + 2 log log t of evidence, and no more.
    """
    return 0.5 / (1 + math.log(steps)) if steps else 1.0


def entering(step: int) -> float:
    """The share that is staked at bet number `step`, counted from 1, for the first time."""
    return held_back(step - 1) - held_back(step)
