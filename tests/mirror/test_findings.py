"""What a training leaves in the store for the page: the curve and the confusions of it, and no text."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mirrored_calls import by_rule, calls_of, store_of

from bertsmith.files import sha256
from bertsmith.mirror.answering.stage_store import read_findings
from bertsmith.mirror.fields import AnswerShape, Constant, Field, UnsupportedPart
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.report import find_confusions, summarise_confusions
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import TeacherComparison
from bertsmith.mirror.learning.train import train_student
from bertsmith.mirror.student_file import FILE


def often_wrong(text: str, draw: random.Random) -> dict[str, str]:
    """A teacher that takes a tenth of what is card for other."""
    said = by_rule(text, draw)
    return {"intent": "other"} if said["intent"] == "card" and draw.random() < 0.1 else said


def test_a_training_leaves_its_curve_and_confusions_in_the_store_and_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    with store_of(tmp_path, calls_of(900, often_wrong)) as store:
        trained = train_student(store, tmp_path / "student", settings=LearnSettings(tiers=("tf-idf",)))
        (version,) = store.versions()
        found = read_findings(store)[version.version]
        judged = trained.calibration or trained.dev
        assert found["student"] == sha256(tmp_path / "student" / FILE)[:12]
        assert found["agreement"] == pytest.approx(judged.agreement)
        assert trained.curve is not None
        assert found["curve"]["measured"] == [
            list(each) for each in zip(trained.curve.rows, trained.curve.agreements, strict=True)
        ]
        assert found["curve"]["forecast"] == trained.curve.forecast(0.95)
        surer = replace(trained.curve, reached=0.98).forecast(0.97)
        more = trained.curve.law.rows_for(0.97).rows > trained.curve.rows[-1]
        assert surer.startswith("The student agrees in 98 % of the") is more
        most = found["confusions"][0]
        assert (most["field"], most["taught"], most["ours"]) == ("$.intent", "other", "card")
        assert sum(each["calls"] for each in found["confusions"]) == judged.differs.sum()
        example = store.calls_named([most["call"]])[most["call"]]
        assert example.completion.value == {"intent": "other"}
        texts = [call.request.inputs[-1].parts[0] for call in store.calls(version.version)]
        assert not any(text in str(found) for text in texts)
        again = train_student(store, tmp_path / "student-2", settings=LearnSettings(tiers=("tf-idf",)))
        assert read_findings(store)[version.version]["student"] == sha256(again.folder / FILE)[:12]


def found_of(shape: AnswerShape, taught: list[dict[str, Any]], ours: list[dict[str, Any]]) -> Any:
    """What is kept of these answers, surer from one to the next."""
    calls = [
        LearnedCall(f"{number}", 0.0, "relay", "a text", values, {}) for number, values in enumerate(taught)
    ]
    differs = [bool(shape.differing_paths(*both)) for both in zip(ours, taught, strict=True)]
    judged = TeacherComparison(np.arange(1, len(calls) + 1) / 10, np.array(differs), {}, ours)
    return summarise_confusions(shape, find_confusions(shape, judged, calls))


def test_quotes_are_counted_and_not_kept() -> None:
    shape = AnswerShape(fields=(Field(keys=("who",), kind="spans"),), order=(("who",),))
    secret = "anna maria"
    found = found_of(
        shape,
        [{"$.who": ((None, secret),)}, {"$.who": ()}, {"$.who": (("", "another"),)}],
        [{"$.who": ()}, {"$.who": ()}, {"$.who": ()}],
    )
    assert found == [
        {
            "field": "$.who",
            "taught": "quotes",
            "ours": "other quotes",
            "calls": 2,
            "confidence": 0.3,
            "call": "2",
        }
    ]
    assert secret not in str(found)


def test_free_texts_and_values_that_no_field_has_are_counted_and_not_kept() -> None:
    shape = AnswerShape(
        fields=(
            Field(keys=("intent",), kind="enum", values=("card", "other"), is_observed=True),
            Field(keys=("topics",), kind="labels", values=("a", "b")),
            Field(keys=("n",), kind="number"),
        ),
        refused=(UnsupportedPart(keys=("note",), why="a free text", required=False),),
        order=(("intent",), ("topics",), ("n",)),
    )
    same: dict[str, Any] = {"$.intent": "card", "$.topics": ("a",), "$.n": 1}
    taught = [
        same | {"$.note": "anna maria lives in ulm"},
        same | {"$.note": "ben lives there too"},
        same | {"$.intent": "anna's own card"},
        same | {"$.topics": ["a", "anna"]},
        same | {"$.topics": ("a", "b")},
        same | {"$.n": 7.5},
        same | {"$.intent": "other"},
    ]
    found = found_of(shape, taught, [same] * len(taught))
    assert [(each["field"], each["taught"], each["ours"], each["calls"]) for each in found] == [
        ("$.note", "a text", "(not there)", 2),
        ("$.intent", "a text", "card", 1),
        ("$.topics", "a text", "a", 1),
        ("$.topics", "a, b", "a", 1),
        ("$.n", "7.5", "1", 1),
        ("$.intent", "other", "card", 1),
    ]
    assert "anna" not in str(found) and "ben" not in str(found)


def test_keys_that_no_part_of_the_answers_has_are_counted_and_not_kept() -> None:
    """They may be names of people, and would stay when the call is deleted."""
    shape = AnswerShape(
        fields=(Field(keys=("who", "role"), kind="enum", values=("guest", "host")),),
        refused=(UnsupportedPart(keys=("notes",), why="a free text", required=False),),
        constants=(Constant(keys=("version",), value=1),),
        order=(("who", "role"), ("version",)),
    )
    same = {"who": {"role": "guest"}, "version": 1}
    answers = [
        same | {"anna meier": 1},
        same | {"anna.meier": {"age": 1}},
        same | {"who": {"role": "guest", "anna": 1}},
        same | {"notes": {"anna": "x"}},
        same | {"notes": "anna"},
        same | {"version": 2},
        same | {"who": {"role": "host"}},
        {"who.role": "anna", **same},
    ]
    taught = [shape.read(answer) for answer in answers]
    found = found_of(shape, taught, [shape.read(same)] * len(taught))
    assert sorted((each["field"], each["calls"]) for each in found) == [
        ("$", 2),
        ("$.notes", 2),
        ("$.version", 1),
        ("$.who", 1),
        ("$.who.role", 1),
        ("$.who.role (another)", 1),
    ]
    assert "anna" not in str(found)
