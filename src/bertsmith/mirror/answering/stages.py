"""Which mode a version of a site is in, what it may become, and what is known of a student at work:
comparisons with the LLM, and whether the traffic has changed.

record   the LLM answers; calls are stored
shadow   the LLM answers; a student answers beside it, unheard, and is compared
canary   the student answers a share of the calls that it is sure of, the LLM the others
live     the student answers all calls that it is sure of, but for failures of ours
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.audit import Audits, Decision, Drift

RECORD, SHADOW, CANARY, LIVE = MODES = ("record", "shadow", "canary", "live")
_REFERENCE = 200  # confidences that drift is measured from
# Of an audit that tells nothing of the student: the LLM was away, the mirror was stopped, or the student was
# replaced meanwhile. It is settled, and no evidence.
VOID = "void"
_DRIFT_DELTA = 0.01  # of a false alarm, over all time


@dataclass(frozen=True)
class Stage:
    """`share` of the calls that the student is sure of is answered by it. `former` answered before it,
    `candidate` may answer next; each is a student's id, or empty. `revision` counts changes. Demoted by hand
    a stage `is_held`: until a hand promotes it, it doesn't rise by itself.
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
    def answers(self) -> bool:
        """Some calls are answered by the student."""
        return self.mode in (CANARY, LIVE)

    def sent_to_llm(self, audit_share: float) -> float:
        """The probability that the LLM is asked about a call that the student is sure of."""
        return (1 - self.share) + self.share * audit_share if self.answers else 1.0


@dataclass(frozen=True)
class StudentRecord:
    """A trained one: `epsilon` and `delta` are what was proven of it before it served."""

    id: str
    version: str
    folder: str
    epsilon: float
    delta: float
    added: float = 0.0


def promote_stage(stage: Stage, canary_share: float, to: str = "") -> Stage:
    """One mode up, or up `to` one. Raises InputError where there is nothing to answer, or no way up."""
    at = MODES.index(stage.mode)
    wanted = to or MODES[min(at + 1, len(MODES) - 1)]
    if MODES.index(wanted) <= at:
        raise InputError(
            f"Version {stage.version} is in mode {stage.mode} and can't be promoted to {wanted}. "
            "Choose a later one of record, shadow, canary, live, or use `bertsmith mirror demote`."
        )
    student = stage.student or stage.candidate
    if not student:
        raise InputError(
            f"Version {stage.version} of site {stage.site} has no student that could answer. "
            f"Train one: bertsmith mirror train --site {stage.site}"
        )
    return set_mode(replace(stage, student=student, is_held=False), wanted, canary_share)


def demote_stage(stage: Stage, canary_share: float, to: str = "") -> Stage:
    """One mode down, or down `to` one. Raises InputError where there is no way down."""
    at = MODES.index(stage.mode)
    wanted = to or MODES[max(at - 1, 0)]
    if MODES.index(wanted) >= at:
        raise InputError(
            f"Version {stage.version} is in mode {stage.mode} and can't be demoted to {wanted}. "
            "Choose an earlier one of record, shadow, canary, live."
        )
    return set_mode(replace(stage, is_held=True), wanted, canary_share)


def roll_back_stage(stage: Stage) -> Stage:
    """The former student in the present one's place, in the same mode. Raises InputError without one."""
    if not stage.former:
        raise InputError(f"Version {stage.version} has no former student to go back to.")
    return replace(stage, student=stage.former, former=stage.student)


def promote_candidate(stage: Stage) -> Stage:
    """The candidate in the student's place, in the same mode."""
    return replace(stage, student=stage.candidate, former=stage.student, candidate="")


def dismiss_student(stage: Stage) -> Stage:
    """What is left when the evidence is against the student: the former one is compared anew, unheard, or
    calls are recorded only.
    """
    mode = SHADOW if stage.former else RECORD
    return replace(stage, mode=mode, share=0.0, student=stage.former, former="")


def set_mode(stage: Stage, mode: str, canary_share: float) -> Stage:
    """With the share that the mode has."""
    return replace(stage, mode=mode, share={CANARY: canary_share, LIVE: 1.0}.get(mode, 0.0))


@dataclass(frozen=True)
class StudentComparison:
    """One call that the student was sure of and the LLM answered too. The probabilities are those of
    `Audits.record`. `audit` is its row, where the student's answer was the one given.
    """

    differs: bool
    probability: float
    least: float
    audit: str = ""
    outcome: str = ""  # of the audit: agrees, differs, failed; void


@dataclass(frozen=True)
class Evidence:
    """Of one student. `in_stage` comparisons were made since its stage last changed."""

    audits: Audits
    reference: tuple[float, ...] = ()
    drift: Drift | None = None
    in_stage: int = 0

    @property
    def decision(self) -> Decision:
        """Of the audits."""
        return self.audits.decision()

    @property
    def has_drifted(self) -> bool:
        """Stays true for the student once it is."""
        return self.drift is not None and self.drift.alarm

    def after(self, comparisons: Iterable[StudentComparison], confidences: Iterable[float]) -> "Evidence":
        """With these; the audits are the same object."""
        count = 0
        for each in comparisons:
            self.audits.record(float(each.differs), each.probability, each.least)
            count += 1
        reference, drift = list(self.reference), self.drift
        for confidence in confidences:
            if drift is not None:
                drift.record(confidence)
                continue
            reference.append(confidence)
            if len(reference) == _REFERENCE:
                drift, reference = Drift(reference, _DRIFT_DELTA), []
        return replace(self, reference=tuple(reference), drift=drift, in_stage=self.in_stage + count)

    def row(self) -> dict[str, Any]:
        """Its columns, but the student."""
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
        }


def empty_evidence(epsilon: float, delta: float) -> Evidence:
    """None yet."""
    return Evidence(Audits(epsilon, delta))


def read_evidence_row(row: Any) -> Evidence:
    """As `row` wrote it."""
    drift = json.loads(row.drift)
    return Evidence(
        Audits.from_json(json.loads(row.audits)),
        tuple(drift.get("reference", ())),
        Drift.from_json(drift["test"]) if "test" in drift else None,
        row.in_stage,
    )


@dataclass
class EvidenceBatch:
    """What came in of one student since the last time."""

    comparisons: list[StudentComparison] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
