"""How disagreement falls with the calls learned from: a power law, and how many calls a target needs.

Disagreement = floor + a rows^-b, as learning curves of many tasks are found to run (Hestness et al. 2017,
arXiv 1712.00409); `floor` is what no model can go below, for the teacher contradicts itself. That the curve
goes on as it ran is an assumption which nothing here checks.

P points of the curve, D draws.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import counts, share
from bertsmith.metrics.scores import Interval

_DRAWS = 2000
_FARTHEST = 100  # times the rows measured; beyond, a fitted line forecasts nothing


@dataclass(frozen=True)
class RowsNeeded:
    """To agree in `agreement` of the calls, a model must learn from about `rows` calls, from `interval` with
    90 % confidence; infinite where the curve doesn't get there with 100 times the rows measured. `have` were
    learned from so far.
    """

    agreement: float
    have: int
    rows: float
    interval: Interval

    def as_sentence(self) -> str:
        """'About 1,400 more calls to reach 95 % agreement with the LLM (from 900 to 2,600, with 90 %
        confidence).'
        """
        target = f"{100 * self.agreement:g} % agreement with the LLM"
        if self.rows <= self.have:
            return f"To reach {target}, the calls recorded should be enough to learn from."
        if math.isinf(self.rows):
            return f"More calls alone are not expected to reach {target}."
        low, high = (_rounded(max(0.0, rows - self.have)) for rows in self.interval)
        more = _rounded(self.rows - self.have)
        most = f"from {low} to {high}" if math.isfinite(self.interval.high) else f"at least {low}"
        most += ", with 90 % confidence"
        return f"About {more} more calls to reach {target} ({most})."


@dataclass(frozen=True)
class PowerLaw:
    """Disagreement = floor + a rows^-b. `log_a` and `b` are the fit's, `draws` (D, 2) both for curves that
    might have been measured instead; `have`: the most rows of any point.
    """

    log_a: float
    b: float
    floor: float
    have: int
    draws: Floats

    def disagreement(self, rows: float) -> float:
        return self.floor + math.exp(self.log_a - self.b * math.log(rows))

    def rows_for(self, agreement: float) -> RowsNeeded:
        """Raises InputError unless 0 < agreement < 1."""
        share(agreement, "agreement")
        excess = 1 - agreement - self.floor
        needed = _rows(np.concatenate([[[self.log_a, self.b]], self.draws]), excess, self.have)
        needed[needed > _FARTHEST * self.have] = np.inf
        low, high = np.quantile(needed[1:], [0.05, 0.95], method="nearest")
        return RowsNeeded(agreement, self.have, float(needed[0]), Interval(float(low), float(high)))


def fit_power_law(
    rows: npt.ArrayLike, disagreements: npt.ArrayLike, calls: npt.ArrayLike, floor: float = 0.0, seed: int = 0
) -> PowerLaw:
    """Fits models that learned from `rows` (P,) calls each and then differed from the teacher in
    `disagreements` (P,) of `calls` (P,) others. At least three points, two of them of different rows.

    Least squares on logarithms, each point weighted by how surely it is known. What might have been measured
    instead is drawn from binomials (the parametric bootstrap), point by point: that models were tested on the
    same calls is not used, and makes the interval rather too wide. Raises InputError for what doesn't fit.
    """
    if floor != 0:
        share(floor, "floor")
    rows = np.asarray(rows, np.float64)
    wrong, tested = counts(disagreements, calls, "disagreements")
    if rows.ndim != 1 or wrong.shape != rows.shape or len(rows) < 3 or len(np.unique(rows)) < 2:
        raise InputError(
            "A learning curve needs at least three points of rows, disagreements and calls, and rows that "
            f"differ; found {rows.shape}, {np.shape(disagreements)} and {np.shape(calls)}."
        )
    if (rows < 1).any() or (tested < 1).any():
        raise InputError(
            "Each point of a learning curve needs rows that were learned from and calls to test on."
        )
    # Half an error more of each kind: a point without errors is neither certain nor infinitely far down.
    rates = (wrong + 0.5) / (tested + 1)
    drawn = np.random.default_rng(seed).binomial(tested.astype(np.int64), rates, (_DRAWS, len(rows)))
    excess = np.maximum(np.concatenate([rates[None], (drawn + 0.5) / (tested + 1)]) - floor, 0.5 / tested)
    weights = tested * excess[0] ** 2 / (rates * (1 - rates))
    fits = _lines(np.log(rows), np.log(excess), weights)
    return PowerLaw(float(fits[0, 0]), float(fits[0, 1]), floor, int(rows.max()), fits[1:])


def _lines(x: Floats, y: Floats, weights: Floats) -> Floats:
    """(D, 2) intercept and negative slope of the weighted least squares of each row of y (D, P)."""
    weights = weights / weights.sum()
    centre = (weights * x).sum()
    middle = y @ weights
    slope = (y - middle[:, None]) @ (weights * (x - centre)) / (weights * (x - centre) ** 2).sum()
    return np.stack([middle - slope * centre, -slope], axis=1)


def _rows(fits: Floats, excess: float, have: int) -> Floats:
    """(D,) where each curve comes down to `excess`; infinite where it doesn't fall, or not so far. One that
    is there with the rows that we `have` needs no more, though it be flat, as that of an easy task is.
    """
    if excess <= 0:
        return np.full(len(fits), np.inf)
    log_a, b = fits.T
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.exp(np.where(b > 0, (log_a - math.log(excess)) / np.where(b > 0, b, 1.0), np.inf))
    there = log_a - b * math.log(have) <= math.log(excess)
    return np.where(there, np.minimum(np.ceil(needed), have), np.ceil(needed))


def _rounded(number: float) -> str:
    """Two digits that count: 1437 is '1,400'."""
    if number < 1 or math.isinf(number):
        return f"{number:.0f}"
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return f"{round(number / unit) * unit:,}"
