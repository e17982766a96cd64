"""What the evidence makes of a stage, what a person may make of it, and whether what was promised still
holds.

That a student differs in at most epsilon has been proven before it gets here, on calibration calls, and at a
threshold that is as low as this allows: its rate is often just below. To prove it once more would take for
ever, so modes rise where the comparisons agree with the claim, and fall where they disprove it.

A person promotes, demotes, rolls back and approves by the command line and the page, which refuse the same
and say the same. `bertsmith mirror check` asks whether the promises hold, and so does CI.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from bertsmith.errors import BertsmithError, InputError
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import (
    CANARY,
    LIVE,
    MODES,
    RECORD,
    SHADOW,
    VOID,
    Evidence,
    Stage,
    StudentRecord,
    demote_stage,
    dismiss_student,
    promote_candidate,
    promote_stage,
    roll_back_stage,
    set_mode,
)

MOVES = ("promote", "demote", "roll-back", "approve")
_FEWEST_OUTCOMES = 20  # audits of which many failed to say anything
_MOST_FAILED = 0.1  # of the audits


@dataclass(frozen=True)
class PromotionRules:
    """`is_automatic`: modes may rise without a hand. `shadow_calls` and `canary_calls` are the comparisons
    that a mode takes at least.
    """

    is_automatic: bool
    canary_share: float
    shadow_calls: int
    canary_calls: int


def judge_stage(
    stage: Stage, known: Mapping[str, Evidence], rules: PromotionRules
) -> tuple[Stage, str] | None:
    """The next stage and why, None where it stays. Evidence against a student is always followed: it never
    needs a hand.
    """
    student, candidate = known.get(stage.student), known.get(stage.candidate)
    if student is not None and student.decision == "demote":
        return dismiss_student(stage), describe_evidence(student)
    if candidate is not None and candidate.decision == "demote":
        return replace(
            stage, candidate=""
        ), f"the candidate {stage.candidate}: {describe_evidence(candidate)}"
    if not rules.is_automatic or stage.is_held:
        return None
    if stage.mode == RECORD and stage.candidate and not stage.student:
        begun = set_mode(replace(stage, student=stage.candidate, candidate=""), SHADOW, 0.0)
        return begun, "a student is trained and proven on calibration calls"
    if stage.student and _agrees(candidate, rules.shadow_calls):
        return promote_candidate(stage), f"the candidate {stage.candidate}: {describe_evidence(candidate)}"
    if stage.mode == SHADOW and _agrees(student, rules.shadow_calls):
        return set_mode(stage, CANARY, rules.canary_share), describe_evidence(student)
    if stage.mode == CANARY and _agrees(student, rules.canary_calls):
        return set_mode(stage, LIVE, 1.0), describe_evidence(student)
    return None


def _agrees(evidence: Evidence | None, calls: int) -> TypeGuard[Evidence]:
    """Since its stage began it was compared so often, and no more differ than may."""
    if evidence is None or evidence.in_stage < max(calls, 1):
        return False
    return evidence.audits.rate() <= evidence.audits.epsilon


def describe_evidence(evidence: Evidence) -> str:
    """4.1% of 312 compared answers differ (2.0% to 7.3%)"""
    found = evidence.audits.interval()
    rate = evidence.audits.rate()
    share = "none" if not evidence.audits.count else f"{rate:.1%}"
    return (
        f"{share} of {evidence.audits.count:,} compared answers differ ({found.low:.1%} to {found.high:.1%})"
    )


def is_training_due(new: int, before: int, wanted: int, *, is_urgent: bool) -> bool:
    """With `new` calls since the last training, which had `before`: the first at `wanted`, another with half
    as many again; if `is_urgent`, for the traffic has changed, with half of `wanted`.
    """
    if not before:
        return new >= wanted
    return new >= (wanted / 2 if is_urgent else max(wanted, before) / 2)


def apply_move(store: StageStore, stage: Stage, move: str, canary_share: float, to: str = "") -> Stage:
    """The stage after one of `MOVES`; nothing is stored. Raises InputError where it can't be made, and where
    the evidence is against the student that would do more.
    """
    if move == "demote":
        return demote_stage(stage, canary_share, to)
    if move == "roll-back":
        after = roll_back_stage(stage)
    elif move == "approve":
        after = approve_candidate(stage)
    else:
        after = promote_stage(stage, canary_share, to)
    known = store.evidence().get(after.student)
    if known is not None and known.decision == "demote":  # it would be demoted at once
        raise InputError(
            f"The evidence is against student {after.student}: {describe_evidence(known)}, and "
            f"{100 * known.audits.epsilon:g}% may. Train another."
        )
    return after


def approve_candidate(stage: Stage) -> Stage:
    """The candidate in the student's place, in the same mode, without waiting for more comparisons. Raises
    InputError without one.
    """
    if not stage.candidate:
        raise InputError(f"Version {stage.version} has no candidate that could take the student's place.")
    return (
        promote_candidate(stage) if stage.student else replace(stage, student=stage.candidate, candidate="")
    )


def change_stage(store: StageStore, before: Stage, after: Stage, why: str) -> None:
    """By hand. Raises InputError where somebody else has changed the stage meanwhile."""
    if not store.change(before, after, "hand", why):
        raise InputError(
            f"Version {before.version} was changed by somebody else meanwhile. Look at `bertsmith mirror "
            "status`, and say it again."
        )


@dataclass(frozen=True)
class GuaranteeCheck:
    """`what` holds, or not, of a version."""

    site: str
    version: str
    mode: str
    holds: bool
    what: str


def check_guarantees(store: StageStore, *, looks_at_files: bool = True) -> list[GuaranteeCheck]:
    """Of each version that has or had a student. Without `looks_at_files` the folders of students may be on
    other machines.
    """
    stages = [each for each in store.stages().values() if each.revision]
    students, evidence, changes = store.students(), store.evidence(), store.changes()
    found: list[GuaranteeCheck] = []
    for stage in sorted(stages, key=lambda each: (each.site, each.version)):

        def say(holds: bool, what: str, stage: Stage = stage) -> None:
            found.append(GuaranteeCheck(stage.site, stage.version, stage.mode, holds, what))

        # By its number: the clocks of two replicas may differ.
        last = max(
            (each for each in changes if each.version == stage.version), key=lambda each: each.revision
        )
        if last.by == "evidence" and MODES.index(last.mode) < MODES.index(last.mode_before):
            say(False, f"demoted from {last.mode_before} to {last.mode}: {last.why}")
        if not stage.student:
            continue
        known, student = evidence.get(stage.student), students.get(stage.student)
        if known is None or not known.audits.count:
            say(True, "no answer compared yet; what was proven before it served stands")
        else:
            most = f"at most {100 * known.audits.epsilon:g}% may differ"
            say(known.decision != "demote", f"{describe_evidence(known)}; {most}")
        if known is not None and known.has_drifted:  # perhaps so that it is sure of nothing any more
            say(False, "the calls have changed since the student was first compared")
        if stage.answers:
            audits = store.audit_outcomes(stage.version).items()
            mine = {outcome: count for (of, outcome), count in audits if of == stage.student}
            over = sum(count for outcome, count in mine.items() if outcome != "open")
            failed, void = mine.get("failed", 0), mine.get(VOID, 0)
            if over >= _FEWEST_OUTCOMES and failed + void > _MOST_FAILED * over:
                without = f"{failed + void:,} of {over:,} audits got no answer from the LLM"
                say(
                    False,
                    f"{without}: {failed:,} count as disagreements, {void:,} are void; "
                    "`bertsmith mirror status` says why",
                )
        if looks_at_files and (problem := _find_file_problem(student, stage.student)):
            say(False, problem)
    return found


def _find_file_problem(student: StudentRecord | None, number: str) -> str:
    """With a student's files, in a sentence; empty where there is none."""
    from bertsmith.mirror.student_file import read_student_file, require_student

    if student is None:
        return f"student {number} isn't known to the store"
    try:
        read_student_file(Path(student.folder))
        require_student(Path(student.folder), number)
    except BertsmithError as error:
        return str(error)
    return ""
