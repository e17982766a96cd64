"""Texts that have to be quoted and are not found: the LLM answers, whatever is proven."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from made_student import make_student
from test_call_store import call_of

from bertsmith.inference.predictor import Predictor
from bertsmith.mirror.fields import ABSENT, AnswerShape, Field, SpanForm
from bertsmith.mirror.learning import tiers as encoder_tier
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.schema_fields import AnswerObservation, infer_shape
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import NEVER, StudentCandidate, compare_with_teacher
from bertsmith.mirror.student import MirrorStudent, predict_spans
from bertsmith.mirror.student import _load_field_model as load_field_model
from bertsmith.mirror.student_file import Claims, read_student_file

TAGS = {"who": ("$.who", "")}
TEXTS = ["anna calls", "nobody calls"]


class Tagger:
    """Quotes anna."""

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        entities = [{"label": "who", "start": 0, "end": 4}]
        return [
            {"confidence": [0.9], "entities": entities if each.startswith("anna") else []} for each in texts
        ]


TAGGER = cast(Predictor, Tagger())


def shape_of(**more: bool) -> AnswerShape:
    field = Field(keys=("who",), kind="spans", values=("",), spans=SpanForm(form="text"), **more)  # type: ignore[arg-type]
    return AnswerShape(fields=(field,), order=(("who",),))


@pytest.mark.parametrize(
    ("more", "value", "confidence"),
    [
        ({}, None, 0.0),
        ({"nullable": True}, None, 0.9),
        ({"optional": True}, ABSENT, 0.9),
        ({"optional": True, "nullable": True}, None, 0.9),
    ],
)
def test_only_a_text_that_may_be_missing_is_left_out(
    more: dict[str, bool], value: Any, confidence: float
) -> None:
    found = predict_spans(TAGGER, TAGS, shape_of(**more).fields, TEXTS)["$.who"]
    assert [(each.value, each.confidence) for each in found] == [
        ((("", "anna"),), pytest.approx(0.9)),
        (value, pytest.approx(confidence)),
    ]


def test_a_list_of_fewer_quotes_than_the_schema_asks_for_is_never_given() -> None:
    texts = [f"anna{n} calls" for n in range(20)]
    schema = {"properties": {"who": {"type": "array", "items": {"type": "string"}, "minItems": 1}}}
    seen = [AnswerObservation({"who": [text.split()[0]]}, text) for text in texts]
    found = predict_spans(TAGGER, TAGS, infer_shape(schema, seen).fields, TEXTS)["$.who"]
    assert [(each.value, each.confidence) for each in found] == [
        ((("", "anna"),), pytest.approx(0.9)),
        ((), 0.0),
    ]


def test_a_field_that_always_has_one_answer_needs_no_encoder_beside_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither null so far, nor labels that no answer had."""
    phone = Field(keys=("phone",), kind="enum", nullable=True, is_observed=True)
    tags = Field(keys=("tags",), kind="labels", values=("a", "b"), optional=True, empty="absent")
    (who,) = shape_of(nullable=True).fields
    shape = AnswerShape(fields=(phone, tags, who), order=(("who",), ("phone",), ("tags",)))
    taught = [shape.read({"who": "anna", "phone": None}), shape.read({"who": None, "phone": None})]
    calls = [
        LearnedCall(text, 0.0, "relay", text, values, {}) for text, values in zip(TEXTS, taught, strict=True)
    ]
    monkeypatch.setattr(encoder_tier, "_finetune_model", lambda *given: tmp_path)
    monkeypatch.setattr(encoder_tier, "build_tags", lambda shape: TAGS)
    monkeypatch.setattr(encoder_tier, "build_tagging_rows", lambda *given: [])
    monkeypatch.setattr(encoder_tier, "load_predictor", lambda folder: TAGGER)
    (candidate,) = encoder_tier.train_encoder_candidates(calls, calls, shape, LearnSettings(), tmp_path)
    judged = compare_with_teacher(candidate, calls, shape)
    assert not judged.differs.any() and judged.confidence == pytest.approx([0.9, 0.9])
    call = call_of(1)
    call = replace(call, request=replace(call.request, schema={"properties": {"x": {"enum": ["a", "b"]}}}))
    file = read_student_file(make_student(tmp_path / "made", call, {"a": {"x": "a"}}, {}))
    told = {"shape": shape, "heads": candidate.heads, "span_tags": TAGS, "tier": "encoder"}
    file = file.model_copy(update=told)
    student = MirrorStudent(file, load_field_model(tmp_path, file), TAGGER)
    answers = [each.answer for each in student.answer(TEXTS)]
    assert answers == [{"who": "anna", "phone": None}, {"who": None, "phone": None}]


def test_an_answer_without_a_text_that_it_needs_is_never_given(tmp_path: Path) -> None:
    """Even by a student that is proven to answer everything; and it is judged alike."""
    call = call_of(1)
    call = replace(call, request=replace(call.request, schema={"properties": {"x": {"enum": ["a", "b"]}}}))
    file = read_student_file(make_student(tmp_path / "made", call, {"a": {"x": "a"}}, {}))
    whole = cast(Any, file.claims.whole).model_copy(update={"threshold": 0.0})
    claims = Claims(epsilon=whole.epsilon, delta=whole.delta, whole=whole)
    told = {"shape": shape_of(), "heads": (), "span_tags": TAGS, "claims": claims}
    student = MirrorStudent(file.model_copy(update=told), None, TAGGER)
    found, missing = student.answer(TEXTS)
    assert (found.answer, found.is_sure) == ({"who": "anna"}, True)
    assert (missing.is_sure, missing.reason) == (False, "low-confidence")
    candidate = StudentCandidate("encoder", (), student.predict_fields, lambda _: None, TAGS)
    calls = [LearnedCall(text, 0.0, "relay", text, {"$.who": (("", "anna"),)}, {}) for text in TEXTS]
    judged = compare_with_teacher(candidate, calls, shape_of())
    np.testing.assert_allclose(judged.confidence, [0.9, NEVER])
