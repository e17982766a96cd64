"""A version's stage and its transitions, and the evidence about a student at work: its comparisons with the
LLM, and whether the traffic has drifted. Nothing here reads or writes a store.

record   the LLM answers; calls are stored
shadow   the LLM answers; a student answers too, its answer goes to no client and is compared
canary   the student answers a share of the calls that it is sure of, the LLM the others
live     the student answers all calls that it is sure of, except when the mirror fails
"""

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.audit import Audits, Decision, Drift
from bertsmith.mirror.answering.shadow_proof import ComparedCall, ShadowProof
from bertsmith.mirror.student_file import ProofPlan

RECORD, SHADOW, CANARY, LIVE = MODES = ("record", "shadow", "canary", "live")
_REFERENCE = 200  # confidences that drift is measured from
# The outcome of an audit that is settled but no evidence: the LLM was unreachable, the mirror was stopped, or
# the student was replaced meanwhile.
VOID = "void"
LLM_CHANGED = "the LLM answers otherwise than before"  # begins the reason of such a change
_DRIFT_DELTA = 0.01  # probability of a false alarm, over all time


@dataclass(frozen=True)
class Stage:
    """A version's mode and students. The student answers a `share` of the calls that it is sure of. `former`
    answered before it, `candidate` may answer next; each is a student's id or empty. `revision` counts
    changes. A stage demoted by hand `is_held`: it rises only by hand.
    """

    version: str
    site: str
    mode: str = RECORD
    share: float = 0.0
    student: str = ""
    former: str = ""
    candidate: str = ""
    revision: int = 0
    changed: float = 0.0
    is_held: bool = False

    @property
    def student_answers(self) -> bool:
        """Whether the student answers calls in this mode."""
        return self.mode in (CANARY, LIVE)

    def sent_to_llm(self, audit_share: float) -> float:
        """The probability that the LLM is asked about a call that the student is sure of."""
        return (1 - self.share) + self.share * audit_share if self.student_answers else 1.0


@dataclass(frozen=True)
class StudentRecord:
    """A trained student as the store knows it. `epsilon` and `delta` are the claim proven before it served,
    or the one that its `plan` is to prove; `added` is in seconds since 1970. The plan isn't read from the
    store, whose evidence holds it.
    """

    id: str
    version: str
    folder: str
    epsilon: float
    delta: float
    added: float = 0.0
    plan: ProofPlan | None = None


def promote_stage(stage: Stage, canary_share: float, to: str = "") -> Stage:
    """The stage one mode higher, or in the higher mode `to`. Raises InputError where the version has no
    student, or the mode isn't higher.
    """
    at = MODES.index(stage.mode)
    target = to or MODES[min(at + 1, len(MODES) - 1)]
    if MODES.index(target) <= at:
        if stage.mode == LIVE:
            raise InputError(
                f"Version {stage.version} is live, the highest mode. `bertsmith mirror demote` leads back."
            )
        raise InputError(
            f"Version {stage.version} is in mode {stage.mode} and can't be promoted to {target}. "
            "Choose a later one of record, shadow, canary, live, or use `bertsmith mirror demote`."
        )
    student = stage.student or stage.candidate
    if not student:
        raise InputError(
            f"Version {stage.version} of the place {stage.site} has no student that could answer. "
            f"Train one: bertsmith mirror train --site {stage.site}"
        )
    return set_mode(replace(stage, student=student, is_held=False), target, canary_share)


def demote_stage(stage: Stage, canary_share: float, to: str = "") -> Stage:
    """The stage one mode lower, or in the lower mode `to`, held there. Raises InputError where the mode isn't
    lower.
    """
    at = MODES.index(stage.mode)
    target = to or MODES[max(at - 1, 0)]
    if MODES.index(target) >= at:
        raise InputError(
            f"Version {stage.version} is in mode {stage.mode} and can't be demoted to {target}. "
            "Choose an earlier one of record, shadow, canary, live."
        )
    return set_mode(replace(stage, is_held=True), target, canary_share)


def roll_back_stage(stage: Stage) -> Stage:
    """Puts the former student in the current one's place, in the same mode. Raises InputError without one."""
    if not stage.former:
        raise InputError(f"Version {stage.version} has no former student to go back to.")
    return replace(stage, student=stage.former, former=stage.student)


def promote_candidate(stage: Stage) -> Stage:
    """Puts the candidate in the student's place, in the same mode."""
    return replace(stage, student=stage.candidate, former=stage.student, candidate="")


def dismiss_student(stage: Stage) -> Stage:
    """Removes a student that the evidence is against: the former one goes to shadow, or without one calls are
    only recorded.
    """
    mode = SHADOW if stage.former else RECORD
    return replace(stage, mode=mode, share=0.0, student=stage.former, former="")


def begin_anew(stage: Stage) -> Stage:
    """Removes all students, for the LLM that they learned from answers no more: calls are only recorded."""
    return replace(stage, mode=RECORD, share=0.0, student="", former="", candidate="")


def set_mode(stage: Stage, mode: str, canary_share: float) -> Stage:
    """The stage in another mode, with that mode's share: `canary_share`, all when live, else none."""
    return replace(stage, mode=mode, share={CANARY: canary_share, LIVE: 1.0}.get(mode, 0.0))


@dataclass(frozen=True)
class StudentComparison:
    """One call that the student was sure of and that the LLM answered too. `probability` and `least` are
    those of `Audits.record`. `audit` is the audit's id, where the client got the student's answer.
    """

    differs: bool
    probability: float
    least: float
    audit: str = ""
    outcome: str = ""  # of the audit: agrees, differs, failed; void


@dataclass(frozen=True)
class Evidence:
    """What is known about a student at work: its audits, the drift test with its reference confidences, the
    number of comparisons `in_stage`, since its stage last changed, and the `proof` of one that came without.
    `seen` is the weight of all compared calls since the stage's candidate last changed, so that student and
    candidate have seen the same ones; of them it was `sure`.
    """

    audits: Audits
    reference: tuple[float, ...] = ()
    drift: Drift | None = None
    in_stage: int = 0
    proof: ShadowProof | None = None
    sure: float = 0.0
    seen: float = 0.0

    @property
    def coverage(self) -> float:
        """The share of all calls that the student may answer, by the compared ones; 0 without any."""
        if self.proof is not None and self.proof.threshold is not None:
            return self.proof.coverage(self.proof.threshold)
        return self.sure / self.seen if self.seen else 0.0

    @property
    def decision(self) -> Decision:
        """What the audits decide about the student's claim."""
        return self.audits.decision()

    @property
    def has_drifted(self) -> bool:
        """Whether the traffic has changed; stays true once it is, or until a new proof about it stands."""
        is_new = self.proof is not None and self.proof.drifts > 0 and self.is_unproven
        return is_new or (self.drift is not None and self.drift.alarm)

    @property
    def is_unproven(self) -> bool:
        """Whether the student may answer nothing yet: its proof goes on."""
        return self.proof is not None and self.proof.threshold is None

    def after(
        self,
        comparisons: Iterable[StudentComparison],
        confidences: Iterable[float],
        calls: Iterable[ComparedCall] = (),
    ) -> "Evidence":
        """The evidence with these added. The audits and the proof are updated in place."""
        calls = list(calls)
        if self.proof is not None:
            self.proof.add(calls)
        weights = [(call.least / call.probability, call.is_sure) for call in calls]
        count = 0
        for comparison in comparisons:
            self.audits.record(float(comparison.differs), comparison.probability, comparison.least)
            count += 1
        reference, drift = list(self.reference), self.drift
        for confidence in confidences:
            if drift is not None:
                drift.record(confidence)
                continue
            reference.append(confidence)
            if len(reference) == _REFERENCE:
                drift, reference = Drift(reference, _DRIFT_DELTA), []
        return replace(
            self,
            reference=tuple(reference),
            drift=drift,
            in_stage=self.in_stage + count,
            sure=self.sure + sum(weight for weight, is_sure in weights if is_sure),
            seen=self.seen + sum(weight for weight, _ in weights),
        )

    def after_drift(self, number: int) -> "Evidence":
        """The evidence of a student whose traffic has changed: its proof begins anew as the `number`-th, and
        the test of drift with it.
        """
        assert self.proof is not None
        return replace(self, reference=(), drift=None, proof=self.proof.after_drift(number))

    def row(self) -> dict[str, Any]:
        """The columns of a row of EVIDENCE, except the student's id."""
        drift: dict[str, Any] = (
            {"reference": list(self.reference)} if self.drift is None else {"test": self.drift.as_json()}
        )
        return {
            "audits": json.dumps(self.audits.as_json()),
            "drift": json.dumps(drift),
            "decision": self.decision,
            "compared": self.audits.count,
            "in_stage": self.in_stage,
            "has_drifted": int(self.has_drifted),
            "proof": None if self.proof is None else json.dumps(self.proof.as_json()),
            "sure": self.sure,
            "seen": self.seen,
        }


def empty_evidence(epsilon: float, delta: float) -> Evidence:
    """The evidence about a student that was never compared."""
    return Evidence(Audits(epsilon, delta))


def read_evidence_row(row: Any) -> Evidence:
    """The evidence in a row that `Evidence.row` wrote."""
    drift = json.loads(row.drift)
    return Evidence(
        Audits.from_json(json.loads(row.audits)),
        tuple(drift.get("reference", ())),
        Drift.from_json(drift["test"]) if "test" in drift else None,
        row.in_stage,
        None if row.proof is None else ShadowProof.from_json(json.loads(row.proof)),
        row.sure or 0.0,
        row.seen or 0.0,
    )


@dataclass
class EvidenceBatch:
    """New comparisons and confidences of one student, to be added to its evidence, and the compared `calls`
    for its proof. By its `id` a batch that may have been added before its connection broke is known again.
    """

    comparisons: list[StudentComparison] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    calls: list[ComparedCall] = field(default_factory=list)
    id: str = field(default_factory=lambda: secrets.token_hex(6))
