"""Which versions a student is to be trained for. Those that were merged (`bertsmith mirror merge`) count as
one: one student is trained on the calls of all of them, and answers all.
"""

import time
from collections.abc import Iterator

from bertsmith.mirror.answering.judging import wants_training
from bertsmith.mirror.answering.open_students import OpenStudents
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import Stage


def due_trainings(
    store: StageStore, open_students: OpenStudents, train_after: int
) -> Iterator[tuple[Stage, int]]:
    """The stages that a training is to be begun for, each with how many calls there are."""
    counts, into = store.call_counts(train_after), store.merged()
    groups: dict[str, list[str]] = {}
    for version in counts:
        groups.setdefault(into.get(version, version), []).append(version)
    enough = {
        target: some for target, some in groups.items() if sum(counts[each] for each in some) >= train_after
    }
    if not enough:
        return
    stages, trainings, evidence = store.stages(), store.trainings(), store.evidence()
    for target, some in enough.items():
        group = {target, *some, *(version for version, of in into.items() if of == target)}
        known = [stages[each] for each in group if each in stages]
        begun = [trainings[each] for each in group if each in trainings]
        if any(each.until > time.time() for each in begun):
            continue
        last = max(begun, key=lambda each: each.began, default=None)
        began = 0.0 if last is None else last.began
        new = {each: counts[each] if last is None else store.calls_since(each, began) for each in some}
        # Of the version that all are answered by, the calls may be deleted. Another's student may answer them
        # that was trained on both, though nobody merged them here.
        answering = {open_students.stage_version(each) for each in some} & group
        stage = _trained([stages[each] for each in answering if each in stages], trainings, new)
        if stage is None:
            continue
        is_answered = any(each.student for each in known)
        was_dismissed = last is not None and not is_answered and any(each.changed > began for each in known)
        students = [evidence[each.student] for each in known if each.student in evidence]
        is_urgent = was_dismissed or any(each.has_drifted for each in students)
        before = 0 if last is None else last.calls
        if wants_training(sum(new.values()), before, train_after, is_urgent=is_urgent):
            yield stage, sum(counts[version] for version in some)


def _trained(stages: list[Stage], trainings: dict[str, object], new: dict[str, int]) -> Stage | None:
    """Which of them the student is to be of: the one that has a student already, or a training that may be
    gone on with; of several, the one with the most new calls.
    """
    return max(
        stages,
        key=lambda each: (
            bool(each.student),
            bool(each.candidate),
            each.version in trainings,
            new.get(each.version, 0),
            each.version,
        ),
        default=None,
    )
