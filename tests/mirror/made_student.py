"""A student made by hand: words that it knows it is sure of, others not. A real one, opened as any other."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.files import write_json
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import Stage, StudentRecord, set_mode
from bertsmith.mirror.answering.training_process import read_student
from bertsmith.mirror.call import SYSTEM_ROLES, Call
from bertsmith.mirror.fields import AnswerShape, Field, FieldHead
from bertsmith.mirror.student import WordModel
from bertsmith.mirror.student_file import (
    FILE,
    CallsUsed,
    Claim,
    Claims,
    ProofPlan,
    StudentFile,
    hash_files,
)
from bertsmith.mirror.template import MessageTemplate, PartTemplate, PromptTemplate

THRESHOLD, EPSILON, DELTA = 0.9, 0.05, 0.05
_LOGIT = 12.0


def field_of(name: str, schema: Mapping[str, Any]) -> Field:
    """Of a property of a schema."""
    if schema.get("type") == "boolean":
        return Field(keys=(name,), kind="boolean", values=(False, True))
    kind = "ordinal" if schema.get("type") == "integer" else "enum"
    return Field(keys=(name,), kind=kind, values=tuple(schema["enum"]))  # type: ignore[arg-type]


def template_of(call: Call) -> PromptTemplate:
    """The system's messages as they are, any text in the others."""
    return PromptTemplate(
        messages=tuple(
            MessageTemplate(
                role=each.role,
                parts=tuple(
                    PartTemplate(pieces=(part,) if each.role in SYSTEM_ROLES else ("", ""))
                    for part in each.parts
                ),
            )
            for each in call.request.messages
        )
    )


def make_student(
    folder: Path,
    call: Call,
    words: Mapping[str, Mapping[str, Any]],
    usual: Mapping[str, Any],
    *,
    is_proven: bool = True,
    created: str = "",
    also: Sequence[Call] = (),
    plan: ProofPlan | None = None,
) -> Path:
    """Says of a word in `words` the values by field; of a field that a word says nothing of, and where no
    word is known, `usual`; a field that has no usual value is then a guess. `created` tells two apart; it
    answers the versions of `also` too. With a `plan` nothing is proven yet.
    """
    shape = AnswerShape(
        fields=tuple(field_of(name, each) for name, each in call.request.schema["properties"].items()),
        order=tuple((name,) for name in call.request.schema["properties"]),
    )
    features = sorted(words)
    weights = {
        each.path: _weights(each, [words[feature] for feature in features], usual) for each in shape.fields
    }
    (folder / "model").mkdir(parents=True)
    WordModel(features, np.ones(len(features)), weights).save(folder / "model")
    used = CallsUsed(calls=1000, texts=1000, began=0.0, ended=time.time())
    claim = Claim(
        threshold=THRESHOLD, epsilon=EPSILON, delta=DELTA, calls=1000, answered=800, risk=0.02,
        coverage_interval=(0.7, 0.9),
    )  # fmt: skip
    file = StudentFile(
        bertsmith="test",
        created=created or "now",
        site=call.site,
        protocol=call.request.protocol,
        teacher=call.request.model,
        templates={each.version: template_of(each) for each in (call, *also)},
        shape=shape,
        tier="tf-idf",
        heads=tuple(
            FieldHead(path=each.path, classes=tuple(range(len(each.classes)))) for each in shape.fields
        ),
        claims=Claims(epsilon=EPSILON, delta=DELTA, whole=claim if is_proven and plan is None else None),
        plan=plan,
        calibration=used,
        trained_on=used,
        files=hash_files(folder),
    )
    write_json(folder / FILE, file.model_dump(mode="json"))
    return folder


def _weights(field: Field, said: Sequence[Mapping[str, Any]], usual: Mapping[str, Any]) -> np.ndarray:
    """(F + 1, C)"""
    rows = []
    for values in said:
        value = values.get(field.keys[0])
        rows.append([2 * _LOGIT * (value is not None and value == each) for each in field.classes])
    rows.append([_LOGIT * (usual.get(field.keys[0]) == each) for each in field.classes])
    return np.array(rows, np.float32)


def put_in_mode(stages: StageStore, folder: Path, call: Call, mode: str, share: float = 0.5) -> StudentRecord:
    """As if by hand."""
    student = read_student(folder, call.version)
    assert student is not None
    stages.add_student(student)
    stage = stages.stages()[call.version]
    after = set_mode(replace(stage, student=student.id), mode, share)
    assert stages.change(stage, after, "hand", "a test")
    return student


def stage_of(stages: StageStore, version: str) -> Stage:
    return stages.stages()[version]
