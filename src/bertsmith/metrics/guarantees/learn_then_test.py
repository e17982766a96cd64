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

`certify` makes one claim. `certify_each` makes one a group, and all of them hold together with probability
1 - delta: of G groups each is tested at delta / G (Bonferroni). A group is known before the teacher is asked,
such as the class that the model predicts, or the field that its head fills: only then can a threshold of its
own be applied. Candidate models on the same calls are groups too, and since all claims hold together, any of
them may be picked.

`certify_by_graph` needs fewer calls than these equal shares. The claims form a graph: each has a share of
delta, and when it is proven, its share goes on to the next ones (Bretz, Maurer, Brannath and Posch, "A
graphical approach to sequentially rejective multiple test procedures", Statistics in Medicine 2009). Within a
group it goes from threshold to threshold, and from the last one to other groups. The share of a claim that is
not proven stays there. Graph and starts are chosen on development calls, which show what has a chance
(`sample_size.plan_graph`): nearly all of delta is for the claim that helps most.

`certify_together` finds one threshold at which every constraint holds. A constraint is on the calls that it
counts, and may use what only the teacher's answer tells, such as its class. It needs no correction: the
hypothesis of a threshold is "at least one constraint fails here", and since the one that fails is true, the
largest of the p-values is one for it (the intersection-union test, Berger 1982; Angelopoulos et al., arXiv
2110.01052, on several risks).

`certify_by_prices` chooses the risk to prove by the prices of a call and of an answer that differs. Answering
costs at most epsilon times the error's price, and asking costs the call's. Up to epsilon = call / error,
answering is no dearer on average. A smaller epsilon saves more on each answer, and answers less.

E calls, T thresholds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.argument_checks import check_arguments
from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import (
    binomial_p_value,
    clopper_pearson,
    hoeffding_bentkus_p_value,
    numbers,
    share,
    shares,
)
from bertsmith.metrics.scores import Interval

# Testing begins at so many places, the first and the last threshold among them. The strictest ones answer too
# few calls to prove anything, and with that one place to begin at, all would end there. Each further one
# takes some of delta.
STARTS = 8

# Of the break-even risk. At the whole of it the proven saving would be nothing.
_PARTS = (0.75, 0.5, 0.25, 0.125)
CLAIMS = len(_PARTS)  # that are tested, each at its share of delta


@dataclass(frozen=True)
class Certificate:
    """With probability 1 - `delta`, answers from `threshold` on have a mean loss of at most `epsilon`.

    Of the `calls` of the calibration data, the threshold answers `answered`, with a mean loss of `risk`.
    Their share `coverage` is in `coverage_interval` with probability 1 - `delta`, whichever threshold was
    chosen. Each of the two statements fails with probability `delta`; both hold with 1 - 2 `delta`.
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


class AnsweredCalls(NamedTuple):
    """For each threshold, how many calls it answers and the sum of their losses, (T,) both."""

    calls: Ints
    losses: Floats


Answered = AnsweredCalls  # the name by which programs have known it


@check_arguments(epsilon=share, delta=share)
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


def calibration(confidence: npt.ArrayLike, losses: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Checks both arrays: (E,), finite, losses from 0 to 1. Raises InputError."""
    confidence, losses = numbers(confidence, "confidence"), shares(losses, "losses")
    if len(confidence) != len(losses):
        raise InputError(
            f"Expected a confidence and a loss for each call, found {len(confidence):,} confidences and "
            f"{len(losses):,} losses."
        )
    return confidence, losses


def falling(thresholds: npt.ArrayLike) -> Floats:
    """Checks that thresholds (T,) fall, each below the one before it. Raises InputError."""
    array = np.asarray(thresholds, np.float64)
    if array.ndim != 1 or not len(array) or np.isnan(array).any() or not (array[1:] < array[:-1]).all():
        raise InputError(
            "Expected thresholds from strict to lax, each below the one before it and at least one; "
            f"found {array.tolist()[:5]}. threshold_sequence makes them of data that isn't the calibration's."
        )
    return array


def risk_p_values(confidence: Floats, losses: Floats, thresholds: Floats, epsilon: float) -> Floats:
    """(T,): the p-value of "the selective risk is above epsilon"; 1 if nothing is answered.

    Exact by the binomial for losses of 0 and 1, otherwise Hoeffding and Bentkus's.
    """
    answered = answered_by(confidence, losses, thresholds)
    if ((losses == 0) | (losses == 1)).all():
        return binomial_p_value(answered.losses, answered.calls, epsilon)
    means = np.clip(answered.losses / np.maximum(answered.calls, 1), 0, 1)
    return hoeffding_bentkus_p_value(means, answered.calls, epsilon)


def answered_by(confidence: Floats, losses: Floats, thresholds: Floats) -> AnsweredCalls:
    order = np.argsort(-confidence, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(losses[order])])
    calls = np.searchsorted(-confidence[order], -thresholds, side="right")
    return AnsweredCalls(calls.astype(np.int64), sums[calls])


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
    return fallback_test(p_values, np.bincount(places, minlength=len(p_values)) * (delta / starts))[0]


def fallback_test(p_values: npt.ArrayLike, levels: npt.ArrayLike) -> tuple[Bools, Floats]:
    """(..., T) which hypotheses are refuted, each tested at its own of `levels` (..., T) and what comes from
    the one before it if that was refuted; and (...) what is left after the last one.
    """
    p_values, levels = np.broadcast_arrays(np.asarray(p_values), np.asarray(levels))
    refuted = np.zeros(p_values.shape, np.bool_)
    level: Floats = np.zeros(p_values.shape[:-1])
    for place in range(p_values.shape[-1]):
        level = level + levels[..., place]
        refuted[..., place] = (p_values[..., place] <= level) & (level > 0)
        level = np.where(refuted[..., place], level, 0.0)
    return refuted, level


def certificate(
    confidence: Floats,
    losses: Floats,
    thresholds: Floats,
    proven: Bools,
    epsilon: float,
    delta: float,
) -> Certificate | None:
    """The certificate of the laxest proven threshold; None if there is none. The interval of the coverage is
    Clopper and Pearson's at delta / T, so it holds for all thresholds at once.
    """
    if not proven.any():
        return None
    index = int(np.flatnonzero(proven)[-1])
    calls, sums = answered_by(confidence, losses, thresholds[index : index + 1])
    answered = int(calls[0])
    return Certificate(
        threshold=float(thresholds[index]),
        epsilon=epsilon,
        delta=delta,
        calls=len(confidence),
        answered=answered,
        risk=float(sums[0] / answered),
        coverage_interval=clopper_pearson(answered, len(confidence), delta / len(thresholds)),
    )


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


class CallGroup(NamedTuple):
    """The calibration calls of a group: confidence (E,), losses (E,) in [0, 1], thresholds (T,) from strict
    to lax, and the risk that is to be proven.
    """

    confidence: npt.ArrayLike
    losses: npt.ArrayLike
    thresholds: npt.ArrayLike
    epsilon: float


Group = CallGroup  # the name by which programs have known it


class Constraint(NamedTuple):
    """The mean of `losses` (E,) over those answered calls that `counted` (E,) marks is to be at most
    `epsilon`.
    """

    losses: npt.ArrayLike
    counted: npt.ArrayLike
    epsilon: float


@dataclass(frozen=True)
class JointCertificate:
    """With probability 1 - `delta`, from `threshold` on each constraint's risk is at most its epsilon.

    `risks` are those on the calibration calls. The interval of the coverage is as a Certificate's.
    """

    threshold: float
    delta: float
    epsilons: dict[str, float]
    risks: dict[str, float]
    calls: int
    answered: int
    coverage_interval: Interval


@check_arguments(delta=share)
def certify_each(groups: Mapping[str, CallGroup], delta: float) -> dict[str, Certificate | None]:
    """A certificate for each group, all true together with probability 1 - `delta`; None where not proven.

    Which groups there are is fixed before the calibration calls are seen; one without calls gets None. Its
    certificates bear the delta that they were tested at. Raises InputError as `certify` does.
    """
    if not groups:
        raise InputError("There are no groups to certify.")
    return {
        name: certify(group.confidence, group.losses, group.thresholds, group.epsilon, delta / len(groups))
        if np.size(group.confidence)
        else None
        for name, group in groups.items()
    }


@dataclass(frozen=True)
class GroupShare:
    """A group's place in the graph of claims. It has `share` of delta from the beginning. This, and what
    other groups pass on to it, is divided over its thresholds by `starts` (T,), parts of 1. What is left when
    the last threshold is proven goes by the parts in `passes` to groups that come later.
    """

    share: float
    starts: npt.ArrayLike
    passes: Mapping[str, float] = field(default_factory=dict)


@check_arguments(delta=share)
def certify_by_graph(
    groups: Mapping[str, CallGroup], graph: Mapping[str, GroupShare], delta: float
) -> dict[str, Certificate | None]:
    """A certificate for each group, all true together with probability 1 - `delta`; None where not proven.

    The `graph`, whose shares come to at most 1, is fixed before the calibration calls are seen; so are the
    groups, and their order by which shares are passed on. A group without calls gets None. The certificates
    bear the whole `delta`: with it all claims hold, whichever are then used. All intervals of coverage hold
    together with it too. Raises InputError as `certify` does, and for a graph that doesn't fit.
    """
    if not groups:
        raise InputError("There are no groups to certify.")
    _check_graph(groups, graph)
    calls, p_values = {}, {}
    for name, group in groups.items():
        share(group.epsilon, f"epsilon of {name}")
        thresholds = falling(group.thresholds)
        p_values[name] = np.ones(len(thresholds))
        if np.size(group.confidence):
            calls[name] = (*calibration(group.confidence, group.losses), thresholds)
            p_values[name] = risk_p_values(*calls[name], group.epsilon)
    proven = graph_test(p_values, graph, delta)
    certificates: dict[str, Certificate | None] = dict.fromkeys(groups)
    for name, group_calls in calls.items():
        # At its part of delta, so that the intervals hold for all groups at once.
        part = certificate(*group_calls, proven[name], groups[name].epsilon, delta / len(groups))
        certificates[name] = None if part is None else replace(part, delta=delta)
    return certificates


def graph_test(
    p_values: Mapping[str, Floats], graph: Mapping[str, GroupShare], delta: float
) -> dict[str, Bools]:
    """Of each group which of its hypotheses are refuted, by p-values (T,), so that the probability of
    refuting any true one of any group is at most `delta`, however the p-values depend on each other.

    This is a graph of Bretz et al.: each hypothesis's edge leads to the next one of its group, and those of
    the last one to the starts of later groups. The edges that leave one come to 1 at most. As all lead
    onwards, one pass takes each share as far as it gets.
    """
    arrived = {name: graph[name].share * delta for name in p_values}
    refuted = {}
    for name, group_values in p_values.items():
        levels = arrived[name] * np.asarray(graph[name].starts, np.float64)
        refuted[name], left = fallback_test(group_values, levels)
        for other, part in graph[name].passes.items():
            arrived[other] += part * float(left)
    return refuted


def _check_graph(groups: Mapping[str, CallGroup], graph: Mapping[str, GroupShare]) -> None:
    """That the shares and parts are those of a graph on the groups' thresholds. Raises InputError."""
    if set(groups) != set(graph):
        raise InputError(f"Expected a share for each of the groups {sorted(groups)}, found {sorted(graph)}.")
    places = {name: place for place, name in enumerate(groups)}
    for name, group in groups.items():
        starts = np.asarray(graph[name].starts, np.float64)
        if starts.shape != np.shape(group.thresholds):
            raise InputError(
                f"Expected a start for each of {np.size(group.thresholds)} thresholds of {name}, found "
                f"{starts.shape}."
            )
        for parts, what in (
            (starts, f"The starts of {name}"),
            (np.array(list(graph[name].passes.values())), f"The parts that {name} passes on"),
        ):
            _check_parts(parts, what)
        earlier = [other for other in graph[name].passes if places.get(other, -1) <= places[name]]
        if earlier:
            raise InputError(f"{name} can pass on to groups that come later only, not to {earlier[0]}.")
    _check_parts(np.array([graph[name].share for name in groups]), "The shares of delta")


def _check_parts(parts: Floats, what: str) -> None:
    if not (parts >= 0).all() or not parts.sum() <= 1 + 1e-9:
        raise InputError(f"{what} must be 0 or more and come to at most 1, found a sum of {parts.sum()}.")


@check_arguments(delta=share)
def certify_together(
    confidence: npt.ArrayLike, constraints: Mapping[str, Constraint], thresholds: npt.ArrayLike, delta: float
) -> JointCertificate | None:
    """The laxest threshold at which all constraints are proven, or None.

    `confidence` (E,) is the call's, such as the lowest of its fields'. A constraint of which no answered call
    is counted is not proven. Raises InputError for what doesn't fit.
    """
    if not constraints:
        raise InputError("There are no constraints to certify.")
    thresholds = falling(thresholds)
    p_values = []
    parts = {}
    for name, constraint in constraints.items():
        share(constraint.epsilon, f"epsilon of {name}")
        scores, losses = calibration(confidence, constraint.losses)
        counted = np.asarray(constraint.counted, np.bool_)
        if counted.shape != scores.shape:
            raise InputError(
                f"Expected counted of {name} for each of {len(scores):,} calls, found {counted.shape}."
            )
        parts[name] = scores[counted], losses[counted]
        p_values.append(risk_p_values(*parts[name], thresholds, constraint.epsilon))
    proven = fixed_sequence_test(np.max(p_values, axis=0), delta)
    scores = np.asarray(confidence, np.float64)
    # Only its threshold and coverage are used, which don't depend on any constraint.
    joint = certificate(scores, np.zeros(len(scores)), thresholds, proven, 0.0, delta)
    if joint is None:
        return None
    threshold = np.array([joint.threshold])
    answered = {name: answered_by(*part, threshold) for name, part in parts.items()}
    return JointCertificate(
        threshold=joint.threshold,
        delta=delta,
        epsilons={name: constraint.epsilon for name, constraint in constraints.items()},
        risks={name: float(calls.losses[0] / calls.calls[0]) for name, calls in answered.items()},
        calls=joint.calls,
        answered=joint.answered,
        coverage_interval=joint.coverage_interval,
    )


def split_by(group: npt.ArrayLike, values: npt.ArrayLike) -> dict[str, npt.NDArray[np.float64]]:
    """Splits `values` (E,) by the group (E,) of each call; groups are sorted by name."""
    names, values = np.asarray(group).astype(str), np.asarray(values, np.float64)
    if names.shape != values.shape or names.ndim != 1:
        raise InputError(f"Expected a group for each value, found {names.shape} and {values.shape}.")
    return {str(name): values[names == name] for name in np.unique(names)}


@dataclass(frozen=True)
class Prices:
    """The price of a `call` to the teacher, and the cost of an answer that differs (`error`), in one
    currency.
    """

    call: float
    error: float

    def __post_init__(self) -> None:
        if not 0 < self.call < self.error < float("inf"):
            raise InputError(
                f"Expected the price of a call above 0 and below that of an error, found {self.call} and "
                f"{self.error}: where an error costs no more than a call, answer everything, without a claim."
            )

    @property
    def break_even(self) -> float:
        """The risk at which an answer costs as much as a call on average."""
        return self.call / self.error

    @property
    def risks(self) -> tuple[float, ...]:
        """The values of epsilon that are worth proving, largest first: parts of the break-even risk."""
        return tuple(part * self.break_even for part in _PARTS)

    def saving(self, coverage: float, epsilon: float) -> float:
        """The least average saving per call: each answer saves a call, and differs in at most `epsilon` of
        cases.
        """
        return coverage * (self.call - epsilon * self.error)


@dataclass(frozen=True)
class PricedCertificate:
    """The claim chosen, and what it saves of each call: `saving` at the observed coverage, `least_saving` at
    the lower end of its interval. Both reckon with a risk of epsilon, the most that the claim allows.
    """

    certificate: Certificate
    saving: float
    least_saving: float


@check_arguments(delta=share)
def certify_by_prices(
    confidence: npt.ArrayLike, losses: npt.ArrayLike, thresholds: npt.ArrayLike, prices: Prices, delta: float
) -> PricedCertificate | None:
    """Of the claims for an eighth, a quarter, a half and three quarters of the break-even risk the one that
    saves most; None where none is proven.

    Each is tested at delta / 4, so that all hold together with probability 1 - `delta` and choosing one by
    the same calls costs nothing more. Raises InputError as `certify` does.
    """
    claims = [certify(confidence, losses, thresholds, epsilon, delta / CLAIMS) for epsilon in prices.risks]
    proven = [claim for claim in claims if claim is not None]
    if not proven:
        return None
    best = max(proven, key=lambda claim: prices.saving(claim.coverage, claim.epsilon))
    return PricedCertificate(
        best,
        prices.saving(best.coverage, best.epsilon),
        prices.saving(best.coverage_interval.low, best.epsilon),
    )
