"""Trains the candidates for a student, from the cheapest to the dearest, and compares their answers with the
teacher's.

The first tier is logistic regression over TF-IDF, in a format that a student reads without scikit-learn. The
second is one encoder fine-tuned for all fields, and another for quotes where answers have any; its work
folder, which holds texts, is removed when the student is written.

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
from scipy.special import softmax

from bertsmith.arrays import Bools, Float32s, Floats, Ints
from bertsmith.errors import BertsmithError, InputError, MissingExtra, ResourceError
from bertsmith.files import atomic_write, read_json, write_json
from bertsmith.metrics.baselines import MOST_FEATURES, MOST_WEIGHTS, TOKEN
from bertsmith.metrics.calibration import fit_temperature
from bertsmith.mirror.call import CompletionRequest
from bertsmith.mirror.fields import AnswerShape, FieldHead, FieldPrediction, Values
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.settings import LearnSettings, Tier
from bertsmith.mirror.learning.targets import (
    MIN_SHARE,
    NAMED,
    build_heads,
    build_name_calls,
    build_tagging_rows,
    build_tags,
    build_targets,
    find_value_names,
)
from bertsmith.mirror.neighbours import MOST_NEIGHBOURS, NeighbourMemory
from bertsmith.mirror.redaction import holds_placeholder
from bertsmith.mirror.student import EncoderFieldModel, WordModel, load_predictor, predict_spans
from bertsmith.mirror.student_file import MODEL, SPANS
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.finetuning.methods import AUTO, CONTRASTIVE, FULL, LINEAR

_TITLES: Mapping[str, str] = {"tf-idf": "classifier on words (tf-idf)", "encoder": "fine-tuned encoder"}
NEVER = -1.0  # the confidence of an answer that is never given
FieldPredictions = Mapping[str, list[FieldPrediction]]  # by path, one for each text
_STRENGTH, _ITERATIONS = 10.0, 200  # scikit-learn's C
_RARE_FROM = 500  # texts, from which on a word of a single text is ignored
_CERTAIN = 12.0  # the logit of a label that was always given; minus it, of one that never was
_CONTRADICTED = "contradicted.json"  # in the work folder
_FOLDS, _MOST, _HARDLY = 5, 0.5, 0.15  # of a label: by more than half another one contradicts it
_FIELDS = "bertsmith.tasks.fields:Fields"
_FEW = 1000  # texts, up to which cross-validation chooses the method, as bertsmith finetune does
_CHOOSING = ("method", "epochs", "minutes", "folds", "lora", "freeze_", "reinit_")  # settings of fine-tuning
_MOST_CONTRASTED = 5000  # texts, up to which four contrastive epochs are less work than training all weights


def tier_title(tier: str) -> str:
    """What the models of a tier are, in words: the setting `tiers` and JSON call them by the name itself."""
    return _TITLES.get(tier, tier)


@dataclass(frozen=True)
class StudentCandidate:
    """A trained model that may become the student. `predict` returns, for each field's path, a prediction for
    each text. `save` writes the model's files into a folder.
    """

    tier: Tier
    heads: tuple[FieldHead, ...]
    predict: Callable[[Sequence[str]], FieldPredictions]
    save: Callable[[Path], None]
    span_tags: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class TeacherComparison:
    """A model's answers compared with the teacher's: `confidence` (E,) and `differs` (E,) of the whole
    answer, and in `fields` the same for each field's path; `answers` are the model's. An answer that holds a
    placeholder of a redacted text, or has no confidence at all, is never given
    (bertsmith.mirror.student.MirrorStudent), and has confidence -1.
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
    """Compares a candidate with the teacher on `calls`, of which there must be at least one."""
    predictions = candidate.predict([call.text for call in calls])
    answers: list[Values] = [
        {path: column[index].value for path, column in predictions.items()} for index in range(len(calls))
    ]
    differing = [
        shape.differing_paths(answer, call.values) for answer, call in zip(answers, calls, strict=True)
    ]
    confidences = {
        path: np.array([prediction.confidence for prediction in column])
        for path, column in predictions.items()
    }
    is_plain = np.array([not holds_placeholder(shape.compose(answer)) for answer in answers], np.bool_)
    is_given = is_plain & (np.prod(list(confidences.values()), axis=0) > 0)
    confidences = {path: np.where(is_given, values, NEVER) for path, values in confidences.items()}
    return TeacherComparison(
        np.where(is_given, np.prod(list(confidences.values()), axis=0), NEVER),
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
    """Trains the TF-IDF tier; `dev` fits the temperatures. None where answers have quotes, which this tier
    can't find, or the texts have no words.
    """
    if any(field.kind == "spans" for field in shape.fields):
        return None
    heads = build_heads(shape, train)
    model = fit_word_model(train, heads, shape)
    if model is None:
        return None
    logits = model.logits([call.text for call in dev])
    heads = tuple(fit_head_temperature(head, shape, logits[head.path], dev) for head in heads)

    def predict(texts: Sequence[str]) -> FieldPredictions:
        logits = model.logits(texts)
        return {head.path: head.predict(shape.field(head.path), logits[head.path]) for head in heads}

    def save(folder: Path) -> None:
        (folder / MODEL).mkdir()
        model.save(folder / MODEL)

    return StudentCandidate("tf-idf", heads, predict, save, {})


def fit_word_model(
    train: Sequence[LearnedCall], heads: Sequence[FieldHead], shape: AnswerShape
) -> WordModel | None:
    """Logistic regression over TF-IDF of words and pairs of words, one for each head. None where no text has
    a word.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    max_features = min(MOST_FEATURES, MOST_WEIGHTS // max(sum(len(head.classes) for head in heads), 1))
    vectoriser = TfidfVectorizer(
        ngram_range=(1, 2),
        token_pattern=TOKEN,
        sublinear_tf=True,
        max_features=max_features,
        min_df=2 if len(train) >= _RARE_FROM else 1,
        dtype=np.float32,
    )
    try:
        features = vectoriser.fit_transform([call.text for call in train])
    except ValueError:  # an empty vocabulary
        return None
    matrices = {}
    for head in heads:
        field = shape.field(head.path)
        targets = build_targets(head, field, train)
        targeted = np.flatnonzero(~np.isnan(targets).any(axis=1))
        fit = _fit_labels if field.kind == "labels" else fit_classes
        matrix = fit(features[targeted], targets[targeted])
        matrices[head.path] = matrix.astype(np.float32)
    return WordModel(vectoriser.get_feature_names_out().tolist(), vectoriser.idf_, matrices)


def fit_head_temperature(
    head: FieldHead, shape: AnswerShape, logits: Floats, dev: Sequence[LearnedCall]
) -> FieldHead:
    """The head with the temperature fitted to the teacher's most probable answers on `dev`."""
    field = shape.field(head.path)
    targets = build_targets(head, field, dev)
    has_target = ~np.isnan(targets).any(axis=1)
    if not has_target.any() or not head.classes:
        return head
    gold = targets[has_target] > 0.5 if field.kind == "labels" else targets[has_target].argmax(axis=1)
    return head.model_copy(update={"temperature": fit_temperature(logits[has_target], gold)})


def fit_classes(features: Any, targets: Floats, row_weights: Floats | None = None) -> Floats:
    """Weights of a softmax over classes: (F + 1, C), the last row the bias. Where the teacher was unsure, a
    text counts for several classes, weighted by their probabilities; by `row_weights` (E,) more or less.
    """
    from sklearn.linear_model import LogisticRegression

    weights = np.zeros((features.shape[1] + 1, targets.shape[1]))
    rows, classes = np.nonzero(targets >= MIN_SHARE)
    shares = targets[rows, classes]
    if row_weights is not None:
        shares = shares * row_weights[rows]
    if len(present := np.unique(classes)) < 2:
        weights[-1] = -_CERTAIN
        weights[-1, present] = 0.0
        return weights
    learner = LogisticRegression(C=_STRENGTH, max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model that hasn't converged is evaluated like any other
        learner.fit(features[rows], classes, shares)
    fitted = np.vstack([learner.coef_.T, learner.intercept_])
    if len(learner.classes_) == 2:  # scikit-learn has the second class's log-odds only
        fitted = np.hstack([np.zeros_like(fitted), fitted])
    weights[-1] = fitted[-1].min() - _CERTAIN  # classes without a text
    weights[:, learner.classes_] = fitted
    return weights


def _fit_labels(features: Any, targets: Floats) -> Floats:
    """Weights of one sigmoid for each label: (F + 1, C), the last row the bias."""
    from sklearn.linear_model import LogisticRegression

    weights = np.zeros((features.shape[1] + 1, targets.shape[1]))
    for index, labels in enumerate(targets.T > 0.5):
        if labels.all() or not labels.any():
            weights[-1, index] = _CERTAIN if labels.all() else -_CERTAIN
            continue
        learner = LogisticRegression(C=_STRENGTH, solver="liblinear").fit(features, labels)
        weights[:-1, index], weights[-1, index] = learner.coef_[0], learner.intercept_[0]
    return weights


def train_encoder_candidates(
    train: Sequence[LearnedCall],
    dev: Sequence[LearnedCall],
    shape: AnswerShape,
    settings: LearnSettings,
    work: Path,
    console: Console | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[StudentCandidate]:
    """Trains the encoder tier by each method that may suit, resuming an interrupted training in `work`; `dev`
    fits the temperatures. Each model is a candidate alone, and one with a memory of the learned texts. Empty
    where no field has two values to tell apart and there are no quotes. Raises as `finetune` does.
    """
    train = [*train, *build_name_calls(shape, train)]
    heads = build_heads(shape, train)
    models = list[tuple[tuple[FieldHead, ...], EncoderFieldModel | None, Path]]()
    tags, tagger = build_tags(shape), None
    if any(head.has_alternatives(shape.field(head.path)) for head in heads):
        task, rows = _build_task_rows(heads, shape, (train, dev))
        for method in _list_methods(task, len(rows[0]), settings):
            folder = work / "-".join([MODEL, *method])
            predictor = load_predictor(_finetune_model(task, rows, settings, folder, console, *method))
            own = _order_heads(heads, predictor.task, task)
            outputs = EncoderFieldModel(predictor, {head.path: len(head.classes) for head in own})
            logits = outputs.logits([call.text for call in dev])
            own = tuple(fit_head_temperature(head, shape, logits[head.path], dev) for head in own)
            models += [*_add_memory(own, outputs, folder, train, dev, shape), (own, outputs, folder)]
            if method == (LINEAR,):  # what it finds contradicted teaches the dearer methods nothing
                kept = _leave_out_contradicted(own[0], outputs, train, shape, work / _CONTRADICTED)
                if len(kept) < len(train):
                    say(f"Leaving out {len(train) - len(kept):,} answers that all like them contradict")
                    train = kept
                    _, rows = _build_task_rows(heads, shape, (train, dev))
    elif heads and not tags:
        return []
    else:
        outputs = EncoderFieldModel(None, {head.path: len(head.classes) for head in heads})
        models.append((heads, outputs if heads else None, work / MODEL))
    if tags:
        rows = [build_tagging_rows(calls, shape, tags) for calls in (train, dev)]
        tagger = load_predictor(_finetune_model("tagging", rows, settings, work / SPANS, console))
    return [_make_encoder_candidate(*model, work / SPANS, tagger, tags, shape) for model in models]


def train_named_candidate(
    request: CompletionRequest,
    calls: Sequence[LearnedCall],
    shape: AnswerShape,
    settings: LearnSettings,
    work: Path,
    console: Console | None = None,
) -> tuple[StudentCandidate, dict[str, str]]:
    """A student that has learned no answer, and the names that it began by: those of the values of the one
    field, with the descriptions of the `request`, beside the texts of the calls
    (bertsmith.tasks.heads.label_names). The answers fit the temperature alone, which changes none of its own.
    Raises as `find_value_names` and `finetune` do.
    """
    names = find_value_names(shape, request)
    (field,), folder = shape.fields, work / MODEL
    folder.mkdir(parents=True, exist_ok=True)
    texts = list(dict.fromkeys(call.text for call in calls))
    unlabelled = folder / "texts.jsonl"
    atomic_write(unlabelled, "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
    options: dict[str, Any] = {"names": names, "unlabelled": str(unlabelled)}
    trained = _run_finetuning("classification", settings, folder, console, options)
    outputs = EncoderFieldModel(load_predictor(trained), {field.path: len(names)})
    places = {value: number for number, value in enumerate(field.classes)}
    assert outputs.predictor is not None
    head = FieldHead(path=field.path, classes=tuple(places[name] for name in outputs.predictor.task.labels))
    logits = outputs.logits([call.text for call in calls])
    head = fit_head_temperature(head, shape, logits[field.path], calls)
    return _make_encoder_candidate((head,), outputs, folder, work / SPANS, None, {}, shape), names


def _leave_out_contradicted(
    head: FieldHead,
    outputs: EncoderFieldModel,
    train: Sequence[LearnedCall],
    shape: AnswerShape,
    path: Path,
) -> list[LearnedCall]:
    """The calls without those whose answer `find_contradicted` finds. Their ids are kept in the file `path`,
    so that a resumed training has the same rows.
    """
    if path.exists():
        ids = set(read_json(path))
    else:
        targets = build_targets(head, shape.field(head.path), train)
        rows = [n for n, call in enumerate(train) if call.source != NAMED and not np.isnan(targets[n]).any()]
        vectors, _ = outputs.compute_vectors([train[n].text for n in rows])
        contradicted = find_contradicted(vectors, targets[rows].argmax(axis=1))
        ids = {train[n].id for n, is_wrong in zip(rows, contradicted, strict=True) if is_wrong}
        write_json(path, sorted(ids))
    return [call for call in train if call.id not in ids]


def find_contradicted(vectors: Floats | Float32s, labels: Ints) -> Bools:
    """(E,): whether a text's label is likely wrong. Its nearest texts and a linear model of the texts in
    other folds have to say the same other label, most of the nearest, and both hardly ever its own. Of
    `vectors` (E, F) there are more than ten.
    """
    count, classes = len(labels), int(labels.max()) + 1
    memory = NeighbourMemory(vectors, {}, {})
    nearest = np.stack([memory.find_nearest(vector, besides=row)[1] for row, vector in enumerate(vectors)])
    given = np.zeros((count, classes))
    np.add.at(given, (np.arange(count)[:, None], labels[nearest]), 1 / nearest.shape[1])
    modelled = np.zeros((count, classes))
    folds = np.random.default_rng(0).permutation(count) % _FOLDS
    for fold in range(_FOLDS):
        others = folds != fold
        weights = fit_classes(memory.vectors[others], np.eye(classes)[labels[others]])
        modelled[~others] = softmax(memory.vectors[~others] @ weights[:-1] + weights[-1], axis=1)
    every = np.arange(count)
    return np.asarray(
        (given.argmax(axis=1) == modelled.argmax(axis=1))
        & (given.max(axis=1) > _MOST)
        & (given[every, labels] < _HARDLY)
        & (modelled[every, labels] < _HARDLY)
    )


def _add_memory(
    heads: tuple[FieldHead, ...],
    outputs: EncoderFieldModel,
    folder: Path,
    train: Sequence[LearnedCall],
    dev: Sequence[LearnedCall],
    shape: AnswerShape,
) -> list[tuple[tuple[FieldHead, ...], EncoderFieldModel, Path]]:
    """The same model with a memory of the latest of the calls that it learned from; empty where it could say
    nothing of any field.
    """
    learned = [call for call in train if call.source != NAMED][-MOST_NEIGHBOURS:]
    numbers, temperatures = dict[str, Ints](), dict[str, float]()
    for head in heads:
        field = shape.field(head.path)
        if field.kind != "labels" and head.has_alternatives(field):
            targets = build_targets(head, field, learned)
            has_target = ~np.isnan(targets).any(axis=1)
            numbers[head.path] = np.where(has_target, np.nan_to_num(targets).argmax(axis=1), -1)
            temperatures[head.path] = head.temperature
    if not numbers:
        return []
    vectors, _ = outputs.compute_vectors([call.text for call in learned])
    memory = NeighbourMemory(vectors, numbers, temperatures)
    weighed = EncoderFieldModel(outputs.predictor, outputs.widths, memory)
    logits = weighed.logits([call.text for call in dev])
    return [
        (
            tuple(fit_head_temperature(head, shape, logits[head.path], dev) for head in heads),
            weighed,
            folder,
        )
    ]


def _make_encoder_candidate(
    heads: tuple[FieldHead, ...],
    outputs: EncoderFieldModel | None,
    folder: Path,
    spans_folder: Path,
    tagger: Any,
    tags: dict[str, tuple[str, str]],
    shape: AnswerShape,
) -> StudentCandidate:
    def predict(texts: Sequence[str]) -> FieldPredictions:
        predictions: dict[str, list[FieldPrediction]] = {}
        if outputs is not None:
            logits = outputs.logits(texts)
            predictions = {
                head.path: head.predict(shape.field(head.path), logits[head.path]) for head in heads
            }
        if tagger is not None:
            predictions |= predict_spans(tagger, tags, shape.fields, texts)
        return predictions

    def save(student_folder: Path) -> None:
        for name, trained in ((MODEL, folder), (SPANS, spans_folder)):
            if (trained / "model").exists():
                shutil.copytree(trained / "model", student_folder / name)
        if outputs is not None and outputs.memory is not None:
            outputs.memory.save(student_folder / MODEL)

    return StudentCandidate("encoder", heads, predict, save, tags)


def _list_methods(task: str, rows: int, settings: LearnSettings) -> list[tuple[str, ...]]:
    """The methods whose models are compared on dev, each as a tuple of one; an empty tuple where fine-tuning
    chooses alone: by cross-validation of few rows, or by what the user has set.
    """
    is_set = settings.restarts > 1 or any(override.startswith(_CHOOSING) for override in settings.overrides)
    if task != "classification" or rows <= _FEW or is_set:
        return [()]
    return [(LINEAR,), *[(CONTRASTIVE,)] * (rows <= _MOST_CONTRASTED), (FULL,)]


def _build_task_rows(
    heads: Sequence[FieldHead], shape: AnswerShape, parts: Sequence[Sequence[LearnedCall]]
) -> tuple[str, list[list[dict[str, Any]]]]:
    """The task to fine-tune and its rows for each part, train and dev: classification or multi-label where
    there is one field and the teacher is always sure, else the task of several fields.
    """
    targets = [[build_targets(head, shape.field(head.path), calls) for head in heads] for calls in parts]
    kinds = [shape.field(head.path).kind for head in heads]
    first = targets[0][0]
    targeted = first[~np.isnan(first).any(axis=1)]
    is_sure = bool(((targeted == 0) | (targeted == 1)).all())  # each call has one class with probability 1
    if len(heads) > 1 or (kinds != ["labels"] and not is_sure):
        return _FIELDS, [
            _build_field_rows(calls, part_targets, kinds)
            for calls, part_targets in zip(parts, targets, strict=True)
        ]

    def label(row: Floats) -> str | list[str]:
        return [str(index) for index in np.flatnonzero(row)] if kinds == ["labels"] else str(row.argmax())

    rows = []
    for calls, (own,) in zip(parts, targets, strict=True):
        labelled = [(call, row) for call, row in zip(calls, own, strict=True) if not np.isnan(row).any()]
        rows.append([{"text": call.text, "label": label(row)} for call, row in labelled])
    return "multi-label" if kinds == ["labels"] else "classification", rows


def _build_field_rows(
    calls: Sequence[LearnedCall], targets: Sequence[Floats], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of the task of several fields, without fields that have no target, and calls that have none."""
    rows = []
    for number, call in enumerate(calls):
        label: dict[str, Any] = {}
        for index, (field_targets, kind) in enumerate(zip(targets, kinds, strict=True)):
            row = field_targets[number]
            if np.isnan(row).any() or not len(row):
                continue
            if kind == "labels":
                label[str(index)] = [str(class_index) for class_index in np.flatnonzero(row)]
            else:
                likely = np.flatnonzero(row >= min(MIN_SHARE, row.max()))
                label[str(index)] = {str(class_index): float(row[class_index]) for class_index in likely}
        if label:
            rows.append({"text": call.text, "label": json.dumps(label)})
    return rows


def _finetune_model(
    task: str,
    rows: Sequence[Sequence[dict[str, Any]]],
    settings: LearnSettings,
    work: Path,
    console: Console | None,
    method: str = AUTO,
) -> Path:
    """Fine-tunes a model on (train, dev) rows, and returns its folder. With few rows, fine-tuning doesn't get
    dev, which then only fits the temperatures. Raises InputError where it fails, MissingExtra without a
    package, and ResourceError for too little disk or memory: the work so far stays.
    """
    work.mkdir(parents=True, exist_ok=True)
    train, dev = rows
    files = {"train": train} if len(train) <= _FEW else {"train": train, "dev": dev}
    for name, file_rows in files.items():
        atomic_write(
            work / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in file_rows)
        )
    options: dict[str, Any] = {name: str(work / f"{name}.jsonl") for name in files}
    if settings.restarts > 1:
        options["restarts"] = settings.restarts
    if method != AUTO:
        options["method"] = method
    return _run_finetuning(task, settings, work, console, options)


def _run_finetuning(
    task: str, settings: LearnSettings, work: Path, console: Console | None, options: Mapping[str, Any]
) -> Path:
    """Fine-tunes with `options` in the folder `work`, or goes on there, and returns the model's folder."""
    try:
        result = finetune(
            task,
            *settings.overrides,
            model=settings.model,
            out=str(work),
            resume=(work / "recipe.toml").exists(),
            console=console,
            seed=settings.seed,
            **options,
        )
    except (MissingExtra, ResourceError):
        raise
    except BertsmithError as error:
        raise InputError(f"The encoder can't be trained: {error}") from error
    return result.model


def _order_heads(heads: Sequence[FieldHead], opened: Any, task: str) -> tuple[FieldHead, ...]:
    """The heads with their classes in the order of the model's outputs, whose labels are class indices; heads
    without an output come last.
    """
    if task != _FIELDS:
        (head,) = heads
        return (_select_classes(head, [int(label) for label in opened.labels]),)
    learned = [
        _select_classes(heads[int(field.name)], [int(label) for label in field.labels])
        for field in opened.fields
    ]
    return (*learned, *(head for head in heads if not head.classes))


def _select_classes(head: FieldHead, indices: Sequence[int]) -> FieldHead:
    return head.model_copy(
        update={
            "classes": tuple(head.classes[index] for index in indices),
            "centres": tuple(head.centres[index] for index in indices) if head.centres else (),
        }
    )
