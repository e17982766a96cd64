"""A student that the mirror uses stays where it is, whatever is trained."""

from dataclasses import replace
from pathlib import Path

import pytest
from mirrored_calls import at_random, calls_of, store_of

from bertsmith.errors import InputError
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import StudentRecord
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.student_folder import find_free_folder
from bertsmith.mirror.learning.train import train_student
from bertsmith.mirror.student import MirrorStudent


def test_a_folder_is_numbered_while_a_stage_names_its_student(tmp_path: Path) -> None:
    with store_of(tmp_path, calls_of(3)) as store:
        stages = StageStore(store)
        (stage,) = stages.stages().values()
        for number, name in (("one", "out"), ("two", "out-2"), ("three", "out-3")):
            stages.add_student(StudentRecord(number, stage.version, str(tmp_path / name), 0.05, 0.05))
        assert find_free_folder(store, tmp_path / "out") == tmp_path / "out"
        named = replace(stage, student="one", former="two")
        assert stages.change(stage, named, "hand", "a test")
        assert find_free_folder(store, tmp_path / "out") == tmp_path / "out-3"
        assert find_free_folder(store, tmp_path / "another") == tmp_path / "another"


def test_a_folder_that_holds_anything_but_a_student_is_not_replaced(tmp_path: Path) -> None:
    notes = tmp_path / "students" / "mine" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    (tmp_path / "other-2").symlink_to(notes.parent)
    with store_of(tmp_path, calls_of(400)) as store:
        for out in (tmp_path / "students", notes):
            with pytest.raises(InputError, match=f"{out} exists and is no student's folder"):
                train_student(store, out, settings=LearnSettings(tiers=("tf-idf",)))
        stages = StageStore(store)
        (stage,) = stages.stages().values()
        stages.add_student(StudentRecord("one", stage.version, str(tmp_path / "other"), 0.05, 0.05))
        assert stages.change(stage, replace(stage, student="one"), "hand", "a test")
        assert find_free_folder(store, tmp_path / "other") == tmp_path / "other-3"
    assert notes.read_text() == "mine"


def test_a_file_of_the_users_beside_a_student_stays_and_so_does_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings = LearnSettings(tiers=("tf-idf",))
    with store_of(tmp_path, calls_of(300, at_random)) as store:
        student = train_student(store, tmp_path / "out", settings=settings).folder
        (student / ".DS_Store").touch()
        assert train_student(store, student, settings=settings).folder == student
        with monkeypatch.context() as there:
            there.chdir(student)
            for out in (".", "../out"):
                with pytest.raises(InputError, match="is the current folder"):
                    train_student(store, out, settings=settings)
        (student / "scores.csv").write_text("mine")
        with pytest.raises(InputError, match="holds other files too"):
            train_student(store, student, settings=settings)
    assert (student / "scores.csv").read_text() == "mine"


def test_a_proven_student_of_another_site_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings = LearnSettings(tiers=("tf-idf",))
    calls = [*calls_of(900, site="one"), *calls_of(900, seed=1, first=900, site="other")]
    with store_of(tmp_path, calls) as store:
        one = train_student(store, tmp_path / "out", site="one", settings=settings)
        other = train_student(store, tmp_path / "out", site="other", settings=settings)
    assert one.file.claims.coverage == other.file.claims.coverage == 1
    assert other.folder == tmp_path / "out-2" and "or it is for other calls" in other.notes[-1]


@pytest.mark.slow
def test_a_proven_student_is_replaced_by_none_of_which_less_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command once more has no calls left to prove by; with more calls, it has."""
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings = LearnSettings(tiers=("tf-idf",))
    with store_of(tmp_path, calls_of(900)) as store:
        first = train_student(store, tmp_path / "out", settings=settings)
        second = train_student(store, tmp_path / "out", settings=settings)
        again = train_student(store, tmp_path / "out", settings=settings)
        store.add(calls_of(300, seed=1, first=900))
        laxer = LearnSettings(tiers=("tf-idf",), epsilon=0.2, delta=0.2)  # proves 5 % too, less surely
        lax = train_student(store, tmp_path / "out", settings=laxer)
        store.add(calls_of(600, seed=2, first=1200))
        third = train_student(store, tmp_path / "out-2", settings=settings)
    assert first.file.claims.coverage > 0 == second.file.claims.coverage
    assert (second.folder, again.folder, lax.folder) == (tmp_path / "out-2",) * 2 + (tmp_path / "out-2",)
    assert f"The student in {tmp_path / 'out'} stays, since more is proven of it" in second.notes[-1]
    assert MirrorStudent.open(tmp_path / "out").file == first.file
    assert third.folder == tmp_path / "out-2" and MirrorStudent.open(third.folder).file == third.file


def test_a_claim_with_more_confidence_or_on_each_class_is_replaced_by_none_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings = LearnSettings(tiers=("tf-idf",), epsilon=0.1, by_class="$.intent")
    out = tmp_path / "out"
    with store_of(tmp_path, calls_of(2400)) as store:
        file = train_student(store, out, settings=settings).file
        by_class = file.claims
        assert by_class.coverage > 0.9
        whole = by_class.model_copy(
            update={"by": None, "whole": by_class.classes["card"], "classes": {}, "epsilon": 0.01}
        )
        assert by_class.classes["card"] is not None and whole.coverage == 1 >= by_class.coverage
        for claims, place in [
            (by_class, "out"),
            (by_class.model_copy(update={"delta": 0.01}), "out"),
            (by_class.model_copy(update={"delta": 0.06}), "out-2"),
            (by_class.model_copy(update={"epsilon": 0.11}), "out-2"),
            (whole, "out-2"),
        ]:
            new = file.model_copy(update={"claims": claims})
            assert find_free_folder(store, out, new) == tmp_path / place
        other = file.model_copy(update={"templates": {"another": next(iter(file.templates.values()))}})
        assert find_free_folder(store, out, other) == tmp_path / "out-2"


def test_a_student_that_the_mirror_came_to_use_during_a_training_stays_and_the_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings = LearnSettings(tiers=("tf-idf",))
    with store_of(tmp_path, calls_of(300, at_random)) as store:
        train_student(store, tmp_path / "out", settings=settings)
        stages = StageStore(store)
        (stage,) = stages.stages().values()
        stages.add_student(StudentRecord("one", stage.version, str(tmp_path / "out"), 0.05, 0.05))

        def promote(sentence: str) -> None:
            if sentence.startswith("The proof isn't begun"):
                assert stages.change(stage, replace(stage, mode="shadow", student="one"), "hand", "a test")

        learned = train_student(store, tmp_path / "out", settings=settings, say=promote)
    assert learned.folder == tmp_path / "out-2"
    assert "since the mirror uses it" in learned.notes[-1] and "more is proven" not in learned.notes[-1]


def test_an_ended_training_goes_on_where_the_mirror_uses_the_student_in_its_place_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    settings, said = LearnSettings(tiers=("tf-idf",)), list[str]()

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with store_of(tmp_path, calls_of(300, at_random)) as store:
        train_student(store, tmp_path / "out", settings=settings)
        with monkeypatch.context() as broken:
            broken.setattr("bertsmith.mirror.learning.train.write_student", killed)
            with pytest.raises(KeyboardInterrupt):
                train_student(store, tmp_path / "out", settings=settings)
        stages = StageStore(store)
        (stage,) = stages.stages().values()
        stages.add_student(StudentRecord("one", stage.version, str(tmp_path / "out"), 0.05, 0.05))
        assert stages.change(stage, replace(stage, mode="shadow", student="one"), "hand", "a test")
        learned = train_student(store, tmp_path / "out", settings=settings, say=said.append)
    assert learned.folder == tmp_path / "out-2" and any("Going on" in sentence for sentence in said)
    assert not list(tmp_path.glob("*.training*"))


def test_a_training_leaves_the_student_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    said = list[str]()
    with store_of(tmp_path, calls_of(400)) as store:
        settings = LearnSettings(tiers=("tf-idf",))
        first = train_student(store, tmp_path / "out", settings=settings)
        stages = StageStore(store)
        (stage,) = stages.stages().values()
        stages.add_student(StudentRecord("one", stage.version, str(first.folder), 0.05, 0.05))
        assert stages.change(stage, replace(stage, mode="shadow", student="one"), "hand", "a test")
        second = train_student(store, tmp_path / "out", settings=settings, say=said.append)
    assert second.folder == tmp_path / "out-2"
    assert "stays" in said[0]
    assert MirrorStudent.open(tmp_path / "out").file == first.file
