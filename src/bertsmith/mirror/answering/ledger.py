"""Events since the last fold, collected from the event loop and the recorder, and turned into evidence and
counts for the store.

`Ledger` holds routings (who answered a call) and outcomes (what the LLM answered); `Ledger.fold` compares
them with the students. The queues are bounded: when more events arrive than can be compared, the oldest are
dropped, whatever they say.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertsmith.mirror.answering.open_students import OpenStudents, StudentThread, VersionStudents
from bertsmith.mirror.answering.shadow_proof import NEVER, ComparedCall
from bertsmith.mirror.answering.stages import VOID, EvidenceBatch, StudentComparison
from bertsmith.mirror.call import Call, CallOutcome, CallRouting, Json, is_refusal
from bertsmith.mirror.redaction import holds_placeholder
from bertsmith.serving import LOG

_MOST = 10_000  # events that wait
_AT_ONCE = 64  # texts in one batch of a student
REFUSED, VOIDED = "refused-", "void-"  # before why: counts of calls that the LLM refused, and of audits
REPLACED = "student-replaced"  # why an audit is void


@dataclass
class LedgerUpdate:
    """What is to be added to the store: evidence by student, and (calls, seconds) by (version, student,
    outcome). `calls` counts those that a student might have answered, by version, and `contradictions` are
    its answers that the LLM contradicted, each with its confidence.
    """

    batches: dict[str, EvidenceBatch] = field(default_factory=dict)
    tallies: dict[tuple[str, str, str], tuple[int, float]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    contradictions: dict[str, list[tuple[float, Json]]] = field(default_factory=dict)

    def batch(self, student: str) -> EvidenceBatch:
        """The student's batch, created where there is none."""
        return self.batches.setdefault(student, EvidenceBatch())

    def count(self, version: str, student: str, outcome: str, seconds: float = 0.0) -> None:
        """Adds one call that took `seconds`."""
        calls, before = self.tallies.get((version, student, outcome), (0, 0.0))
        self.tallies[version, student, outcome] = calls + 1, before + seconds

    def add(self, other: "LedgerUpdate") -> None:
        """Adds the evidence and the counts of another update."""
        for student, batch in other.batches.items():
            mine = self.batch(student)
            mine.comparisons += batch.comparisons
            mine.confidences += batch.confidences
            mine.calls += batch.calls
        for key, (calls, seconds) in other.tallies.items():
            before, took = self.tallies.get(key, (0, 0.0))
            self.tallies[key] = before + calls, took + seconds
        self.calls += other.calls
        for version, contradictions in other.contradictions.items():
            self.contradictions.setdefault(version, []).extend(contradictions)


class Ledger:
    """Appended to from any thread, taken from by one."""

    def __init__(self) -> None:
        self._routings: deque[tuple[CallRouting, float]] = deque(maxlen=_MOST)
        self._outcomes: deque[CallOutcome] = deque(maxlen=_MOST)

    def routing(self, routing: CallRouting, seconds: float) -> None:
        """Appends how a call was routed; `seconds`: how long the client waited for a student's answer."""
        self._routings.append((routing, seconds))

    def outcome(self, outcome: CallOutcome) -> None:
        """Appends what came of a call to the LLM."""
        self._outcomes.append(outcome)

    def fold(self, open_students: OpenStudents) -> LedgerUpdate:
        """Takes all events, compares them with the students, and returns what they add to the store."""
        update = LedgerUpdate()
        for _ in range(len(self._routings)):
            routing, seconds = self._routings.popleft()
            update.count(routing.version, routing.student, routing.reason or "answered", seconds)
            update.calls[routing.version] += bool(routing.student)
            if routing.values is not None:
                update.batch(routing.student).confidences.append(routing.confidence)
        outcomes: dict[str, list[CallOutcome]] = {}
        for _ in range(len(self._outcomes)):
            outcome = self._outcomes.popleft()
            outcomes.setdefault(outcome.version, []).append(outcome)
            if is_refusal(outcome.reason):
                stage = open_students.stage_version(outcome.version)
                update.count(stage, "", REFUSED + outcome.reason)
        # In their order: evidence that two versions share depends on it.
        for version, of_version in outcomes.items():
            students = open_students.by_version.get(version)
            if students is None:
                for outcome in of_version:
                    if outcome.routing is not None and outcome.routing.audit:
                        _settle_without_evidence(outcome, outcome.routing, update)
                continue
            for begin in range(0, len(of_version), _AT_ONCE):
                batch = of_version[begin : begin + _AT_ONCE]
                update.add(_compare_or_split(batch, _StudentComparer(version, students)))
                update.add(_compare_or_split(batch, _CandidateComparer(version, students)))
        return update


class _StudentComparer(NamedTuple):
    """Compares the student of a version with the LLM."""

    version: str
    students: VersionStudents

    def compare(self, outcomes: Sequence[CallOutcome], update: LedgerUpdate) -> None:
        """Compares the answer that the student gave when the call came; in shadow it is asked now."""
        stage, student = self.students.stage, self.students.student
        for outcome in outcomes:
            routing = outcome.routing
            is_void = bool(outcome.reason) and not is_refusal(outcome.reason)
            if routing is None or routing.student != stage.student or student is None or is_void:
                if routing is not None and routing.audit:
                    _settle_without_evidence(outcome, routing, update)
                continue
            if routing.values is None or not _is_comparable(outcome):
                continue
            differs = bool(outcome.reason) or student.differs(routing.values, outcome.teacher_answer)
            confidence = _given_confidence(routing.confidence, routing.answer)
            call = _compared_call(outcome, confidence, differs, routing.is_sure)
            update.batch(routing.student).calls.append(call)
            if differs and not outcome.reason and self.version == stage.version:
                contradiction = routing.confidence, routing.answer
                update.contradictions.setdefault(stage.version, []).append(contradiction)
            if not routing.is_sure:
                continue
            kind = "audit" if routing.audit else stage.mode
            result = "failed" if outcome.reason else "differs" if differs else "agrees"
            update.count(stage.version, routing.student, f"{kind}-{result}")
            update.batch(routing.student).comparisons.append(
                StudentComparison(differs, routing.probability, routing.least, routing.audit, result)
            )
        if stage.mode == "shadow":
            silent = [
                outcome
                for outcome in outcomes
                if outcome.routing is None or outcome.routing.student != stage.student
            ]
            _compare_silently(silent, student, stage.version, self.version, update, "shadow")

    def give_up(self, outcome: CallOutcome, update: LedgerUpdate) -> None:
        """An audit that can't be read counts as a disagreement."""
        stage = self.students.stage
        if (routing := outcome.routing) is not None and routing.audit:
            failed = StudentComparison(True, routing.probability, routing.least, routing.audit, "failed")
            update.batch(routing.student).comparisons.append(failed)
        update.count(stage.version, stage.student, f"{stage.mode}-failed")


class _CandidateComparer(NamedTuple):
    """Compares the candidate of a version with the LLM."""

    version: str
    students: VersionStudents

    def compare(self, outcomes: Sequence[CallOutcome], update: LedgerUpdate) -> None:
        stage, candidate = self.students.stage, self.students.candidate
        # The calls that a student leaves to the LLM aren't like all calls.
        is_part = stage.student_answers
        _compare_silently(
            outcomes, candidate, stage.version, self.version, update, "candidate", is_part=is_part
        )

    def give_up(self, outcome: CallOutcome, update: LedgerUpdate) -> None:
        stage = self.students.stage
        update.count(stage.version, stage.candidate, "candidate-failed")


def _compare_or_split(
    outcomes: Sequence[CallOutcome], by: _StudentComparer | _CandidateComparer
) -> LedgerUpdate:
    """Compares all outcomes at once; where that fails, each alone, so that only the faulty one is lost."""
    update = LedgerUpdate()
    try:
        by.compare(outcomes, update)
        return update
    except Exception as error:
        if len(outcomes) == 1:
            LOG.error("an answer could not be compared: %s", type(error).__name__)
    update = LedgerUpdate()
    if len(outcomes) == 1:
        by.give_up(outcomes[0], update)
        return update
    for outcome in outcomes:
        update.add(_compare_or_split([outcome], by))
    return update


def _settle_without_evidence(outcome: CallOutcome, routing: CallRouting, update: LedgerUpdate) -> None:
    """Settles an audit that is no evidence: it is void, its answer broke off or was a provider's error, or
    its student was replaced meanwhile.
    """
    cause = outcome.cause or (outcome.reason if outcome.reason != VOID else "")
    comparison = StudentComparison(True, routing.probability, routing.least, routing.audit, VOID)
    update.batch(routing.student).comparisons.append(comparison)
    update.count(routing.version, "", VOIDED + (cause or REPLACED))


def compare_stored_call(audit: Any, call: Call, student: StudentThread) -> StudentComparison:
    """Compares an audit (its row) that a stopped mirror left open and whose `call` is stored. The student is
    deterministic: asked once more, it gives the same answer. An audit that can't be compared counts as a
    disagreement, as in `Ledger`.
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
    update: LedgerUpdate,
    kind: str,
    *,
    is_part: bool = False,
) -> None:
    """Compares a student whose answers no client saw. Counted under its `stage`'s version; `version` is that
    of the calls. Where they are only a part of the calls, they tell nothing of drift.
    """
    if student is None:
        return
    inputs = list[tuple[CallOutcome, str]]()
    for outcome in outcomes:
        if outcome.request is not None and _is_comparable(outcome):
            text = student.student.input_of(outcome.request, version)
            inputs += [] if text is None else [(outcome, text)]
    answers = student.student.answer([text for _, text in inputs]) if inputs else []
    for (outcome, _), answer in zip(inputs, answers, strict=True):
        batch = update.batch(student.id)
        if not is_part:
            batch.confidences.append(answer.confidence)
        differs = bool(outcome.reason) or student.differs(answer.values, outcome.teacher_answer)
        confidence = _given_confidence(answer.confidence, answer.answer)
        call = _compared_call(outcome, confidence, differs, answer.is_sure)
        batch.calls.append(call)
        if not answer.is_sure:
            update.count(stage, student.id, f"{kind}-unsure")
            continue
        update.count(stage, student.id, f"{kind}-{'differs' if differs else 'agrees'}")
        batch.comparisons.append(StudentComparison(differs, call.probability, call.least))


def _compared_call(outcome: CallOutcome, confidence: float, differs: bool, is_sure: bool) -> ComparedCall:
    """The LLM answers what the current student isn't sure of, and a sample of the rest."""
    routing, request = outcome.routing, outcome.request
    return ComparedCall(
        confidence,
        differs,
        routing.probability if routing is not None and routing.is_sure else 1.0,
        routing.least if routing is not None else 1.0,
        outcome.began,
        " ".join(request.subjects) if request is not None else "",
        is_sure,
    )


def _given_confidence(confidence: float, answer: Json) -> float:
    """The student's confidence, -1 where its answer would never be given (bertsmith.mirror.student)."""
    return confidence if confidence > 0 and not holds_placeholder(answer) else NEVER


def _is_comparable(outcome: CallOutcome) -> bool:
    """Whether there is an answer to compare with: an answer, or a refusal, which a student can't give."""
    return not outcome.reason or is_refusal(outcome.reason)
