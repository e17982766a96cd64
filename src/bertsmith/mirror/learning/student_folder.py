"""A student's folder: where a new one goes, what is written there, and the choice among the risks that were
proven of it. Read `write_student` first.

student.json, model/, spans/    the student (bertsmith.mirror.student_file)
report.html                     what was found of it, beginning with the claim that is chosen
"""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import bertsmith
from bertsmith.errors import InputError, ModelError
from bertsmith.files import atomic_folder, is_empty_folder, write_json
from bertsmith.mirror.answering.stage_store import StageStore, read_findings, save_findings
from bertsmith.mirror.call import REPLAYED
from bertsmith.mirror.learning.learned_calls import CallSplit, LearnedCall
from bertsmith.mirror.learning.proving import describe_claims
from bertsmith.mirror.learning.report import mark_chosen
from bertsmith.mirror.learning.tiers import StudentCandidate
from bertsmith.mirror.learning.understand import SiteProfile
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import (
    FILE,
    MODEL,
    SPANS,
    CallsUsed,
    Claims,
    ProofPlan,
    StudentFile,
    TeacherCeiling,
    hash_files,
    read_student_file,
    student_id,
)

_REPORT = "report.html"
_PARTS = {FILE, MODEL, SPANS, _REPORT, ".DS_Store"}  # of a student's folder; macOS writes the last


def build_student_file(
    profile: SiteProfile,
    candidate: StudentCandidate,
    claims: Claims,
    parts: CallSplit,
    tried: bool,
    ceiling: TeacherCeiling | None,
    plan: ProofPlan | None = None,
    training: str = "",
) -> StudentFile:
    """The contents of student.json without the hashes of files. `tried`: the calibration calls were used;
    `training` is the training's name in the store.
    """
    latest = profile.latest
    return StudentFile(
        bertsmith=bertsmith.__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        site=profile.site,
        protocol=latest.protocol,
        teacher=latest.model,
        templates=profile.templates,
        shape=profile.shape,
        tier=candidate.tier,
        heads=candidate.heads,
        span_tags=dict(candidate.span_tags),
        claims=claims,
        plan=plan,
        calibration=_summarise_calls(parts.calibration if tried else ()),
        trained_on=_summarise_calls(parts.learned),
        ceiling=ceiling,
        training=training,
    )


def find_free_folder(store: Store, out: Path, new: StudentFile | None = None) -> Path:
    """`out`, or the first of out-2, out-3 … that holds nothing but a student, and none that a stage names,
    which may be answering or be rolled back to. With the file of a `new` student, also none that has a claim
    which the new one's don't include.
    """
    stages = StageStore(store)
    students = stages.students()
    named = {
        number
        for stage in stages.changed_stages().values()
        for number in (stage.student, stage.former, stage.candidate)
    }
    in_use = {Path(students[number].folder).resolve() for number in named & students.keys()}
    folder, count = out, 1
    while (
        folder.resolve() in in_use
        or not is_replaceable(folder)
        or (new is not None and _is_more_proven(folder, new))
    ):
        count += 1
        folder = out.with_name(f"{out.name}-{count}")
    return folder


def is_replaceable(folder: Path) -> bool:
    """Whether nothing is lost there but a student, and it isn't the current folder."""
    if not folder.exists() or is_empty_folder(folder):
        return True
    holds_student = (folder / FILE).is_file() and {path.name for path in folder.iterdir()} <= _PARTS
    return holds_student and folder.resolve() != Path.cwd()


def _is_more_proven(folder: Path, new: StudentFile) -> bool:
    """Whether the student in the folder has a claim that the new one's don't include, or one on calls of
    another version. A claim on each value of a field includes one on all answers, and not the other way
    round.
    """
    try:
        old = read_student_file(folder)
    except (InputError, ModelError):
        return False
    proven, claims = old.claims, new.claims
    rungs = [(claim.epsilon, claim.coverage) for claim in claims.ladder]
    if claims.by is not None:
        rungs.append((claims.epsilon, claims.coverage))
    before = [(claim.epsilon, claim.coverage) for claim in proven.ladder]
    if proven.by is not None and proven.coverage:
        before.append((proven.epsilon, proven.coverage))
    is_included = (
        all(any(risk >= ours and share <= own for ours, own in rungs) for risk, share in before)
        and proven.delta >= claims.delta
        and proven.by in (None, claims.by)
        and old.templates.keys() <= new.templates.keys()
    )
    return bool(before) and not is_included


def write_student(out: Path, file: StudentFile, candidate: StudentCandidate, report: str) -> StudentFile:
    """Writes the student's folder atomically, in place of another student there; returns the file with
    hashes.
    """
    with atomic_folder(out, overwrite=True) as folder:
        candidate.save(folder)
        (folder / _REPORT).write_text(report, encoding="utf-8")
        hashed = file.model_copy(update={"files": hash_files(folder)})
        write_json(folder / FILE, hashed.model_dump(mode="json"))
    return hashed


def choose_risk(store: Store, student: Path, epsilon: float) -> tuple[Path, StudentFile]:
    """Chooses another of the risks at which a student's whole answer was proven; returns its folder and file.

    With another threshold it is another student, whose comparisons and audits begin anew. It stays in its
    folder unless the mirror uses it: then the other one goes to student-2, student-3 …. Its report begins
    with the claim that is chosen. Raises InputError for a risk that wasn't proven, ModelError for a folder
    without a student.
    """
    file, former = read_student_file(student), student_id(student)
    chosen = file.model_copy(update={"claims": file.claims.at(epsilon)})
    if chosen == file:
        return student, file
    out, claim = find_free_folder(store, student), describe_claims(chosen.claims)
    with atomic_folder(out, overwrite=True) as folder:
        shutil.copytree(student, folder, dirs_exist_ok=True)
        if (report := folder / _REPORT).is_file():
            report.write_text(mark_chosen(report.read_text("utf-8"), claim), encoding="utf-8")
        chosen = chosen.model_copy(update={"files": hash_files(folder)})
        write_json(folder / FILE, chosen.model_dump(mode="json"))
    for version, findings in read_findings(store).items():
        if findings["student"] != former:
            continue
        findings |= {
            "versions": sorted(file.templates),
            "claim": claim,
            "coverage": chosen.claims.coverage,
            "why_not": None,
        }
        del findings["student"], findings["at"]
        save_findings(store, student_id(out), version, findings)
        break
    return out, chosen


def _summarise_calls(calls: Sequence[LearnedCall]) -> CallsUsed:
    times = [call.began for call in calls] or [0.0]
    return CallsUsed(
        calls=len(calls),
        texts=len({call.text for call in calls}),
        began=min(times),
        ended=max(times),
        replayed=sum(call.source == REPLAYED for call in calls),
    )
