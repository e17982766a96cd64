"""What is proven of the candidates, by calls that nothing was chosen by (docs/guarantees.md).

One test proves all: of each candidate the whole answer and, where there are several, each field. Their claims
hold together, so that whichever candidate is taken, its claims hold.

E calls, T thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.arrays import Bools, Floats
from bertsmith.metrics.guarantees.groups import Group, certify_each
from bertsmith.metrics.guarantees.learn_then_test import STARTS, Certificate, threshold_sequence
from bertsmith.metrics.guarantees.prices import Prices, certify_by_prices
from bertsmith.metrics.guarantees.sample_size import fewest_calls
from bertsmith.mirroring.candidate import Candidate, Judged
from bertsmith.mirroring.learn_settings import LearnSettings
from bertsmith.serving.mirror.fields import as_text
from bertsmith.serving.mirror.student_file import Claim, Claims

_WHOLE = ""
_FEWEST_ON_DEV = 10  # answers, by which dev says that a candidate might be good enough


@dataclass(frozen=True)
class Verdict:
    """The chosen candidate's number and its claims. `why`: why nothing is proven of it, or empty; `tried`:
    whether the calibration calls have been looked at.
    """

    chosen: int
    claims: Claims
    why: str
    tried: bool


def hopeful(judged: Judged, epsilon: float) -> float:
    """The largest share of dev that might be answered with at most `epsilon` of the answers differing; 0
    where that is a handful. It proves nothing.
    """
    order = np.argsort(-judged.confidence, kind="stable")
    wrong = np.cumsum(judged.differs[order])
    answered = np.arange(1, len(order) + 1)
    fine = answered[(wrong <= epsilon * answered) & (answered >= _FEWEST_ON_DEV)]
    return float(fine.max() / len(order)) if len(fine) else 0.0


def epsilon_of(settings: LearnSettings) -> float:
    """What is to be proven; by prices half of the break-even, about which the choice is made."""
    prices = prices_of(settings)
    return settings.epsilon if prices is None else prices.break_even / 2


def prices_of(settings: LearnSettings) -> Prices | None:
    """None where there are none. Raises InputError for prices by which nothing is worth proving."""
    if settings.call_price is None or settings.error_price is None:
        return None
    return Prices(settings.call_price, settings.error_price)


def why_not_yet(devs: Sequence[Judged], calls: int, settings: LearnSettings) -> str:
    """Why the calibration calls are better kept for another training; empty where they aren't."""
    epsilon, tests = epsilon_of(settings), _count(devs)
    needed = fewest_calls(epsilon, settings.delta / tests / STARTS)
    if calls < needed:
        return (
            f"{calls:,} new calls are there to prove anything with, and it takes at least {needed:,} to "
            f"prove {epsilon:.1%} of {tests} claim{'s' if tests > 1 else ''}, whatever they say"
        )
    if not any(hopeful(judged, epsilon) for judged in devs):
        return (
            f"on the calls that choose, no part of the answers differs in {epsilon:.1%} or less, however "
            "sure the student is of it"
        )
    return ""


def nothing_proven(settings: LearnSettings) -> Claims:
    """The claims of a student that has none."""
    return Claims(epsilon=epsilon_of(settings), delta=settings.delta, whole=None)


def prove(
    candidates: Sequence[Candidate],
    devs: Sequence[Judged],
    calibrations: Sequence[Judged],
    settings: LearnSettings,
) -> Verdict:
    """The cheapest that answers enough of the calls, else the one that answers most."""
    if settings.call_price is not None:
        claims = _by_prices(devs, calibrations, settings)
    elif settings.by_class is not None:
        claims = _by_class(devs, calibrations, settings, settings.by_class)
    else:
        claims = _by_field(devs, calibrations, settings)
    chosen = _chosen([_coverage(each) for each in claims], settings.enough)
    if chosen is None:
        best = int(np.argmax([judged.agreement for judged in devs]))
        return Verdict(best, claims[best], "the calibration calls don't carry the claim", True)
    return Verdict(chosen, claims[chosen], "", True)


def _by_field(
    devs: Sequence[Judged], calibrations: Sequence[Judged], settings: LearnSettings
) -> list[Claims]:
    """The whole answer, and each field where there are several."""
    groups: dict[str, Group] = {}
    for number, (dev, calibration) in enumerate(zip(devs, calibrations, strict=True)):
        for path in _paths(dev):
            thresholds = threshold_sequence(_of(dev, path)[0])
            confidence, differs = _of(calibration, path)
            groups[f"{number}{path}"] = Group(confidence, differs, thresholds, settings.epsilon)
    proven = certify_each(groups, settings.delta)
    return [
        Claims(
            epsilon=settings.epsilon,
            delta=settings.delta,
            whole=_claim(proven[f"{number}"]),
            fields={path: _claim(proven[f"{number}{path or _WHOLE}"]) for path in dev.fields}
            if len(dev.fields) > 1
            else {path: _claim(proven[f"{number}"]) for path in dev.fields},
        )
        for number, dev in enumerate(devs)
    ]


def _by_class(
    devs: Sequence[Judged], calibrations: Sequence[Judged], settings: LearnSettings, path: str
) -> list[Claims]:
    """The whole answer for each value that the model gives the field; which there are is known from dev."""
    groups: dict[str, Group] = {}
    for number, (dev, calibration) in enumerate(zip(devs, calibrations, strict=True)):
        said, asked = (np.array(class_names(judged, path)) for judged in (dev, calibration))
        for name in sorted(set(said.tolist())):
            here = asked == name
            groups[f"{number}:{name}"] = Group(
                calibration.confidence[here],
                calibration.differs[here],
                threshold_sequence(dev.confidence[said == name]),
                settings.epsilon,
            )
    proven = certify_each(groups, settings.delta)
    return [
        Claims(
            epsilon=settings.epsilon,
            delta=settings.delta,
            whole=None,
            by=path,
            classes={
                name.partition(":")[2]: _claim(each)
                for name, each in proven.items()
                if name.startswith(f"{number}:")
            },
            calls=len(calibrations[number].confidence),
        )
        for number in range(len(devs))
    ]


def class_names(judged: Judged, path: str) -> list[str]:
    """What the model says of the field in each call, as text."""
    return [as_text(answer[path]) for answer in judged.answers]


def _by_prices(
    devs: Sequence[Judged], calibrations: Sequence[Judged], settings: LearnSettings
) -> list[Claims]:
    """The whole answer alone."""
    prices = prices_of(settings)
    assert prices is not None
    found = []
    for dev, calibration in zip(devs, calibrations, strict=True):
        priced = certify_by_prices(
            calibration.confidence,
            calibration.differs,
            threshold_sequence(dev.confidence),
            prices,
            settings.delta / len(devs),
        )
        whole = _claim(priced.certificate if priced is not None else None)
        epsilon = whole.epsilon if whole is not None else prices.break_even
        found.append(Claims(epsilon=epsilon, delta=settings.delta, whole=whole))
    return found


def _claim(proven: Certificate | None) -> Claim | None:
    return None if proven is None else Claim.of(proven)


def _coverage(claims: Claims) -> float:
    return claims.coverage


def _chosen(coverages: Sequence[float], enough: float) -> int | None:
    """Candidates stand from the cheapest to the dearest."""
    for number, coverage in enumerate(coverages):
        if coverage >= enough:
            return number
    best = int(np.argmax(coverages))
    return best if coverages[best] > 0 else None


def _paths(judged: Judged) -> list[str]:
    return [_WHOLE, *judged.fields] if len(judged.fields) > 1 else [_WHOLE]


def _count(devs: Sequence[Judged]) -> int:
    return sum(len(_paths(judged)) for judged in devs)


def _of(judged: Judged, path: str) -> tuple[Floats, Bools]:
    return judged.fields[path] if path else (judged.confidence, judged.differs)
