"""How often a model in service disagrees with its teacher: a confidence sequence from audits, and what
follows.

Of the calls that the model answers, each is put to the teacher too with a known probability. For a supposed
rate m a bettor stakes a fraction f of the capital on each audit: against "the rate is at most m" the capital
is multiplied by 1 + f w (d - m) / m, against "the rate is at least m" by 1 - f w (d - m) / (1 - m), where d
is the disagreement, 0 to 1, and w the weight of the audit. If the supposition is true, neither grows on
average, and that it ever reaches 1 / delta has probability at most delta (Ville 1939): one may look after
every audit, and stop whenever one likes. Rates that were refuted make room for the interval. Stakes are
spread over several fractions at once, the diversified Kelly bets of Waudby-Smith and Ramdas ("Estimating
means of bounded random variables by betting", arXiv 2010.09686).

The weight corrects for what is audited more often: w = least / probability, `least` being the smallest
probability that any call could have had at that moment. This is inverse-probability weighting, scaled so that
w is at most 1. A call that isn't audited changes nothing, for it is d - m and not d that is weighted. Where
all calls of a moment have the same probability, w is 1, however it changes over time.

F fractions.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats
from bertsmith.door import found
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.levels import share
from bertsmith.metrics.guarantees.reserve import entering, held_back
from bertsmith.metrics.significance import Interval

Decision = Literal["promote", "keep", "demote"]

FRACTIONS: Floats = np.geomspace(0.002, 0.98, 16)
_HALVINGS = 40  # of the unit interval: 1e-12
_FORMAT = 1


def log_gains_above(
    disagreements: npt.ArrayLike, weights: npt.ArrayLike, rate: npt.ArrayLike, fractions: Floats = FRACTIONS
) -> Floats:
    """(..., F): the logarithm of what each bet against "the rate is at most `rate`" is multiplied by."""
    disagreements, weights, rate = np.broadcast_arrays(disagreements, weights, rate)
    return np.asarray(np.log1p((weights * (disagreements / rate - 1))[..., None] * fractions))


def log_gains_below(
    disagreements: npt.ArrayLike, weights: npt.ArrayLike, rate: npt.ArrayLike, fractions: Floats = FRACTIONS
) -> Floats:
    """(..., F): the same against "the rate is at least `rate`"."""
    disagreements, weights, rate = (np.asarray(each, np.float64) for each in (disagreements, weights, rate))
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
            raise InputError(f"A disagreement must lie from 0 to 1, found {found(disagreement)}.")
        if not 0 < least <= probability <= 1:
            raise InputError(
                "Expected 0 < least <= probability <= 1 for an audit's probability and any call's least; "
                f"found a probability of {found(probability)} and a least of {found(least)}."
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
        values, weights, times = self._table()
        return float((values * weights * times).sum() / (weights * times).sum())

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
        """The whole state in what JSON can hold; `from_json` goes on from it to the bit."""
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
