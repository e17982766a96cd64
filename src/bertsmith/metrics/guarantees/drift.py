"""Has what comes in changed? A conformal test martingale on one number a call, such as its confidence or its
distance from the nearest text of the training data.

Each number is ranked among all before it, beginning with a reference. As long as the order of all of them is
arbitrary (exchangeability), the ranks are independent and uniform: a p-value between 0 and 1, ties broken by
chance (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world"). A bettor stakes on where it
falls: lower or higher, near the ends or in the middle. A part of the capital moves from bet to bet at each
step, as the Simple Jumper of Vovk, Petej, Nouretdinov, Ahlberg, Carlsson and Gammerman 2021 ("Retrain or not
retrain") does, so that it follows a change. That the capital ever reaches 1 / delta has probability at most
delta, so an alarm is false with no more than this, over all time and at whatever moment one looks.

N bets, B bins; leading dimensions, where there are any, are streams side by side.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats, Ints
from bertsmith.door import door, found, whole
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.levels import numbers, share
from bertsmith.metrics.guarantees.reserve import entering, held_back

_SLOPES = np.array([-0.9, -0.3, 0.3, 0.9])  # bets on low or high p-values
_BENDS = np.array([-0.8, 0.8])  # on p-values in the middle, or near 0 and 1
BETS = 1 + len(_SLOPES) + len(_BENDS)  # the first stakes nothing
_JUMPING = 0.002  # the share of the capital that changes its bet at a step
_MOST_BINS = 256
_FEWEST = 20  # numbers of a reference
_FORMAT = 1


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


def log_capital(log_stakes: Floats, steps: int) -> Floats:
    """(...) of stakes and what is still held back, after so many bets."""
    return np.asarray(np.logaddexp(np.logaddexp.reduce(log_stakes, axis=-1), math.log(held_back(steps))))


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


class Drift:
    """The test of one stream of numbers. False alarms over all time have probability `delta` at most; of
    several streams watched at once give each its part of it.

    `reference` (E,) is of the traffic that the model was certified on, in any order: every other number sets
    the bins, the rest is what the stream is compared with at first. The state is of one size for ever.
    """

    @door(delta=share, seed=whole(0))
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
            raise InputError(f"Expected a finite number to watch, found {found(value)}.")
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
        """The whole state in what JSON can hold; `from_json` goes on from it to the bit."""
        return {
            "format": _FORMAT,
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
            if state["format"] != _FORMAT:
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
