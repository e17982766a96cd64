"""From which confidence on a model may answer in a teacher's place: Learn-then-Test with fixed-sequence
testing (Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then Test", arXiv 2110.01052, Algorithm 1).

A call is answered where its confidence >= threshold. The selective risk of a threshold is the mean loss among
the calls it answers, E[loss | confidence >= threshold]; with a loss of 1 where model and teacher differ it is
the share of answers that differ. For every threshold the hypothesis "its selective risk is above epsilon" is
tested, and of those refuted the laxest is taken.

The risk is a ratio, of answers that differ to answers, yet it needs no bound on a ratio: calls are
independent draws of one distribution, and the threshold is fixed before they are seen, so that which of them
are answered depends on each call alone. Given that n are answered, their losses are n independent draws whose
mean is the selective risk. The p-value from these n is therefore valid given n, whatever n is, and so it is
on the whole.

E calls, T thresholds.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.door import door
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import binomial_p_value, clopper_pearson, hoeffding_bentkus_p_value
from bertsmith.metrics.guarantees.levels import numbers, share, shares
from bertsmith.metrics.significance import Interval

# Testing begins at so many places, the first and the last threshold among them. The strictest ones answer too
# few calls to prove anything, and with that one place to begin at, all would end there. Each further one
# takes some of delta.
STARTS = 8


@dataclass(frozen=True)
class Certificate:
    """With probability 1 - `delta`, answers from `threshold` on have a mean loss of at most `epsilon`.

    Of the `calls` of the calibration data the threshold answered `answered`, with a mean loss of `risk`;
    their share `coverage` lies in `coverage_interval` with probability 1 - `delta`, whichever threshold was
    chosen. The two statements fail each with probability `delta`, both together hold with 1 - 2 `delta`.
    """

    threshold: float
    epsilon: float
    delta: float
    calls: int
    answered: int
    risk: float
    coverage_interval: Interval

    @property
    def coverage(self) -> float:
        return self.answered / self.calls


class Answered(NamedTuple):
    """What each threshold answers: how many calls, and the sum of their losses, (T,) both."""

    calls: Ints
    losses: Floats


@door(epsilon=share, delta=share)
def certify(
    confidence: npt.ArrayLike,
    losses: npt.ArrayLike,
    thresholds: npt.ArrayLike,
    epsilon: float,
    delta: float,
) -> Certificate | None:
    """The laxest threshold whose selective risk is proven to be at most `epsilon`, or None: not proven.

    `confidence` (E,) and `losses` (E,) in [0, 1] are of calibration calls, which nothing else was chosen by:
    neither model nor thresholds nor epsilon. They may be used once; a second try on the same calls, with
    another epsilon or another model, makes the claim of neither. `thresholds` (T,) fall from strict to lax;
    `threshold_sequence` makes them of other data. Raises InputError for what doesn't fit.
    """
    confidence, losses = calibration(confidence, losses)
    thresholds = falling(thresholds)
    p_values = risk_p_values(confidence, losses, thresholds, epsilon)
    return certificate(confidence, losses, thresholds, fixed_sequence_test(p_values, delta), epsilon, delta)


def threshold_sequence(confidence: npt.ArrayLike, most: int = 50) -> Floats:
    """At most `most` thresholds from strict to lax: evenly spaced quantiles of these confidences (E,), and
    last the lowest number, which answers every call. Each is half-way between a confidence and the next lower
    one, so that rounding moves no call to the other side: one of these may be frequent in the calibration.

    The confidences are of data that the calibration doesn't use: dev data, or earlier traffic without labels.
    """
    confidence = numbers(confidence, "confidence")
    if most < 1:
        raise InputError(f"Expected at least one threshold, found most={most}.")
    steps = np.quantile(confidence, 1 - np.arange(1, most) / most, method="higher")
    values = np.unique(confidence)
    places = np.searchsorted(values, np.unique(steps))
    between = (values[places] + values[np.maximum(places - 1, 0)]) / 2
    return np.append(np.unique(between)[::-1], -np.inf)


def fixed_sequence_test(p_values: npt.ArrayLike, delta: float, starts: int = STARTS) -> Bools:
    """(T,) which hypotheses are refuted, so that the probability of refuting any true one is at most `delta`.

    They are tested in their order. Testing begins at `starts` evenly spaced places with delta / starts each,
    goes on as long as hypotheses are refuted, and takes what is left to the next place: with one start this
    is fixed-sequence testing, with several the fallback procedure (Wiens and Dmitrienko 2005). Valid however
    the p-values depend on each other. For consider the true hypotheses in their order: if none before it was
    refuted, one is tested at no more than what was set aside since the true one before it, and over all of
    them that sums to delta at most.
    """
    p_values = np.asarray(p_values, np.float64)
    places = np.linspace(0, len(p_values) - 1, starts).round().astype(np.int64)
    shares_of_delta = np.bincount(places, minlength=len(p_values)) * (delta / starts)
    refuted = np.zeros(len(p_values), np.bool_)
    level = 0.0
    for place, p_value in enumerate(p_values.tolist()):
        level += float(shares_of_delta[place])
        refuted[place] = p_value <= level and level > 0
        level = level if refuted[place] else 0.0
    return refuted


def risk_p_values(confidence: Floats, losses: Floats, thresholds: Floats, epsilon: float) -> Floats:
    """(T,) the p-value of "the selective risk is above epsilon", 1 where nothing is answered.

    Exact by the binomial for losses of 0 and 1, else Hoeffding and Bentkus's.
    """
    answered = answered_by(confidence, losses, thresholds)
    if ((losses == 0) | (losses == 1)).all():
        return binomial_p_value(answered.losses, answered.calls, epsilon)
    means = np.clip(answered.losses / np.maximum(answered.calls, 1), 0, 1)
    return hoeffding_bentkus_p_value(means, answered.calls, epsilon)


def answered_by(confidence: Floats, losses: Floats, thresholds: Floats) -> Answered:
    order = np.argsort(-confidence, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(losses[order])])
    calls = np.searchsorted(-confidence[order], -thresholds, side="right")
    return Answered(calls.astype(np.int64), sums[calls])


def certificate(
    confidence: Floats, losses: Floats, thresholds: Floats, proven: Bools, epsilon: float, delta: float
) -> Certificate | None:
    """Of the laxest of the proven thresholds; None if there is none. The interval of the coverage is Clopper
    and Pearson's at delta / T, so that it holds for all thresholds at once.
    """
    if not proven.any():
        return None
    place = int(np.flatnonzero(proven)[-1])
    calls, sums = answered_by(confidence, losses, thresholds[place : place + 1])
    answered = int(calls[0])
    return Certificate(
        threshold=float(thresholds[place]),
        epsilon=epsilon,
        delta=delta,
        calls=len(confidence),
        answered=answered,
        risk=float(sums[0] / answered),
        coverage_interval=clopper_pearson(answered, len(confidence), delta / len(thresholds)),
    )


def calibration(confidence: npt.ArrayLike, losses: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Both checked: (E,), finite, losses from 0 to 1. Raises InputError."""
    confidence, losses = numbers(confidence, "confidence"), shares(losses, "losses")
    if len(confidence) != len(losses):
        raise InputError(
            f"Expected a confidence and a loss for each call, found {len(confidence):,} confidences and "
            f"{len(losses):,} losses."
        )
    return confidence, losses


def falling(thresholds: npt.ArrayLike) -> Floats:
    """(T,) checked: each below the one before it. Raises InputError."""
    array = np.asarray(thresholds, np.float64)
    if array.ndim != 1 or not len(array) or np.isnan(array).any() or not (array[1:] < array[:-1]).all():
        raise InputError(
            "Expected thresholds from strict to lax, each below the one before it and at least one; "
            f"found {array.tolist()[:5]}. threshold_sequence makes them of data that isn't the calibration's."
        )
    return array
