"""What is proven of the candidates, by calls that nothing was chosen by (docs/guarantees.md), and how it is
said.

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
    CallGroup,
    Certificate,
    Prices,
    certify_by_prices,
    certify_each,
    threshold_sequence,
)
from bertsmith.metrics.guarantees.sample_size import calls_to_prove, fewest_calls
from bertsmith.mirror.fields import as_text
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import StudentCandidate, TeacherComparison
from bertsmith.mirror.student_file import Claim, Claims, TeacherCeiling

_WHOLE = ""
_PLACES = 40  # thresholds that are looked at on dev
_FEWEST_ON_DEV = 10  # answers, by which dev says that a candidate might be good enough
_NOT = "not proven"


@dataclass(frozen=True)
class ProofResult:
    """The chosen candidate's number and its claims. `why`: why nothing is proven of it, or empty; `tried`:
    whether the calibration calls have been looked at.
    """

    chosen: int
    claims: Claims
    why: str
    tried: bool


def estimate_coverage(confidence: Floats, differs: Bools, epsilon: float) -> float:
    """The largest share of these calls (E,) of dev that might be answered with at most `epsilon` of the
    answers differing; 0 where that is a handful. It proves nothing.
    """
    wrong = _count_errors(confidence, differs)
    answered = np.arange(1, len(wrong) + 1)
    fine = answered[(wrong <= epsilon * answered) & (answered >= _FEWEST_ON_DEV)]
    return float(fine.max() / len(confidence)) if len(fine) else 0.0


def _count_errors(confidence: Floats, differs: Bools) -> Ints:
    """(A,) how many of the surest 1, 2, … answers differ, of the A that are ever given."""
    return np.cumsum(differs[np.argsort(-confidence, kind="stable")], dtype=np.int64)[
        : int((confidence >= 0).sum())
    ]


def _candidate_thresholds(confidence: Floats) -> Floats:
    """Of dev, the last of them 0: it answers all that is ever given."""
    return np.unique(np.maximum(threshold_sequence(np.maximum(confidence, 0.0)), 0.0))[::-1]


def target_epsilon(settings: LearnSettings) -> float:
    """What is to be proven; by prices half of the break-even, about which the choice is made."""
    prices = read_prices(settings)
    return settings.epsilon if prices is None else prices.break_even / 2


def read_prices(settings: LearnSettings) -> Prices | None:
    """None where there are none. Raises InputError for prices by which nothing is worth proving."""
    if settings.call_price is None or settings.error_price is None:
        return None
    return Prices(settings.call_price, settings.error_price)


def estimate_calls_needed(
    confidence: Floats, differs: Bools, calls: int, epsilon: float, delta: float
) -> float:
    """About how many calibration calls would prove something of a group as often as not, if they are like
    dev: the fewest over thresholds, infinite where none is good enough. Of dev's `calls` the group has those
    of `confidence` (E,) and `differs` (E,).
    """
    wrong = _count_errors(confidence, differs)
    found = math.inf
    for answered in np.unique(np.linspace(_FEWEST_ON_DEV, len(wrong), _PLACES).astype(int)).tolist():
        if answered > len(wrong):
            break
        risk = (float(wrong[answered - 1]) + 0.5) / (answered + 1)
        needed = calls_to_prove(risk, epsilon, delta, 0.5)
        if needed is not None:
            found = min(found, math.ceil(needed * calls / answered))
    return found


def explain_postponement(devs: Sequence[TeacherComparison], calls: int, settings: LearnSettings) -> str:
    """Why the calibration calls are better kept for another training; empty where they aren't."""
    epsilon = target_epsilon(settings)
    groups = [(*of, len(dev.confidence)) for dev in devs for of in _group_calls(dev, settings).values()]
    claims = len(groups) * (CLAIMS if settings.call_price is not None else 1)
    level = settings.delta / claims / STARTS
    needed = fewest_calls(epsilon, level)
    if calls < needed:
        return (
            f"{calls:,} new calls are there to prove anything with, and it takes at least {needed:,} "
            f"to prove {format_upper_percent(epsilon)} of {claims} claim{'s' if claims > 1 else ''}, "
            "whatever they say"
        )
    if not any(estimate_coverage(*of[:2], epsilon) for of in groups):
        return (
            "on the calls that choose, no part of the answers differs in "
            f"{format_upper_percent(epsilon)} or less, "
            "however sure the student is of it"
        )
    likely = min(estimate_calls_needed(*of, epsilon, level) for of in groups)
    if likely > calls:
        about = f"about {likely:,.0f}" if math.isfinite(likely) else "a better student"
        return (
            f"{calls:,} new calls are there to prove anything with, and as the student is, it takes {about} "
            f"to prove {format_upper_percent(epsilon)}; they are kept for a later training"
        )
    return ""


def empty_claims(settings: LearnSettings) -> Claims:
    """The claims of a student that has none."""
    return Claims(epsilon=target_epsilon(settings), delta=settings.delta, whole=None)


def prove(
    candidates: Sequence[StudentCandidate],
    devs: Sequence[TeacherComparison],
    calibrations: Sequence[TeacherComparison],
    settings: LearnSettings,
) -> ProofResult:
    """The cheapest that answers enough of the calls, else the one that answers most."""
    if settings.call_price is not None:
        claims = _prove_by_prices(devs, calibrations, settings)
    elif settings.by_class is not None:
        claims = _prove_by_class(devs, calibrations, settings)
    else:
        claims = _prove_by_field(devs, calibrations, settings)
    coverages = [each.coverage for each in claims]  # from the cheapest candidate to the dearest
    best = int(np.argmax(coverages))
    if coverages[best] <= 0:
        best = int(np.argmax([judged.agreement for judged in devs]))
        return ProofResult(best, claims[best], "the calibration calls don't carry the claim", True)
    chosen = next((n for n, coverage in enumerate(coverages) if coverage >= settings.enough), best)
    return ProofResult(chosen, claims[chosen], "", True)


def _prove_by_field(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[Claims]:
    """The whole answer, and each field where there are several."""
    found = []
    for dev, proven in zip(devs, _certify_groups(devs, calibrations, settings), strict=True):
        whole = _as_claim(proven[_WHOLE])
        fields = {path: _as_claim(proven[path]) if path in proven else whole for path in dev.fields}
        found.append(Claims(epsilon=settings.epsilon, delta=settings.delta, whole=whole, fields=fields))
    return found


def _prove_by_class(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[Claims]:
    """The whole answer for each value that the model gives the field."""
    return [
        Claims(
            epsilon=settings.epsilon,
            delta=settings.delta,
            whole=None,
            by=settings.by_class,
            classes={name: _as_claim(each) for name, each in proven.items()},
            calls=len(calibration.confidence),
        )
        for calibration, proven in zip(
            calibrations, _certify_groups(devs, calibrations, settings), strict=True
        )
    ]


def _certify_groups(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[dict[str, Certificate | None]]:
    """Of each candidate each group. Which groups there are, and their thresholds, is known from dev."""
    groups: dict[tuple[int, str], CallGroup] = {}
    for number, (dev, calibration) in enumerate(zip(devs, calibrations, strict=True)):
        asked = _group_calls(calibration, settings)
        for name, (confidence, _) in _group_calls(dev, settings).items():
            calls = asked.get(name, (np.empty(0), np.empty(0, np.bool_)))
            groups[number, name] = CallGroup(*calls, _candidate_thresholds(confidence), settings.epsilon)
    proven = certify_each(
        {f"{number} {name}": group for (number, name), group in groups.items()}, settings.delta
    )
    return [{name: proven[f"{n} {name}"] for n, name in groups if n == number} for number in range(len(devs))]


def _group_calls(judged: TeacherComparison, settings: LearnSettings) -> dict[str, tuple[Floats, Bools]]:
    """What has a claim of its own, with the confidences and differences of its calls: the whole answer and,
    where there are several, each field; or the whole answers with each value of a field.
    """
    if settings.by_class is not None:
        said = np.array([as_text(answer[settings.by_class]) for answer in judged.answers])
        return {
            name: (judged.confidence[said == name], judged.differs[said == name])
            for name in np.unique(said).tolist()
        }
    whole = {_WHOLE: (judged.confidence, judged.differs)}
    by_field = settings.call_price is None and len(judged.fields) > 1
    return whole | judged.fields if by_field else whole


def _prove_by_prices(
    devs: Sequence[TeacherComparison], calibrations: Sequence[TeacherComparison], settings: LearnSettings
) -> list[Claims]:
    """The whole answer alone."""
    prices = read_prices(settings)
    assert prices is not None
    found = []
    for dev, calibration in zip(devs, calibrations, strict=True):
        priced = certify_by_prices(
            calibration.confidence,
            calibration.differs,
            _candidate_thresholds(dev.confidence),
            prices,
            settings.delta / len(devs),
        )
        whole = _as_claim(priced.certificate if priced is not None else None)
        epsilon = whole.epsilon if whole is not None else prices.break_even
        found.append(Claims(epsilon=epsilon, delta=settings.delta, whole=whole))
    return found


def _as_claim(proven: Certificate | None) -> Claim | None:
    return None if proven is None else Claim.of(proven)


def describe_claims(claims: Claims, strange: int = 0) -> str:
    """'With 95 % confidence, the answers it gives differ from the LLM's in at most 5 %.' `strange` recorded
    calls don't fit the template; no claim is about their like.
    """
    if not claims.coverage:
        return "Nothing is proven, so the LLM goes on answering every call."
    share = f"at most {format_upper_percent(claims.epsilon)}"
    which = "the answers it gives"
    if claims.by is not None:
        which = f"the answers it gives, whatever it says of {claims.by},"
    interval = ""
    if claims.whole is not None:
        low, high = claims.whole.coverage_interval
        # The interval may fail with probability delta for itself, and so may the claim.
        together = _format_confidence(2 * claims.delta) if claims.delta < 0.5 else "0 %"
        share_range = f"{format_percent(low)} to {format_percent(high)}"
        interval = f" ({share_range}; both together hold with {together} confidence)"
    calls = "the calls that fit the template" if strange else "the calls"
    left = f" {strange:,} recorded calls don't fit it: the LLM answers such calls." if strange else ""
    return (
        f"With {_format_confidence(claims.delta)} confidence, {which} differ from the LLM's in {share}. "
        f"It answers {format_percent(claims.coverage)} of {calls}{interval}.{left}"
    )


def format_claim_rows(claims: Claims) -> list[list[str]]:
    """Of the whole answer, of each field where there are several, or of each class."""
    if claims.by is not None:
        return [_format_claim_row(f"{claims.by} = {name}", claim) for name, claim in claims.classes.items()]
    rows = [_format_claim_row("whole answer", claims.whole)]
    if len(claims.fields) > 1:
        rows += [_format_claim_row(path, claim) for path, claim in claims.fields.items()]
    return rows


def _format_claim_row(name: str, claim: Claim | None) -> list[str]:
    if claim is None:
        return [name, "", "", "", _NOT]
    return [
        name,
        f"{claim.threshold:.3f}",
        f"{claim.answered:,} of {claim.calls:,}",
        format_percent(claim.risk),
        f"at most {format_upper_percent(claim.epsilon)}",
    ]


def format_agreement_row(name: str, judged: TeacherComparison) -> list[str]:
    """A tier, how often its whole answer is the teacher's, and in how many calls that was seen."""
    return [name, format_percent(judged.agreement), f"{len(judged.differs):,}"]


def describe_ceiling(ceiling: TeacherCeiling | None) -> str:
    """'Asked again, the LLM contradicts itself in 7 of 200 inputs: …'; empty where it isn't known."""
    if ceiling is None:
        return ""
    how = "Asked again" if ceiling.asked_again else "Where an input came twice"
    agreement = f"{format_percent(ceiling.low)} to {format_percent(ceiling.high)}"
    return (
        f"{how}, the LLM contradicts itself in {ceiling.differing:,} of {ceiling.inputs:,} inputs: the best "
        f"possible model agrees with it in {agreement} of such calls."
    )


def format_percent(share: float) -> str:
    """'95 %', '92.3 %', '0.03 %', '99.97 %': what isn't none or all never reads as if it were."""
    digits = 1
    while 0 < share < 1 and float(f"{100 * share:.{digits}f}") in (0.0, 100.0) and digits < 12:
        digits += 1
    return f"{100 * share:.{digits}f}".removesuffix(".0") + " %"


def _format_confidence(delta: float) -> str:
    """Never more than it is: '95 %', '99.875 %'."""
    return f"{100 - float(format_upper_percent(delta).removesuffix(' %')):.12g} %"


def format_upper_percent(share: float) -> str:
    """Of what is claimed, never less than it is: four digits that count. '1.25 %', '0.2143 %'."""
    digits = max(0, 1 - math.floor(math.log10(share)))
    rounded = math.ceil(round(share * 10 ** (digits + 2), 6)) / 10**digits
    return f"{rounded:.10g} %"
