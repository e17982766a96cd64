"""Learn-then-Test for several groups of calls: each class or field with its threshold, or one threshold for
all.

`certify_each` makes one claim a group, and all of them hold together with probability 1 - delta: of G groups
each is tested at delta / G (Bonferroni). A group is known before the teacher is asked, such as the class that
the model predicts, or the field that its head fills: only then can a threshold of its own be applied.
Candidate models on the same calls are groups too, and since all claims hold together, any of them may be
picked.

`certify_together` finds one threshold at which every constraint holds. A constraint is on the calls that it
counts, and may use what only the teacher's answer tells, such as its class. It needs no correction: the
hypothesis of a threshold is "at least one constraint fails here", and since the one that fails is true, the
largest of the p-values is one for it (the intersection-union test, Berger 1982; Angelopoulos et al., arXiv
2110.01052, on several risks).

E calls, T thresholds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.door import door
from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.learn_then_test import (
    Certificate,
    answered_by,
    calibration,
    certificate,
    certify,
    falling,
    fixed_sequence_test,
    risk_p_values,
)
from bertsmith.metrics.guarantees.levels import share
from bertsmith.metrics.significance import Interval


class Group(NamedTuple):
    """Calibration calls of a group: confidence (E,), losses (E,) in [0, 1], thresholds (T,) from strict to
    lax, and the risk that is to be proven.
    """

    confidence: npt.ArrayLike
    losses: npt.ArrayLike
    thresholds: npt.ArrayLike
    epsilon: float


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


def split_by(group: npt.ArrayLike, values: npt.ArrayLike) -> dict[str, npt.NDArray[np.float64]]:
    """`values` (E,) by the name that `group` (E,) gives each call, names in order."""
    names, values = np.asarray(group).astype(str), np.asarray(values, np.float64)
    if names.shape != values.shape or names.ndim != 1:
        raise InputError(f"Expected a group for each value, found {names.shape} and {values.shape}.")
    return {str(name): values[names == name] for name in np.unique(names)}


@door(delta=share)
def certify_each(groups: Mapping[str, Group], delta: float) -> dict[str, Certificate | None]:
    """A certificate for each group, all true together with probability 1 - `delta`; None where not proven.

    Which groups there are is fixed before the calibration calls are seen; one without calls gets None. Its
    certificates bear the delta that they were tested at. Raises InputError as `certify` does.
    """
    if not groups:
        raise InputError("There are no groups to certify.")
    return {
        name: certify(each.confidence, each.losses, each.thresholds, each.epsilon, delta / len(groups))
        if np.size(each.confidence)
        else None
        for name, each in groups.items()
    }


@door(delta=share)
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
    for name, each in constraints.items():
        share(each.epsilon, f"epsilon of {name}")
        scores, losses = calibration(confidence, each.losses)
        counted = np.asarray(each.counted, np.bool_)
        if counted.shape != scores.shape:
            raise InputError(
                f"Expected counted of {name} for each of {len(scores):,} calls, found {counted.shape}."
            )
        parts[name] = scores[counted], losses[counted]
        p_values.append(risk_p_values(*parts[name], thresholds, each.epsilon))
    proven = fixed_sequence_test(np.max(p_values, axis=0), delta)
    scores = np.asarray(confidence, np.float64)
    # Only its threshold and coverage are used, which are of the calls and not of a constraint.
    found = certificate(scores, np.zeros(len(scores)), thresholds, proven, 0.0, delta)
    if found is None:
        return None
    place = np.array([found.threshold])
    answered = {name: answered_by(*part, place) for name, part in parts.items()}
    return JointCertificate(
        threshold=found.threshold,
        delta=delta,
        epsilons={name: each.epsilon for name, each in constraints.items()},
        risks={name: float(each.losses[0] / each.calls[0]) for name, each in answered.items()},
        calls=found.calls,
        answered=found.answered,
        coverage_interval=found.coverage_interval,
    )
