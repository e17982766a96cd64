"""A student that is trained already, and may be proven by the calls that have come since, without a new one.

Its proof wasn't begun, since too few calls were kept for it. It has learned from none of the calls since
then, and a new student would from most of them. Read `find_unproven_student`.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import BertsmithError
from bertsmith.metrics.guarantees.growing_proof import student_share
from bertsmith.metrics.guarantees.sample_size import fewest_calls
from bertsmith.mirror.answering.replays import ReplayStore
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import StudentRecord
from bertsmith.mirror.call import LABELLED, UNDATED
from bertsmith.mirror.learning.learned_calls import (
    LearnedCall,
    exclude_shared_periods,
    sample_like_traffic,
)
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import StudentCandidate
from bertsmith.mirror.learning.understand import LearningRecords, SiteProfile
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.student_file import MODEL, SPANS, StudentFile, read_student_file

_FEWEST_ON_DEV = 20  # calls, by which a proof can be planned


@dataclass(frozen=True)
class EarlierStudent:
    """A student's `candidate` and `file`, and the calls that its proof is planned by (`dev`) and made with
    (`calibration`), of which it has learned from none. `delta` is left for it. `note` says what it is.
    """

    candidate: StudentCandidate
    file: StudentFile
    dev: list[LearnedCall]
    calibration: list[LearnedCall]
    delta: float
    note: str


def find_unproven_student(
    records: LearningRecords, profile: SiteProfile, calls: Sequence[LearnedCall], settings: LearnSettings
) -> EarlierStudent | None:
    """The latest student of these versions whose proof wasn't begun, with the `calls` that it hasn't learned
    from. Its proof in shadow goes on at a part of delta: the rest is for this one, once.
    """
    stages = StageStore(records.store)
    by_version, students, evidence = stages.stages(), stages.students(), stages.evidence()
    own = [by_version[version.version] for version in profile.versions if version.version in by_version]
    numbers = {number for stage in own for number in (stage.candidate, stage.student)} & students.keys()
    if not numbers:
        return None
    student = students[max(numbers, key=lambda number: students[number].added)]
    proof = evidence[student.id].proof if student.id in evidence else None
    file = _read_file(student)
    if proof is None or proof.threshold is not None or file is None or file.plan is None:
        return None
    if file.shape != profile.shape or file.calibration.calls or settings.by_class is not None:
        return None
    uses = records.read_uses(file.training)
    learned = {call for call, use in uses.items() if use != "calibration"}
    dev = [call for call in calls if uses.get(call.id) == "dev"]
    recorded = ReplayStore(records.store).recorded(version.version for version in profile.versions)
    fresh = [
        call
        for call in calls
        if call.source not in (LABELLED, UNDATED) and not {call.id, recorded.get(call.id)} & learned
    ]
    if not records.calibration_calls().isdisjoint(call.id for call in fresh):  # it has been tried
        return None
    left = settings.delta - student_share(file.plan.delta, proof.number)
    fresh = sample_like_traffic(fresh, settings.seed)
    fresh = exclude_shared_periods(fresh, calls, learned, settings.seed)
    if len(dev) < _FEWEST_ON_DEV or left <= 0 or len(fresh) < fewest_calls(settings.epsilon, left):
        return None
    note = (
        f"It is the student that learned from {file.trained_on.calls:,} calls, and learned nothing new: the "
        f"{len(fresh):,} calls that were kept or have come since then prove it."
    )
    return EarlierStudent(_open_candidate(student, file), file, dev, fresh, left, note)


def _read_file(student: StudentRecord) -> StudentFile | None:
    """None where the student is gone, or was trained before trainings had names."""
    try:
        file = read_student_file(Path(student.folder))
    except BertsmithError:
        return None
    return file if file.training else None


def _open_candidate(student: StudentRecord, file: StudentFile) -> StudentCandidate:
    folder = Path(student.folder)

    def save(out: Path) -> None:
        for part in (MODEL, SPANS):
            if (folder / part).is_dir():
                shutil.copytree(folder / part, out / part)

    predict = MirrorStudent.open(folder).predict_fields
    return StudentCandidate(file.tier, file.heads, predict, save, file.span_tags)
