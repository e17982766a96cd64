"""How stages change: by the evidence, and by hand; and whether the guarantees still hold.

A student's claim, that its answers differ in at most epsilon, was proven on calibration calls before it gets
here, at the lowest threshold that allows the claim: its true rate is often just below epsilon. Proving it a
second time would take very many calls, so a mode rises where the comparisons agree with the claim, and falls
where they disprove it. One that came with a plan instead is proven in shadow (shadow_proof.py): it leaves
shadow the moment its proof names a threshold, and comes back where drift begins a new proof. In shadow, where
no client waits for its answers, it makes room for a candidate that came proven. One that was proven by
recorded inputs, which a changed LLM was asked again beside the calls of today, goes to canary at once: shadow
would compare the same once more.

The command line and the page share the moves by hand (promote, demote, roll back, approve) and their errors.
`bertsmith mirror check` reports `check_guarantees`. Read `judge_stage` first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

from bertsmith.errors import BertsmithError, InputError
from bertsmith.mirror.answering.stage_store import StageChange, StageStore
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
from bertsmith.reporting.formatting import format_percent

MOVES = ("promote", "demote", "roll-back", "approve")
_FEWEST_OUTCOMES = 20  # audits of which many got no answer
_MOST_FAILED = 0.1  # of the audits
_OF_CANDIDATE = "the candidate"  # begins the reason of a change that is about a candidate


@dataclass(frozen=True)
class PromotionRules:
    """When modes rise. `is_automatic`: without a person. `shadow_calls` and `canary_calls` are the fewest
    comparisons since the last change of the stage with which a student leaves that mode; a candidate needs
    `shadow_calls` in every mode. `canary_share` is the share of a stage that rises to canary.
    """

    is_automatic: bool
    canary_share: float
    shadow_calls: int
    canary_calls: int


def judge_stage(
    stage: Stage, evidence: Mapping[str, Evidence], rules: PromotionRules, replayed: int = 0
) -> tuple[Stage, str] | None:
    """The next stage and the reason in words, or None where the stage stays. `evidence` is by student. In
    record the student or candidate was proven by `replayed` inputs that were asked again, among others.

    Evidence against a student always dismisses it, with automatic promotion or without: the former student
    goes to shadow, and without one the version goes to record. A student that answers although its proof has
    begun anew goes to shadow likewise. A stage that was demoted by hand (`is_held`) doesn't rise here.
    """
    student, candidate = evidence.get(stage.student), evidence.get(stage.candidate)
    if student is not None and student.decision == "demote":
        return dismiss_student(stage), describe_evidence(student)
    if candidate is not None and candidate.decision == "demote":
        return replace(
            stage, candidate=""
        ), f"{_OF_CANDIDATE} {stage.candidate}: {describe_evidence(candidate)}"
    if stage.student_answers and student is not None and student.proof is not None and student.is_unproven:
        return set_mode(stage, SHADOW, 0.0), f"today's calls differ: {student.proof.describe()}"
    if not rules.is_automatic or stage.is_held:
        return None
    if stage.mode == RECORD and (stage.student or stage.candidate):  # a hand may have approved it already
        begun = stage if stage.student else approve_candidate(stage)
        trained = evidence.get(begun.student)
        is_proven = trained is None or not trained.proof
        why = describe_training(is_proven=is_proven)
        if is_proven and replayed >= max(rules.shadow_calls, 1):
            asked = f"{why}, among them {replayed:,} recorded inputs that the LLM was asked again"
            return set_mode(begun, CANARY, rules.canary_share), asked
        return set_mode(begun, SHADOW, 0.0), why
    if stage.mode == SHADOW and (why := _find_proof(student)):
        return set_mode(stage, CANARY, rules.canary_share), why
    is_idle = stage.mode == SHADOW and student is not None and student.is_unproven
    if is_idle and stage.candidate and (candidate is None or candidate.proof is None):
        why = describe_training(is_proven=True)
        return promote_candidate(stage), f"{_OF_CANDIDATE} {stage.candidate}: {why}"
    if not stage.student or candidate is None or answers_less(candidate, student):
        candidate = None  # as long as it would answer less it stays a candidate
    if stage.mode == SHADOW and (why := _find_proof(candidate)):
        return promote_candidate(stage), f"{_OF_CANDIDATE} {stage.candidate}: {why}"
    if _agrees(candidate, rules.shadow_calls):
        coverages = describe_candidate(stage, evidence)
        why = "; ".join(filter(None, [describe_evidence(candidate), coverages]))
        return promote_candidate(stage), f"{_OF_CANDIDATE} {stage.candidate}: {why}"
    if stage.mode == SHADOW and _agrees(student, rules.shadow_calls):
        return set_mode(stage, CANARY, rules.canary_share), describe_evidence(student)
    if stage.mode == CANARY and _agrees(student, rules.canary_calls):
        return set_mode(stage, LIVE, 1.0), describe_evidence(student)
    return None


def _find_proof(evidence: Evidence | None) -> str:
    """What a proof that grew in shadow claims by now, in words; empty where there is none that stands."""
    proof = None if evidence is None else evidence.proof
    return "" if proof is None or proof.threshold is None else proof.describe()


def describe_training(*, is_proven: bool) -> str:
    """Why a version has a new student, in words."""
    if is_proven:
        return "a student is trained and proven on calls kept aside"
    return "a student is trained, and is being proven on the calls that come"


def _agrees(evidence: Evidence | None, calls: int) -> TypeGuard[Evidence]:
    """Whether at least `calls` comparisons came since the stage last changed, and the rate of all comparisons
    is at most epsilon.
    """
    if evidence is None or evidence.in_stage < max(calls, 1):
        return False
    return evidence.audits.rate() <= evidence.audits.epsilon


def answers_less(candidate: Evidence, student: Evidence | None) -> bool:
    """Whether the candidate would answer fewer calls than the student, whose answers agree with its claim."""
    if student is None or student.audits.rate() > student.audits.epsilon:
        return False
    return candidate.coverage < student.coverage


def describe_candidate(stage: Stage, evidence: Mapping[str, Evidence]) -> str:
    """How much a candidate may answer beside the student, in a sentence; empty where nothing is compared."""
    candidate, student = evidence.get(stage.candidate), evidence.get(stage.student)
    if candidate is None or student is None or not (candidate.seen and student.seen):
        return ""
    waits = ": it waits, since it would answer less" if answers_less(candidate, student) else ""
    return (
        f"of the calls since candidate {stage.candidate} came it may answer "
        f"{format_percent(candidate.coverage)}, student {stage.student} "
        f"{format_percent(student.coverage)}{waits}"
    )


def describe_evidence(evidence: Evidence) -> str:
    """The evidence in words: '4.167% of 312 compared answers differ (2.03% to 7.3% with 95 % confidence)'."""
    interval = evidence.audits.interval()
    rate = evidence.audits.rate()
    share = "none" if not evidence.audits.count else f"{100 * rate:.4g}%"
    low, high = math.floor(1e4 * interval.low), math.ceil(1e4 * interval.high)  # never less than proven
    confidence = f"{100 * (1 - evidence.audits.delta):g} % confidence"
    bounds = f"{low / 100:g}% to {high / 100:g}% with {confidence}"
    return f"{share} of {evidence.audits.count:,} compared answers differ ({bounds})"


def is_training_due(new_calls: int, trained_calls: int, train_after: int, *, is_urgent: bool) -> bool:
    """Whether `new_calls`, those since the last training, are enough for another one. `trained_calls` is the
    number of calls that the last training had, 0 before the first.

    The first training needs `train_after`; a later one half of `train_after` or of `trained_calls`, whichever
    is more; an urgent one, because the traffic, the prompt or the model has changed, half of `train_after`.
    """
    if is_urgent:
        return new_calls >= train_after / 2
    return new_calls >= (max(train_after, trained_calls) / 2 if trained_calls else train_after)


def apply_move(store: StageStore, stage: Stage, move: str, canary_share: float, to: str = "") -> Stage:
    """The stage after one of `MOVES`, not yet stored. `to` is the mode to promote or demote to, by default
    the next one. Raises InputError where the move is impossible, and where the evidence is against the
    student that the stage would have then.
    """
    if move == "demote":
        return demote_stage(stage, canary_share, to)
    if move == "roll-back":
        after = roll_back_stage(stage)
    elif move == "approve":
        after = approve_candidate(stage)
    else:
        after = promote_stage(stage, canary_share, to)
    evidence = store.evidence().get(after.student)
    if evidence is not None and evidence.is_unproven:
        require_proof(after, evidence)
    if evidence is not None and evidence.decision == "demote":  # it would be demoted at once
        raise InputError(
            f"The evidence is against student {after.student}: {describe_evidence(evidence)}, and "
            f"{100 * evidence.audits.epsilon:g}% may. Train another."
        )
    return after


def require_proof(after: Stage, evidence: Evidence | None) -> None:
    """Raises InputError where the stage would let a student answer whose proof in shadow doesn't stand yet;
    without `evidence` it has not begun.
    """
    proof = None if evidence is None else evidence.proof
    if after.student_answers and (proof is None or proof.threshold is None):
        so_far = "its proof has not begun" if proof is None else proof.describe()
        raise InputError(
            f"Student {after.student} may not answer yet: {so_far}. Mode shadow proves it, by the calls that "
            "come."
        )


def approve_candidate(stage: Stage) -> Stage:
    """Puts the candidate in the student's place, in the same mode, without waiting for more comparisons. In
    mode record it becomes the student and stays in record until the stage is promoted. Raises InputError
    where there is no candidate.
    """
    if not stage.candidate:
        raise InputError(f"Version {stage.version} has no candidate that could take the student's place.")
    return (
        promote_candidate(stage) if stage.student else replace(stage, student=stage.candidate, candidate="")
    )


def change_stage(store: StageStore, before: Stage, after: Stage, why: str) -> None:
    """Stores a change made by hand. Raises InputError where the stage is no longer `before`."""
    if not store.change(before, after, "hand", why):
        raise InputError(
            f"Version {before.version} was changed by somebody else meanwhile. Look at `bertsmith mirror "
            "status`, and say it again."
        )


@dataclass(frozen=True)
class GuaranteeCheck:
    """One statement about a version (`what`, in words), and whether it holds."""

    site: str
    version: str
    mode: str
    holds: bool
    what: str


def check_guarantees(store: StageStore, *, looks_at_files: bool = True) -> list[GuaranteeCheck]:
    """Checks each version whose stage was ever changed, sorted by site and version: whether evidence demoted
    it, whether its student's rate of differing answers is allowed, whether the traffic has drifted, whether
    another model answers since the student came, whether too many audits got no answer, and whether the
    student's files are intact. Without `looks_at_files` the
    files are left out: they may be on other machines.
    """
    stages = [stage for stage in store.stages().values() if stage.revision]
    students, all_evidence, changes = store.students(), store.evidence(), store.changes()
    answerers = store.answerer_changes()
    checks: list[GuaranteeCheck] = []
    for stage in sorted(stages, key=lambda stage: (stage.site, stage.version)):

        def add_check(holds: bool, what: str, stage: Stage = stage) -> None:
            checks.append(GuaranteeCheck(stage.site, stage.version, stage.mode, holds, what))

        if taken_back := _describe_dismissal([c for c in changes if c.version == stage.version]):
            add_check(False, taken_back)
        if not stage.student:
            continue
        evidence, student = all_evidence.get(stage.student), students.get(stage.student)
        if evidence is None or not evidence.audits.count:
            is_unproven = evidence is not None and evidence.is_unproven
            stands = "what was proven before it served stands"
            add_check(True, "no answer compared yet; " + ("its proof goes on" if is_unproven else stands))
        else:
            most = f"at most {100 * evidence.audits.epsilon:g}% may differ"
            if evidence.audits.rate() > evidence.audits.epsilon and evidence.decision != "demote":
                most += ". More did so far, which proves nothing yet"
            add_check(evidence.decision != "demote", f"{describe_evidence(evidence)}; {most}")
        if evidence is not None and evidence.has_drifted:  # even if it is no longer sure of any call
            add_check(False, "drift: today's calls differ from those that the student was first compared on")
        change = answerers.get(stage.version)
        if change is not None and student is not None and student.added < change.since:
            add_check(
                False, f"another model: {change.as_sentence()}; the student learned from the former one"
            )
        if stage.student_answers:
            audits = store.audit_outcomes(stage.version).items()
            outcomes = {outcome: count for (of, outcome), count in audits if of == stage.student}
            settled = sum(count for outcome, count in outcomes.items() if outcome != "open")
            failed, void = outcomes.get("failed", 0), outcomes.get(VOID, 0)
            if settled >= _FEWEST_OUTCOMES and failed + void > _MOST_FAILED * settled:
                without = f"{failed + void:,} of {settled:,} audits got no answer from the LLM"
                add_check(
                    False,
                    f"{without}: {failed:,} count as disagreements, {void:,} are void; "
                    "`bertsmith mirror status` says why",
                )
        if looks_at_files and (problem := _find_file_problem(student, stage.student)):
            add_check(False, problem)
    return checks


def _describe_dismissal(changes: list[StageChange]) -> str:
    """What the evidence has taken back, where no mode and no student has changed since, in a sentence; else
    empty. `changes` are all of one version.
    """
    # By revision, not by time: the clocks of two replicas may differ.
    changes = sorted(changes, key=lambda change: change.revision)
    for before, last in reversed(list(pairwise([None, *changes]))):
        assert last is not None
        if last.by != "evidence" or MODES.index(last.mode) > MODES.index(last.mode_before):
            return ""
        if last.mode != last.mode_before:
            return f"demoted from {last.mode_before} to {last.mode}: {last.why}"
        if before is not None and last.student and last.student != before.student:
            if last.why.startswith(_OF_CANDIDATE):
                return ""
            return f"student {before.student} was dismissed from {last.mode}: {last.why}"
        # Only a candidate has come or gone.
    return ""


def _find_file_problem(student: StudentRecord | None, number: str) -> str:
    """What is wrong with a student's files, in a sentence; empty where nothing is."""
    from bertsmith.mirror.student_file import read_student_file, require_student

    if student is None:
        return f"student {number} isn't known to the store"
    try:
        read_student_file(Path(student.folder))
        require_student(Path(student.folder), number)
    except BertsmithError as error:
        return str(error)
    return ""
