"""From recorded calls to a student: what is proven of it, what it reads and answers, what it forgets."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mirrored_calls import (
    INTENT,
    at_random,
    call_of,
    calls_of,
    intent_of,
    message,
    store_of,
)

from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stage_store import read_findings as latest_findings
from bertsmith.mirror.answering.training_process import read_student
from bertsmith.mirror.call import AGAIN, ChatMessage
from bertsmith.mirror.learning import train as training
from bertsmith.mirror.learning.learned_calls import read_calls
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.train import train_student
from bertsmith.mirror.learning.understand import LearningRecords, understand
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.student_file import student_id

REFUSED = {"refusal": 1000, "status-400": 7}
WORDS = LearnSettings(tiers=("tf-idf",))


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than a training here; test_report.py looks at them."""
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])


@pytest.mark.parametrize("option", [{"model": "runs/x"}, {"restarts": 2}, {"overrides": ("epochs=4",)}])
def test_what_is_for_an_encoder_is_refused_without_one(option: dict[str, Any]) -> None:
    name = "epochs" if "overrides" in option else next(iter(option))
    with pytest.raises(RecipeError, match=f"{name} is for an encoder: leave it out, or add encoder to tiers"):
        LearnSettings(tiers=("tf-idf",), **option)
    LearnSettings(tiers=("tf-idf", "encoder"), **option)


def test_a_student_of_recorded_calls_answers_as_its_teacher_did(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(900)) as store:
        learned = train_student(store, tmp_path / "student", settings=WORDS)
        (version,) = store.versions()
    assert learned.why == "" and learned.file.claims.coverage > 0.9
    assert not (tmp_path / "student.training").exists()
    student = MirrorStudent.open(tmp_path / "student")
    assert student.file.is_promotable and student.file == learned.file
    draw = random.Random(5)
    texts = [message(draw) for _ in range(200)]
    answers = student.answer(texts)
    assert all(each.answer == {"intent": each.values["$.intent"]} for each in answers)
    wrong = [a.values["$.intent"] != intent_of(t) for a, t in zip(answers, texts, strict=True) if a.is_sure]
    assert len(wrong) > 150 and np.mean(wrong) < 0.05
    asked = call_of(texts[0], {}, 0).request
    assert student.input_of(asked, version.version) == texts[0]
    assert student.input_of(asked, "another") is None
    assert (
        student.input_of(call_of(texts[0], {}, 0, prompt="Another prompt").request, version.version) is None
    )


def test_answers_that_prove_have_no_say_in_what_counts_as_the_same(tmp_path: Path) -> None:
    """A tolerance of a twentieth of what numbers span, of which the later ones span a hundred times more."""
    schema = {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]}
    early = calls_of(630, lambda text, draw: {"score": draw.random()}, schema=schema)
    late = calls_of(270, lambda text, draw: {"score": 100 * draw.random()}, 1, 630, schema=schema)
    with store_of(tmp_path, early + late) as store:
        learned = train_student(store, tmp_path / "student", settings=WORDS)
    assert [call.id for call in learned.parts.calibration] == [call.id for call in late]
    assert learned.file.shape.field("$.score").tolerance == pytest.approx(0.05 * 0.9, rel=0.1)


def test_a_training_says_how_often_the_llm_refused(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(300)) as store:
        (version,) = store.versions()
        tallies = {(version.version, "", f"refused-{why}"): (count, 0.0) for why, count in REFUSED.items()}
        StageStore(store).tally({**tallies, ("another", "", "refused-refusal"): (99, 0.0)})
        learned = train_student(store, tmp_path / "student", settings=WORDS)
    (note,) = learned.notes
    assert "to 1,007 calls beside these 300 (refusal 1,000, status-400 7)" in note


def test_calls_that_do_not_fit_or_say_nothing_are_left_to_the_llm_and_counted_once(tmp_path: Path) -> None:
    """Whether or not they were asked again: what is proven is of the other calls."""
    fitting = calls_of(60)
    blank = [call_of(" " * (n % 2), {"intent": "other"}, 60 + n) for n in range(5)]
    turns = (ChatMessage("assistant", ("Which card?",)), ChatMessage("user", ("visa",)))
    longer = [
        replace(
            each,
            id=f"longer-{each.id}",
            request=replace(each.request, messages=each.request.messages + turns),
        )
        for each in fitting[:7]
    ]
    again = [
        replace(each, id=f"again-{each.id}", source=AGAIN) for each in (fitting[0], *blank[:2], longer[0])
    ]
    with store_of(tmp_path, [*fitting, *blank, *longer, *again]) as store:
        understood = understand(store, LearningRecords(store).group(None))
        read = read_calls(store, understood)
    assert (len(read.calls), read.unmatched, len(read.again)) == (60, 12, 1)
    assert (understood.fitting, understood.looked_at) == (60, 72)


def test_odd_answers_are_passed_over_and_counted(tmp_path: Path) -> None:
    """As a server gives them that doesn't enforce schemas. In the proof they count as different."""
    schema = {"type": "object", "properties": {"intent": {"type": "string"}}, "required": ["intent"]}
    calls = calls_of(400, schema=schema)
    odd = [
        [{"intent": ["card", "loan"]}, {"intent": 3}, {}, {"intent": {"is": "card"}}][n % 4] for n in range(8)
    ]
    calls[100:108] = [call_of(f"visa {n}", answer, 100 + n, schema=schema) for n, answer in enumerate(odd)]
    calls[-1] = call_of("visa now", {"intent": ["card"]}, 399, schema=schema)
    with store_of(tmp_path, calls) as store:
        assert understand(store, LearningRecords(store).group(None)).odd == 9
        settings = LearnSettings(tiers=("tf-idf",), epsilon=0.2)
        learned = train_student(store, tmp_path / "student", settings=settings)
    assert "9 of 400 answers don't fit the fields" in learned.notes[0]
    assert learned.file.shape.field("$.intent").values == ("card", "other", "transfer")
    assert learned.calibration is not None and learned.calibration.differs[-1]


@pytest.mark.parametrize(("none", "ever"), [({"tags": []}, False), ({}, False), ({}, True)])
def test_where_no_label_is_given_the_list_is_empty_or_left_out_as_the_llm_does_it(
    tmp_path: Path, none: dict[str, Any], ever: bool
) -> None:
    labels = {"type": "array", "items": {"enum": ["urgent", "legal"]}}
    schema = {"type": "object", "properties": {**INTENT["properties"], "tags": labels}}
    schema["required"] = ["intent"]

    def teacher(text: str, draw: random.Random) -> dict[str, Any]:
        given = {"tags": ["urgent"]} if ever and text.endswith("now") else none
        return {"intent": intent_of(text), **given}

    with store_of(tmp_path, calls_of(600, teacher, schema=schema)) as store:
        learned = train_student(store, tmp_path / "student", settings=WORDS)
    assert learned.file.claims.coverage > 0.5
    (answer,) = MirrorStudent.open(tmp_path / "student").answer(["visa bano"])
    assert answer.answer == {"intent": "card", **none}
    assert ever or answer.confidences["$.tags"] == 1.0


@pytest.mark.parametrize(
    "wanted", [{"enum": ["loan", "tax"]}, {"type": "array", "items": {"enum": ["loan", "tax"]}}]
)
def test_a_field_that_no_answer_fits_is_one_sentence(tmp_path: Path, wanted: dict[str, Any]) -> None:
    """As of a server that doesn't enforce schemas."""
    schema = {"type": "object", "properties": {"intent": wanted}, "required": ["intent"]}
    with (
        store_of(tmp_path, calls_of(300, schema=schema)) as store,
        pytest.raises(InputError, match=r"\$\.intent: none of the .* answers to learn from"),
    ):
        train_student(store, tmp_path / "student", settings=WORDS)


def test_a_teacher_that_answers_at_random_is_never_certified(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(900, at_random)) as store:
        learned = train_student(store, tmp_path / "student", settings=WORDS)
    assert learned.why and learned.file.claims.coverage == 0
    student = MirrorStudent.open(tmp_path / "student")
    assert not student.file.is_promotable
    assert {(each.is_sure, each.reason) for each in student.answer(["visa bano"] * 3)} == {
        (False, "not-proven")
    }


def test_calibration_calls_are_used_once(tmp_path: Path) -> None:
    calls = calls_of(900)
    with store_of(tmp_path, calls) as store:
        records = LearningRecords(store)
        first = train_student(store, tmp_path / "first", settings=WORDS)
        proven = records.calibration_calls()
        assert proven == {call.id for call in calls[-270:]} == {call.id for call in first.parts.calibration}
        again = train_student(store, tmp_path / "again", settings=WORDS)
        assert "0 new calls" in again.why and again.file.claims.whole is None
        assert len(again.parts.learned) == 900
        store.add(calls_of(300, seed=1, first=900))
        later = train_student(store, tmp_path / "later", settings=WORDS)
        assert (
            later.why == ""
            and not {call.id for call in later.parts.calibration} & records.read_uses("x").keys()
        )
        assert all(call.id not in proven for call in later.parts.calibration)
        assert {call.id for call in later.parts.learned} >= proven


@pytest.mark.parametrize(("taken", "is_proven"), [(40, True), (270, False)])
def test_calls_that_another_training_proved_by_meanwhile_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, is_proven: bool
) -> None:
    calls = calls_of(900)
    theirs = {call.id for call in calls[-taken:]}
    with store_of(tmp_path, calls) as store:
        split_calls = training.split_calls

        def meanwhile(*given: Any) -> Any:
            parts = split_calls(*given)
            LearningRecords(store).record_uses("another", {"calibration": theirs})
            return parts

        monkeypatch.setattr(training, "split_calls", meanwhile)
        learned = train_student(store, tmp_path / "student", settings=WORDS)
        uses = LearningRecords(store).read_uses("another")
    assert len(learned.parts.calibration) == 270 - taken
    assert not {call.id for call in learned.parts.calibration} & theirs
    assert (learned.file.claims.whole is not None) == is_proven
    assert learned.why.startswith("there are 0 new calls") == (not is_proven)
    assert uses == dict.fromkeys(theirs, "calibration")


def test_a_student_whose_proof_was_not_begun_is_proven_by_the_calls_since(tmp_path: Path) -> None:
    settings = WORDS.model_copy(update={"epsilon": 0.03, "ladder": ()})
    with store_of(tmp_path, calls_of(320)) as store:
        first = train_student(store, tmp_path / "student", settings=settings)
        assert "it takes at least" in first.why and first.file.plan is not None
        stages, records = StageStore(store), LearningRecords(store)
        (version,) = store.versions()
        uses = records.read_uses(first.file.training)
        assert {*uses.values()} == {"train", "dev"}
        student = read_student(first.folder, version.version)
        assert student is not None and stages.add_student(student)
        stage = stages.stages()[version.version]
        assert stages.change(stage, replace(stage, mode="shadow", student=student.id), "hand", "a test")
        later = calls_of(500, seed=1, first=320)
        assert store.add(later) == 500
        again = train_student(store, tmp_path / "student", settings=settings)
        assert again.why == "" and any("learned nothing new" in note for note in again.notes)
        assert (again.file.training, again.file.trained_on) == (first.file.training, first.file.trained_on)
        proving = records.calibration_calls()
        assert proving == {call.id for call in store.calls(version.version)} - uses.keys()
        assert {call.id for call in later} < proving and again.file.calibration.calls == len(proving) == 596
        # Its proof in shadow has 6/π² of delta, and goes on meanwhile.
        assert again.file.claims.delta == pytest.approx(0.05 * (1 - 6 / np.pi**2))
        assert "student that learned from" in (again.folder / "report.html").read_text("utf-8")
        # Then a new one is trained: this one came proven.
        assert store.add(calls_of(300, seed=2, first=820)) == 300
        newer = train_student(store, tmp_path / "student", settings=settings)
        assert newer.file.training not in ("", first.file.training)


def test_train_and_dev_share_no_text_and_calibration_comes_later(tmp_path: Path) -> None:
    few = [
        call_of(call.request.inputs[0].parts[0][9:-17], call.completion.value, n)
        for n, call in enumerate(calls_of(300))
    ]
    repeated = [call_of("visa bano", {"intent": "card"}, 400 + n) for n in range(100)]
    with store_of(tmp_path, few + repeated + calls_of(300, seed=2, first=600)) as store:
        parts = train_student(store, tmp_path / "student", settings=WORDS).parts
    train, dev = ({call.text for call in of} for of in (parts.train, parts.dev))
    assert not train & dev and len(train) == len(parts.train) and len(dev) == len(parts.dev)
    assert max(call.began for call in parts.learned) < min(call.began for call in parts.calibration)


def test_what_a_subject_said_is_gone_from_later_students(tmp_path: Path) -> None:
    secret = [
        call_of(f"xylophone {message(random.Random(n))}", {"intent": "card"}, 1000 + n, subject="anna")
        for n in range(30)
    ]
    with store_of(tmp_path, calls_of(700) + secret + calls_of(400, seed=3, first=2000)) as store:
        train_student(store, tmp_path / "before", settings=WORDS)
        assert b"xylophone" in _bytes(tmp_path / "before")
        assert store.forget("anna") == 30
        store.add(calls_of(400, seed=4, first=4000))
        train_student(store, tmp_path / "after", settings=WORDS)
    assert b"xylophone" not in _bytes(tmp_path / "after")


def _bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_training_that_was_ended_goes_on_with_the_same_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_of(tmp_path, calls_of(900)) as store:
        with monkeypatch.context() as broken:
            broken.setattr(training, "write_student", _killed)
            with pytest.raises(KeyboardInterrupt):
                train_student(store, tmp_path / "student", settings=WORDS)
        assert not (tmp_path / "student").exists() and (tmp_path / "student.training").exists()
        store.add(calls_of(300, seed=1, first=900))
        learned = train_student(store, tmp_path / "student", settings=WORDS)
        assert len(LearningRecords(store).calibration_calls()) == 270
    assert len(learned.parts.calibration) == 270 and learned.why == ""
    assert learned.curve is not None and learned.curve.recorded == 900
    assert not (tmp_path / "student.training").exists()


@pytest.mark.slow
def test_a_training_of_other_settings_that_was_ended_stays_and_goes_on_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, said = tmp_path / "student", list[str]()
    one, other = WORDS.model_copy(update={"epsilon": 0.1}), WORDS.model_copy(update={"epsilon": 0.12})
    with store_of(tmp_path, calls_of(900)) as store:
        with monkeypatch.context() as broken:
            broken.setattr(training, "write_student", _killed)
            for settings in (WORDS, one):
                with pytest.raises(KeyboardInterrupt):
                    train_student(store, out, settings=settings)
        plans = [tmp_path / f"student.training{end}" / "plan.json" for end in ("", "-2")]
        assert [json.loads(each.read_text())["settings"]["epsilon"] for each in plans] == [0.05, 0.1]
        plans[1].write_text(plans[1].read_text()[:200])  # as a damaged disk leaves it
        before = [each.read_bytes() for each in plans]
        assert train_student(store, out, settings=other, say=said.append).file.claims.epsilon == 0.12
        assert [each.read_bytes() for each in plans] == before
        assert not (tmp_path / "student.training-3").exists()
        assert any(str(plans[0].parent) in each and "student.training-3" in each for each in said)
        learned = train_student(store, out, settings=WORDS)
        assert len(learned.parts.calibration) == 270 and learned.why == ""
    assert not plans[0].parent.exists() and plans[1].exists()


def test_a_refused_training_leaves_no_plan_and_the_next_has_the_calls_that_are_there_then(
    tmp_path: Path,
) -> None:
    """Words find no quotes, which is seen when the plan is written already."""
    texts = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"quotes": texts}, "required": ["quotes"]}

    def teacher(text: str, draw: random.Random) -> dict[str, Any]:
        return {"quotes": [" ".join(text.split()[:3])]}

    with store_of(tmp_path, calls_of(300, teacher, schema=schema)) as store:
        with pytest.raises(InputError, match="words alone find no quotes"):
            train_student(store, tmp_path / "student", settings=WORDS)
        assert not LearningRecords(store).used_calls()
    assert not list(tmp_path.glob("student*"))


def test_what_is_proven_is_not_lost_to_a_damaged_student_in_its_place(tmp_path: Path) -> None:
    """The calls that prove it can't be used again."""
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "student.json").write_text('{"layout":')
    with store_of(tmp_path, calls_of(900)) as store:
        learned = train_student(store, tmp_path / "student", settings=WORDS)
    assert learned.folder == tmp_path / "student" and learned.file.claims.coverage > 0.9


def test_the_work_stays_where_a_proven_student_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object) -> None:
        raise InputError("no place")

    with store_of(tmp_path, calls_of(900)) as store:
        with monkeypatch.context() as broken:
            broken.setattr(training, "write_student", refused)
            with pytest.raises(InputError, match="no place"):
                train_student(store, tmp_path / "student", settings=WORDS)
        proven = LearningRecords(store).calibration_calls()
        learned = train_student(store, tmp_path / "student", settings=WORDS)
    assert learned.why == "" and {call.id for call in learned.parts.calibration} == proven


def test_an_ended_training_goes_on_after_those_of_lower_numbers_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = [WORDS.model_copy(update={"epsilon": epsilon}) for epsilon in (0.05, 0.1, 0.12)]
    with store_of(tmp_path, calls_of(600)) as store:
        with monkeypatch.context() as broken:
            broken.setattr(training, "write_student", _killed)
            for settings in three:
                with pytest.raises(KeyboardInterrupt):
                    train_student(store, tmp_path / "student", settings=settings)
        assert (tmp_path / "student.training-3").exists()
        for settings in three[1:]:  # then 2 is gone, and 3 is there
            train_student(store, tmp_path / "student", settings=settings)
        assert len(LearningRecords(store).calibration_calls()) == 180
    assert [path.name for path in tmp_path.glob("student.training*")] == ["student.training"]


def test_a_training_that_goes_on_says_with_which_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    with store_of(tmp_path, calls_of(300)) as store:
        with monkeypatch.context() as broken:
            broken.setattr(training, "write_student", _killed)
            with pytest.raises(KeyboardInterrupt):
                train_student(store, tmp_path / "student", settings=WORDS, say=said.append)
        assert not any("Going on" in sentence for sentence in said)
        store.add(calls_of(50, seed=1, first=1000))
        train_student(store, tmp_path / "student", settings=WORDS, say=said.append)
    (sentence,) = [sentence for sentence in said if "Going on" in sentence]
    assert "with its 300 calls; 50 new ones are for the next training" in sentence


def test_what_is_advised_where_all_that_may_prove_are_too_few_is_enough(tmp_path: Path) -> None:
    """The calls that were learned from can't prove any more."""
    with store_of(tmp_path, calls_of(900)) as store:
        few = WORDS.model_copy(update={"most_calibration": 50})
        why = train_student(store, tmp_path / "student", settings=few).why
        assert (
            "Record at least 11 more calls and keep more of them to prove with: --most-proof-calls 61" in why
        )
        store.add(calls_of(11, seed=1, first=900))
        more = WORDS.model_copy(update={"most_calibration": 61})
        learned = train_student(store, tmp_path / "student", settings=more)
    assert len(learned.parts.calibration) == 61 and "at least" not in learned.why


def test_a_folder_of_the_users_where_a_training_would_work_stays(tmp_path: Path) -> None:
    notes, said = tmp_path / "student.training" / "notes.txt", list[str]()
    notes.parent.mkdir()
    notes.write_text("mine")
    with store_of(tmp_path, calls_of(300)) as store:
        train_student(store, tmp_path / "student", settings=WORDS, say=said.append)
    assert notes.read_text() == "mine" and not (tmp_path / "student.training-2").exists()
    assert f"What is in {notes.parent} stays" in said[0]


def test_an_ended_training_of_another_store_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions are the same, but the calls aren't there."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with store_of(folders[0], calls_of(900)) as store, monkeypatch.context() as broken:
        broken.setattr(training, "write_student", _killed)
        with pytest.raises(KeyboardInterrupt):
            train_student(store, tmp_path / "student", settings=WORDS)
    plan = (tmp_path / "student.training" / "plan.json").read_bytes()
    with store_of(folders[1], calls_of(600, seed=1)) as store:
        learned = train_student(store, tmp_path / "student", settings=WORDS)
    assert len(learned.parts.learned) + len(learned.parts.calibration) == 600
    assert (tmp_path / "student.training" / "plan.json").read_bytes() == plan


def test_of_two_trainings_for_one_folder_the_second_is_refused_whatever_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_of(tmp_path, calls_of(900)) as store:
        other = WORDS.model_copy(update={"epsilon": 0.1})

        def meanwhile(*given: object) -> None:
            with pytest.raises(InputError, match="another training is at work"):
                train_student(store, tmp_path / "student", settings=other)
            raise KeyboardInterrupt

        monkeypatch.setattr(training, "write_student", meanwhile)
        with pytest.raises(KeyboardInterrupt):
            train_student(store, tmp_path / "student", settings=WORDS)


def _killed(*given: object) -> None:
    raise KeyboardInterrupt


def test_calls_deleted_meanwhile_are_in_nothing_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = [call_of(f"xylophone {n}", {"intent": "card"}, n, subject="anna") for n in range(20)]
    with store_of(tmp_path, secret + calls_of(900, first=100)) as store:
        with monkeypatch.context() as broken:
            broken.setattr(training, "write_student", _killed)
            with pytest.raises(KeyboardInterrupt):
                train_student(store, tmp_path / "student", settings=WORDS)
        (tmp_path / "student.training" / "model").mkdir()
        (tmp_path / "student.training" / "model" / "train.jsonl").write_text("xylophone")
        store.forget("anna")
        train_student(store, tmp_path / "student", settings=WORDS)
    assert b"xylophone" not in _bytes(tmp_path)


def test_the_same_calls_and_seed_give_the_same_student(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with store_of(tmp_path / name, calls_of(900)) as store:
            settings = LearnSettings(tiers=("tf-idf",), seed=3)
            files.append(train_student(store, tmp_path / name / "student", settings=settings).file)
    same = [each.model_dump(exclude={"created", "templates", "training", "files"}) for each in files]
    assert same[0] == same[1]
    models = [{name: of for name, of in each.files.items() if name.startswith("model/")} for each in files]
    assert models[0] == models[1] and models[0]


def test_merged_versions_are_learned_together(tmp_path: Path) -> None:
    old, new = calls_of(500), calls_of(500, seed=1, first=500, prompt="Say the intent.")
    with store_of(tmp_path, old + new) as store:
        records = LearningRecords(store)
        site, versions = old[0].site, [old[0].version, new[0].version]
        assert len(records.group(site)) == 1
        records.merge(site, versions)
        assert [each.version for each in records.group(site)] == versions
        learned = train_student(store, tmp_path / "student", site=site, settings=WORDS)
        number = student_id(tmp_path / "student")
        known = {version: each["student"] for version, each in latest_findings(store).items()}
        assert known == dict.fromkeys(versions, number)
        with pytest.raises(InputError, match="no version 'nothing'"):
            records.merge(site, [versions[0], "nothing"])
        with pytest.raises(InputError, match="at least two"):
            records.merge(site, versions[:1] * 2)
    assert set(learned.file.templates) == set(versions) and learned.file.trained_on.calls == 700
    student = MirrorStudent.open(tmp_path / "student")
    for call in (old[0], new[0]):
        assert student.input_of(call.request, call.version) is not None


def test_inputs_that_came_twice_tell_how_often_the_teacher_contradicts_itself(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [message(draw) for _ in range(450)]
    calls = [call_of(text, {"intent": intent_of(text)}, n) for n, text in enumerate(texts)]
    calls += [
        call_of(text, {"intent": intent_of(text) if n % 10 else "other"}, 450 + n)
        for n, text in enumerate(texts)
    ]
    with store_of(tmp_path, calls) as store:
        ceiling = train_student(store, tmp_path / "student", settings=WORDS).file.ceiling
    assert ceiling is not None and not ceiling.asked_again and ceiling.inputs >= 440
    assert ceiling.low < 0.95 < ceiling.high < 1


def test_too_few_calls_and_sites_that_are_not_there_are_one_sentence(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(60)) as store:
        with pytest.raises(InputError, match="at least 50 texts"):
            train_student(store, tmp_path / "students" / "s", settings=WORDS)
        with pytest.raises(InputError, match="no calls of a place 'nowhere'"):
            train_student(store, tmp_path / "student", site="nowhere", settings=WORDS)
        store.add(calls_of(10, first=100, site="second"))
        with pytest.raises(InputError, match="several places"):
            train_student(store, tmp_path / "student", settings=WORDS)
    assert not list(tmp_path.glob("student*"))


def test_a_free_text_is_refused_with_its_path(tmp_path: Path) -> None:
    schema = INTENT | {
        "properties": {**INTENT["properties"], "why": {"type": "string"}},
        "required": ["intent", "why"],
    }

    def teacher(text: str, draw: random.Random) -> dict[str, str]:
        return {"intent": intent_of(text), "why": f"because {draw.random()}"}

    with (
        store_of(tmp_path, calls_of(300, teacher, schema=schema)) as store,
        pytest.raises(InputError, match=r"\$\.why: a free text"),
    ):
        train_student(store, tmp_path / "student", settings=WORDS)


def test_an_altered_student_is_refused(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(900)) as store:
        train_student(store, tmp_path / "student", settings=WORDS)
    words = tmp_path / "student" / "model" / "words.json"
    whole = words.read_bytes()
    words.write_bytes(whole + b" ")
    with pytest.raises(ModelError, match=r"words\.json is missing or was altered"):
        MirrorStudent.open(tmp_path / "student")
    words.write_bytes(whole)
    file = tmp_path / "student" / "student.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"files": {"../../secret": "0"}}))
    with pytest.raises(ModelError, match="outside of its folder"):
        MirrorStudent.open(tmp_path / "student")
    file.write_text(json.dumps(content | {"surprise": 1}))
    with pytest.raises(ModelError, match="surprise"):
        MirrorStudent.open(tmp_path / "student")
    with pytest.raises(ModelError, match="is no student"):
        MirrorStudent.open(tmp_path)


def test_by_class_needs_a_field_of_the_answers(tmp_path: Path) -> None:
    settings = LearnSettings(tiers=("tf-idf",), by_class="$.intention")
    with store_of(tmp_path, calls_of(2400)) as store:
        with pytest.raises(InputError, match=r"no field '\$\.intention'.*\$\.intent"):
            train_student(store, tmp_path / "student", settings=settings)
        by = train_student(
            store, tmp_path / "student", settings=settings.model_copy(update={"by_class": "$.intent"})
        )
    assert set(by.file.claims.classes) == {"card", "transfer", "other"} and by.file.claims.coverage > 0
