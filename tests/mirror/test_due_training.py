"""When a student is trained by itself: the calls of merged versions count together."""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from running_mirror import IN_STEP, running_mirror, wait_until
from scripted_upstream import Upstream
from sqlalchemy import update
from test_call_store import call_of

from bertsmith.mirror.answering.open_students import OpenStudents, VersionStudents
from bertsmith.mirror.answering.reconciler import find_due_forecasts, find_due_trainings
from bertsmith.mirror.answering.replays import ReplayStore
from bertsmith.mirror.answering.stage_store import StageStore, save_forecast
from bertsmith.mirror.answering.stages import (
    LLM_CHANGED,
    EvidenceBatch,
    Stage,
    StudentComparison,
    StudentRecord,
    begin_anew,
    dismiss_student,
    set_mode,
)
from bertsmith.mirror.call import AGAIN, Call, ChatMessage
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.store import Store
from bertsmith.mirror.tables import MERGED, TRAININGS


@pytest.fixture
def stages(address: str) -> Iterator[StageStore]:
    store = Store(address)
    yield StageStore(store)
    store.close()


def calls_of(prompt: str, count: int, first: float) -> list[Call]:
    messages = (ChatMessage("system", (prompt,)), ChatMessage("user", ("a text", "more")))
    call = call_of(1, messages=messages)
    return [replace(call, id=f"{prompt}-{first + n}", began=first + n) for n in range(count)]


def recorded(stages: StageStore, prompt: str, count: int, first: float = 1.0) -> Call:
    calls = calls_of(prompt, count, first)
    assert stages.store.add(calls) == count
    return calls[0]


def due(stages: StageStore, students: OpenStudents | None = None) -> list[tuple[str, int]]:
    found = find_due_trainings(stages, students or OpenStudents(), 20)
    return sorted((stage.version, calls) for stage, calls in found)


def test_a_forecast_is_due_before_the_first_training_and_with_twice_the_calls(stages: StageStore) -> None:
    def forecast() -> list[tuple[str, int]]:
        return [(stage.version, calls) for stage, calls in find_due_forecasts(stages, 10)]

    one = recorded(stages, "One.", 9)
    assert forecast() == []
    recorded(stages, "One.", 3, 50.0)
    assert forecast() == [(one.version, 12)] and list(find_due_forecasts(stages, 0)) == []
    save_forecast(stages.store, one.version, 12, {"text": "", "why_not": "too few"})
    recorded(stages, "One.", 11, 100.0)
    assert forecast() == []
    recorded(stages, "One.", 1, 200.0)
    assert forecast() == [(one.version, 24)]
    assert stages.begin_training(one.version, 24, "here", 60)
    assert forecast() == []
    two = recorded(stages, "Two.", 20)
    (stage,) = (own for own in stages.stages().values() if own.version == two.version)
    assert forecast() == [(two.version, 20)]
    assert stages.change(stage, replace(stage, candidate="student"), "hand", "")
    assert forecast() == []


def test_merged_versions_train_when_they_have_enough_together(stages: StageStore) -> None:
    one, two = recorded(stages, "One.", 12), recorded(stages, "Two.", 11, 50.0)
    three = recorded(stages, "Three.", 20)
    assert due(stages) == [(three.version, 20)]
    LearningRecords(stages.store).merge(one.site, [two.version, one.version])
    ((version, calls), other) = sorted(due(stages), key=lambda each: -each[1])
    assert version in (one.version, two.version) and calls == 23 and other == (three.version, 20)
    assert stages.begin_training(two.version, 23, "here", 60)
    assert due(stages) == [(three.version, 20)]
    stages.end_training(two.version, "here", "ended with the mirror", is_undone=True)
    assert (two.version, 23) in due(stages)  # whose training goes on


def test_calls_that_were_asked_again_are_no_traffic_to_train_on(stages: StageStore) -> None:
    one = recorded(stages, "One.", 12)
    stages.store.add([replace(each, source=AGAIN) for each in calls_of("One.", 30, 100.0)])
    assert due(stages) == []
    assert (stages.call_counts(1), stages.calls_since(one.version, 6.0)) == ({one.version: 12}, 6)


def test_a_store_of_which_nothing_was_learned_has_no_merged_versions(stages: StageStore) -> None:
    MERGED.drop(stages.engine)
    one = recorded(stages, "One.", 20)
    assert due(stages) == [(one.version, 20)]


def served(stages: StageStore) -> tuple[Call, Call, Stage, OpenStudents]:
    """A student of one version, trained on 24 calls of it and of another, that answers both."""
    one, two = recorded(stages, "One.", 20), recorded(stages, "Two.", 4)
    LearningRecords(stages.store).merge(one.site, [one.version, two.version])
    assert stages.begin_training(one.version, 24, "here", 60)
    stages.end_training(one.version, "here", "student x")
    stage = stages.stages()[one.version]
    stages.add_student(StudentRecord("x", one.version, "folder", 0.05, 0.05))
    assert stages.change(stage, set_mode(replace(stage, student="x"), "live", 1.0), "hand", "a test")
    stage = stages.stages()[one.version]
    opened = VersionStudents(stage)
    return one, two, stage, OpenStudents({one.version: opened, two.version: opened})


def test_a_student_is_trained_again_by_the_calls_of_a_merged_version_alone(stages: StageStore) -> None:
    one, two, _, students = served(stages)
    later = time.time() + 1
    recorded(stages, "Two.", 11, later)
    assert due(stages, students) == []  # half as many again are 12
    recorded(stages, "Two.", 1, later + 100)
    assert due(stages, students) == [(one.version, 36)]
    assert two.version != one.version


def test_a_changed_prompt_of_a_learned_site_is_learned_by_half_as_many_calls(stages: StageStore) -> None:
    served(stages)
    recorded(stages, "Three.", 9, time.time() - 90)
    assert due(stages) == []
    three = recorded(stages, "Three.", 1, time.time() - 50)
    assert due(stages) == [(three.version, 10)]
    assert stages.begin_training(three.version, 10, "here", 60)
    stages.end_training(three.version, "here", "nothing proven")
    recorded(stages, "Three.", 9, time.time() + 1)
    assert due(stages) == []  # the next as ever
    recorded(stages, "Three.", 1, time.time() + 50)
    assert due(stages) == [(three.version, 20)]


def test_drift_and_a_dismissal_count_merged_calls_too(stages: StageStore) -> None:
    one, _, stage, students = served(stages)
    recorded(stages, "Two.", 10, time.time() + 1)  # half of what the first one takes
    assert due(stages, students) == []
    evidence = stages.fold(
        StudentRecord("x", one.version, "folder", 0.05, 0.05),
        EvidenceBatch([StudentComparison(False, 1.0, 1.0)], [n / 200 for n in range(200)] + [0.001] * 400),
    )
    assert evidence.has_drifted
    assert due(stages, students) == [(one.version, 34)]
    assert stages.change(stage, dismiss_student(stage), "evidence", "a test")
    assert due(stages) == [(one.version, 34)]


def test_once_the_llm_has_changed_only_the_calls_since_count(stages: StageStore) -> None:
    one, _, stage, _ = served(stages)
    with stages.engine.begin() as connection:
        connection.execute(update(TRAININGS).values(began=time.time() - 100))
    recorded(stages, "Two.", 11, time.time() - 50)
    assert stages.change(stage, begin_anew(stage), "evidence", f"{LLM_CHANGED}: of 60 inputs 8 differ")
    assert due(stages) == []
    recorded(stages, "Two.", 9, time.time() + 1)
    assert due(stages) == []
    recorded(stages, "One.", 1, time.time() + 60)
    assert due(stages) == [(one.version, 45)]


def test_after_a_change_the_calls_before_it_make_no_training_wait(stages: StageStore) -> None:
    _, _, stage, _ = served(stages)
    assert stages.change(stage, begin_anew(stage), "evidence", f"{LLM_CHANGED}: of 60 inputs 8 differ")
    recorded(stages, "Two.", 24, time.time() + 1)
    with stages.engine.begin() as connection:  # a training since then has learned from the former calls too
        connection.execute(update(TRAININGS).values(began=time.time() + 50, calls=2000))
    recorded(stages, "Two.", 11, time.time() + 60)
    assert due(stages) == []  # it takes half as many as there were since the change
    recorded(stages, "Two.", 1, time.time() + 90)
    assert due(stages) != []


def test_a_changed_version_waits_for_recorded_inputs_that_are_asked_again(stages: StageStore) -> None:
    one, _, stage, _ = served(stages)
    with stages.engine.begin() as connection:
        connection.execute(update(TRAININGS).values(began=time.time() - 100))
    replays, (former, *_) = ReplayStore(stages.store), stages.store.latest(one.version, 1)
    assert stages.change(stage, begin_anew(stage), "evidence", f"{LLM_CHANGED}: of 60 inputs 8 differ")
    recorded(stages, "Two.", 12, time.time() + 1)
    assert due(stages) != []
    assert replays.plan(former.version, [former]) == 1
    assert due(stages) == []
    recorded(stages, "Two.", 28, time.time() + 100)  # twice what the first training takes, in all
    assert due(stages) != []


def test_a_version_that_is_answered_by_a_student_of_another_and_not_merged_is_left(
    stages: StageStore,
) -> None:
    one, two = recorded(stages, "One.", 3), recorded(stages, "Two.", 30)
    opened = VersionStudents(Stage(one.version, one.site, student="x"))
    assert due(stages, OpenStudents({one.version: opened, two.version: opened})) == []


def test_calls_of_a_merged_version_whose_fellows_are_deleted_are_trained_on(stages: StageStore) -> None:
    one, two, _, students = served(stages)
    recorded(stages, "Two.", 20, time.time() + 1)
    stages.store.expire(1000.0)
    assert one.version not in stages.call_counts(1)
    # For the stage of the student that answers them: another one would begin with the LLM answering.
    assert due(stages, students) == [(one.version, 20)]
    (left,) = LearningRecords(stages.store).group(one.site, one.version)
    assert (left.version, left.calls) == (two.version, 20)


def test_a_mirror_begins_the_training_of_merged_versions(upstream: Upstream, tmp_path: Path) -> None:
    given = {"auto": True, "train_after": 5, "students": str(tmp_path / "students")}
    with running_mirror(tmp_path, upstream.url, IN_STEP, **given) as mirror:
        stages, trainer = mirror.stages, mirror.app.reconciler.trainer
        trainer.command = lambda stage, out, settings: [sys.executable, "-c", "raise SystemExit(3)"]
        one, two = recorded(stages, "One.", 3), recorded(stages, "Two.", 3)
        mirror.app.reconciler.follow()
        assert stages.trainings() == {} and not trainer.is_busy
        LearningRecords(mirror.store).merge(one.site, [one.version, two.version])
        mirror.app.reconciler.follow()
        ((version, row),) = stages.trainings().items()
        assert version in (one.version, two.version) and row.calls == 6
        wait_until(lambda: mirror.app.reconciler.follow() or not trainer.is_busy)  # type: ignore[func-returns-value]
        assert len(stages.trainings()) == 1
