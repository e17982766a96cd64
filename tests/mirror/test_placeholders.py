"""An answer that holds a placeholder is never given, and so proves nothing: [EMAIL_1] is no answer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from made_student import make_student
from mirrored_calls import call_of

from bertsmith.mirror.call import ChatMessage
from bertsmith.mirror.fields import AnswerShape, Field, FieldPrediction
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.proving import estimate_coverage, prove
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import StudentCandidate, compare_with_teacher
from bertsmith.mirror.student import MirrorStudent

SHAPE = AnswerShape(fields=(Field(keys=("to",), kind="enum", values=("[EMAIL_1]", "us")),), order=(("to",),))
ECHO = StudentCandidate(
    "tf-idf",
    (),
    lambda texts: {"$.to": [FieldPrediction(text, 0.99) for text in texts]},
    lambda folder: None,
    {},
)


def calls(text: str, count: int) -> list[LearnedCall]:
    return [LearnedCall(f"{text}{n}", float(n), "relay", text, {"$.to": text}, {}) for n in range(count)]


def test_a_student_is_not_sure_of_a_placeholder(tmp_path: Path) -> None:
    call = call_of("a text", {}, 0)
    schema = {"type": "object", "properties": {"to": {"enum": ["[EMAIL_1]", "us"]}}}
    call = replace(call, request=replace(call.request, schema=schema))
    words = {"write": {"to": "[EMAIL_1]"}, "ring": {"to": "us"}}
    student = MirrorStudent.open(make_student(tmp_path / "student", call, words, {}))
    one, two = student.answer(["write", "ring"])
    assert (one.answer, one.is_sure, one.reason) == ({"to": "[EMAIL_1]"}, False, "redacted")
    assert (two.answer, two.is_sure, two.reason) == ({"to": "us"}, True, "sure")


def test_placeholders_count_as_calls_and_never_as_answered() -> None:
    """Though the teacher's recorded answer is the same."""
    dev = compare_with_teacher(ECHO, calls("[EMAIL_1]", 300) + calls("us", 300), SHAPE)
    assert dev.agreement == 1
    assert estimate_coverage(dev.confidence, dev.differs, 0.05) == 0.5
    calibration = compare_with_teacher(ECHO, calls("[EMAIL_1]", 200) + calls("us", 600), SHAPE)
    (claim,) = [prove([ECHO], [dev], [calibration], LearnSettings()).claims.whole]
    assert claim is not None
    assert (claim.calls, claim.answered) == (800, 600)
    assert np.sum(calibration.confidence >= claim.threshold) == 600


def test_a_text_that_is_blank_is_the_llms(tmp_path: Path) -> None:
    call = call_of("a text", {}, 0)
    schema = {"type": "object", "properties": {"to": {"enum": ["them", "us"]}}}
    call = replace(call, request=replace(call.request, schema=schema))
    student = MirrorStudent.open(make_student(tmp_path / "student", call, {"ring": {"to": "us"}}, {}))

    def text_of(said: str) -> str | None:
        messages = [
            each if each.role == "system" else ChatMessage(each.role, (said,))
            for each in call.request.messages
        ]
        return student.input_of(replace(call.request, messages=tuple(messages)), call.version)

    assert text_of("ring") == "ring"
    assert text_of("") is None
    assert text_of(" \n") is None
    assert text_of("\u200b \ufeff") is None  # fine-tuning refuses such a text
    assert text_of("\u200bring") == "\u200bring"
