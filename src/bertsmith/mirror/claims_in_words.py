"""Claims and figures of a student as sentences and rows, for the page and the terminal."""

import math

from bertsmith.mirror.candidate import Judged
from bertsmith.mirror.student_file import Claim, Claims, TeacherCeiling

_NOT = "not proven"


def claim_sentence(claims: Claims, strange: int = 0) -> str:
    """'With 95 % confidence, the answers it gives differ from the LLM's in at most 5 %.' `strange` recorded
    calls don't fit the template; no claim is about their like.
    """
    if not claims.coverage:
        return "Nothing is proven, so the LLM goes on answering every call."
    share = f"at most {percent_at_most(claims.epsilon)}"
    which = "the answers it gives"
    if claims.by is not None:
        which = f"the answers it gives, whatever it says of {claims.by},"
    calls = "the calls that fit the template" if strange else "the calls"
    left = f" {strange:,} recorded calls don't fit it: the LLM answers such calls." if strange else ""
    return (
        f"With {_confidence(claims.delta)} confidence, {which} differ from the LLM's in {share}. "
        f"It answers {percent(claims.coverage)} of {calls}{_interval(claims.whole, claims.delta)}.{left}"
    )


def _interval(claim: Claim | None, delta: float) -> str:
    """It may fail with probability `delta` for itself, and so may the claim."""
    if claim is None:
        return ""
    low, high = claim.coverage_interval
    together = _confidence(2 * delta) if delta < 0.5 else "0 %"
    return f" ({percent(low)} to {percent(high)}; both together hold with {together} confidence)"


def claim_rows(claims: Claims) -> list[list[str]]:
    """Of the whole answer, of each field where there are several, or of each class."""
    if claims.by is not None:
        return [_row(f"{claims.by} = {name}", claim) for name, claim in claims.classes.items()]
    rows = [_row("whole answer", claims.whole)]
    if len(claims.fields) > 1:
        rows += [_row(path, claim) for path, claim in claims.fields.items()]
    return rows


def _row(name: str, claim: Claim | None) -> list[str]:
    if claim is None:
        return [name, "", "", "", _NOT]
    return [
        name,
        f"{claim.threshold:.3f}",
        f"{claim.answered:,} of {claim.calls:,}",
        percent(claim.risk),
        f"at most {percent_at_most(claim.epsilon)}",
    ]


def agreement_row(name: str, judged: Judged) -> list[str]:
    """A tier, how often its whole answer is the teacher's, and in how many calls that was seen."""
    return [name, percent(judged.agreement), f"{len(judged.differs):,}"]


def ceiling_sentence(ceiling: TeacherCeiling | None) -> str:
    """'Asked again, the LLM contradicts itself in 7 of 200 inputs: …'; empty where it isn't known."""
    if ceiling is None:
        return ""
    how = "Asked again" if ceiling.asked_again else "Where an input came twice"
    return (
        f"{how}, the LLM contradicts itself in {ceiling.differing:,} of {ceiling.inputs:,} inputs: the best "
        f"possible model agrees with it in {percent(ceiling.low)} to {percent(ceiling.high)} of such calls."
    )


def percent(share: float) -> str:
    """'95 %', '92.3 %', '0.03 %', '99.97 %': what isn't none or all never reads as if it were."""
    digits = 1
    while 0 < share < 1 and float(f"{100 * share:.{digits}f}") in (0.0, 100.0) and digits < 12:
        digits += 1
    return f"{100 * share:.{digits}f}".removesuffix(".0") + " %"


def _confidence(delta: float) -> str:
    """Never more than it is: '95 %', '99.875 %'."""
    return f"{100 - float(percent_at_most(delta).removesuffix(' %')):.12g} %"


def percent_at_most(share: float) -> str:
    """Of what is claimed, never less than it is: four digits that count. '1.25 %', '0.2143 %'."""
    digits = max(0, 1 - math.floor(math.log10(share)))
    rounded = math.ceil(round(share * 10 ** (digits + 2), 6)) / 10**digits
    return f"{rounded:.10g} %"
