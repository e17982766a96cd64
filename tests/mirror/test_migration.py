"""A new LLM or a new prompt beside the present one: `bertsmith mirror migrate`, and a training that learns
from the former one's answers too.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_student import make_student, put_in_mode
from mirrored_calls import INTENT, call_of, calls_of, intent_of, message, store_of
from running_mirror import IN_STEP, RunningMirror, running_mirror, wait_until
from scipy.stats import binomtest
from scripted_upstream import Reply, Seen, Upstream, upstream_of

from bertsmith.cli.main import main
from bertsmith.mirror.answering import audits
from bertsmith.mirror.answering.judging import check_guarantees
from bertsmith.mirror.answering.replays import (
    RepeatedAnswer,
    ReplayCount,
    ReplayStore,
    draw_former_inputs,
    draw_inputs,
    weigh_changes,
)
from bertsmith.mirror.answering.shadow_proof import ComparedCall
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import (
    LLM_CHANGED,
    EvidenceBatch,
    StudentRecord,
    begin_anew,
    set_mode,
)
from bertsmith.mirror.answering.training_process import read_student
from bertsmith.mirror.call import AGAIN, REPLAYED, UNDATED, Call
from bertsmith.mirror.fields import AnswerShape, Field
from bertsmith.mirror.identity import hash_fraction, replayed_call_id
from bertsmith.mirror.learning import teacher_change
from bertsmith.mirror.learning.asking import AskingResult, Replay
from bertsmith.mirror.learning.learned_calls import LearnedCall, read_calls
from bertsmith.mirror.learning.migration import compare_teachers
from bertsmith.mirror.learning.proving import empty_claims
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.teacher_change import find_change, read_former_calls, translate_former
from bertsmith.mirror.learning.tiers import train_word_candidate
from bertsmith.mirror.learning.train import train_student
from bertsmith.mirror.learning.understand import LearningRecords, understand
from bertsmith.mirror.page.state import StateReader
from bertsmith.mirror.store import Store
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.student_file import ProofPlan, read_student_file
from bertsmith.mirror.tables import CALLS
from bertsmith.reporting.formatting import format_percent

NEW = "llm-2"
FREQUENT = "bano delo wire giru fano"  # what a third of the customers write


def answer(seen: Seen) -> Reply:
    """llm-2 says what the rule says, llm-3 `other` where the rule says `transfer`; so does a prompt of "Two
    classes". llm-4 says so of the frequent text alone.
    """
    body = seen.json()
    text = str(body["messages"][-1]["content"])
    intent = intent_of(text)
    if body["model"] == "llm-4" and FREQUENT in text:
        intent = "other"
    if (body["model"] == "llm-3" or "Two classes" in str(body["messages"][0])) and intent == "transfer":
        intent = "other"
    choice = {"index": 0, "finish_reason": "stop"}
    choice |= {"message": {"role": "assistant", "content": json.dumps({"intent": intent}), "refusal": None}}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    whole = {"id": f"c{random.random()}", "model": body["model"], "created": 1_760_000_000}
    return Reply([json.dumps(whole | {"choices": [choice], "usage": usage}).encode()])


@pytest.fixture
def llm() -> Iterator[Upstream]:
    with upstream_of(answer) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with store_of(tmp_path, calls_of(900)) as opened:
        yield opened


def migrate(
    store: Store, llm: Upstream, capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0
) -> str:
    capsys.readouterr()
    given = [
        "mirror",
        "migrate",
        "--store",
        str(store.engine.url.database),
        "--upstream",
        f"{llm.url}/v1",
        *arguments,
    ]
    assert main([*map(str, given)]) == status
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


def train(store: Store, folder: Path) -> None:
    assert (
        main(
            [
                "mirror",
                "train",
                "--store",
                str(store.engine.url.database),
                "--tiers",
                "tf-idf",
                "--out",
                str(folder),
            ]
        )
        == 0
    )


def test_a_proof_that_holds_for_the_new_llm_goes_with_the_student(
    store: Store, llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student, out = tmp_path / "student", tmp_path / "moved"
    train(store, student)
    old = read_student_file(student)
    (present,) = store.versions()
    used = LearningRecords(store).used_calls()
    store.add(calls_of(200, seed=1, first=900))  # no training has used these
    given = ("--model", NEW, "--student", student, "--count", 150)
    printed = migrate(store, llm, capsys, *given)
    assert "answered alike 100 % (97.6 % to 100 % with 95 % confidence)" in printed
    assert "proven for the new LLM too, with 95 % confidence: at most 5 %" in printed
    assert "repeat the command with --out FOLDER" in printed and not out.exists()
    assert len(llm.seen) == 150
    asked = {seen.json()["messages"][-1]["content"] for seen in llm.seen}
    learned = {c.request.inputs[0].parts[0] for c in store.calls(present.version) if c.id in used}
    assert not asked & learned, "the student would be judged by what it has learned"

    printed = migrate(store, llm, capsys, *given, "--out", out)
    assert len(llm.seen) == 150, "nothing is asked twice"
    new = read_student_file(out)
    assert new.teacher == NEW and new.claims.whole is not None and old.claims.whole is not None
    assert new.claims.whole.threshold == old.claims.whole.threshold
    assert (new.claims.whole.calls, new.claims.whole.risk) == (150, 0.0)
    (version,) = new.templates
    (replayed,) = (v for v in store.versions() if v.version != present.version)
    assert (version, replayed.model, replayed.calls) == (replayed.version, NEW, 150)
    assert replayed.site == present.site
    promotion = ["mirror", "promote", version, "--student", str(out), "--to", "live"]
    assert f"bertsmith {' '.join(promotion)}" in printed
    assert main([*promotion, "--store", str(store.engine.url.database)]) == 0


def test_what_changes_is_counted_and_a_proof_that_does_not_hold_stays(
    store: Store, llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student = tmp_path / "student"
    train(store, student)
    later = calls_of(100, seed=1, first=900)
    store.add(later)
    given = ("--model", "llm-3", "--student", student, "--count", 100, "--out", tmp_path / "x")
    printed = migrate(store, llm, capsys, *given)
    differing = sum(call.completion.value["intent"] == "transfer" for call in later)
    assert 20 < differing < 60
    assert f"$.intent transfer other {differing}" in printed
    assert f"answered alike {100 - differing} % (" in printed
    assert "isn't true: the present student can't answer for it" in printed
    assert f"mirror train --site {store.versions()[0].site} --version" in printed
    assert not (tmp_path / "x").exists()


def test_a_new_prompt_is_compared_as_a_version_of_its_own(
    store: Store, llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student, out = tmp_path / "student", tmp_path / "moved"
    train(store, student)
    store.add(calls_of(150, seed=1, first=900))
    given: tuple[Any, ...] = ("--prompt", "Say the intent of it.", "--student", student, "--count", 150)
    migrate(store, llm, capsys, *given, "--out", out)
    system = {seen.json()["messages"][0]["content"] for seen in llm.seen}
    assert system == {"Say the intent of it."}
    new = read_student_file(out)
    (version,) = new.templates
    call = next(iter(store.calls(version)))
    assert new.templates[version].input_of(call.request), "the student reads calls of the new prompt"
    printed = migrate(store, llm, capsys, "--prompt", "Two classes of it.", "--count", 30)
    assert "transfer other" in printed and "a student for the new LLM: bertsmith mirror train" in printed


def test_what_another_llm_was_only_asked_is_not_taken_for_the_latest_version(
    store: Store, llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (present,) = store.versions()
    printed = migrate(store, llm, capsys, "--model", "llm-3", "--count", 100)
    assert "train with --version" not in printed
    (asked,) = (version for version in store.versions() if version.version != present.version)
    assert asked.traffic_ended is None and asked.ended > present.ended
    records = LearningRecords(store)
    assert [group[0].version for group in records.groups()] == [asked.version, present.version]
    train(store, tmp_path / "student")
    file = read_student_file(tmp_path / "student")
    assert (list(file.templates), file.teacher) == ([present.version], present.model)

    # Also of versions that count as one, and for a version that begins later: it follows the traffic.
    records.merge(present.site, [present.version, asked.version])
    assert understand(store, records.group(None)).latest.version == present.version
    migrate(store, llm, capsys, "--prompt", "Two classes of it.", "--count", 80, "--version", present.version)
    newest = calls_of(60, seed=4, first=2_000_000, prompt="Say the intent.")
    store.add(newest)
    profile = understand(store, records.group(None))
    assert profile.latest.version == newest[0].version
    former = {call.version for call in read_former_calls(records, profile)}
    assert former == {present.version, asked.version}


def test_of_former_answers_with_more_fields_the_present_ones_are_learned(tmp_path: Path) -> None:
    mood = {"mood": {"type": "string", "enum": ["calm", "angry"]}}
    both = INTENT | {"properties": INTENT["properties"] | mood, "required": ["intent", "mood"]}

    def moody(text: str, draw: random.Random) -> dict[str, Any]:
        return {"intent": intent_of(text), "mood": draw.choice(["calm", "angry"])}

    former, new = calls_of(300, moody, schema=both, site="a"), calls_of(60, seed=1, first=300, site="a")
    with store_of(tmp_path, [*former, *new]) as store:
        records = LearningRecords(store)
        profile = understand(store, records.group("a"))
        assert profile.latest.version == new[0].version
        fitting = read_former_calls(records, profile)
        translated = translate_former(fitting, read_calls(store, profile).calls, profile.shape)
    assert translated is not None and len(fitting) == 300
    assert translated.former_differing < translated.former_calls / 10 and translated.change.low <= 0


def with_frequent(calls: list[Call]) -> list[Call]:
    """The calls, of which every third has the frequent text."""
    frequent = {"intent": intent_of(FREQUENT)}
    return [
        call_of(FREQUENT, frequent, round((call.began - 1.7e9) / 60)) if not number % 3 else call
        for number, call in enumerate(calls)
    ]


def test_an_input_that_is_frequent_counts_as_often_as_it_comes(
    llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third of the student's answers differ from those of llm-4, all to one text, that it has learned: by
    different texts it is one in hundreds.
    """
    student = tmp_path / "student"
    with store_of(tmp_path, with_frequent(calls_of(900))) as store:
        train(store, student)
        store.add(with_frequent(calls_of(300, seed=1, first=900)))
        given = ("--model", "llm-4", "--student", student, "--count", 300, "--out", tmp_path / "x")
        printed = migrate(store, llm, capsys, *given)
        asked = [str(seen.json()["messages"][-1]["content"]) for seen in llm.seen]
        assert sum(FREQUENT in text for text in asked) == 100
        assert "isn't true: the present student can't answer for it" in printed
        assert not (tmp_path / "x").exists()
        # Another seed and a smaller number look at the same calls once more, and a larger one goes on.
        again = migrate(store, llm, capsys, *given[:4], "--count", 30, "--seed", 5)
        assert "calls compared 300" in again and len(llm.seen) == 300
        store.add(with_frequent(calls_of(60, seed=2, first=1200)))
        migrate(store, llm, capsys, *given[:4], "--count", 340, "--seed", 7)
        assert len(llm.seen) == 340


def test_only_traffic_proves_that_a_student_holds_for_another_llm(
    store: Store, llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labelled texts aren't like the traffic, and calls without a time may be older than what was learned."""
    student = tmp_path / "student"
    train(store, student)
    for seed, source in enumerate(("label", "undated"), 1):
        store.add(calls_of(150, seed=seed, first=1000 * seed, source=source))
    printed = migrate(store, llm, capsys, "--model", NEW, "--student", student, "--count", 400)
    assert "calls that no training has used 0" in printed and "isn't proven yet" in printed


def test_whoever_is_forgotten_is_forgotten_in_the_new_llms_answers_too(
    llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = calls_of(60)
    personal = calls_of(5, seed=1, first=60, subject="customer-4711")
    with store_of(tmp_path, [*calls, *personal]) as store:
        migrate(store, llm, capsys, "--model", NEW, "--count", 65)
        assert len(llm.seen) == 65 and store.count() == 130
        assert store.forget("customer-4711") == 10
        assert store.count() == 120


def test_a_student_is_compared_as_its_own_claim_compares(
    tmp_path: Path, llm: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number's tolerance comes from the answers seen. With the wider one of later calls the student would
    agree where in service it doesn't.
    """
    shape = AnswerShape(fields=(Field(keys=("n",), kind="number", tolerance=1.0),), order=(("n",),))
    wide = AnswerShape(fields=(Field(keys=("n",), kind="number", tolerance=50.0),), order=(("n",),))
    schema = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
    calls = [call_of(f"bano {n}", {"n": 10.0}, n, schema=schema) for n in range(200)]
    others = [call_of(f"bano {n}", {"n": 40.0}, 1000 + n, schema=schema) for n in range(200)]

    class Ten:
        """A student that always says 10."""

        file = SimpleNamespace(claims=empty_claims(LearnSettings()), shape=shape)

        def input_of(self, request: Any, version: str) -> str:
            return str(request.inputs[0].parts[0])

        def answer(self, texts: list[str]) -> list[Any]:
            return [SimpleNamespace(values={"$.n": 10.0}, is_sure=True) for _ in texts]

    replayed = Replay(AskingResult(), "new", list(zip(calls, others, strict=True)), set())
    survival = compare_teachers(replayed, wide, Ten()).student  # type: ignore[arg-type]
    assert survival is not None and survival.differing == 200 and not survival.holds


def test_what_cannot_be_compared_is_one_sentence(
    store: Store, llm: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, expected in (
        ((), "Name what is new: --model, --prompt, or both."),
        (("--model", "llm"), "That is the LLM and the prompt that these calls were recorded with."),
        (("--model", NEW, "--count", 0), "count must be 1 or more"),
        (("--model", NEW, "--version", "x"), "There is no version 'x'"),
        (("--prompt", "missing.txt"), "there is no file 'missing.txt'"),
    ):
        assert expected in migrate(store, llm, capsys, *given, status=2)
    assert not llm.seen


SHAPE = AnswerShape(
    fields=(Field(keys=("intent",), kind="enum", values=("card", "transfer", "other")),), order=(("intent",),)
)


def joined(text: str, draw: random.Random) -> dict[str, Any]:
    """The new teacher calls every transfer `other`."""
    intent = intent_of(text)
    return {"intent": "other" if intent == "transfer" else intent}


def split(text: str, draw: random.Random) -> dict[str, Any]:
    """The new teacher calls the transfers with an IBAN `other`."""
    return {"intent": "other" if "iban" in text else intent_of(text)}


def learned(teacher: Any, count: int, seed: int) -> list[LearnedCall]:
    return [
        LearnedCall(
            f"{seed}-{n}", float(n), "relay", call.request.inputs[0].parts[0],
            {"$.intent": call.completion.value["intent"]}, {},
        )
        for n, call in enumerate(calls_of(count, teacher, seed))
    ]  # fmt: skip


@pytest.mark.parametrize(("teacher", "least"), [(joined, 0.97), (split, 0.85)])
def test_former_answers_are_translated_into_the_new_teachers(teacher: Any, least: float) -> None:
    former = learned(lambda text, _: {"intent": intent_of(text)}, 800, 1)
    new = learned(teacher, 120, 2)
    translated = translate_former(former, new, SHAPE)
    assert translated is not None
    draw = random.Random(0)
    right = [call.values["$.intent"] == teacher(call.text, draw)["intent"] for call in translated.calls]
    wrong_before = [call.values["$.intent"] != teacher(call.text, draw)["intent"] for call in former]
    changed = sum(wrong_before) / len(former)
    assert changed > 0.15 and sum(right) >= least * len(right)
    assert translated.change.low < changed < translated.change.high
    assert all(abs(sum(p for _, p in c.probabilities["$.intent"]) - 1) < 0.01 for c in translated.calls)
    assert [call.id for call in translated.calls] == [call.id for call in former]


def test_a_teacher_that_has_not_changed_is_told_to_be_the_same() -> None:
    def same(text: str, draw: random.Random) -> dict[str, Any]:
        return {"intent": intent_of(text)}

    former, new = learned(same, 800, 1), learned(same, 200, 2)
    translated = translate_former(former, new, SHAPE)
    assert translated is not None and translated.change.low <= 0 < translated.change.high < 0.05
    assert [call.values for call in translated.calls] == [call.values for call in former]
    assert translate_former(former, new[:40], SHAPE) is None
    assert translate_former(former[:40], new, SHAPE) is None


def test_a_student_of_a_new_version_learns_from_the_calls_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    former = calls_of(600)
    new = calls_of(130, joined, seed=1, first=600, prompt="Two classes of it.")
    with store_of(tmp_path, [*former, *new]) as store:
        train(store, tmp_path / "student")
        printed = " ".join(capsys.readouterr().out.split())
        assert "It also learns from" in printed and "answers of the former LLM or prompt." in printed
        file = read_student_file(tmp_path / "student")
        assert list(file.templates) == [new[0].version], "the former prompt is none of its"
        used = LearningRecords(store).used_calls()
        assert {call.id for call in former} <= used
        proving = LearningRecords(store).calibration_calls()
        assert not proving & {call.id for call in former}, "former answers prove nothing of the new teacher"


def test_former_answers_are_looked_for_and_translated_with_the_encoder_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()

    def embedding_features(model: str) -> Any:
        opened.append(model)
        return lambda texts: np.array(
            [[len(text), text.count("e"), *map(ord, text[:6])] for text in texts], float
        )

    monkeypatch.setattr(teacher_change, "embedding_features", embedding_features)
    former = calls_of(400)
    new = calls_of(330, joined, seed=1, first=400, prompt="Two classes of it.")
    with store_of(tmp_path, [*former, *new]) as store:
        learned = train_student(store, tmp_path / "student", settings=LearnSettings(enough=1e-6))
    assert any("answers of the former LLM" in note for note in learned.notes)
    assert learned.file.tier == "tf-idf" and opened == ["minilm"]


def test_a_change_that_no_name_tells_is_found_and_what_was_before_is_translated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = calls_of(600), calls_of(200, joined, seed=1, first=600)
    # Undated calls have the time of their import: nobody knows whether they came since.
    undated = [replace(call, source=UNDATED) for call in calls_of(100, seed=2, first=800)]
    with store_of(tmp_path, [*before, *after, *undated]) as store:
        train(store, tmp_path / "student")
        printed = " ".join(capsys.readouterr().out.split())
        changed = datetime.fromtimestamp(after[0].began, UTC).strftime("%Y-%m-%d %H:")
        assert f"Since {changed}" in printed and "so they prove nothing" in printed
        page = " ".join((tmp_path / "student" / "report.html").read_text("utf-8").split())
        assert f"Since {changed}" in page and "of the calls differently (with 95 % confidence" in page
        file = read_student_file(tmp_path / "student")
        assert file.claims.whole is None and file.plan is not None
        assert file.trained_on.calls <= 260
        assert not LearningRecords(store).calibration_calls()
        student = MirrorStudent.open(tmp_path / "student")
        texts = [call.request.inputs[0].parts[0].splitlines()[1] for call in before]
        answers = [answer.answer["intent"] for answer in student.answer(texts)]
        draw = random.Random(0)
        assert answers == [joined(text, draw)["intent"] for text in texts]


@pytest.mark.slow
def test_calls_since_a_change_that_the_mirror_has_told_prove_a_student(tmp_path: Path) -> None:
    before, after = calls_of(600), calls_of(300, joined, seed=1, first=600)
    with store_of(tmp_path, before) as store:
        stages = StageStore(store)
        (stage,) = stages.stages().values()
        why = f"{LLM_CHANGED}: of 60 recorded inputs that were asked again 8 got another answer"
        assert stages.change(stage, stage, "evidence", why)
        told = stages.llm_changes()[stage.version]
        assert store.add([replace(call, began=told + number) for number, call in enumerate(after)]) == 300
        learned = train_student(store, tmp_path / "student", settings=LearnSettings(epsilon=0.2))
        assert not any("prove nothing" in note for note in learned.notes)
        assert any("Only the 300 calls since then count" in note for note in learned.notes)
        proving = LearningRecords(store).calibration_calls()
        assert learned.file.claims.whole is not None and len(proving) == learned.file.calibration.calls > 50
        assert learned.file.calibration.began >= told
        texts = [call.request.inputs[0].parts[0].splitlines()[1] for call in before]
        answers = MirrorStudent.open(tmp_path / "student").answer(texts)
        draw = random.Random(0)
        assert [answer.answer for answer in answers] == [joined(text, draw) for text in texts]


def test_calls_since_a_change_that_are_few_are_the_only_ones_that_prove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    before, after = calls_of(400), calls_of(60, joined, seed=1, first=400)
    with store_of(tmp_path, before) as store:
        stages, replays = StageStore(store), ReplayStore(store)
        (stage,) = stages.stages().values()
        replays.plan(stage.version, before[:40])
        assert stages.change(stage, stage, "evidence", f"{LLM_CHANGED}: 8 of 60 differ")
        told = stages.llm_changes()[stage.version]
        again = {recorded: name for name, recorded in replays.recorded([stage.version]).items()}
        asked = [
            replace(call, id=again[call.id], source=REPLAYED, began=told + number)
            for number, call in enumerate(before[:40])
        ]
        passing = [replace(call, began=told + number) for number, call in enumerate(after)]
        assert store.add(asked + passing) == 100
        settings = LearnSettings(tiers=("tf-idf",), calibration_share=0.5)
        parts = train_student(store, tmp_path / "student", settings=settings).parts
        # But for those of dev, by which the proof is planned.
        planning = {call.id for call in parts.dev if call.source == REPLAYED}
        assert {call.id for call in parts.calibration} == {call.id for call in asked + passing} - planning
        assert 0 < len(planning) < 16
        # It knows none of the inputs by the answers before.
        assert not {call.text for call in [*parts.train, *parts.dev]} & {
            call.text for call in parts.calibration if call.source == REPLAYED
        }
        assert len(parts.learned) == 360 + len(planning)


def test_what_a_student_learns_after_a_failed_proof_is_known_as_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(text: str, draw: random.Random) -> dict[str, Any]:
        return {"intent": draw.choice(["card", "transfer", "other"])}

    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings = LearnSettings(tiers=("tf-idf",), epsilon=0.03, ladder=())
    with store_of(tmp_path, calls_of(320)) as store:
        first = train_student(store, tmp_path / "student", settings=settings)
        (version,) = store.versions()
        stages, student = StageStore(store), read_student(first.folder, version.version)
        assert student is not None and student.plan is not None and stages.add_student(student)
        stage = replace(stages.stages()[version.version], mode="shadow", student=student.id)
        assert stages.change(stages.stages()[version.version], stage, "hand", "a test")
        later = calls_of(500, wrong, seed=1, first=320)
        store.add(later)
        said = list[str]()
        again = train_student(store, tmp_path / "student", settings=settings, say=said.append)
        assert "It can't" in said
        uses = LearningRecords(store).read_uses(again.file.training)
        learned = {call.id for call in again.parts.learned}
        # Those that didn't prove the first one are learned from, or may prove the new one.
        assert learned | {call.id for call in again.parts.calibration} >= {call.id for call in later}
        assert {name for name, use in uses.items() if use != "calibration"} == learned


def test_after_a_silent_change_inputs_asked_again_teach_the_next_student_and_prove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings = LearnSettings(epsilon=0.2, tiers=("tf-idf",))
    with store_of(tmp_path, calls_of(900)) as store:
        train_student(store, tmp_path / "student", settings=settings)
        stages, replays, (first,) = StageStore(store), ReplayStore(store), store.versions()
        put_in_mode(stages, tmp_path / "student", store.latest(first.version, 1)[0], "live")
        (stage,) = stages.stages().values()
        inputs = draw_inputs(stages, stage.version, stage.version, 240)
        answers = Counter(call.completion.value["intent"] for call in inputs.chosen)
        assert answers == {"card": 2, "transfer": 2, "other": 2} and len(inputs.drawn) == 234
        replays.plan(stage.version, inputs.drawn, chosen=inputs.chosen)
        assert stages.change(stage, begin_anew(stage), "evidence", f"{LLM_CHANGED}: 8 of 60 differ")
        told, draw, asked = stages.llm_changes()[stage.version], random.Random(0), list[Any]()
        while planned := replays.prepare(stage.version, is_answered=False):
            asked += [question for question in planned if replays.claim(question.id)]
        for number, question in enumerate(asked):
            answer = joined(question.call.request.inputs[0].parts[0], draw)
            completion, began = replace(question.call.completion, value=answer), told + 1 + number
            new = replace(question.call, id=question.id, source=question.source, began=began)
            store.add([replace(new, completion=completion)])
            replays.settle(question.id, "answered")
        passing = calls_of(200, joined, seed=1, first=900)
        store.add([replace(call, began=told + 1 + number) for number, call in enumerate(passing)])
        checked = [replace(call, id=f"{n}", source=AGAIN, began=told + 500) for n, call in enumerate(passing)]
        store.add(checked)  # as where answers since the change were asked again
        trained = list[set[str]]()

        def note(train: Any, *more: Any) -> Any:
            trained.append({call.text for call in train})
            return train_word_candidate(train, *more)

        monkeypatch.setattr("bertsmith.mirror.learning.train.train_word_candidate", note)
        student = train_student(store, tmp_path / "student", settings=settings)
        assert not trained[0] & {c.text for c in (*student.parts.calibration, *student.parts.dev)}
        assert student.file.claims.whole is not None
        proving = LearningRecords(store).calibration_calls()
        drawn = {question.id for question in asked if question.source == REPLAYED}
        planning = {call.id for call in student.parts.dev if call.source == REPLAYED}
        assert len(drawn) == 234 and len(planning) < 60 and drawn - planning <= proving
        assert student.file.calibration.replayed == 234 - len(planning)
        assert not proving & {question.id for question in asked if question.source == AGAIN}
        texts = [call.request.inputs[0].parts[0].splitlines()[1] for call in passing]
        answered = MirrorStudent.open(student.folder).answer(texts)
        sure = [(a.answer, joined(text, draw)) for a, text in zip(answered, texts, strict=True) if a.is_sure]
        assert len(sure) > 150 and all(said == right for said, right in sure)


def test_calls_asked_for_their_answers_teach_what_few_new_ones_do_not() -> None:
    former, new = learned(lambda text, _: {"intent": intent_of(text)}, 800, 1), learned(joined, 200, 2)
    new = [call for call in new if "iban" not in call.text and "wire" not in call.text]  # no transfer
    asked = [call for call in learned(joined, 40, 3) if intent_of(call.text) == "transfer"]
    draw, right = random.Random(0), list[float]()
    for chosen in ((), asked):
        translated = translate_former(former, new, SHAPE, asked=chosen)
        assert translated is not None and translated.new_calls == len(new)
        agrees = [c.values["$.intent"] == joined(c.text, draw)["intent"] for c in translated.calls]
        right.append(float(np.mean(agrees)))
    assert right[0] < 0.7 and right[1] > 0.97


def test_without_a_change_none_is_found() -> None:
    def noisy(text: str, draw: random.Random) -> dict[str, Any]:
        return {"intent": intent_of(text) if draw.random() < 0.9 else draw.choice(["card", "other"])}

    for seed in range(3):
        calls = learned(noisy, 500, seed)
        assert find_change(calls, SHAPE, seed) is None
    assert find_change(calls[:150], SHAPE) is None
    later = [replace(call, began=call.began + 500) for call in learned(joined, 150, 9)]
    since = find_change([*calls, *later], SHAPE)
    assert since is not None and 470 <= since <= 530


FIRST, SECOND = "Which intent?", "Which intent? Two classes."


def send(mirror: RunningMirror, prompt: str, text: str, key: str = "sk-1", status: int = 200) -> None:
    """A client's call."""
    shape = {"type": "json_schema", "json_schema": {"name": "intent", "schema": INTENT}}
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
    body = {"model": "llm-1", "messages": messages, "response_format": shape, "temperature": 0.25}
    headers = {"authorization": key, "idempotency-key": text, "x-subject": "somebody"}
    assert mirror.ask("/v1/chat/completions", body, headers).status == status


def replay_all(mirror: RunningMirror, texts: list[str]) -> None:
    """Calls of the second prompt, one after the other."""
    for text in texts:
        send(mirror, SECOND, text, "sk-2")
        wait_until(lambda: mirror.app.relay.replays.waiting == 0)
    mirror.settle()


def test_recorded_inputs_are_asked_again_two_beside_each_passing_call(llm: Upstream, tmp_path: Path) -> None:
    with running_mirror(tmp_path, llm.url, IN_STEP) as mirror:
        texts = [f"wire {number}" for number in range(6)]
        for text in texts:
            send(mirror, FIRST, text)
        former = mirror.calls()
        send(mirror, SECOND, "visa 0", "sk-2")
        version = mirror.calls()[-1].version
        replays = ReplayStore(mirror.store)
        assert (replays.plan(version, former[:4]), replays.plan(version, former[:5])) == (4, 1)
        assert replays.counts() == {version: ReplayCount(5, 0, 0)}
        mirror.follow()
        send(mirror, FIRST, "wire 6")  # no call of that version
        wait_until(lambda: mirror.app.relay.replays.waiting == 0)
        assert replays.counts() == {version: ReplayCount(5, 0, 0)}
        for number in (1, 2):
            replay_all(mirror, [f"visa {number}"])
            wait_until(lambda n=2 * number: replays.counts() == {version: ReplayCount(5, n, n)})  # type: ignore[misc]
        mirror.follow()
        replay_all(mirror, [f"visa {number}" for number in range(3, 8)])
        wait_until(lambda: replays.counts() == {version: ReplayCount(5, 5, 5)})
        mirror.settle()
        asked = [seen for seen in llm.seen if seen.headers["authorization"] == "sk-2"]
        beside = [seen for seen in asked if "wire" in seen.json()["messages"][1]["content"]]
        assert [seen.json()["messages"][1]["content"] for seen in beside] == texts[:5]
        for seen in beside:
            body = seen.json()
            assert (body["model"], body["temperature"]) == ("llm-1", 0.25)
            assert body["messages"][0]["content"] == SECOND
            assert body["response_format"]["json_schema"]["schema"] == INTENT
            assert "idempotency-key" not in seen.headers
        new = [call for call in mirror.calls() if call.source == REPLAYED]
        assert {call.version for call in new} == {version} and len(mirror.calls()) == 7 + 8 + 5
        # Whom the recorded call was about, and nobody else.
        assert {call.request.subjects for call in new} == {former[0].request.subjects}
        pairs = replays.pairs(version)
        assert {other.id: call.id for call, other in pairs} == {
            replayed_call_id(call.id, version): call.id for call in former[:5]
        }
        assert {other.id for _, other in pairs} == {call.id for call in new}
        assert all(call.request.inputs == other.request.inputs for call, other in pairs)
        assert {other.completion.value["intent"] for _, other in pairs} == {"other"}
        assert {call.completion.value["intent"] for call, _ in pairs} == {"transfer"}


def test_what_a_mirror_leaves_unasked_the_next_asks_and_none_is_asked_twice(
    llm: Upstream, tmp_path: Path
) -> None:
    with running_mirror(tmp_path, llm.url, IN_STEP) as mirror:
        for number in range(8):
            send(mirror, FIRST, f"wire {number}")
        former = mirror.calls()
        send(mirror, SECOND, "visa 0", "sk-2")
        version = mirror.calls()[-1].version
        replays = ReplayStore(mirror.store)
        replays.plan(version, former)
        mirror.follow()
        replay_all(mirror, ["visa 1"])
    with (
        running_mirror(tmp_path, llm.url, IN_STEP) as mirror,
        running_mirror(tmp_path, llm.url, IN_STEP) as other,
    ):
        replays = ReplayStore(mirror.store)
        mirror.follow()
        other.follow()  # both have prepared the same six
        replay_all(mirror, ["visa 3"])
        mirror.store._delete(CALLS.c.id == former[5].id)  # forgotten while it waits
        replay_all(other, ["visa 4"])
        replay_all(mirror, ["visa 5"])
        mirror.follow()
        assert replays.counts() == {version: ReplayCount(8, 8, 7)}
        contents = [seen.json()["messages"][1]["content"] for seen in llm.seen]
        assert [contents.count(f"wire {number}") for number in range(8)] == [2, 2, 2, 2, 2, 1, 2, 2]


def test_a_busy_llm_is_left_alone_and_asked_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_FIRST_WAIT", 30.0)
    is_busy = True

    def script(seen: Seen) -> Reply:
        if is_busy and "wire" in seen.body.decode() and SECOND in seen.body.decode():
            return Reply([b"{}"], status=429)
        return answer(seen)

    with upstream_of(script) as llm, running_mirror(tmp_path, llm.url, IN_STEP) as mirror:
        for number in range(4):
            send(mirror, FIRST, f"wire {number}")
        former = mirror.calls()
        send(mirror, SECOND, "visa 0", "sk-2")
        version, runner = mirror.calls()[-1].version, mirror.app.relay.replays
        ReplayStore(mirror.store).plan(version, former)
        mirror.follow()
        llm.seen.clear()
        replay_all(mirror, ["visa 1"])
        wait_until(lambda: len(llm.seen) == 2)
        replay_all(mirror, [f"visa {number}" for number in range(2, 6)])
        assert len(llm.seen) == 5 + 1  # a single one, then none for a while
        assert ReplayStore(mirror.store).counts() == {version: ReplayCount(4, 0, 0)}
        runner._resumes_at, is_busy = 0.0, False
        replay_all(mirror, [f"visa {number}" for number in range(6, 9)])
        mirror.follow()
        replay_all(mirror, ["visa 9"])
        replayed = [call.request.inputs[0].parts[0] for call in mirror.calls() if call.source == REPLAYED]
        # Beside two calls some come at once; the one that was refused comes last.
        assert sorted(replayed[:3]) == ["wire 1", "wire 2", "wire 3"] and replayed[3:] == ["wire 0"]


def replayed_version(store: Store, folder: Path, **more: Any) -> tuple[StageStore, list[Call], list[Call]]:
    """200 calls of a version with a student that is live, then 30 of another prompt, of which `more` says
    more; both.
    """
    former, new = calls_of(200), calls_of(30, seed=1, first=300, prompt="Which one?", **more)
    store.add(former + new)
    stages = StageStore(store)
    put_in_mode(stages, make_student(folder, former[0], {}, {"intent": "card"}), former[0], "live")
    return stages, former, new


def test_inputs_of_the_version_before_are_drawn_once_for_each_change(tmp_path: Path) -> None:
    with store_of(tmp_path, []) as store:
        stages, former, new = replayed_version(store, tmp_path / "student")
        (version,) = {call.version for call in new}
        chosen, drawn = draw_former_inputs(stages, 60)[version]
        assert len(chosen) == 6 and len(drawn) == 54
        assert len({call.id for call in chosen + drawn} & {call.id for call in former}) == 60
        places = sorted(former.index(next(c for c in former if c.id == call.id)) for call in drawn)
        assert places[10] < 100 < places[-10]  # from all of the time
        assert draw_former_inputs(stages, 60) == {version: (chosen, drawn)}
        assert stages.begin_training(version, 30, "here", 60.0)
        assert draw_former_inputs(stages, 60) == {}
        replays = ReplayStore(store)
        assert replays.plan(version, drawn, is_first=True) == 0  # that training may have read them
        stages.end_training(version, "here", "undone")
        assert replays.plan("another", drawn, chosen=chosen, is_first=True) == 60
        assert replays.plan("another", former, is_first=True) == 0


def test_inputs_are_drawn_before_others_are_chosen_for_their_answers(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(300)) as store:
        former = [*store.calls(store.versions()[0].version)]
        rare = [replace(call, completion=replace(call.completion, value={"intent": f"{n // 3}"}))
                for n, call in enumerate(calls_of(300, seed=3, first=300))]  # fmt: skip
        store.add(rare)
        stages, records, version = StageStore(store), LearningRecords(store), former[0].version
        inputs = draw_inputs(stages, version, version, 100)
        drawn = [call.id for call in inputs.drawn]
        assert len(inputs.chosen) == 40 and len(drawn) == 60
        # The same as without looking at any answer.
        usable = [call.id for call in former + rare]
        assert drawn == sorted(usable, key=lambda name: hash_fraction(f"{version} {name}", 0))[:60]
        assert not {call.id for call in inputs.chosen} & {*drawn}
        # Neither is one left out that was asked already, as one with a doubtful answer.
        replays = ReplayStore(store)
        replays.plan(version, inputs.drawn[:20], AGAIN, is_drawn=False)
        assert replays.plan(version, inputs.drawn, chosen=inputs.chosen) == 100
        assert replays.plan(version, inputs.drawn, chosen=inputs.chosen) == 0
        assert [*replays.recorded([version]).values()] == drawn
        question = replays.prepare(version, is_answered=False)[0]
        replays.settle(question.id, "deleted")
        assert replays.counts()[version].asked == 1 and replays.paid_counts() == {}  # it cost nothing
        # After another change the same ones may be asked once more.
        assert replays.plan(version, inputs.drawn, chosen=inputs.chosen, occasion=7) == 100
        assert replays.plan(version, inputs.drawn, chosen=inputs.chosen, occasion=7) == 0
        # Of versions that count as one, the inputs of one aren't like the traffic.
        store.add(calls_of(1, prompt="Another"))
        records.merge(store.versions()[0].site, [v.version for v in store.versions()])
        assert draw_inputs(stages, version, version, 100) == ([], [])


def test_a_question_that_was_the_next_is_asked_twice_at_most(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(3)) as store:
        replays, version = ReplayStore(store), store.versions()[0].version
        calls = [*store.calls(version)]
        replays.plan(version, calls[:1], AGAIN, is_next=True)
        (question,) = replays.prepare(version, is_answered=False)
        for _ in range(2):
            assert replays.claim(question.id)
            replays.postpone(question.id, "status-503")
        assert not replays.claim(question.id) and replays.counts()[version] == ReplayCount(1, 1, 0)


def test_calls_of_one_person_are_drawn_together(tmp_path: Path) -> None:
    calls = [
        call_of(f"visa {number}", {"intent": "card"}, 12 * (number // 10), subject=f"p{number // 10}")
        for number in range(2000)
    ]
    with store_of(tmp_path, []) as store:
        stages, _, new = replayed_version(store, tmp_path / "student")
        store._delete(CALLS.c.began < 1.7e9 + 60 * 300)
        store.add([replace(call, id=f"{n}", began=call.began - 2e6) for n, call in enumerate(calls)])
        drawn = draw_former_inputs(stages, 100)[new[0].version].drawn
        persons = [call.request.subjects for call in drawn]
        assert len(set(persons)) == 10 and persons == sorted(persons, key=persons.index)


@pytest.mark.parametrize("why", ["few", "drift", "placeholders", "other text", "other messages", "beside"])
def test_no_inputs_are_drawn_that_are_not_like_the_traffic(tmp_path: Path, why: str) -> None:
    with store_of(tmp_path, []) as store:
        stages, _, new = replayed_version(store, tmp_path / "student")
        assert draw_former_inputs(stages, 60)
        if why == "few":
            store._delete(CALLS.c.id.in_([call.id for call in new[:6]]))
        elif why == "drift":
            (student,) = stages.students().values()
            batch = EvidenceBatch(confidences=list(np.linspace(0.5, 1, 200)) + [0.1] * 300)
            assert stages.fold(student, batch).has_drifted
        elif why == "placeholders":
            answer = {"intent": "transfer"}
            store.add([call_of(f"[EMAIL_1] wire {number}", answer, number + 60) for number in range(10)])
        elif why == "beside":
            store.add(calls_of(1, first=340, seed=9))
        else:
            store._delete(CALLS.c.version == new[0].version)
            for call in new:
                system, user = call.request.messages
                other = replace(user, parts=(f"Say: {user.parts[0]}",))
                messages = (system, other) if why == "other text" else (system, user, user)
                store.add([replace(call, request=replace(call.request, messages=messages))])
        assert draw_former_inputs(stages, 60) == {}


def test_a_changed_prompt_has_recorded_inputs_asked_again_and_the_difference_told(
    llm: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a hand's count: the second prompt has `other` where the first one had `transfer`."""
    settings: dict[str, Any] = {"auto": True, "train_after": 10**6, "forecast_after": 0, "replay_calls": 40}
    draw = random.Random(0)
    with running_mirror(tmp_path, llm.url, IN_STEP, **settings) as mirror:
        send(mirror, FIRST, message(draw))
        (first,) = mirror.calls()
        put_in_mode(
            mirror.stages, make_student(tmp_path / "made", first, {}, {"intent": "card"}), first, "shadow"
        )
        for _ in range(55):
            send(mirror, FIRST, message(draw))
        for _ in range(24):
            send(mirror, SECOND, message(draw), "sk-2")
        mirror.follow()
        replays = ReplayStore(mirror.store)
        assert replays.counts() == {}
        send(mirror, SECOND, message(draw), "sk-2")
        mirror.follow()
        version = mirror.calls()[-1].version
        assert replays.counts() == {version: ReplayCount(40, 0, 0)}
        replay_all(mirror, [message(draw) for _ in range(30)])
        mirror.follow()
        replay_all(mirror, [message(draw) for _ in range(15)])
        mirror.follow()
        assert replays.counts() == {version: ReplayCount(40, 40, 40)}
        pairs = replays.pairs(version)
        changed = sum(intent_of(call.request.inputs[0].parts[0]) == "transfer" for call, _ in pairs)
        assert 33 < len(pairs) < 40  # the others were asked for their answers
        assert mirror.stages.call_counts(1)[version] == 25 + 45 + len(pairs)
        state = StateReader(mirror.store, mirror.app.settings).state()["replays"][version]
    low, high = binomtest(changed, len(pairs)).proportion_ci(0.95, "exact")
    assert f"Of {len(pairs)} recorded inputs that were asked again {changed} got another answer" in state
    assert f"most often $.intent transfer → other ({changed})" in state
    assert f"than before: {format_percent(low)} to {format_percent(high)}, with 95 % confidence" in state
    assert main(["mirror", "status", "--store", str(tmp_path / "mirror.sqlite")]) == 0
    assert state in " ".join(capsys.readouterr().out.split())


def test_a_student_knows_no_input_that_may_prove_it(tmp_path: Path) -> None:
    def second(text: str, draw: random.Random) -> dict[str, Any]:
        return {"intent": "other" if intent_of(text) == "transfer" else intent_of(text)}

    with store_of(tmp_path, []) as store:
        former = calls_of(400)
        again = [replace(call, id=f"again {call.id}", began=call.began + 1) for call in former[:50]]
        new = calls_of(240, second, seed=1, first=500, prompt="Which one?")
        store.add(former + again + new)
        replays, version = ReplayStore(store), new[0].version
        replays.plan(version, former[:50])
        texts = [call.request.inputs[0].parts[0] for call in former[:40]]
        answered = [
            replace(
                call_of(text.split("\n")[1], second(text, random.Random()), 510 + 5 * n, prompt="Which one?"),
                id=name,
                source=REPLAYED,
            )
            for n, (text, name) in enumerate(zip(texts, replays.recorded([version]), strict=False))
        ]
        store.add(answered)
        learned = train_student(store, tmp_path / "out", settings=LearnSettings(tiers=("tf-idf",)))
        assert learned.file.templates.keys() == {version}
        # All but those of dev are kept for the proof, with the latest of the others.
        kept = {call.id for call in learned.parts.calibration}
        planning = {call.id for call in learned.parts.dev if call.source == REPLAYED}
        assert kept == ({call.id for call in answered} - planning) | {call.id for call in new[-72:]}
        assert 0 < len(planning) < 16
        assert any("Of 40 recorded inputs that were asked again" in note for note in learned.notes)
        used = LearningRecords(store).used_calls()
        assert not used & {call.id for call in former[:50] + again}
        assert used >= {call.id for call in former[50:]}
        replays.plan(version, former[50:60])
        replays.leave_out([version], used)
        assert replays.counts()[version] == ReplayCount(60, 10, 0)


def false_proofs(store: Store, runs: int, *, leaves_out: bool = True) -> int:
    """Of so many students at the border of what is claimed, of how many something is proven. A fifth of their
    answers to texts that they don't know differ; they know all former ones that they may learn from.
    """
    draw, answer = random.Random(5), {"intent": "card"}
    store.add([call_of(f"former {number} {draw.random()}", answer, number) for number in range(400)])
    store.add([call_of(f"new {n} {draw.random()}", answer, 500 + n, prompt="Which?") for n in range(25)])
    stages, (former, new) = StageStore(store), store.versions()
    stages.add_student(StudentRecord("former", former.version, "folder", 0.05, 0.05))
    stage = set_mode(replace(stages.stages()[former.version], student="former"), "live", 1.0)
    stages.change(stages.stages()[former.version], stage, "hand", "a test")
    replays = ReplayStore(store)
    replays.plan(new.version, draw_former_inputs(stages, 200)[new.version].drawn, is_first=True)
    known = {call.id for call in read_former_calls(LearningRecords(store), understand(store, (new,)))}
    assert len(known) == 200
    if not leaves_out:
        known = {call.id for call in store.calls(former.version)}
    plan = ProofPlan(
        epsilon=0.2, delta=0.05, thresholds=(0.9,), starts=(1.0,), counts=((0, 0), (0, 0)),
        forecast=(20, 70, None),
    )  # fmt: skip
    wrong = 0
    for run in range(runs):
        # The first of its version.
        student = StudentRecord(f"{leaves_out} {run}", f"{leaves_out} {run}", "folder", 0.2, 0.05, plan=plan)
        stages.add_student(student)
        compared = [draw.random() < 0.2 for _ in range(50)]  # clients' calls
        asked = replays.recorded([new.version]).values()
        compared += [recorded not in known and draw.random() < 0.2 for recorded in asked]
        draw.shuffle(compared)
        calls = [ComparedCall(0.95, differs) for differs in compared]
        proof = stages.fold(student, EvidenceBatch(calls=calls)).proof
        assert proof is not None and proof.number == 1
        wrong += proof.threshold is not None
    return wrong


@pytest.mark.slow
def test_a_proof_by_recorded_inputs_is_seldom_wrong(tmp_path: Path) -> None:
    with store_of(tmp_path, []) as store:
        wrong = false_proofs(store, 500)
    print(f"false proofs: {wrong} of 500")
    assert binomtest(wrong, 500, 0.05, "greater").pvalue > 0.001
    with closing(Store(str(tmp_path / "leak.sqlite"))) as store:
        leaking = false_proofs(store, 60, leaves_out=False)
    print(f"where they know them: {leaking} of 60")
    assert binomtest(leaking, 60, 0.05, "greater").pvalue < 0.001


@pytest.mark.slow
def test_a_change_that_no_name_tells_is_found_by_recorded_inputs_and_the_student_answers_no_more(
    tmp_path: Path,
) -> None:
    has_turned, draw = False, random.Random(1)

    def change_meaning(seen: Seen) -> Reply:
        text = str(seen.json()["messages"][-1]["content"])
        intent = "card" if has_turned and "hello" in text else intent_of(text)
        answered = {"role": "assistant", "content": json.dumps({"intent": intent}), "refusal": None}
        choice = {"index": 0, "finish_reason": "stop", "message": answered}
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        whole = {"id": "c", "model": "llm-1", "created": 1, "choices": [choice], "usage": usage}
        return Reply([json.dumps(whole).encode()])

    signs = {sign: {"intent": intent_of(sign)} for sign in ("visa", "plastic", "wire", "iban", "hello")}
    students = str(tmp_path / "students")
    settings = {"auto": True, "train_after": 100_000, "seed": 1, "students": students}
    with (
        upstream_of(change_meaning) as upstream,
        running_mirror(tmp_path, upstream.url, IN_STEP, **settings) as mirror,
    ):

        def pass_calls(count: int) -> int:
            """How many calls there were at the most, until the student was dismissed."""
            for number in range(count):
                send(mirror, FIRST, message(draw))
                wait_until(lambda: mirror.app.relay.replays.waiting == 0)
                if number % 10 == 9:
                    mirror.follow()
                    if not next(iter(mirror.stages.stages().values())).student_answers:
                        return number + 1
            return count

        for _ in range(110):
            send(mirror, FIRST, message(draw))
        recorded = mirror.calls()
        student = make_student(tmp_path / "student", recorded[0], signs, {})
        put_in_mode(mirror.stages, student, recorded[0], "live", 1.0)
        mirror.follow()
        asked = len(upstream.seen)
        assert pass_calls(70) == 70
        again = [call for call in mirror.calls() if call.source == AGAIN]
        audits = sum(mirror.stages.audit_outcomes().values())
        assert len(again) == 2 and len(upstream.seen) - asked == len(again) + audits
        has_turned = True
        assert pass_calls(900) < 900
        (stage,) = mirror.stages.stages().values()
        assert (stage.mode, stage.student, stage.former, stage.candidate) == ("record", "", "", "")
        (found,) = mirror.stages.llm_changes().values()
        assert found == stage.changed
        replays = ReplayStore(mirror.store)
        planned = replays.recorded([stage.version])
        assert len(planned) > 50 and planned.keys().isdisjoint(call.id for call in mirror.calls())
        mirror.follow()
        asked_again = 0  # what was still to be asked when the change was found comes before
        for _ in range(12):
            mirror.follow()
            for _ in range(5):
                send(mirror, FIRST, message(draw))
                wait_until(lambda: mirror.app.relay.replays.waiting == 0)
            mirror.settle()
            asked_again = sum(call.source == REPLAYED for call in mirror.calls())
            if asked_again >= 5:
                break
        assert asked_again >= 5
        why = mirror.stages.changes()[-1].why
        inputs, differing, low, high = re.findall(r"[\d.]+", why.replace("95 %", ""))[:4]
        assert why.startswith("the LLM answers otherwise than before: of ") and int(differing) >= 7
        assert float(low) < 20 < float(high) and int(inputs) < 400, why
        (check,) = check_guarantees(mirror.stages)
        assert not check.holds and check.what == f"demoted from live to record: {why}"
        questions = Counter(call.request.inputs for call in mirror.calls() if call.source == AGAIN)
        assert max(questions.values()) == 2 and len(questions) < 450


def test_an_llm_that_contradicts_itself_is_hardly_ever_taken_for_another() -> None:
    draws, cases = np.random.default_rng(0), {"same": call_of("visa", {"intent": "card"}, 1)}
    cases["other"] = call_of("visa", {"intent": "other"}, 2)

    def ask() -> Call:  # an input about which it tosses a coin each time
        return cases["same"] if draws.random() < 0.5 else cases["other"]

    def differs(one: Call, other: Call) -> bool:
        return one.completion.value != other.completion.value

    differing = []
    for _ in range(12):
        answers = list[RepeatedAnswer]()
        while not weigh_changes(answers, differs).has_changed and len(answers) < 400:
            answers.append(RepeatedAnswer(ask(), ask(), ask()))
        differing.append(sum(differs(answer.recorded, answer.first) for answer in answers))
    assert np.mean(differing) > 100


def test_the_errors_among_rare_answers_are_no_change() -> None:
    """Spam is rare, so that many inputs recorded as spam are errors of the LLM, which it doesn't repeat."""
    draws = np.random.default_rng(3)
    cases = {intent: call_of("visa", {"intent": intent}, 1) for intent in ("card", "other")}

    def ask(is_spam: bool) -> Call:
        return cases["other" if draws.random() < (0.95 if is_spam else 0.02) else "card"]

    def input_recorded(*, as_spam: bool) -> tuple[bool, Call]:
        while True:
            is_spam = draws.random() < 0.05
            recorded = ask(is_spam)
            if not as_spam or recorded is cases["other"]:
                return is_spam, recorded

    def differs(one: Call, other: Call) -> bool:
        return one is not other

    answers, asked = list[RepeatedAnswer](), 0
    for _ in range(200):
        wanted = weigh_changes(answers, differs).wanted
        for is_chosen in [True] + [False] * wanted:
            is_spam, recorded = input_recorded(as_spam=is_chosen)
            answers.append(RepeatedAnswer(recorded, ask(is_spam), ask(is_spam), not is_chosen))
        evidence = weigh_changes(answers, differs)
        assert not evidence.has_changed
        asked += wanted
    chosen = [answer for answer in answers if not answer.is_drawn]
    repeated = [answer for answer in chosen if answer.recorded is not answer.first is answer.second]
    assert len(repeated) > 30  # by bets on these twelve in a row would be an alarm
    assert asked < 5 * len(chosen)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_interval_of_what_has_changed_holds_the_truth(share: float) -> None:
    draws = np.random.default_rng(1)
    same, other = (call_of("visa", {"intent": intent}, 1) for intent in ("card", "other"))
    held = 0
    for _ in range(60):
        answers = [RepeatedAnswer(same, other, other)]
        evidence = weigh_changes(answers, lambda one, new: one is same and new is other)
        while not evidence.has_changed:
            new = other if draws.random() < share else same
            answers.append(RepeatedAnswer(same, new, new))
            evidence = weigh_changes(answers, lambda one, new: one is same and new is other)
        held += evidence.interval.low <= share <= evidence.interval.high
        assert evidence.pairs[-1][1] is other and evidence.differing == 11
    assert held >= 54
