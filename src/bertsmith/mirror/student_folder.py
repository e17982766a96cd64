"""A chosen candidate → the folder that the mirror serves: student.json, the model, report.html."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import bertsmith
from bertsmith.errors import ModelError
from bertsmith.files import atomic_folder, write_json
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.candidate import Candidate
from bertsmith.mirror.learned_calls import LearnedCall
from bertsmith.mirror.parts import Parts
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import (
    FILE,
    CallsUsed,
    Claims,
    StudentFile,
    TeacherCeiling,
    hashes_of,
    read_student_file,
)
from bertsmith.mirror.understanding.understand import Understood


def student_file(
    understood: Understood,
    candidate: Candidate,
    claims: Claims,
    parts: Parts,
    tried: bool,
    ceiling: TeacherCeiling | None,
) -> StudentFile:
    """All but the hashes of files. `tried`: the calibration calls were used."""
    latest = understood.latest
    return StudentFile(
        bertsmith=bertsmith.__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        site=understood.site,
        protocol=latest.protocol,
        teacher=latest.model,
        templates=understood.templates,
        shape=understood.shape,
        tier=candidate.tier,
        heads=candidate.heads,
        span_tags=dict(candidate.span_tags),
        claims=claims,
        calibration=_used(parts.calibration if tried else ()),
        trained_on=_used(parts.learned),
        ceiling=ceiling,
    )


def free_folder(store: Store, out: Path, claims: Claims | None = None) -> Path:
    """`out`, or the first of out-2, out-3 … in which there is no student that a stage names: it may be
    answering, or be gone back to. With `claims` of a new student, also none of which more is proven.
    """
    stages = StageStore(store)
    students = stages.students()
    named = {
        number
        for stage in stages.changed_stages().values()
        for number in (stage.student, stage.former, stage.candidate)
    }
    taken = {Path(students[number].folder).resolve() for number in named & students.keys()}
    found, count = out, 1
    while found.resolve() in taken or (claims is not None and _is_more_proven(found, claims)):
        count += 1
        found = out.with_name(f"{out.name}-{count}")
    return found


def _is_more_proven(folder: Path, claims: Claims) -> bool:
    """Whether the student there would be missed."""
    try:
        proven = read_student_file(folder).claims
    except ModelError:
        return False
    is_better = claims.epsilon <= proven.epsilon and claims.coverage >= proven.coverage
    return proven.coverage > 0 and not (claims.coverage > 0 and is_better)


def write_student(out: Path, file: StudentFile, candidate: Candidate, report: str) -> StudentFile:
    """Whole or not at all; another student there is replaced. Gives the file with its hashes."""
    with atomic_folder(out, overwrite=True) as folder:
        candidate.save(folder)
        (folder / "report.html").write_text(report, encoding="utf-8")
        whole = file.model_copy(update={"files": hashes_of(folder)})
        write_json(folder / FILE, whole.model_dump(mode="json"))
    return whole


def _used(calls: Sequence[LearnedCall]) -> CallsUsed:
    times = [call.began for call in calls] or [0.0]
    return CallsUsed(
        calls=len(calls), texts=len({call.text for call in calls}), began=min(times), ended=max(times)
    )
