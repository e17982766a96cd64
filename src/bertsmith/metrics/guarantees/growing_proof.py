"""A proof that goes on while calls come in: it may be looked at after each, and used the moment it holds.

**One threshold.** Of each shadowed call whose confidence reaches the threshold it is noted whether the
answers differ (d = 1) or not. A bettor against "the risk is at least epsilon" multiplies the wealth by
1 + b (epsilon - d); if the supposition is true, this is 1 at most on average, and that the wealth ever
reaches 1 / delta has probability at most delta (Ville 1939). Several bets b, fixed beforehand, share the
wealth at first, as in Waudby-Smith and Ramdas ("Estimating means of bounded random variables by betting",
arXiv 2010.09686). So 1 / (the largest wealth so far) is a p-value at whatever time one looks.

**Several thresholds** are fixed beforehand, on development calls, and share delta along the graph of
`learn_then_test.fallback_test`. The p-values only fall, so what is refuted at any time is among what the test
would refute at the end of all times, and all is true together with probability 1 - delta. An average of the
wealths of several thresholds would not allow their largest values.

**Audits.** In service only a part of the calls is put to the teacher, each with a known probability q. Then d
is replaced by g + (d - g) asked / q, where g is the disagreement that was predicted for the call. On average
this is d, whatever g is, and it varies less the better the prediction is (a control variate). With g =
epsilon, the default, a call that isn't audited changes nothing. The bets are smaller, so that no call can
cost more than all, and as large for all calls of a moment: larger ones for easy calls would be about easier
traffic.

**Calls that belong together**, as those of a user who asks the same five times, are one unit: only units are
independent. The wealth is multiplied once, by 1 + b times the sum of epsilon - d over its calls.

**Students.** A student that was trained on earlier calls only begins a proof of its own, and so does one
after drift. The k-th is tested at 6 delta / (pi^2 k^2), and all proofs are true together with probability
1 - delta. A proof assumes that the risk of each threshold stays as it is from its first call on:
`audit.Drift` watches the traffic, and `audit.Audits` says when a promoted student has become worse.

K thresholds, F bets, n calls of a unit; S simulations, L looks.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.argument_checks import check_arguments, integer_from
from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import numbers, share, shares
from bertsmith.metrics.guarantees.learn_then_test import fallback_test, falling

# Parts of the largest possible bet. The best one for a rate of r is 1 - r / epsilon.
BETS: Floats = np.array([0.06, 0.12, 0.2, 0.3, 0.42, 0.56, 0.72, 0.9])
_FORMAT = 1
_SIMULATIONS, _LOOKS = 300, 300  # of a forecast


@check_arguments(delta=share, number=integer_from(1))
def student_share(delta: float, number: int) -> float:
    """The delta of the `number`-th student, counted from 1. Those of all students come to `delta`."""
    return 6 * delta / (math.pi * number) ** 2


class GrowingProof:
    """The proof of one student: from which of its `thresholds` (K,), strict to lax, on its risk is at most
    `epsilon`. With probability 1 - `delta` no threshold that it ever names is wrong.

    `starts` (K,) are the parts of delta at which each threshold is tested from the beginning, such as those
    of `sample_size.forecast_starts`. No unit has more than `largest_unit` calls. All of it is fixed before
    the first call is recorded, and the student has learned from earlier calls only. The state is of one size
    for ever. Raises InputError for what doesn't fit.
    """

    @check_arguments(epsilon=share, delta=share, largest_unit=integer_from(1))
    def __init__(
        self,
        thresholds: npt.ArrayLike,
        starts: npt.ArrayLike,
        epsilon: float,
        delta: float,
        largest_unit: int = 1,
    ) -> None:
        self.thresholds, self.starts = falling(thresholds), shares(starts, "starts")
        if self.starts.shape != self.thresholds.shape or self.starts.sum() > 1 + 1e-9:
            raise InputError(
                f"Expected a start for each of {len(self.thresholds)} thresholds, which come to at most 1; "
                f"found {len(self.starts)} with a sum of {self.starts.sum():.4g}."
            )
        self.epsilon, self.delta, self.largest_unit = epsilon, delta, largest_unit
        self.calls = 0
        self.answered: Ints = np.zeros(len(self.thresholds), np.int64)
        self._log_wealth: Floats = np.full((len(self.thresholds), len(BETS)), -math.log(len(BETS)))
        self._most: Floats = np.zeros(len(self.thresholds))

    def record(
        self,
        confidence: npt.ArrayLike,
        differs: npt.ArrayLike,
        asked: npt.ArrayLike = True,
        probability: npt.ArrayLike = 1.0,
        least: float = 1.0,
        predicted: npt.ArrayLike | None = None,
    ) -> None:
        """One unit: the `confidence` (n,) of its calls, whether the answers differ, 0 to 1, where the teacher
        was `asked`, the `probability` of being asked, the smallest that any call could have had (`least`),
        and the disagreement `predicted`, 0 to 1. All but the first may be one value for all calls. Also calls
        that were not asked are recorded. All but `differs` and `asked` was fixed before the teacher was
        asked. Raises InputError for other values, and changes nothing then.
        """
        confidence = numbers(np.atleast_1d(confidence), "confidence")
        count = len(confidence)
        if count > self.largest_unit:
            raise InputError(f"Expected at most {self.largest_unit} calls in a unit, found {count}.")

        def spread(values: npt.ArrayLike, name: str) -> Floats:
            array = np.asarray(values, np.float64)
            if array.shape not in ((), (count,)):
                raise InputError(f"Expected {name} for each of {count} calls, found {array.shape}.")
            return shares(np.broadcast_to(array, count), name)

        was_asked = spread(asked, "asked") > 0
        losses = np.where(was_asked, spread(np.where(was_asked, differs, 0.0), "differs"), 0.0)
        chances = spread(probability, "probability")
        guesses = spread(self.epsilon if predicted is None else predicted, "predicted")
        if not 0 < least <= chances.min():
            raise InputError(
                "Expected 0 < least <= probability for the probability of asking and any call's least; found "
                f"a probability of {chances.min()} and a least of {least}."
            )
        values = guesses + np.where(was_asked, (losses - guesses) / chances, 0.0)
        reached = confidence[:, None] >= self.thresholds  # (n, K)
        excess = ((self.epsilon - values)[:, None] * reached).sum(axis=0)
        self.calls += count
        self.answered += reached.sum(axis=0)
        self._log_wealth = self._log_wealth + log_gains(excess, self.epsilon, least, self.largest_unit)
        self._most = np.maximum(self._most, np.logaddexp.reduce(self._log_wealth, axis=1))

    def proven(self) -> Bools:
        """(K,) which thresholds are proven; once one is, it stays."""
        return proven_by(self._most, self.starts, self.delta)

    def threshold(self) -> float | None:
        """The laxest proven threshold, or None."""
        places = np.flatnonzero(self.proven())
        return float(self.thresholds[places[-1]]) if len(places) else None

    @check_arguments(most=integer_from(1))
    def forecast(
        self, counts: npt.ArrayLike, most: int = 20_000, seed: int = 0
    ) -> tuple[float, float, float]:
        """The numbers of further calls after which something is proven in a tenth, in half and in nine tenths
        of simulations: 0 where it is, infinite for more than `most`. Calls are as uncertain as the `counts`
        (K + 1, 2) make them: how many were seen between thresholds, the surest first, that agreed and that
        differed. Half a difference is added among the surest. Raises InputError for counts that don't fit.
        """
        seen = np.asarray(counts, np.float64)
        if seen.shape != (len(self.thresholds) + 1, 2) or not (seen >= 0).all():
            raise InputError(
                f"Expected counts of agreeing and differing calls ({len(self.thresholds) + 1}, 2), found "
                f"{seen.shape}."
            )
        if self.proven().any():
            return 0.0, 0.0, 0.0
        draws = np.random.default_rng(seed)
        begins = np.flatnonzero(self.starts)  # nothing else is proven first
        bands = np.add.reduceat(seen, np.append(0, begins + 1), axis=0)  # (K', 2) between those
        bands[0, 1] += 0.5
        rates = draws.standard_gamma(bands, (_SIMULATIONS, *bands.shape))
        looks = np.unique(np.geomspace(1, most, _LOOKS).round().astype(np.int64))
        shares = (rates / rates.sum(axis=(1, 2), keepdims=True)).reshape(_SIMULATIONS, 1, -1)
        drawn = draws.multinomial(np.diff(looks, prepend=0), shares)
        drawn = drawn.reshape(_SIMULATIONS, len(looks), *bands.shape)
        sums = drawn.cumsum(axis=1).cumsum(axis=2)[:, :, :-1]  # (S, L, K' - 1, 2)
        gains = log_gains([self.epsilon, self.epsilon - 1], self.epsilon, largest_unit=self.largest_unit)
        wealth = np.logaddexp.reduce(sums @ gains + self._log_wealth[begins], axis=-1)
        most_wealth = np.maximum(np.maximum.accumulate(wealth, axis=1), self._most[begins])
        needed_wealth = -np.log(self.delta * self.starts[begins])
        proven = np.any(most_wealth >= needed_wealth, axis=2)  # (S, L)
        needed = np.where(proven.any(axis=1), looks[proven.argmax(axis=1)], np.inf)
        low, middle, high = np.quantile(needed, [0.1, 0.5, 0.9], method="higher").tolist()
        return low, middle, high

    def as_json(self) -> dict[str, Any]:
        """The whole state as JSON values; `from_json` continues from it to the bit."""
        thresholds = [None if math.isinf(threshold) else threshold for threshold in self.thresholds.tolist()]
        return {
            "format": _FORMAT,
            "thresholds": thresholds,
            "starts": self.starts.tolist(),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "largest_unit": self.largest_unit,
            "calls": self.calls,
            "answered": self.answered.tolist(),
            "log_wealth": self._log_wealth.tolist(),
            "most": self._most.tolist(),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> "GrowingProof":
        """Raises InputError for what `as_json` of this version didn't write."""
        try:
            if state["format"] != _FORMAT:
                raise ValueError(f"format {state['format']}")
            thresholds = [-math.inf if value is None else value for value in state["thresholds"]]
            proof = cls(thresholds, state["starts"], state["epsilon"], state["delta"], state["largest_unit"])
            proof.calls, proof.answered = int(state["calls"]), np.array(state["answered"], np.int64)
            wealth, most = np.array(state["log_wealth"], np.float64), np.array(state["most"], np.float64)
            if wealth.shape != proof._log_wealth.shape or most.shape != proof._most.shape:
                raise ValueError("thresholds and bets don't fit")
            if np.isnan(wealth).any() or np.isnan(most).any() or proof.answered.shape != most.shape:
                raise ValueError("wealths or counts don't fit")
            proof._log_wealth, proof._most = wealth, most
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Expected the state of a proof as this version's as_json writes it, found {error!r}. "
                "Begin a new one."
            ) from error
        return proof


def log_gains(excess: npt.ArrayLike, epsilon: float, least: float = 1.0, largest_unit: int = 1) -> Floats:
    """(..., F): the logarithm of what each bet is multiplied by, for sums of epsilon - d over a unit (...).

    A value is at most 1 / `least`, so that no unit is worse than `largest_unit` times epsilon minus that.
    """
    worst = largest_unit * (1 / least - epsilon)
    return np.asarray(np.log1p(np.asarray(excess, np.float64)[..., None] / worst * BETS))


def proven_by(log_wealth: npt.ArrayLike, starts: npt.ArrayLike, delta: float) -> Bools:
    """(..., K) which thresholds are proven by the logarithms of the largest wealths so far (..., K)."""
    p_values = np.exp(-np.asarray(log_wealth, np.float64))
    return fallback_test(p_values, delta * np.asarray(starts, np.float64))[0]
