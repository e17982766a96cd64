"""What a training leaves in the store for the page: the curve and the confusions of it, and no text."""

import random
from pathlib import Path

import numpy as np
import pytest
from mirrored_calls import by_rule, calls_of, store_of

from bertsmith.files import sha256
from bertsmith.mirroring.candidate import Judged
from bertsmith.mirroring.confusions import confusions_of
from bertsmith.mirroring.findings import without_texts
from bertsmith.mirroring.learn_settings import LearnSettings
from bertsmith.mirroring.learned_calls import read_calls
from bertsmith.mirroring.train import train_student
from bertsmith.serving.mirror.answering.agreement import learned
from bertsmith.serving.mirror.fields import AnswerShape, Field
from bertsmith.serving.mirror.student_file import FILE


def often_wrong(text: str, draw: random.Random) -> dict[str, str]:
    """A teacher that takes a tenth of what is card for other."""
    said = by_rule(text, draw)
    return {"intent": "other"} if said["intent"] == "card" and draw.random() < 0.1 else said


def test_a_training_leaves_its_curve_and_confusions_in_the_store_and_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirroring.report._pictures", lambda *given: [])
    with store_of(tmp_path, calls_of(900, often_wrong)) as store:
        trained = train_student(store, tmp_path / "student", settings=LearnSettings(tiers=("tf-idf",)))
        (version,) = store.versions()
        found = learned(store)[version.version]
        judged = trained.calibration or trained.dev
        assert found["student"] == sha256(tmp_path / "student" / FILE)[:12]
        assert found["agreement"] == pytest.approx(judged.agreement)
        assert trained.curve is not None
        assert found["curve"]["measured"] == [
            list(each) for each in zip(trained.curve.rows, trained.curve.agreements, strict=True)
        ]
        assert found["curve"]["forecast"] == trained.curve.forecast(0.95)
        most = found["confusions"][0]
        assert (most["field"], most["taught"], most["ours"]) == ("$.intent", "other", "card")
        assert sum(each["calls"] for each in found["confusions"]) == judged.differs.sum()
        example = store.calls_named([most["call"]])[most["call"]]
        assert example.answered.value == {"intent": "other"}
        texts = [call.asked.inputs[-1].parts[0] for call in store.calls(version.version)]
        assert not any(text in str(found) for text in texts)
        again = train_student(store, tmp_path / "student-2", settings=LearnSettings(tiers=("tf-idf",)))
        assert learned(store)[version.version]["student"] == sha256(again.folder / FILE)[:12]


def test_quotes_are_counted_and_not_kept(tmp_path: Path) -> None:
    shape = AnswerShape(fields=(Field(keys=("who",), kind="spans"),), order=(("who",),))
    from bertsmith.mirroring.understanding.understand import understand

    with store_of(tmp_path, calls_of(40)) as store:
        calls = read_calls(store, understand(store, store.versions())).calls[:2]
    secret = "anna maria"
    taught = [{"$.who": ((None, secret),)}, {"$.who": ()}]
    named = [
        type(call)(**{**vars(call), "values": values}) for call, values in zip(calls, taught, strict=True)
    ]
    judged = Judged(np.array([0.9, 0.8]), np.array([True, False]), {}, [{"$.who": ()}, {"$.who": ()}])
    found = without_texts(shape, confusions_of(shape, judged, named))
    assert [(each["taught"], each["ours"], each["calls"]) for each in found] == [
        ("quotes", "other quotes", 1)
    ]
    assert secret not in str(found)
