"""Does what was promised still hold? For `bertsmith mirror check`, and so for CI."""

from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import BertsmithError
from bertsmith.mirror.answering.evidence import VOID
from bertsmith.mirror.answering.judging import said
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import Stage, Student

_FEWEST_OUTCOMES = 20  # audits of which many failed to say anything
_MOST_FAILED = 0.1  # of the audits


@dataclass(frozen=True)
class Finding:
    """`what` holds, or not, of a version."""

    site: str
    version: str
    mode: str
    holds: bool
    what: str


def check_guarantees(store: StageStore, *, looks_at_files: bool = True) -> list[Finding]:
    """Of each version that has or had a student. Without `looks_at_files` the folders of students may be on
    other machines.
    """
    stages = [each for each in store.stages().values() if each.revision]
    students, evidence, changes = store.students(), store.evidence(), store.changes()
    found: list[Finding] = []
    for stage in sorted(stages, key=lambda each: (each.site, each.version)):

        def say(holds: bool, what: str, stage: Stage = stage) -> None:
            found.append(Finding(stage.site, stage.version, stage.mode, holds, what))

        # By its number: the clocks of two replicas may differ.
        last = max(
            (each for each in changes if each.version == stage.version), key=lambda each: each.revision
        )
        if last.by == "evidence" and _is_down(last.mode_before, last.mode):
            say(False, f"demoted from {last.mode_before} to {last.mode}: {last.why}")
        if not stage.student:
            continue
        known, student = evidence.get(stage.student), students.get(stage.student)
        if known is None or not known.audits.count:
            say(True, "no answer compared yet; what was proven before it served stands")
        else:
            most = f"at most {100 * known.audits.epsilon:g}% may differ"
            say(known.decision != "demote", f"{said(known)}; {most}")
        if known is not None and known.has_drifted:  # perhaps so that it is sure of nothing any more
            say(False, "the calls have changed since the student was first compared")
        if stage.answers:
            over, untold = _without_answer(store.audit_outcomes(stage.version), stage.student)
            if over >= _FEWEST_OUTCOMES and sum(untold.values()) > _MOST_FAILED * over:
                failed, void = untold["failed"], untold[VOID]
                without = f"{failed + void:,} of {over:,} audits got no answer from the LLM"
                say(
                    False,
                    f"{without}: {failed:,} count as disagreements, {void:,} are void; "
                    "`bertsmith mirror status` says why",
                )
        if looks_at_files and (problem := _problem(student, stage.student)):
            say(False, problem)
    return found


def _is_down(before: str, after: str) -> bool:
    from bertsmith.mirror.answering.stages import MODES

    return MODES.index(after) < MODES.index(before)


def _without_answer(audits: dict[tuple[str, str], int], student: str) -> tuple[int, dict[str, int]]:
    """Audits that are over, and those that failed or are void."""
    mine = {outcome: count for (of, outcome), count in audits.items() if of == student and outcome != "open"}
    return sum(mine.values()), {name: mine.get(name, 0) for name in ("failed", VOID)}


def _problem(student: Student | None, number: str) -> str:
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
