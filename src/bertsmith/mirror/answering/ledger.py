"""What happened since the last time, gathered from the event loop and the recorder, to be folded into the
store.

Bounded: where more comes than can be compared, the oldest go, whatever they say.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertsmith.mirror.answering.open_students import OpenStudents, StudentThread, VersionStudents
from bertsmith.mirror.answering.stages import VOID, EvidenceBatch, StudentComparison
from bertsmith.mirror.call import Call, CallOutcome, CallRouting, is_refusal
from bertsmith.serving import LOG

_MOST = 10_000  # events that wait
_AT_ONCE = 64  # texts that a student is asked together
REFUSED, VOIDED = "refused-", "void-"  # before why: counts of calls that the LLM refused, and of audits
REPLACED = "student-replaced"  # why an audit is void


@dataclass
class LedgerUpdate:
    """For the store: evidence by student, and what is counted by (version, student, outcome)."""

    batches: dict[str, EvidenceBatch] = field(default_factory=dict)
    tallies: dict[tuple[str, str, str], tuple[int, float]] = field(default_factory=dict)

    def batch(self, student: str) -> EvidenceBatch:
        """The student's, begun if need be."""
        return self.batches.setdefault(student, EvidenceBatch())

    def count(self, version: str, student: str, outcome: str, seconds: float = 0.0) -> None:
        """One call."""
        calls, before = self.tallies.get((version, student, outcome), (0, 0.0))
        self.tallies[version, student, outcome] = calls + 1, before + seconds

    def add(self, other: "LedgerUpdate") -> None:
        """All that is in the other."""
        for student, batch in other.batches.items():
            mine = self.batch(student)
            mine.comparisons += batch.comparisons
            mine.confidences += batch.confidences
        for key, (calls, seconds) in other.tallies.items():
            before, took = self.tallies.get(key, (0, 0.0))
            self.tallies[key] = before + calls, took + seconds


class Ledger:
    """Appended to from any thread, taken from by one."""

    def __init__(self) -> None:
        self._routings: deque[tuple[CallRouting, float]] = deque(maxlen=_MOST)
        self._outcomes: deque[CallOutcome] = deque(maxlen=_MOST)

    def routing(self, routing: CallRouting, seconds: float) -> None:
        """A call of a version that answers; `seconds` is what the client waited where the answer is ours."""
        self._routings.append((routing, seconds))

    def outcome(self, outcome: CallOutcome) -> None:
        """What the LLM said."""
        self._outcomes.append(outcome)

    def fold(self, open_students: OpenStudents) -> LedgerUpdate:
        """Takes what is there."""
        folded = LedgerUpdate()
        for _ in range(len(self._routings)):
            routing, seconds = self._routings.popleft()
            folded.count(routing.version, routing.student, routing.reason or "answered", seconds)
            if routing.values is not None:
                folded.batch(routing.student).confidences.append(routing.confidence)
        outcomes: dict[str, list[CallOutcome]] = {}
        for _ in range(len(self._outcomes)):
            outcome = self._outcomes.popleft()
            outcomes.setdefault(outcome.version, []).append(outcome)
            if is_refusal(outcome.reason):
                stage = open_students.stage_version(outcome.version)
                folded.count(stage, "", REFUSED + outcome.reason)
        # In their order: evidence that two versions share depends on it.
        for version, of_version in outcomes.items():
            students = open_students.by_version.get(version)
            if students is None:
                for each in of_version:
                    if each.routing is not None and each.routing.audit:
                        _settle_without_evidence(each, each.routing, folded)
                continue
            for begin in range(0, len(of_version), _AT_ONCE):
                some = of_version[begin : begin + _AT_ONCE]
                folded.add(_compare_or_split(some, _StudentComparer(version, students)))
                folded.add(_compare_or_split(some, _CandidateComparer(version, students)))
        return folded


class _StudentComparer(NamedTuple):
    """Compares the student of a version."""

    version: str
    students: VersionStudents

    def compare(self, some: Sequence[CallOutcome], folded: LedgerUpdate) -> None:
        """By its own words where it was asked; in shadow it is asked now."""
        stage, student = self.students.stage, self.students.student
        for each in some:
            routing = each.routing
            is_void = bool(each.reason) and not is_refusal(each.reason)
            if routing is None or routing.student != stage.student or student is None or is_void:
                if routing is not None and routing.audit:
                    _settle_without_evidence(each, routing, folded)
                continue
            if not routing.is_sure or routing.values is None or not _is_comparable(each):
                continue
            differs = bool(each.reason) or student.differs(routing.values, each.taught)
            kind = "audit" if routing.audit else stage.mode
            outcome = "failed" if each.reason else "differs" if differs else "agrees"
            folded.count(stage.version, routing.student, f"{kind}-{outcome}")
            folded.batch(routing.student).comparisons.append(
                StudentComparison(differs, routing.probability, routing.least, routing.audit, outcome)
            )
        if stage.mode == "shadow":
            unheard = [each for each in some if each.routing is None or each.routing.student != stage.student]
            _compare_silently(unheard, student, stage.version, self.version, folded, "shadow")

    def give_up(self, one: CallOutcome, folded: LedgerUpdate) -> None:
        """An audit that can't be read counts as a disagreement."""
        stage = self.students.stage
        if (routing := one.routing) is not None and routing.audit:
            failed = StudentComparison(True, routing.probability, routing.least, routing.audit, "failed")
            folded.batch(routing.student).comparisons.append(failed)
        folded.count(stage.version, stage.student, f"{stage.mode}-failed")


class _CandidateComparer(NamedTuple):
    """Compares the candidate of a version."""

    version: str
    students: VersionStudents

    def compare(self, some: Sequence[CallOutcome], folded: LedgerUpdate) -> None:
        stage, candidate = self.students.stage.version, self.students.candidate
        _compare_silently(some, candidate, stage, self.version, folded, "candidate", is_candidate=True)

    def give_up(self, one: CallOutcome, folded: LedgerUpdate) -> None:
        stage = self.students.stage
        folded.count(stage.version, stage.candidate, "candidate-failed")


def _compare_or_split(some: Sequence[CallOutcome], by: _StudentComparer | _CandidateComparer) -> LedgerUpdate:
    """Where the comparison of all fails, each is compared alone: one that can't be is the only one lost."""
    found = LedgerUpdate()
    try:
        by.compare(some, found)
        return found
    except Exception as error:
        if len(some) == 1:
            LOG.error("an answer could not be compared: %s", type(error).__name__)
    found = LedgerUpdate()
    if len(some) == 1:
        by.give_up(some[0], found)
        return found
    for each in some:
        found.add(_compare_or_split([each], by))
    return found


def _settle_without_evidence(outcome: CallOutcome, routing: CallRouting, folded: LedgerUpdate) -> None:
    """An audit that is void, whose answer broke off or was an error of the provider's, or whose student has
    been replaced meanwhile: nobody can compare it any more, which says nothing of it.
    """
    cause = outcome.cause or (outcome.reason if outcome.reason != VOID else "")
    comparison = StudentComparison(True, routing.probability, routing.least, routing.audit, VOID)
    folded.batch(routing.student).comparisons.append(comparison)
    folded.count(routing.version, "", VOIDED + (cause or REPLACED))


def compare_stored_call(audit: Any, call: Call, student: StudentThread) -> StudentComparison:
    """An audit (its row) that a mirror left open whose `call` is stored: the student is asked once more what
    it answered, which is the same. One that can't be compared counts as a disagreement, as in `Ledger`.
    """
    try:
        text = student.student.input_of(call.request, call.version)
        if text is None:
            raise ValueError("the stored call doesn't fit the template")
        (answer,) = student.student.answer([text])
        differs = student.differs(answer.values, call.completion.value)
        outcome = "differs" if differs else "agrees"
    except Exception as error:
        LOG.error("an answer could not be compared: %s", type(error).__name__)
        differs, outcome = True, "failed"
    return StudentComparison(differs, audit.probability, audit.least, audit.id, outcome)


def _compare_silently(
    outcomes: Iterable[CallOutcome],
    student: StudentThread | None,
    stage: str,
    version: str,
    folded: LedgerUpdate,
    kind: str,
    *,
    is_candidate: bool = False,
) -> None:
    """A student that answered nobody. Counted by its `stage`; `version` is that of the calls."""
    if student is None:
        return
    asked = list[tuple[CallOutcome, str]]()
    for each in outcomes:
        if each.request is not None and _is_comparable(each):
            text = student.student.input_of(each.request, version)
            asked += [] if text is None else [(each, text)]
    answers = student.student.answer([text for _, text in asked]) if asked else []
    for (each, _), answer in zip(asked, answers, strict=True):
        routing = each.routing
        if not is_candidate:
            folded.batch(student.id).confidences.append(answer.confidence)
        if not answer.is_sure:
            folded.count(stage, student.id, f"{kind}-unsure")
            continue
        differs = bool(each.reason) or student.differs(answer.values, each.taught)
        folded.count(stage, student.id, f"{kind}-{'differs' if differs else 'agrees'}")
        # The LLM is asked about what the present student isn't sure of, and about some of the rest.
        probability = routing.probability if routing is not None and routing.is_sure else 1.0
        least = routing.least if routing is not None else 1.0
        folded.batch(student.id).comparisons.append(StudentComparison(differs, probability, least))


def _is_comparable(outcome: CallOutcome) -> bool:
    """There is an answer to agree with, or the LLM gave another one than a student can."""
    return not outcome.reason or is_refusal(outcome.reason)
