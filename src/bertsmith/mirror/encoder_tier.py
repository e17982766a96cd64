"""The second tier: one encoder fine-tuned for all fields, and one for quotes where answers have any.

A folder of its own holds what fine-tuning needs, files of texts among it; it is removed when the student
stands.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

from bertsmith.arrays import Floats
from bertsmith.errors import BertsmithError, InputError
from bertsmith.files import atomic_write
from bertsmith.inference.predictor import Predictor
from bertsmith.mirror.candidate import Candidate
from bertsmith.mirror.field_heads import FieldHead, Guess
from bertsmith.mirror.fields import AnswerShape
from bertsmith.mirror.learn_settings import LearnSettings
from bertsmith.mirror.learned_calls import LearnedCall
from bertsmith.mirror.quotes import quoted_rows, tags_of
from bertsmith.mirror.student import EncoderOutputs, load_encoder, span_guesses
from bertsmith.mirror.student_file import MODEL, SPANS
from bertsmith.mirror.targets import LEAST, heads_of, targets_of
from bertsmith.mirror.word_tier import tempered
from bertsmith.tasks.fields import Fields
from bertsmith.training.finetuning.finetune import finetune

_FIELDS = "bertsmith.tasks.fields:Fields"
_FEW = 1000  # texts, up to which cross-validation chooses the method, as bertsmith finetune does


@dataclass(frozen=True)
class _Plan:
    """A fine-tuning: its task, and rows to train on and to choose by."""

    task: str
    train: list[dict[str, Any]]
    dev: list[dict[str, Any]]


def train_encoder(
    train: Sequence[LearnedCall],
    dev: Sequence[LearnedCall],
    shape: AnswerShape,
    settings: LearnSettings,
    work: Path,
    console: Console | None = None,
) -> Candidate | None:
    """With temperatures by `dev`. Goes on where an earlier one in `work` ended. None where no field has two
    values to tell apart, nor quotes. Raises as `finetune` does.
    """
    heads, outputs = heads_of(shape, train), None
    tags, tagger = tags_of(shape), None
    if any(head.tells_apart(shape.field(head.path)) for head in heads):
        plan = _fields_plan(heads, shape, train, dev)
        folder = _trained(plan, settings, work / MODEL, console)
        predictor = load_encoder(folder)
        heads = _in_order(heads, predictor, plan.task)
        outputs = EncoderOutputs(predictor, {head.path: len(head.classes) for head in heads})
        logits = outputs.logits([call.text for call in dev])
        heads = tuple(tempered(head, shape, logits[head.path], dev) for head in heads)
    elif heads and not tags:
        return None
    elif heads:
        outputs = EncoderOutputs(None, {head.path: len(head.classes) for head in heads})
    if tags:
        rows = [quoted_rows(calls, shape, tags) for calls in (train, dev)]
        tagger = Predictor.load(_trained(_Plan("tagging", *rows), settings, work / SPANS, console))
    own_heads, own_outputs = heads, outputs

    def guesses(texts: Sequence[str]) -> Mapping[str, list[Guess]]:
        found: dict[str, list[Guess]] = {}
        if own_outputs is not None:
            logits = own_outputs.logits(texts)
            found = {head.path: head.guesses(shape.field(head.path), logits[head.path]) for head in own_heads}
        if tagger is not None:
            found |= span_guesses(tagger, tags, shape.fields, texts)
        return found

    def save(folder: Path) -> None:
        for name in (MODEL, SPANS):
            if (work / name / "model").exists():
                shutil.copytree(work / name / "model", folder / name)

    return Candidate("encoder", heads, guesses, save, tags)


def _fields_plan(
    heads: Sequence[FieldHead], shape: AnswerShape, train: Sequence[LearnedCall], dev: Sequence[LearnedCall]
) -> _Plan:
    """The plain task where there is one field, and nothing to say of the teacher's doubts."""
    targets = [[targets_of(head, shape.field(head.path), calls) for head in heads] for calls in (train, dev)]
    kind = shape.field(heads[0].path).kind
    if len(heads) == 1 and kind == "labels":
        task, rows = "multi-label", [_label_rows(c, t[0]) for c, t in zip((train, dev), targets, strict=True)]
    elif len(heads) == 1 and _is_plain(targets[0][0]):
        task, rows = (
            "classification",
            [_class_rows(c, t[0]) for c, t in zip((train, dev), targets, strict=True)],
        )
    else:
        task = _FIELDS
        kinds = [shape.field(head.path).kind for head in heads]
        rows = [_field_rows(c, t, kinds) for c, t in zip((train, dev), targets, strict=True)]
    return _Plan(task, *rows)


def _is_plain(targets: Floats) -> bool:
    """Whether each call has one class, known for sure."""
    known = targets[~np.isnan(targets).any(axis=1)]
    return bool(((known == 0) | (known == 1)).all())


def _class_rows(calls: Sequence[LearnedCall], targets: Floats) -> list[dict[str, Any]]:
    return [
        {"text": call.text, "label": str(row.argmax())}
        for call, row in zip(calls, targets, strict=True)
        if not np.isnan(row).any()
    ]


def _label_rows(calls: Sequence[LearnedCall], targets: Floats) -> list[dict[str, Any]]:
    return [
        {"text": call.text, "label": [str(place) for place in np.flatnonzero(row)]}
        for call, row in zip(calls, targets, strict=True)
        if not np.isnan(row).any()
    ]


def _field_rows(
    calls: Sequence[LearnedCall], targets: Sequence[Floats], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    """A field that isn't known is left out, a call of which none is known as well."""
    found = []
    for number, call in enumerate(calls):
        label: dict[str, Any] = {}
        for place, (of, kind) in enumerate(zip(targets, kinds, strict=True)):
            row = of[number]
            if np.isnan(row).any() or not len(row):
                continue
            if kind == "labels":
                label[str(place)] = [str(each) for each in np.flatnonzero(row)]
            else:
                kept = np.flatnonzero(row >= min(LEAST, row.max()))
                label[str(place)] = {str(each): float(row[each]) for each in kept}
        if label:
            found.append({"text": call.text, "label": json.dumps(label)})
    return found


def _trained(plan: _Plan, settings: LearnSettings, work: Path, console: Console | None) -> Path:
    """The folder of the fine-tuned model. Few rows are trained on without dev, which then only calibrates."""
    work.mkdir(parents=True, exist_ok=True)
    files = {"train": plan.train} if len(plan.train) <= _FEW else {"train": plan.train, "dev": plan.dev}
    for name, rows in files.items():
        atomic_write(
            work / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
    given: dict[str, Any] = {name: str(work / f"{name}.jsonl") for name in files}
    if settings.restarts > 1:
        given["restarts"] = settings.restarts
    try:
        result = finetune(
            plan.task,
            *settings.overrides,
            model=settings.model,
            out=str(work),
            resume=(work / "recipe.toml").exists(),
            console=console,
            seed=settings.seed,
            **given,
        )
    except BertsmithError as error:
        raise InputError(f"The encoder can't be trained: {error}") from error
    return result.model


def _in_order(heads: Sequence[FieldHead], predictor: Predictor, task: str) -> tuple[FieldHead, ...]:
    """Heads with their classes in the order of the model's outputs, whose labels are places in them; last
    those without an output.
    """
    opened = predictor.task
    if task != _FIELDS:
        (head,) = heads
        return (_picked(head, [int(label) for label in opened.labels]),)
    fields = cast(Fields, opened).fields
    learned = [_picked(heads[int(each.name)], [int(label) for label in each.labels]) for each in fields]
    return (*learned, *(head for head in heads if not head.classes))


def _picked(head: FieldHead, places: Sequence[int]) -> FieldHead:
    return head.model_copy(
        update={
            "classes": tuple(head.classes[place] for place in places),
            "centres": tuple(head.centres[place] for place in places) if head.centres else (),
        }
    )
