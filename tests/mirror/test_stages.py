"""From recording to answering, and back: by evidence, by hand, by one replica of two."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_student import DELTA, EPSILON, make_student, put_in_mode, stage_of
from running_mirror import RunningMirror, running_mirror, wait_until
from scripted_upstream import Reply, Seen, Upstream
from sqlalchemy import text as sql
from sqlalchemy import update
from test_call_store import call_of
from test_mirrored_clients import JSON_SCHEMA, messages

from bertsmith.errors import InputError
from bertsmith.mirror.answering.judging import (
    PromotionRules,
    approve_candidate,
    check_guarantees,
    describe_candidate,
    judge_stage,
)
from bertsmith.mirror.answering.open_students import VersionStudents, add_merged_versions
from bertsmith.mirror.answering.shadow_proof import ComparedCall, ShadowProof
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import (
    EvidenceBatch,
    Stage,
    StudentComparison,
    StudentRecord,
    demote_stage,
    dismiss_student,
    empty_evidence,
    promote_stage,
    roll_back_stage,
    set_mode,
)
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import ProofPlan
from bertsmith.mirror.tables import AUDITS, META

WORDS = {"card": {"intent": "card"}, "transfer": {"intent": "transfer"}, "hello": {"intent": "other"}}
USUAL = {"urgent": False}
AGREES, DIFFERS = StudentComparison(False, 1.0, 1.0), StudentComparison(True, 1.0, 1.0)
RULES = PromotionRules(is_automatic=True, canary_share=0.2, shadow_calls=10, canary_calls=10)


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    found = Store(address)
    yield found
    found.close()


def test_modes_go_up_and_down_one_by_one() -> None:
    stage = Stage("v", "s", student="x")
    for mode, share in (("shadow", 0.0), ("canary", 0.2), ("live", 1.0)):
        stage = promote_stage(stage, 0.2)
        assert (stage.mode, stage.share) == (mode, share)
    with pytest.raises(InputError, match="is live, the highest mode"):
        promote_stage(stage, 0.2)
    for mode in ("canary", "shadow", "record"):
        stage = demote_stage(stage, 0.2)
        assert stage.mode == mode
    with pytest.raises(InputError, match="is in mode record and can't be demoted"):
        demote_stage(stage, 0.2)
    with pytest.raises(InputError, match="has no student that could answer"):
        promote_stage(Stage("v", "s"), 0.2)
    assert roll_back_stage(Stage("v", "s", "live", 1.0, "new", "old")).student == "old"
    with pytest.raises(InputError, match="no former student"):
        roll_back_stage(stage)


def test_the_llm_is_asked_with_the_probability_that_is_said() -> None:
    assert Stage("v", "s", "shadow").sent_to_llm(0.05) == 1
    assert Stage("v", "s", "canary", 0.2).sent_to_llm(0.05) == pytest.approx(0.81)
    assert Stage("v", "s", "live", 1.0).sent_to_llm(0.05) == 0.05


def test_of_two_that_change_a_stage_one_does(store: Store) -> None:
    store.add([call_of(1)])
    stages = StageStore(store)
    (before,) = stages.stages().values()
    for round_ in range(5):
        after, done = replace(before, student=f"x{round_}"), list[bool]()

        def change(before: Stage = before, after: Stage = after, done: list[bool] = done) -> None:
            done.append(StageStore(store).change(before, after, "evidence", "why"))

        threads = [threading.Thread(target=change) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(done) == [False, False, False, True]
        (before,) = stages.stages().values()
        assert before.revision == round_ + 1
    assert [each.revision for each in stages.changes()] == [1, 2, 3, 4, 5]


def test_two_that_add_evidence_lose_none(store: Store) -> None:
    stages = StageStore(store)
    student = StudentRecord("x", "v", "folder", EPSILON, DELTA)
    stages.add_student(student)
    stages.draw("one", "v", "x", 0.05, 0.05)
    audit = StudentComparison(True, 0.05, 0.05, "one", "differs")

    def add() -> None:
        for number in range(20):
            StageStore(store).fold(student, EvidenceBatch([AGREES], [number / 20]))
            StageStore(store).tally({("v", "x", "answered"): (1, 0.5)})
        StageStore(store).fold(student, EvidenceBatch([audit]))  # in both, and counted once

    threads = [threading.Thread(target=add) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    evidence = stages.evidence()["x"]
    assert evidence.audits.count == 61
    assert evidence.in_stage == 61
    assert stages.tallies() == {("v", "x", "answered"): (60, 30.0)}
    assert stages.audit_outcomes() == {("x", "differs"): 1}
    assert stages.unsettled(1e12) == []


def test_one_trains_a_version_at_a_time(store: Store) -> None:
    stages = StageStore(store)
    assert stages.begin_training("v", 100, "one", 60)
    assert not stages.begin_training("v", 100, "two", 60)
    stages.keep_training("v", "two", 60)
    stages.end_training("v", "two", "no")
    assert not stages.begin_training("v", 200, "two", 60)
    stages.end_training("v", "one", "done")
    assert stages.begin_training("v", 200, "two", -1)
    assert stages.begin_training("v", 300, "three", 60)  # whose owner is gone
    assert stages.trainings()["v"].owner == "three"


def evidence_of(stages: StageStore, comparisons: list[StudentComparison], number: str = "x") -> Any:
    student = StudentRecord(number, "v", "folder", EPSILON, DELTA)
    stages.fold(student, EvidenceBatch(comparisons))
    return stages.evidence()


def test_a_student_that_inputs_asked_again_proved_needs_no_shadow(store: Store) -> None:
    stages, recorded, fewest = StageStore(store), Stage("v", "s", candidate="x"), RULES.shadow_calls
    for replayed, mode in ((0, "shadow"), (fewest - 1, "shadow"), (fewest, "canary")):
        after, why = judge_stage(recorded, {}, RULES, replayed) or (recorded, "")
        assert (after.mode, after.student, after.candidate) == (mode, "x", "")
        assert after.share == (RULES.canary_share if mode == "canary" else 0)
        assert (f"among them {replayed} recorded inputs" in why) == (mode == "canary")
    for rules in (replace(RULES, is_automatic=False), replace(RULES, shadow_calls=0)):
        after, _ = judge_stage(recorded, {}, rules, 0) or (recorded, "")
        assert after.mode == ("shadow" if rules.is_automatic else "record")
    plan = ProofPlan(
        epsilon=EPSILON, delta=DELTA, thresholds=(0.5,), starts=(1.0,), counts=((0, 0), (0, 0)),
        forecast=(1, 2, 3),
    )  # fmt: skip
    stages.add_student(StudentRecord("x", "v", "folder", EPSILON, DELTA, plan=plan))
    after, _ = judge_stage(recorded, stages.evidence(), RULES, fewest) or (recorded, "")
    assert after.mode == "shadow"


def test_evidence_promotes_and_demotes(store: Store) -> None:
    stages = StageStore(store)
    shadow = Stage("v", "s", "shadow", student="x", former="w")
    assert judge_stage(shadow, {}, RULES) is None
    some = evidence_of(stages, [DIFFERS] + [AGREES] * 10)
    assert judge_stage(shadow, some, RULES) is None  # 9.1 % of 11
    good = evidence_of(stages, [AGREES] * 9)
    canary, why = judge_stage(shadow, good, RULES) or (shadow, "")
    assert (canary.mode, canary.share) == ("canary", 0.2)
    assert why.startswith("5% of 20 compared answers differ (0.")
    assert judge_stage(shadow, good, replace(RULES, is_automatic=False)) is None
    assert judge_stage(shadow, good, replace(RULES, shadow_calls=21)) is None
    assert (judge_stage(canary, good, RULES) or (canary,))[0].mode == "live"
    assert judge_stage(canary, good, replace(RULES, canary_calls=21)) is None
    bad = evidence_of(stages, [DIFFERS] * 40)
    for mode in ("shadow", "canary", "live"):
        for rules in (RULES, replace(RULES, is_automatic=False)):
            after, _ = judge_stage(replace(shadow, mode=mode), bad, rules) or (shadow, "")
            assert (after.mode, after.student, after.former) == ("shadow", "w", "")
    assert dismiss_student(Stage("v", "s", "live", 1.0, "x")).mode == "record"


def test_what_a_hand_demotes_rises_by_a_hand_only(store: Store) -> None:
    store.add([call_of(1)])
    stages = StageStore(store)
    (stage,) = stages.stages().values()
    live = set_mode(replace(stage, student="x"), "live", 1.0)
    assert stages.change(stage, live, "evidence", "")
    for to in ("canary", "shadow", "record"):
        (before,) = stages.stages().values()
        assert stages.change(before, demote_stage(before, 0.2, to), "hand", "")
        (held,) = stages.stages().values()
        assert held.is_held
        known = evidence_of(stages, [AGREES] * 30)
        assert judge_stage(replace(held, candidate="y"), {**known, "y": known["x"]}, RULES) is None
    (held,) = stages.stages().values()
    assert stages.change(held, promote_stage(held, 0.2), "hand", "")
    (shadow,) = stages.stages().values()
    assert (shadow.mode, shadow.is_held) == ("shadow", False)
    after, _ = judge_stage(shadow, evidence_of(stages, [AGREES] * 30), RULES) or (shadow, "")
    assert after.mode == "canary"


def test_a_student_is_no_candidate_beside_itself(store: Store) -> None:
    """Each comparison would count twice in its evidence."""
    store.add([call_of(1)])
    stages = StageStore(store)
    (stage,) = stages.stages().values()
    both = set_mode(replace(stage, student="x", former="w", candidate="w"), "live", 1.0)
    for move, student in (
        (roll_back_stage, "w"),
        (dismiss_student, "w"),
        (lambda before: replace(before, candidate="x"), "x"),  # trained, and promoted by hand meanwhile
        (lambda before: promote_stage(replace(before, mode="record", student=""), 0.2), "w"),
    ):
        (before,) = stages.stages().values()
        assert stages.change(before, replace(both, revision=before.revision), "hand", "")
        (before,) = stages.stages().values()
        assert before.candidate == "w"
        assert stages.change(before, move(before), "evidence", "")
        (after,) = stages.stages().values()
        assert (after.student, after.candidate) == (student, "")


def test_a_change_of_the_stage_begins_a_new_count(store: Store) -> None:
    store.add([call_of(1)])
    stages = StageStore(store)
    (first,) = stages.stages().values()
    assert stages.change(first, replace(first, mode="shadow", student="x"), "hand", "")
    known = evidence_of(stages, [AGREES] * 30)
    (before,) = stages.stages().values()
    after, why = judge_stage(before, known, RULES) or (before, "")
    assert stages.change(before, after, "evidence", why)
    (canary,) = stages.stages().values()
    assert canary.mode == "canary"
    assert judge_stage(canary, stages.evidence(), RULES) is None
    assert (judge_stage(canary, evidence_of(stages, [AGREES] * 10), RULES) or (canary,))[0].mode == "live"


def test_a_student_that_served_before_is_compared_anew_as_a_candidate(store: Store) -> None:
    """Its earlier comparisons would let it take the place at once."""
    store.add([call_of(1)])
    stages = StageStore(store)
    (first,) = stages.stages().values()
    assert stages.change(first, set_mode(replace(first, student="x"), "live", 1.0), "hand", "")
    evidence_of(stages, [AGREES] * 30)  # of x
    for change in ({"student": "y", "former": "x"}, {"candidate": "x"}):
        (before,) = stages.stages().values()
        assert stages.change(before, replace(before, **change), "hand", "")
    (live,) = stages.stages().values()
    assert (live.student, live.candidate) == ("y", "x")
    assert stages.evidence()["x"].audits.count == 30
    assert judge_stage(live, stages.evidence(), RULES) is None
    known = evidence_of(stages, [AGREES] * 10)
    (before,) = stages.stages().values()
    assert stages.change(before, replace(before, is_held=False, share=0.9), "hand", "")  # nothing about x
    after, _ = judge_stage(live, stages.evidence(), RULES) or (live, "")
    assert (known["x"].in_stage, after.student, after.former) == (10, "x", "y")


def test_a_candidate_takes_its_turn_or_is_let_go(store: Store) -> None:
    stages = StageStore(store)
    live = Stage("v", "s", "live", 1.0, "x", candidate="y")
    assert judge_stage(live, {}, RULES) is None
    good = evidence_of(stages, [AGREES] * 10, "y")
    after, _ = judge_stage(live, good, RULES) or (live, "")
    assert (after.mode, after.student, after.former, after.candidate) == ("live", "y", "x", "")
    bad = evidence_of(stages, [DIFFERS] * 60, "y")
    after, _ = judge_stage(live, bad, RULES) or (live, "")
    assert (after.mode, after.student, after.candidate) == ("live", "x", "")
    begun, _ = judge_stage(Stage("v", "s", candidate="y"), {}, RULES) or (live, "")
    assert (begun.mode, begun.student, begun.candidate) == ("shadow", "y", "")


def test_a_candidate_that_would_answer_less_waits_until_it_answers_more(store: Store) -> None:
    store.add([call_of(1)])
    stages = StageStore(store)
    (before,) = stages.stages().values()
    assert stages.change(before, set_mode(replace(before, student="x"), "live", 1.0), "hand", "")

    def compare(number: str, sure: int, unsure: int) -> Any:
        """Audits of a half of the sure calls, and all of the others."""
        calls = [ComparedCall(0.9, False, 0.5, 0.5, is_sure=True)] * sure
        calls += [ComparedCall(0.1, False, 1.0, 0.5)] * unsure
        student = StudentRecord(number, "v", "folder", EPSILON, DELTA)
        stages.fold(student, EvidenceBatch([StudentComparison(False, 0.5, 0.5)] * sure, calls=calls))
        return stages.evidence()

    assert compare("x", 30, 0)["x"].coverage == 1.0
    (before,) = stages.stages().values()
    assert stages.change(before, replace(before, candidate="y"), "evidence", "")
    compare("x", 30, 40)  # 60 % of all calls; those before the candidate came don't count
    evidence = compare("y", 20, 80)
    assert (evidence["x"].coverage, evidence["y"].coverage) == (0.6, pytest.approx(1 / 3))
    (live,) = stages.stages().values()
    assert judge_stage(live, evidence, RULES) is None
    waits = "of the calls since candidate y came it may answer 33.3 %, student x 60 %: it waits, since it"
    assert describe_candidate(live, evidence).startswith(waits)
    after, _ = judge_stage(live, {"y": evidence["y"]}, RULES) or (live, "")
    assert after.student == "y", "of a student that can't be compared nothing is known"
    after, why = judge_stage(live, compare("y", 60, 0), RULES) or (live, "")
    assert (after.student, after.former) == ("y", "x") and "may answer 66.7 %, student x 60 %" in why
    # A student whose own answers differ too often is no measure.
    stages.fold(
        StudentRecord("x", "v", "folder", EPSILON, DELTA),
        EvidenceBatch([StudentComparison(True, 0.5, 0.5)] * 4),
    )
    evidence = compare("y", 0, 200)
    after, _ = judge_stage(live, evidence, RULES) or (live, "")
    assert evidence["y"].coverage < 0.6 and after.student == "y"


def test_in_shadow_a_student_that_may_answer_nothing_makes_room_for_one_that_came_proven() -> None:
    shadow = Stage("v", "s", "shadow", 0.0, "x", candidate="y")
    plan = ProofPlan(
        epsilon=EPSILON, delta=DELTA, thresholds=(0.9,), starts=(1.0,), counts=((9.0, 0.0),) * 2,
        forecast=(9, 20, None),
    )  # fmt: skip
    unproven = replace(empty_evidence(EPSILON, DELTA), proof=ShadowProof(plan, 1))
    came_proven = empty_evidence(EPSILON, DELTA)
    for evidence in ({"x": unproven}, {"x": unproven, "y": came_proven}):  # before and after its first call
        after, why = judge_stage(shadow, evidence, RULES) or (shadow, "")
        assert (after.mode, after.student, after.former, after.candidate) == ("shadow", "y", "x", "")
        assert why == "the candidate y: a student is trained and proven on calls kept aside"
    assert judge_stage(shadow, {"x": unproven}, replace(RULES, is_automatic=False)) is None
    assert judge_stage(shadow, {"x": unproven, "y": unproven}, RULES) is None
    assert judge_stage(shadow, {"x": came_proven}, RULES) is None  # which takes its turn


def test_a_candidate_that_a_hand_approved_in_record_goes_on_to_shadow() -> None:
    approved = approve_candidate(Stage("v", "s", candidate="y"))
    assert (approved.mode, approved.student, approved.candidate) == ("record", "y", "")
    for stage in (approved, replace(approved, candidate="z")):
        begun, _ = judge_stage(stage, {}, RULES) or (stage, "")
        assert begun == replace(stage, mode="shadow")
        assert judge_stage(stage, {}, replace(RULES, is_automatic=False)) is None
        assert judge_stage(replace(stage, is_held=True), {}, RULES) is None


def test_another_model_behind_the_alias_breaks_what_was_promised_of_an_earlier_student(
    store: Store,
) -> None:
    calls = [replace(call_of(n), began=1e9 + n) for n in range(60)]
    dated = [
        replace(call, completion=replace(call.completion, model="m-08" if n < 30 else "m-11"))
        for n, call in enumerate(calls)
    ]
    again = replace(call_of(99), began=2e9, source="again")  # asked by the mirror itself
    store.add([*dated, replace(again, completion=replace(again.completion, model="x"))])
    stages = StageStore(store)
    (stage,) = stages.stages().values()
    said = "since 2001-09-09 01:47 UTC m-11 answers, and before mostly m-08 did"
    assert stages.answerer_changes()[stage.version].as_sentence() == said
    for number, added, holds in (("old", 1e9, False), ("new", 1.5e9, True)):
        stages.add_student(StudentRecord(number, stage.version, "folder", EPSILON, DELTA, added))
        (before,) = stages.stages().values()
        assert stages.change(before, set_mode(replace(before, student=number), "live", 1.0), "hand", "")
        checks = check_guarantees(stages, looks_at_files=False)
        assert any(said in check.what and not check.holds for check in checks) != holds


@pytest.mark.parametrize("layout", ["1", "3", "4", "5", "6", "7"])
def test_a_store_of_an_earlier_layout_gets_what_it_lacks(store: Store, layout: str) -> None:
    store.add([call_of(1)])
    (stage,) = StageStore(store).stages().values()
    assert StageStore(store).change(stage, replace(stage, mode="shadow", student="x"), "evidence", "")
    evidence_of(StageStore(store), [AGREES])
    with store.engine.begin() as connection:
        if layout not in "67":
            connection.execute(sql("UPDATE mirror_stages SET is_held = 1"))  # as is_automatic was
            connection.execute(sql("ALTER TABLE mirror_stages RENAME COLUMN is_held TO is_automatic"))
        for column in ("sure", "seen", *(["proof"] if layout != "7" else [])):
            connection.execute(sql(f"ALTER TABLE mirror_evidence DROP COLUMN {column}"))
        if layout == "1":
            AUDITS.drop(connection)
        lacking = {"7": (), "6": (), "5": ("site_weight",), "4": ("site_weight",)}
        for column in lacking.get(layout, ("weight", "site_weight")):
            connection.execute(sql(f"ALTER TABLE mirror_calls DROP COLUMN {column}"))
        connection.execute(update(META).where(META.c.name == "layout").values(value=layout))
    address = store.engine.url.render_as_string(hide_password=False)
    for _ in range(2):  # by the first that opens it, once
        name = address.replace("+psycopg", "") if "psycopg" in address else str(store.engine.url.database)
        again = Store(name)
        again.add([replace(call_of(2), id="weighed", weight=0.25, site_weight=0.5)])
        (version,) = again.versions()
        weights = [(each.weight, each.site_weight) for each in again.calls(version.version)]
        assert weights == [(None, None), (0.25, 0.5)]
        assert StageStore(again).audit_outcomes() == {}
        assert not StageStore(again).stages()[version.version].is_held
        assert StageStore(again).evidence()["x"].proof is None
        assert StageStore(again).evidence()["x"].coverage == 0
        assert StageStore(again).evidence()["x"].audits.count == 1
        again.close()


def ask(mirror: RunningMirror, text: str) -> str:
    body = {"model": "m", "messages": messages(text), "response_format": JSON_SCHEMA}
    answer = mirror.ask("/v1/chat/completions", body)
    assert answer.status == 200
    return answer.headers["x-bertsmith"]


@pytest.fixture
def calm(upstream: Upstream, tmp_path: Path) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, upstream.url, audit_share=1.0, seed=1) as mirror:
        yield mirror


def begin(
    mirror: RunningMirror, tmp_path: Path, mode: str, share: float = 0.5, words: Any = None
) -> StudentRecord:
    ask(mirror, "my card")
    call = mirror.calls()[-1]
    folder = make_student(tmp_path / "made", call, words or WORDS, USUAL)
    student = put_in_mode(mirror.stages, folder, call, mode, share)
    wait_until(lambda: call.version in mirror.app.reconciler.open_students.by_version)
    return student


def compared(mirror: RunningMirror, student: StudentRecord, count: int) -> Any:
    """Its evidence, once there is so much of it."""

    def enough() -> Any:
        found = mirror.stages.evidence().get(student.id)
        return found if found is not None and found.audits.count >= count else None

    return wait_until(enough)


def test_in_shadow_the_llm_answers_and_the_student_is_compared(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    student = begin(calm, tmp_path, "shadow")
    for text in ("card", "transfer", "hello", "my card!", "who knows"):
        assert ask(calm, text).startswith("recorded; site=")
    assert len(upstream.seen) == 6
    found = compared(calm, student, 4)
    assert found.audits.rate() == 0.25  # the student knows nothing of exclamation marks
    wait_until(lambda: len(calm.stages.tallies()) == 3)
    assert calm.stages.tallies() == {
        (student.version, student.id, "shadow-agrees"): (3, 0.0),
        (student.version, student.id, "shadow-differs"): (1, 0.0),
        (student.version, student.id, "shadow-unsure"): (1, 0.0),
    }


def test_what_is_answered_is_audited_and_recorded(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    student = begin(calm, tmp_path, "live")
    for text in ("card", "transfer!", "hello"):
        assert ask(calm, text).startswith("answered")
    found = compared(calm, student, 3)
    assert found.audits.rate() == pytest.approx(1 / 3)
    assert calm.stages.audit_outcomes() == {(student.id, "agrees"): 2, (student.id, "differs"): 1}
    calls = calm.calls()
    assert [each.source for each in calls] == ["relay", "audit", "audit", "audit"]
    assert [each.weight for each in calls] == [None, 1.0, 1.0, 1.0]
    assert {each.completion.value["intent"] for each in calls} == {"card", "transfer", "other"}
    assert [each.headers.get("x-bertsmith-site") for each in upstream.seen] == [None] * 4


def test_a_call_whose_body_comes_in_chunks_is_audited(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    student = begin(calm, tmp_path, "live")
    body = {"model": "m", "messages": messages("a card"), "response_format": JSON_SCHEMA}
    whole = json.dumps(body).encode()
    with closing(http.client.HTTPConnection("127.0.0.1", calm.port, timeout=60)) as connection:
        connection.request(
            "POST", "/v1/chat/completions", iter([whole[:20], whole[20:]]),
            {"content-type": "application/json"}, encode_chunked=True,
        )  # fmt: skip
        assert connection.getresponse().headers["x-bertsmith"].startswith("answered")
    assert compared(calm, student, 1).audits.rate() == 0
    assert calm.stages.audit_outcomes() == {(student.id, "agrees"): 1}
    assert upstream.seen[-1].headers["content-length"] == str(len(whole))
    assert "transfer-encoding" not in upstream.seen[-1].headers


def test_in_canary_a_share_is_answered_and_all_are_compared(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    student = begin(calm, tmp_path, "canary", 0.5)
    said = [ask(calm, "a card") for _ in range(30)]
    answered = sum(each.startswith("answered") for each in said)
    assert 5 <= answered <= 25
    assert sum(each.endswith("reason=canary") for each in said) == 30 - answered
    assert compared(calm, student, 30).audits.rate() == 0
    assert len(upstream.seen) == 31


def test_a_student_that_differs_is_taken_back(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    student = begin(calm, tmp_path, "live", words={"card": {"intent": "transfer"}})
    for _ in range(12):
        ask(calm, "a card")
    wait_until(lambda: stage_of(calm.stages, student.version).mode == "record")
    wait_until(lambda: not calm.app.reconciler.open_students.answers)
    assert ask(calm, "a card").startswith("recorded")
    (_, change) = calm.stages.changes()
    assert (change.by, change.mode_before, change.mode) == ("evidence", "live", "record")
    assert "compared answers differ" in change.why


def test_an_llm_that_is_away_leaves_audits_waiting_and_the_student_answers(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    student = begin(calm, tmp_path, "live")
    script = upstream.script
    upstream.script = lambda _: Reply([b"{}"], 503)
    for _ in range(3):
        assert ask(calm, "a card").startswith("answered")
    wait_until(lambda: len(upstream.seen) >= 4)
    assert calm.app.relay.audits.waiting == 3
    upstream.script = script
    assert compared(calm, student, 3).audits.rate() == 0


def test_a_refusal_is_an_answer_that_differs(upstream: Upstream, calm: RunningMirror, tmp_path: Path) -> None:
    student = begin(calm, tmp_path, "live")
    script = upstream.script

    def refuse(seen: Seen) -> Reply:
        reply = script(seen)
        return Reply([reply.pieces[0].replace(b'"refusal":null', b'"refusal":"No."')])

    upstream.script = refuse
    ask(calm, "a card")
    assert compared(calm, student, 1).audits.rate() == 1
    assert calm.stages.audit_outcomes() == {(student.id, "failed"): 1}


def test_a_student_answers_the_versions_that_were_merged(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    def say(prompt: str, text: str, key: str = "") -> str:
        given = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
        body = {"model": "m", "messages": given, "response_format": JSON_SCHEMA}
        headers = {"x-api-key": key} if key else {}
        return calm.ask("/v1/chat/completions", body, headers).headers["x-bertsmith"]

    for prompt in ("One.", "Two.", "Three."):
        say(prompt, "a card")
    one, two, _ = calm.calls()
    folder = make_student(tmp_path / "made", one, WORDS, USUAL, also=[two])
    student = put_in_mode(calm.stages, folder, one, "live")
    wait_until(lambda: calm.app.reconciler.open_students.answers)
    assert say("One.", "a card").startswith("answered")
    assert say("Two.", "a card!").startswith("answered")
    assert say("Three.", "a card").endswith("reason=new-prompt")
    assert say("Two.", "a card", "another").endswith("reason=new-key")
    assert compared(calm, student, 2).audits.rate() == 0.5
    assert calm.app.reconciler.open_students.is_merged(two.version)
    wait_until(lambda: len(calm.stages.tallies()) == 5)
    assert {each[0] for each in calm.stages.tallies() if each[1]} == {one.version}
    # After a while nobody uses the first prompt any more, and its calls are too old.
    calm.follow()
    calm.store.expire(time.time())
    wait_until(lambda: not calm.app.reconciler.open_students.answers)
    assert say("Two.", "a card").startswith("recorded")
    assert wait_until(lambda: say("Two.", "a card").startswith("answered"), 10)


def test_a_candidate_takes_no_version_from_a_student_that_answers_it() -> None:
    def trained_on(*versions: str) -> Any:
        return SimpleNamespace(student=SimpleNamespace(file=SimpleNamespace(templates=versions)))

    both = {
        "a": VersionStudents(Stage("a", "s", "live", 1.0), trained_on("a"), trained_on("a", "b", "c", "d")),
        "c": VersionStudents(Stage("c", "s", "live", 1.0), trained_on("b", "c")),
    }
    for order in ("ac", "ca"):
        found = add_merged_versions({version: both[version] for version in order})
        assert {version: each.stage.version for version, each in found.items()} == {
            "a": "a", "b": "c", "c": "c", "d": "a",
        }  # fmt: skip


def test_two_replicas_on_one_postgresql_agree(upstream: Upstream, tmp_path: Path, server: str) -> None:
    settings: dict[str, Any] = {
        "store": server, "audit_share": 1.0, "auto": True, "train_after": 10**6, "epsilon": EPSILON,
        "canary_share": 0.3, "shadow_calls": 10, "canary_calls": 10,
    }  # fmt: skip
    with (
        running_mirror(tmp_path, upstream.url, **settings) as one,
        running_mirror(tmp_path, upstream.url, **settings) as other,
    ):
        student = begin(one, tmp_path, "shadow")
        sent = 1

        def say(mirror: RunningMirror, count: int) -> None:
            for _ in range(count):
                ask(mirror, "a card")

        while stage_of(one.stages, student.version).mode != "live":
            threads = [threading.Thread(target=say, args=(each, 20)) for each in (one, other)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            sent += 40
            for mirror in (one, other):
                mirror.follow()
            assert sent < 600
        for mirror in (one, other):
            wait_until(
                lambda mirror=mirror: (
                    mirror.app.reconciler.open_students.by_version[student.version].stage.mode == "live"
                )
            )
            assert ask(mirror, "a card").startswith("answered")
            mirror.follow()
        assert [each.mode for each in one.stages.changes()] == ["shadow", "canary", "live"]
        assert [each.revision for each in one.stages.changes()] == [1, 2, 3]
        assert one.stages.tallies() == other.stages.tallies()
        assert one.store.count() == other.store.count() == sent + 2
        tallies = one.stages.tallies()
        answered = tallies[student.version, student.id, "answered"][0]
        relayed = sum(
            n for (_, _, outcome), (n, _) in tallies.items() if outcome in ("canary", "low-confidence")
        )
        shadowed = tallies[student.version, student.id, "shadow-agrees"][0]
        assert one.stages.audit_outcomes() == {(student.id, "agrees"): answered}
        # Calls between a change and a replica's next look are compared by neither.
        evidence = one.stages.evidence()[student.id]
        assert evidence.audits.count <= shadowed + answered + relayed <= sent + 2


def test_an_audit_that_a_killed_mirror_left_counts_as_a_disagreement(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    student = begin(calm, tmp_path, "live")
    calm.stages.draw("lost", student.version, student.id, 0.05, 0.05)
    calm.stages.draw("young", student.version, student.id, 0.05, 0.05)
    with calm.store.engine.begin() as connection:
        connection.execute(update(AUDITS).where(AUDITS.c.id == "lost").values(drawn=time.time() - 1000))
    assert compared(calm, student, 1).audits.rate() == 1
    assert calm.stages.audit_outcomes() == {(student.id, "failed"): 1, (student.id, "open"): 1}


def test_a_student_that_cannot_be_opened_leaves_the_calls_to_the_llm(
    upstream: Upstream, calm: RunningMirror, tmp_path: Path
) -> None:
    ask(calm, "my card")
    call = calm.calls()[-1]
    folder = make_student(tmp_path / "made", call, WORDS, USUAL)
    student = put_in_mode(calm.stages, folder, call, "shadow")
    (folder / "model" / "words.json").write_text("[]")
    stage = stage_of(calm.stages, call.version)
    assert calm.stages.change(stage, replace(stage, mode="live", share=1.0), "hand", "a test")
    wait_until(lambda: calm.app.reconciler.open_students.answers)
    assert ask(calm, "a card").endswith(f"student={student.id}; reason=student-failed")
    assert len(upstream.seen) == 2
