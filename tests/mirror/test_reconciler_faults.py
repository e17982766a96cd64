"""What goes wrong with one student, or one step, is nobody else's matter, and is tried again."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_student import make_student, put_in_mode, stage_of
from running_mirror import RunningMirror, running_mirror, wait_until
from scripted_upstream import Reply, Upstream
from sqlalchemy import update
from test_call_store import call_of
from test_stages import USUAL, WORDS, ask

from bertsmith.mirror.answering.audits import AuditRunner
from bertsmith.mirror.answering.ledger import Ledger, compare_stored_call
from bertsmith.mirror.answering.open_students import OpenStudents, StudentThread, VersionStudents
from bertsmith.mirror.answering.reconciler import Pace
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import VOID, Stage, StudentRecord, set_mode
from bertsmith.mirror.answering.training_process import read_student
from bertsmith.mirror.call import CallOutcome, CallRouting, CompletionRequest
from bertsmith.mirror.store import Store
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.tables import AUDITS


@pytest.fixture
def mirror(upstream: Upstream, tmp_path: Path) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, upstream.url, audit_share=1.0, seed=1) as found:
        yield found


def test_a_folder_that_holds_another_student_by_now_is_not_opened(
    mirror: RunningMirror, tmp_path: Path
) -> None:
    ask(mirror, "my card")
    call = mirror.calls()[-1]
    folder = make_student(tmp_path / "made", call, WORDS, USUAL)
    other = make_student(tmp_path / "other", call, WORDS, USUAL, created="later")
    student = read_student(folder, call.version)
    assert student is not None
    mirror.stages.add_student(replace(student, folder=str(other)))
    stage = mirror.stages.stages()[call.version]
    live = set_mode(replace(stage, student=student.id), "live", 0.5)
    assert mirror.stages.change(stage, live, "hand", "a test")
    wait_until(lambda: mirror.app.reconciler.open_students.answers)
    assert ask(mirror, "a card").endswith(f"student={student.id}; reason=student-failed")


class Broken:
    """A student whose comparing fails for one text."""

    def __init__(self, student: Any) -> None:
        self.student, self.file = student, student.file

    def input_of(self, asked: CompletionRequest, version: str) -> str | None:
        found: str | None = self.student.input_of(asked, version)
        return found

    def answer(self, texts: Sequence[str]) -> Any:
        if any("broken" in each for each in texts):
            raise ValueError("a text of a call")
        return self.student.answer(texts)


def comparing(tmp_path: Path, *texts: str, mode: str = "shadow") -> tuple[OpenStudents, list[CallOutcome]]:
    """Open students with that one, and what the LLM said of texts."""
    call = call_of(1)
    schema = {"type": "object", "properties": {"intent": {"enum": ["card", "other"]}}}
    call = replace(call, request=replace(call.request, schema=schema))
    folder = make_student(tmp_path / "made", call, {"card": {"intent": "card"}}, {})
    student = StudentThread("x", lambda: Broken(MirrorStudent.open(folder)))
    stage = Stage(call.version, call.site, mode, 1.0, "x")
    outcomes = []
    for text in texts:
        messages = [
            each if each.role == "system" else replace(each, parts=(text, "more"))
            for each in call.request.messages
        ]
        asked = replace(call.request, messages=tuple(messages))
        outcomes.append(CallOutcome(call.version, asked, None, {"intent": "card"}))
    return OpenStudents({call.version: VersionStudents(stage, student)}), outcomes


def test_an_answer_that_raises_loses_no_others(tmp_path: Path) -> None:
    open_students, outcomes = comparing(tmp_path, "card", "broken", "card")
    ledger = Ledger()
    for each in outcomes:
        ledger.outcome(each)
    folded = ledger.fold(open_students)
    (version,) = open_students.by_version
    assert [each.differs for each in folded.batches["x"].comparisons] == [False, False]
    assert folded.tallies == {
        (version, "x", "shadow-agrees"): (2, 0.0),
        (version, "x", "shadow-failed"): (1, 0.0),
    }
    open_students.by_version[version].student.close()  # type: ignore[union-attr]


def test_audits_that_say_nothing_of_the_student_are_void(tmp_path: Path) -> None:
    """Of a student that was replaced, of an LLM that was away, of a version that nobody answers any more."""
    open_students, (one,) = comparing(tmp_path, "card", mode="live")
    sure = CallRouting(one.version, "x", values={}, is_sure=True, probability=0.05, least=0.05, audit="a")
    ledger = Ledger()
    ledger.outcome(replace(one, routing=replace(sure, student="former")))
    ledger.outcome(replace(one, routing=sure, reason=VOID))
    ledger.outcome(replace(one, version="gone", routing=replace(sure, version="gone", student="y")))
    folded = ledger.fold(open_students)
    outcomes = {name: [each.outcome for each in batch.comparisons] for name, batch in folded.batches.items()}
    assert outcomes == {"former": [VOID], "x": [VOID], "y": [VOID]}
    store = Store(str(tmp_path / "calls.sqlite"))
    stages, student = StageStore(store), StudentRecord("x", "v", "folder", 0.05, 0.05)
    stages.draw("a", "v", "x", 0.05, 0.05)
    assert stages.fold(student, folded.batches["x"]).audits.count == 0
    assert stages.audit_outcomes() == {("x", VOID): 1}
    store.close()
    for each in open_students.by_version.values():
        each.student.close()  # type: ignore[union-attr]


def test_audits_of_an_llm_that_is_away_are_void_when_the_mirror_stops(
    upstream: Upstream, tmp_path: Path
) -> None:
    with running_mirror(tmp_path, upstream.url, audit_share=1.0, seed=1, drain_seconds=1) as mirror:
        ask(mirror, "my card")
        call = mirror.calls()[-1]
        folder = make_student(tmp_path / "made", call, WORDS, USUAL)
        student = put_in_mode(mirror.stages, folder, call, "live", 1.0)
        wait_until(lambda: mirror.app.reconciler.open_students.answers)
        upstream.script = lambda _: Reply([b"{}"], 503)
        assert ask(mirror, "a card").startswith("answered")
        wait_until(lambda: mirror.stages.audit_outcomes() == {(student.id, "open"): 1})
    store = Store(str(mirror.path))
    assert StageStore(store).audit_outcomes() == {(student.id, VOID): 1}
    store.close()


def test_an_audit_that_is_being_written_when_the_mirror_stops_is_written_before_it_is_void() -> None:
    """Else its row stays open, and counts as a disagreement later."""
    happened = list[str]()

    class Slow:
        def draw(self, *_: Any) -> None:
            time.sleep(0.3)
            happened.append("drawn")

    class Told:
        def outcome(self, outcome: CallOutcome) -> None:
            happened.append(outcome.reason)

    async def stop() -> None:
        parts: list[Any] = [Slow(), None, None, Told(), None]
        audits = AuditRunner(*parts)
        given: Any = SimpleNamespace(routing=CallRouting("v", "x", audit="drawn"), content=b"")
        audits.begin(given, given.routing)
        await asyncio.sleep(0.1)
        await audits.close(0)

    asyncio.run(stop())
    assert happened == ["drawn", VOID]


def test_an_audit_that_is_drawn_twice_is_one(tmp_path: Path) -> None:
    """Where a database went away as it committed, and the mirror tries again."""
    store = Store(str(tmp_path / "calls.sqlite"))
    stages = StageStore(store)
    for _ in range(2):
        stages.draw("a", "v", "x", 0.05, 0.05)
    assert stages.audit_outcomes() == {("x", "open"): 1}
    store.close()


def test_one_fault_does_not_keep_a_demotion_from_the_panel(
    mirror: RunningMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(mirror, "my card")
    call = mirror.calls()[-1]
    put_in_mode(mirror.stages, make_student(tmp_path / "made", call, WORDS, USUAL), call, "live", 1.0)
    wait_until(lambda: mirror.app.reconciler.open_students.answers)

    def broken(*_: object) -> None:
        raise RuntimeError("a text of a call")

    monkeypatch.setattr(mirror.app.reconciler.trainer, "poll", broken)
    monkeypatch.setattr("bertsmith.mirror.answering.reconciler.judge_stage", broken)
    stage = stage_of(mirror.stages, call.version)
    assert mirror.stages.change(stage, replace(stage, mode="record", share=0.0), "hand", "a test")
    wait_until(lambda: not mirror.app.reconciler.open_students.answers, 10)
    wait_until(lambda: mirror.app.reconciler._problems.get("train") == "RuntimeError", 10)


def test_a_student_that_could_not_be_opened_is_tried_again(upstream: Upstream, tmp_path: Path) -> None:
    pace = Pace(0.02, 0.05, 0.1, 0.1)
    with running_mirror(tmp_path, upstream.url, pace, audit_share=1e-9) as mirror:
        ask(mirror, "my card")
        call = mirror.calls()[-1]
        opening, reconciler = mirror.app.reconciler.opening, mirror.app.reconciler
        tries: list[Path] = []

        def once_broken(folder: Path) -> Any:
            tries.append(folder)
            if len(tries) == 1:
                raise MemoryError
            return opening(folder)

        reconciler.opening = once_broken
        put_in_mode(mirror.stages, make_student(tmp_path / "made", call, WORDS, USUAL), call, "live", 1.0)
        wait_until(
            lambda: (
                reconciler.open_students.by_version
                and reconciler.open_students.by_version[call.version].student is not None
            )
        )
        assert len(tries) == 2
        assert ask(mirror, "a card").startswith("answered")


def left_open(mirror: RunningMirror, tmp_path: Path, *texts: str) -> StudentRecord:
    """Audits as a mirror leaves them that is killed between storing what the LLM said and comparing it."""
    ask(mirror, "my card")
    call = mirror.calls()[-1]
    folder = make_student(tmp_path / "made", call, WORDS, USUAL)
    student = put_in_mode(mirror.stages, folder, call, "live", 1.0)
    wait_until(lambda: mirror.app.reconciler.open_students.answers)
    mirror.app.recorder.on_outcome = None
    for text in texts:
        assert ask(mirror, text).startswith("answered")
    wait_until(lambda: len(mirror.calls()) == 1 + len(texts))
    assert mirror.stages.audit_outcomes() == {(student.id, "open"): len(texts)}
    return student


def test_a_mirror_that_starts_compares_audits_whose_answers_are_stored(
    upstream: Upstream, tmp_path: Path
) -> None:
    with running_mirror(tmp_path, upstream.url, audit_share=1.0) as mirror:
        student = left_open(mirror, tmp_path, "a card", "transfer!", "hello")
        mirror.stages.draw("lost", student.version, student.id, 1.0, 1.0)
    with running_mirror(tmp_path, upstream.url, audit_share=1.0) as mirror:
        expected = {(student.id, "agrees"): 2, (student.id, "differs"): 1, (student.id, "open"): 1}
        wait_until(lambda: mirror.stages.audit_outcomes() == expected, 10)
        audits = mirror.stages.evidence()[student.id].audits
        assert (audits.count, audits.rate()) == (3, pytest.approx(1 / 3))
        assert mirror.app.reconciler._compare_again(mirror.stages.unsettled(1e12)) == set()


def test_late_audits_whose_answers_are_stored_count_by_what_they_say(
    mirror: RunningMirror, tmp_path: Path
) -> None:
    """Of a replica that was killed; what was lost goes on counting as a disagreement."""
    student = left_open(mirror, tmp_path, "a card", "hello")
    mirror.stages.draw("lost", student.version, student.id, 1.0, 1.0)
    with mirror.store.engine.begin() as connection:
        connection.execute(update(AUDITS).values(drawn=1.0))
    expected = {(student.id, "agrees"): 2, (student.id, "failed"): 1}
    wait_until(lambda: mirror.stages.audit_outcomes() == expected, 10)


def test_stored_answers_to_a_student_that_was_replaced_or_cannot_compare(
    mirror: RunningMirror, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    student = left_open(mirror, tmp_path, "a card")
    (audit,), reconciler = mirror.stages.unsettled(1e12), mirror.app.reconciler
    (call,) = mirror.store.calls_named([audit.id]).values()
    opened = reconciler.open_students.by_version[student.version].student
    assert opened is not None
    again = compare_stored_call(audit, call, opened)
    assert (again.differs, again.probability, again.least, again.outcome) == (False, 1.0, 1.0, "agrees")
    strange = compare_stored_call(audit, replace(call, version="another"), opened)
    assert (strange.differs, strange.audit, strange.outcome) == (True, audit.id, "failed")
    assert "an answer could not be compared: ValueError" in caplog.messages
    stage = stage_of(mirror.stages, student.version)
    assert mirror.stages.change(stage, replace(stage, student="new", former=student.id), "hand", "a test")
    wait_until(lambda: student.id not in reconciler._open)
    assert reconciler._compare_again([audit]) == {audit.id}
    assert mirror.stages.audit_outcomes() == {(student.id, VOID): 1}
    assert mirror.stages.evidence()[student.id].audits.count == 0
    assert mirror.stages.tallies()[student.version, "", "void-student-replaced"] == (1, 0.0)
