"""What is known of a student at work: comparisons with the LLM, and whether the traffic has changed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bertsmith.metrics.guarantees.audit import Audits, Decision, Drift

_REFERENCE = 200  # confidences that drift is measured from
# Of an audit that tells nothing of the student: the LLM was away, the mirror was stopped, or the student was
# replaced meanwhile. It is settled, and no evidence.
VOID = "void"
_DRIFT_DELTA = 0.01  # of a false alarm, over all time


@dataclass(frozen=True)
class Comparison:
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

    def after(self, comparisons: Iterable[Comparison], confidences: Iterable[float]) -> "Evidence":
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


def first_evidence(epsilon: float, delta: float) -> Evidence:
    """None yet."""
    return Evidence(Audits(epsilon, delta))


def evidence_of_row(row: Any) -> Evidence:
    """As `row` wrote it."""
    drift = json.loads(row.drift)
    return Evidence(
        Audits.from_json(json.loads(row.audits)),
        tuple(drift.get("reference", ())),
        Drift.from_json(drift["test"]) if "test" in drift else None,
        row.in_stage,
    )


@dataclass
class Batch:
    """What came in of one student since the last time."""

    comparisons: list[Comparison] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
