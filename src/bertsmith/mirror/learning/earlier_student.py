"""A student that is trained already, and may be proven by the calls that have come since, without a new one.

Two kinds. One whose proof wasn't begun, since too few calls were kept for it (`find_unproven_student`): it
has learned from none of the calls since then, and a new student would from most of them. And the one that
answered before the LLM changed (`adapt_student`): of the inputs that the LLM was asked again, two for each
answer tell what it says now where it said that, and the others prove what that leaves.

E calls.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertsmith.errors import BertsmithError
from bertsmith.metrics.guarantees.growing_proof import student_share
from bertsmith.metrics.guarantees.sample_size import fewest_calls
from bertsmith.mirror.answering.replays import ReplayStore, is_reserved
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import StudentRecord
from bertsmith.mirror.call import LABELLED, UNDATED
from bertsmith.mirror.fields import Field, FieldHead, Values, canonical_json
from bertsmith.mirror.identity import hash_fraction
from bertsmith.mirror.learning.learned_calls import (
    LearnedCall,
    exclude_shared_periods,
    sample_like_traffic,
)
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.teacher_change import KINDS
from bertsmith.mirror.learning.tiers import StudentCandidate
from bertsmith.mirror.learning.understand import LearningRecords, SiteProfile
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.student_file import MODEL, SPANS, StudentFile, read_student_file
from bertsmith.reporting.formatting import counted

_FEWEST_ON_DEV = 20  # calls, by which a proof can be planned


@dataclass(frozen=True)
class EarlierStudent:
    """A student's `candidate` and `file`, and the calls that its proof is planned by (`dev`) and made with
    (`calibration`), of which it has learned from none. `delta` is left for it. `note` says what it is.
    `is_unchanged`: it says what it said before.
    """

    candidate: StudentCandidate
    file: StudentFile
    dev: list[LearnedCall]
    calibration: list[LearnedCall]
    delta: float
    note: str
    is_unchanged: bool


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
    fresh = [call for call in calls if call.source not in (LABELLED, UNDATED) and call.id not in learned]
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
    return EarlierStudent(_open_candidate(student, file), file, dev, fresh, left, note, True)


def adapt_student(
    records: LearningRecords,
    profile: SiteProfile,
    calls: Sequence[LearnedCall],
    former: Sequence[LearnedCall],
    since: float | None,
    settings: LearnSettings,
) -> EarlierStudent | None:
    """Adapts the student that answered before the LLM changed, by the inputs that were asked again. `calls`
    are those of the present LLM, `former` those before; `since`: when the mirror told a change without a
    name. None where no student answered, nothing was asked again, or the answers aren't all one of several.
    """
    stages, shape, replays = StageStore(records.store), profile.shape, ReplayStore(records.store)
    versions = [version.version for version in profile.versions]
    recorded = replays.recorded(versions)
    answers = [answer for version in versions for answer in replays.repeated_answers(version, since or 0.0)]
    if not recorded or not answers:
        return None
    number = stages.stages()[answers[0].recorded.version].student
    changes = [change for change in stages.changes() if change.version in versions and change.student]
    if changes:  # of the student that was dismissed with a change without a name, and of none since
        latest = max(changes, key=lambda change: change.changed)
        number = latest.student if since is not None and latest.changed <= since else ""
    student = stages.students().get(number)
    file = None if student is None else _read_file(student)
    if student is None or file is None or file.shape != shape or file.claims.by is not None:
        return None
    kinds = {field.path: field.kind for field in shape.fields}
    if {head.path for head in file.heads} != kinds.keys() or not {*kinds.values()} <= {*KINDS}:
        return None
    learned = {call for call, use in records.read_uses(file.training).items() if use != "calibration"}
    pairs = [(shape.read(a.recorded.completion.value), shape.read(a.first.completion.value)) for a in answers]
    heads = tuple(_adapt_head(head, shape.field(head.path), pairs) for head in file.heads)
    outputs = [
        (shape.field(head.path), before, now)
        for head, adapted in zip(file.heads, heads, strict=True)
        for before, now in zip(head.classes, adapted.classes, strict=True)
    ]
    says = {
        (field.path, canonical_json(field.classes[one])): field.classes[now] for field, one, now in outputs
    }
    asked = {*recorded.values(), *(answer.recorded.id for answer in answers)}
    dev = [
        replace(call, values={p: says.get((p, canonical_json(v)), v) for p, v in call.values.items()})
        for call in sample_like_traffic(former, settings.seed)
        if is_reserved(call.id) and call.id not in learned | asked
    ]
    traffic = [call for call in calls if call.source not in (LABELLED, UNDATED)]
    fresh = [call for call in traffic if recorded.get(call.id) not in learned]
    fresh = sample_like_traffic(fresh, settings.seed)
    # Those before don't show what the answers chosen above have missed: a part of the new ones does.
    planning = [call for call in fresh if hash_fraction(call.id, settings.seed + 5) < settings.dev_share]
    if not learned or len(dev) < _FEWEST_ON_DEV:
        return None
    planned = {call.id for call in planning}
    replaced = sum(before != now for _, before, now in outputs)
    unsure = sum(len(head.unsure) for head in heads)
    left = f", and leaves {counted(unsure, 'value')} to the LLM" if unsure else ""
    file = file.model_copy(update={"heads": heads})
    return EarlierStudent(
        _open_candidate(student, file),
        file,
        [*dev, *planning],
        [call for call in fresh if call.id not in planned],
        settings.delta,
        "It is the student before the change, which learned nothing new: by what the LLM said when asked "
        f"again, it gives another value in place of {replaced:,}{left}.",
        is_unchanged=False,
    )


def _read_file(student: StudentRecord) -> StudentFile | None:
    """None where the student is gone, or was trained before trainings had names."""
    try:
        file = read_student_file(Path(student.folder))
    except BertsmithError:
        return None
    return file if file.training else None


def _open_candidate(student: StudentRecord, file: StudentFile) -> StudentCandidate:
    """The student with the heads of `file`."""
    folder = Path(student.folder)
    opened = MirrorStudent.open(folder)
    opened.file = file

    def save(out: Path) -> None:
        for part in (MODEL, SPANS):
            if (folder / part).is_dir():
                shutil.copytree(folder / part, out / part)

    return StudentCandidate(file.tier, file.heads, opened.predict_fields, save, file.span_tags)


def _adapt_head(head: FieldHead, field: Field, pairs: Sequence[tuple[Values, Values]]) -> FieldHead:
    """The head with the class that the LLM gives now for each of its outputs, by the (former, new) answers to
    the same inputs: the former one where half of the new ones are it, else one that is most of them and came
    twice. Of an output without either nobody knows.
    """
    numbers = {canonical_json(value): number for number, value in enumerate(field.classes)}
    new: dict[int, Counter[int]] = {}
    for former, answer in pairs:
        one, other = (numbers.get(canonical_json(values[field.path]), -1) for values in (former, answer))
        new.setdefault(one, Counter())[other] += 1
    classes, unsure = list[int](), list[int]()
    for output, number in enumerate(head.classes):
        counts = new.get(number, Counter())
        (likely, count), *_ = counts.most_common(1) or [(number, 0)]
        is_kept = 2 * counts[number] >= counts.total()
        is_replaced = not is_kept and likely >= 0 and count > 1 and 2 * count > counts.total()
        classes.append(likely if is_replaced else number)
        if not is_kept and not is_replaced:
            unsure.append(output)
    return head.model_copy(update={"classes": tuple(classes), "unsure": tuple(unsure)})
