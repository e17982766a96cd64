"""What is proven of the candidates, by calls that nothing was chosen by (docs/guarantees.md).

One test proves all: of each candidate the whole answer and, where there are several, each field. Their claims
hold together, so that whichever candidate is taken, its claims hold.

E calls, T thresholds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.metrics.guarantees.learn_then_test import (
    CLAIMS,
    STARTS,
    Certificate,
    Group,
    Prices,
    certify_by_prices,
    certify_each,
    threshold_sequence,
)
from bertsmith.metrics.guarantees.sample_size import calls_to_prove, fewest_calls
from bertsmith.mirror.candidate import Candidate, Judged
from bertsmith.mirror.claims_in_words import percent_at_most
from bertsmith.mirror.fields import as_text
from bertsmith.mirror.learn_settings import LearnSettings
from bertsmith.mirror.student_file import Claim, Claims

_WHOLE = ""
_PLACES = 40  # thresholds that are looked at on dev
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


def hopeful(confidence: Floats, differs: Bools, epsilon: float) -> float:
    """The largest share of these calls (E,) of dev that might be answered with at most `epsilon` of the
    answers differing; 0 where that is a handful. It proves nothing.
    """
    wrong = _wrong(confidence, differs)
    answered = np.arange(1, len(wrong) + 1)
    fine = answered[(wrong <= epsilon * answered) & (answered >= _FEWEST_ON_DEV)]
    return float(fine.max() / len(confidence)) if len(fine) else 0.0


def _wrong(confidence: Floats, differs: Bools) -> Ints:
    """(A,) how many of the surest 1, 2, … answers differ, of the A that are ever given."""
    return np.cumsum(differs[np.argsort(-confidence, kind="stable")], dtype=np.int64)[
        : int((confidence >= 0).sum())
    ]


def _thresholds(confidence: Floats) -> Floats:
    """Of dev, the last of them 0: it answers all that is ever given."""
    return np.unique(np.maximum(threshold_sequence(np.maximum(confidence, 0.0)), 0.0))[::-1]


def epsilon_of(settings: LearnSettings) -> float:
    """What is to be proven; by prices half of the break-even, about which the choice is made."""
    prices = prices_of(settings)
    return settings.epsilon if prices is None else prices.break_even / 2


def prices_of(settings: LearnSettings) -> Prices | None:
    """None where there are none. Raises InputError for prices by which nothing is worth proving."""
    if settings.call_price is None or settings.error_price is None:
        return None
    return Prices(settings.call_price, settings.error_price)


def calls_needed(confidence: Floats, differs: Bools, calls: int, epsilon: float, delta: float) -> float:
    """About how many calibration calls would prove something of a group as often as not, if they are like
    dev: the fewest over thresholds, infinite where none is good enough. Of dev's `calls` the group has those
    of `confidence` (E,) and `differs` (E,).
    """
    wrong = _wrong(confidence, differs)
    found = math.inf
    for answered in np.unique(np.linspace(_FEWEST_ON_DEV, len(wrong), _PLACES).astype(int)).tolist():
        if answered > len(wrong):
            break
        risk = (float(wrong[answered - 1]) + 0.5) / (answered + 1)
        needed = calls_to_prove(risk, epsilon, delta, 0.5)
        if needed is not None:
            found = min(found, math.ceil(needed * calls / answered))
    return found


def why_not_yet(devs: Sequence[Judged], calls: int, settings: LearnSettings) -> str:
    """Why the calibration calls are better kept for another training; empty where they aren't."""
    epsilon = epsilon_of(settings)
    groups = [(*of, len(dev.confidence)) for dev in devs for of in _groups(dev, settings).values()]
    claims = len(groups) * (CLAIMS if settings.call_price is not None else 1)
    level = settings.delta / claims / STARTS
    needed = fewest_calls(epsilon, level)
    if calls < needed:
        return (
            f"{calls:,} new calls are there to prove anything with, and it takes at least {needed:,} "
            f"to prove {percent_at_most(epsilon)} of {claims} claim{'s' if claims > 1 else ''}, "
            "whatever they say"
        )
    if not any(hopeful(*of[:2], epsilon) for of in groups):
        return (
            "on the calls that choose, no part of the answers differs in "
            f"{percent_at_most(epsilon)} or less, "
            "however sure the student is of it"
        )
    likely = min(calls_needed(*of, epsilon, level) for of in groups)
    if likely > calls:
        about = f"about {likely:,.0f}" if math.isfinite(likely) else "a better student"
        return (
            f"{calls:,} new calls are there to prove anything with, and as the student is, it takes {about} "
            f"to prove {percent_at_most(epsilon)}; they are kept for a later training"
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
        claims = _by_class(devs, calibrations, settings)
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
    found = []
    for dev, proven in zip(devs, _proven(devs, calibrations, settings), strict=True):
        whole = _claim(proven[_WHOLE])
        fields = {path: _claim(proven[path]) if path in proven else whole for path in dev.fields}
        found.append(Claims(epsilon=settings.epsilon, delta=settings.delta, whole=whole, fields=fields))
    return found


def _by_class(
    devs: Sequence[Judged], calibrations: Sequence[Judged], settings: LearnSettings
) -> list[Claims]:
    """The whole answer for each value that the model gives the field."""
    return [
        Claims(
            epsilon=settings.epsilon,
            delta=settings.delta,
            whole=None,
            by=settings.by_class,
            classes={name: _claim(each) for name, each in proven.items()},
            calls=len(calibration.confidence),
        )
        for calibration, proven in zip(calibrations, _proven(devs, calibrations, settings), strict=True)
    ]


def _proven(
    devs: Sequence[Judged], calibrations: Sequence[Judged], settings: LearnSettings
) -> list[dict[str, Certificate | None]]:
    """Of each candidate each group. Which groups there are, and their thresholds, is known from dev."""
    groups: dict[tuple[int, str], Group] = {}
    for number, (dev, calibration) in enumerate(zip(devs, calibrations, strict=True)):
        asked = _groups(calibration, settings)
        for name, (confidence, _) in _groups(dev, settings).items():
            calls = asked.get(name, (np.empty(0), np.empty(0, np.bool_)))
            groups[number, name] = Group(*calls, _thresholds(confidence), settings.epsilon)
    proven = certify_each(
        {f"{number} {name}": group for (number, name), group in groups.items()}, settings.delta
    )
    return [{name: proven[f"{n} {name}"] for n, name in groups if n == number} for number in range(len(devs))]


def _groups(judged: Judged, settings: LearnSettings) -> dict[str, tuple[Floats, Bools]]:
    """What has a claim of its own, with the confidences and differences of its calls: the whole answer and,
    where there are several, each field; or the whole answers with each value of a field.
    """
    if settings.by_class is not None:
        said = np.array(class_names(judged, settings.by_class))
        return {
            name: (judged.confidence[said == name], judged.differs[said == name])
            for name in np.unique(said).tolist()
        }
    whole = {_WHOLE: (judged.confidence, judged.differs)}
    by_field = settings.call_price is None and len(judged.fields) > 1
    return whole | judged.fields if by_field else whole


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
            _thresholds(dev.confidence),
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
