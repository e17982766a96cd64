"""What the evidence makes of a stage.

That a student differs in at most epsilon has been proven before it gets here, on calibration calls, and at a
threshold that is as low as this allows: its rate is often just below. To prove it once more would take for
ever, so modes rise where the comparisons agree with the claim, and fall where they disprove it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from bertsmith.mirror.answering.evidence import Evidence
from bertsmith.mirror.answering.stages import (
    CANARY,
    LIVE,
    RECORD,
    SHADOW,
    Stage,
    dismissed,
    in_mode,
    replaced,
)


@dataclass(frozen=True)
class Rules:
    """`is_automatic`: modes may rise without a hand. `shadow_calls` and `canary_calls` are the comparisons
    that a mode takes at least.
    """

    is_automatic: bool
    canary_share: float
    shadow_calls: int
    canary_calls: int


def judged(stage: Stage, known: Mapping[str, Evidence], rules: Rules) -> tuple[Stage, str] | None:
    """The next stage and why, None where it stays. Evidence against a student is always followed: it never
    needs a hand.
    """
    student, candidate = known.get(stage.student), known.get(stage.candidate)
    if student is not None and student.decision == "demote":
        return dismissed(stage), said(student)
    if candidate is not None and candidate.decision == "demote":
        return replace(stage, candidate=""), f"the candidate {stage.candidate}: {said(candidate)}"
    if not rules.is_automatic or stage.is_held:
        return None
    if stage.mode == RECORD and stage.candidate and not stage.student:
        begun = in_mode(replace(stage, student=stage.candidate, candidate=""), SHADOW, 0.0)
        return begun, "a student is trained and proven on calibration calls"
    if stage.student and _agrees(candidate, rules.shadow_calls):
        return replaced(stage), f"the candidate {stage.candidate}: {said(candidate)}"
    if stage.mode == SHADOW and _agrees(student, rules.shadow_calls):
        return in_mode(stage, CANARY, rules.canary_share), said(student)
    if stage.mode == CANARY and _agrees(student, rules.canary_calls):
        return in_mode(stage, LIVE, 1.0), said(student)
    return None


def _agrees(evidence: Evidence | None, calls: int) -> TypeGuard[Evidence]:
    """Since its stage began it was compared so often, and no more differ than may."""
    if evidence is None or evidence.in_stage < max(calls, 1):
        return False
    return evidence.audits.rate() <= evidence.audits.epsilon


def said(evidence: Evidence) -> str:
    """4.1% of 312 compared answers differ (2.0% to 7.3%)"""
    found = evidence.audits.interval()
    rate = evidence.audits.rate()
    share = "none" if not evidence.audits.count else f"{rate:.1%}"
    return (
        f"{share} of {evidence.audits.count:,} compared answers differ ({found.low:.1%} to {found.high:.1%})"
    )


def wants_training(new: int, before: int, wanted: int, *, is_urgent: bool) -> bool:
    """With `new` calls since the last training, which had `before`: the first at `wanted`, another with half
    as many again; if `is_urgent`, for the traffic has changed, with half of `wanted`.
    """
    if not before:
        return new >= wanted
    return new >= (wanted / 2 if is_urgent else max(wanted, before) / 2)
