"""Models that might become the student, from the cheapest on, and how their answers compare with the
teacher's.

The first tier is logistic regression over TF-IDF, in the format that a student reads without scikit-learn.
The second is one encoder fine-tuned for all fields, and one for quotes where answers have any; a folder of
its own holds what fine-tuning needs, files of texts among it, and is removed when the student stands.

E texts or calls, F features, C outputs.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bertsmith.arrays import Bools, Floats
from bertsmith.errors import BertsmithError, InputError
from bertsmith.files import atomic_write
from bertsmith.metrics.baselines import MOST_FEATURES, MOST_WEIGHTS, TOKEN
from bertsmith.metrics.calibration import fit_temperature
from bertsmith.mirror.fields import AnswerShape, FieldHead, Guess, Values
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.settings import LearnSettings, Tier
from bertsmith.mirror.learning.targets import (
    MIN_SHARE,
    build_heads,
    build_tagging_rows,
    build_tags,
    build_targets,
)
from bertsmith.mirror.redaction import holds_placeholder
from bertsmith.mirror.student import EncoderOutputs, WordModel, load_predictor, span_guesses
from bertsmith.mirror.student_file import MODEL, SPANS
from bertsmith.training.finetuning.finetune import finetune

NEVER = -1.0  # the confidence of an answer that is never given
Guesses = Mapping[str, list[Guess]]
_STRENGTH, _ITERATIONS = 10.0, 200  # scikit-learn's C
_RARE_FROM = 500  # texts, from which a word that only one has tells nothing
_CERTAIN = 12.0  # logit of a label that always or never was given
_FIELDS = "bertsmith.tasks.fields:Fields"
_FEW = 1000  # texts, up to which cross-validation chooses the method, as bertsmith finetune does


@dataclass(frozen=True)
class StudentCandidate:
    """`guesses` answers texts by the field's path. `save` puts the model's files into a folder."""

    tier: Tier
    heads: tuple[FieldHead, ...]
    guesses: Callable[[Sequence[str]], Guesses]
    save: Callable[[Path], None]
    span_tags: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class TeacherComparison:
    """A model's answers beside the teacher's: `confidence` (E,) and `differs` (E,) of the whole answer, and
    by path those of each field; `answers` are the model's. An answer that holds a placeholder of a redacted
    text, or has no confidence at all, is never given (bertsmith.mirror.student.MirrorStudent), and has
    confidence -1.
    """

    confidence: Floats
    differs: Bools
    fields: dict[str, tuple[Floats, Bools]]
    answers: list[Values]

    @property
    def agreement(self) -> float:
        """The share of calls in which the whole answer is the teacher's."""
        return float(1 - self.differs.mean())


def compare_with_teacher(
    candidate: StudentCandidate, calls: Sequence[LearnedCall], shape: AnswerShape
) -> TeacherComparison:
    """Of at least one call."""
    guesses = candidate.guesses([call.text for call in calls])
    answers: list[Values] = [
        {path: of[number].value for path, of in guesses.items()} for number in range(len(calls))
    ]
    differing = [shape.differing(ours, call.values) for ours, call in zip(answers, calls, strict=True)]
    confidences = {path: np.array([guess.confidence for guess in of]) for path, of in guesses.items()}
    is_plain = np.array([not holds_placeholder(shape.compose(ours)) for ours in answers], np.bool_)
    given = is_plain & (np.prod(list(confidences.values()), axis=0) > 0)
    confidences = {path: np.where(given, each, NEVER) for path, each in confidences.items()}
    return TeacherComparison(
        np.where(given, np.prod(list(confidences.values()), axis=0), NEVER),
        np.array([bool(paths) for paths in differing]),
        {
            path: (confidence, np.array([path in paths for paths in differing]))
            for path, confidence in confidences.items()
        },
        answers,
    )


def train_word_candidate(
    train: Sequence[LearnedCall], dev: Sequence[LearnedCall], shape: AnswerShape
) -> StudentCandidate | None:
    """With temperatures by `dev`. None where an answer has quotes, which words don't find, or texts have no
    words.
    """
    if any(field.kind == "spans" for field in shape.fields):
        return None
    heads = build_heads(shape, train)
    model = fit_word_model(train, heads, shape)
    if model is None:
        return None
    logits = model.logits([call.text for call in dev])
    heads = tuple(fit_head_temperature(head, shape, logits[head.path], dev) for head in heads)

    def guesses(texts: Sequence[str]) -> Any:
        found = model.logits(texts)
        return {head.path: head.guesses(shape.field(head.path), found[head.path]) for head in heads}

    def save(folder: Path) -> None:
        (folder / MODEL).mkdir()
        model.save(folder / MODEL)

    return StudentCandidate("tf-idf", heads, guesses, save, {})


def fit_word_model(
    train: Sequence[LearnedCall], heads: Sequence[FieldHead], shape: AnswerShape
) -> WordModel | None:
    """None where no text has a word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    most = min(MOST_FEATURES, MOST_WEIGHTS // max(sum(len(head.classes) for head in heads), 1))
    vectoriser = TfidfVectorizer(
        ngram_range=(1, 2),
        token_pattern=TOKEN,
        sublinear_tf=True,
        max_features=most,
        min_df=2 if len(train) >= _RARE_FROM else 1,
        dtype=np.float32,
    )
    try:
        features = vectoriser.fit_transform([call.text for call in train])
    except ValueError:  # an empty vocabulary
        return None
    weights = {}
    for head in heads:
        field = shape.field(head.path)
        targets = build_targets(head, field, train)
        known = np.flatnonzero(~np.isnan(targets).any(axis=1))
        fit = _fit_labels if field.kind == "labels" else _fit_classes
        weights[head.path] = fit(features[known], targets[known]).astype(np.float32)
    return WordModel(vectoriser.get_feature_names_out().tolist(), vectoriser.idf_, weights)


def fit_head_temperature(
    head: FieldHead, shape: AnswerShape, logits: Floats, dev: Sequence[LearnedCall]
) -> FieldHead:
    """With the temperature that suits what the teacher said most of `dev`."""
    field = shape.field(head.path)
    targets = build_targets(head, field, dev)
    known = ~np.isnan(targets).any(axis=1)
    if not known.any() or not head.classes:
        return head
    gold = targets[known] > 0.5 if field.kind == "labels" else targets[known].argmax(axis=1)
    return head.model_copy(update={"temperature": fit_temperature(logits[known], gold)})


def _fit_classes(features: Any, targets: Floats) -> Floats:
    """Softmax over classes: (F + 1, C), the last row what all texts have. Where the teacher was unsure, a
    text counts for several, as much as it said.
    """
    from sklearn.linear_model import LogisticRegression

    weights = np.zeros((features.shape[1] + 1, targets.shape[1]))
    rows, classes = np.nonzero(targets >= MIN_SHARE)
    if len(taught := np.unique(classes)) < 2:
        weights[-1] = -_CERTAIN
        weights[-1, taught] = 0.0
        return weights
    learner = LogisticRegression(C=_STRENGTH, max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one that hasn't converged is a model too, and is judged as any
        learner.fit(features[rows], classes, targets[rows, classes])
    found = np.vstack([learner.coef_.T, learner.intercept_])
    if len(learner.classes_) == 2:  # of two, scikit-learn has the second's log-odds
        found = np.hstack([np.zeros_like(found), found])
    weights[-1] = found[-1].min() - _CERTAIN  # classes without a text
    weights[:, learner.classes_] = found
    return weights


def _fit_labels(features: Any, targets: Floats) -> Floats:
    """A sigmoid a label: (F + 1, C) as of classes."""
    from sklearn.linear_model import LogisticRegression

    weights = np.zeros((features.shape[1] + 1, targets.shape[1]))
    for place, given in enumerate(targets.T > 0.5):
        if given.all() or not given.any():
            weights[-1, place] = _CERTAIN if given.all() else -_CERTAIN
            continue
        learner = LogisticRegression(C=_STRENGTH, solver="liblinear").fit(features, given)
        weights[:-1, place], weights[-1, place] = learner.coef_[0], learner.intercept_[0]
    return weights


def train_encoder_candidate(
    train: Sequence[LearnedCall],
    dev: Sequence[LearnedCall],
    shape: AnswerShape,
    settings: LearnSettings,
    work: Path,
    console: Console | None = None,
) -> StudentCandidate | None:
    """With temperatures by `dev`. Goes on where an earlier one in `work` ended. None where no field has two
    values to tell apart, nor quotes. Raises as `finetune` does.
    """
    heads, outputs = build_heads(shape, train), None
    tags, tagger = build_tags(shape), None
    if any(head.tells_apart(shape.field(head.path)) for head in heads):
        task, rows = _build_task_rows(heads, shape, (train, dev))
        predictor = load_predictor(_finetune_model(task, rows, settings, work / MODEL, console))
        heads = _order_heads(heads, predictor.task, task)
        outputs = EncoderOutputs(predictor, {head.path: len(head.classes) for head in heads})
        logits = outputs.logits([call.text for call in dev])
        heads = tuple(fit_head_temperature(head, shape, logits[head.path], dev) for head in heads)
    elif heads and not tags:
        return None
    elif heads:
        outputs = EncoderOutputs(None, {head.path: len(head.classes) for head in heads})
    if tags:
        rows = [build_tagging_rows(calls, shape, tags) for calls in (train, dev)]
        tagger = load_predictor(_finetune_model("tagging", rows, settings, work / SPANS, console))
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

    return StudentCandidate("encoder", heads, guesses, save, tags)


def _build_task_rows(
    heads: Sequence[FieldHead], shape: AnswerShape, parts: Sequence[Sequence[LearnedCall]]
) -> tuple[str, list[list[dict[str, Any]]]]:
    """A task, and its rows of train and of dev: the plain task where there is one field, and nothing to say
    of the teacher's doubts.
    """
    targets = [[build_targets(head, shape.field(head.path), calls) for head in heads] for calls in parts]
    kinds = [shape.field(head.path).kind for head in heads]
    first = targets[0][0]
    known = first[~np.isnan(first).any(axis=1)]
    is_sure = bool(((known == 0) | (known == 1)).all())  # each call has one class, known for sure
    if len(heads) > 1 or (kinds != ["labels"] and not is_sure):
        return _FIELDS, [_build_field_rows(*each, kinds) for each in zip(parts, targets, strict=True)]

    def label(row: Floats) -> str | list[str]:
        return [str(place) for place in np.flatnonzero(row)] if kinds == ["labels"] else str(row.argmax())

    rows = []
    for calls, (own,) in zip(parts, targets, strict=True):
        taught = [(call, row) for call, row in zip(calls, own, strict=True) if not np.isnan(row).any()]
        rows.append([{"text": call.text, "label": label(row)} for call, row in taught])
    return "multi-label" if kinds == ["labels"] else "classification", rows


def _build_field_rows(
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
                kept = np.flatnonzero(row >= min(MIN_SHARE, row.max()))
                label[str(place)] = {str(each): float(row[each]) for each in kept}
        if label:
            found.append({"text": call.text, "label": json.dumps(label)})
    return found


def _finetune_model(
    task: str,
    rows: Sequence[Sequence[dict[str, Any]]],
    settings: LearnSettings,
    work: Path,
    console: Console | None,
) -> Path:
    """The folder of the model fine-tuned on rows of train and of dev. Few are trained on without dev, which
    then only calibrates.
    """
    work.mkdir(parents=True, exist_ok=True)
    train, dev = rows
    files = {"train": train} if len(train) <= _FEW else {"train": train, "dev": dev}
    for name, some in files.items():
        atomic_write(
            work / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some)
        )
    given: dict[str, Any] = {name: str(work / f"{name}.jsonl") for name in files}
    if settings.restarts > 1:
        given["restarts"] = settings.restarts
    try:
        result = finetune(
            task,
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


def _order_heads(heads: Sequence[FieldHead], opened: Any, task: str) -> tuple[FieldHead, ...]:
    """Heads with their classes in the order of the model's outputs, whose labels are places in them; last
    those without an output.
    """
    if task != _FIELDS:
        (head,) = heads
        return (_select_classes(head, [int(label) for label in opened.labels]),)
    learned = [
        _select_classes(heads[int(each.name)], [int(label) for label in each.labels])
        for each in opened.fields
    ]
    return (*learned, *(head for head in heads if not head.classes))


def _select_classes(head: FieldHead, places: Sequence[int]) -> FieldHead:
    return head.model_copy(
        update={
            "classes": tuple(head.classes[place] for place in places),
            "centres": tuple(head.centres[place] for place in places) if head.centres else (),
        }
    )
