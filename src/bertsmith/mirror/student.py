"""A student: the model that answers instead of an LLM where it is proven to agree with it. Read
`MirrorStudent` first.

    MirrorStudent.open(folder).answer(["Where is my card?"])

The cheapest student is a linear model over TF-IDF features: words and pairs of adjacent words. Its files:

words.json          the features in the order of the weights' rows, and the name of the tokenization
words.safetensors   each feature's IDF, and the weights for each field's outputs

Shapes: E texts, F features, C outputs of one field.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_array
from torch import Tensor

from bertsmith.arrays import Float32s, Floats
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.files import read_json, tensors_written_to, write_json
from bertsmith.inference.predictor import Predictor
from bertsmith.metrics.baselines import RUN_TOKEN, TOKEN
from bertsmith.mirror.call import CompletionRequest, Json
from bertsmith.mirror.fields import Field, FieldPrediction, Values
from bertsmith.mirror.neighbours import NeighbourMemory, order_by_gain
from bertsmith.mirror.redaction import holds_placeholder
from bertsmith.mirror.student_file import MODEL, SPANS, StudentFile, read_student_file
from bertsmith.model.manifest import read_verified_manifest
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.fields import Fields
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.forward_passes import evaluating, forward_passes
from bertsmith.tasks.heads.classifier_head import ClassifierHead
from bertsmith.tasks.task_model import outputs_of

_WORDS, _WEIGHTS = "words.json", "words.safetensors"
# Tokenizations by their name in words.json: without or with combining marks in words, and with syllables
# where no blanks divide words. A student keeps the one with which it was trained and proven.
_TOKENS = {
    "without marks": re.compile(r"\w+|[^\w\s]"),
    "with marks": re.compile(RUN_TOKEN),
    "with syllables": re.compile(TOKEN),
}
_CURRENT_TOKENS, _OLDEST_TOKENS = "with syllables", "without marks"  # the oldest words.json is a list

SURE, UNSURE, UNPROVEN, REDACTED = "sure", "low-confidence", "not-proven", "redacted"
_BATCH_SIZE = 1024  # texts
_OWN_TASKS = {Fields.name: Fields}  # tasks of the mirror, which users can't choose by name


class WordModel:
    """A linear model over TF-IDF features of words and pairs of words.

    `rarity` (F,) is each feature's IDF. `weights` has a float32 matrix (F + 1, C) for each field's path; its
    last row is the intercept.
    """

    def __init__(
        self,
        features: Sequence[str],
        rarity: Floats | Float32s,
        weights: Mapping[str, Float32s],
        tokenization: str = _CURRENT_TOKENS,
    ) -> None:
        self.indices = {feature: index for index, feature in enumerate(features)}
        self.rarity = np.asarray(rarity, np.float32)
        self.weights = dict(weights)
        self.tokenization = tokenization

    def logits(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Logits (E, C) by each field's path. A text without a known word gets the intercepts."""
        logits = {path: np.empty((len(texts), weights.shape[1])) for path, weights in self.weights.items()}
        for row, text in enumerate(texts):
            indices, values = self._vectorize(text)
            for path, weights in self.weights.items():
                logits[path][row] = values @ weights[indices] + weights[-1]
        return logits

    def vectors(self, texts: Sequence[str]) -> csr_array:
        """The values (E, F) of the texts' features, of norm 1."""
        rows = [self._vectorize(text) for text in texts]
        ends = np.cumsum([0, *(len(indices) for indices, _ in rows)])
        columns = np.array([index for indices, _ in rows for index in indices], np.int64)
        values = np.concatenate([np.zeros(0, np.float32), *(values for _, values in rows)])
        return csr_array((values, columns, ends), shape=(len(texts), len(self.rarity)))

    def _vectorize(self, text: str) -> tuple[list[int], Float32s]:
        """The indices of a text's features, and their values: (1 + log count) · IDF, scaled to norm 1."""
        words = _TOKENS[self.tokenization].findall(text.lower())
        pairs = (f"{first} {second}" for first, second in pairwise(words))
        counts = Counter(
            index for feature in (*words, *pairs) if (index := self.indices.get(feature)) is not None
        )
        if not counts:
            return [], np.zeros(0, np.float32)
        indices = list(counts)
        values = (1 + np.log(np.array(list(counts.values()), np.float32))) * self.rarity[indices]
        return indices, np.asarray(values / np.linalg.norm(values))

    def save(self, folder: Path) -> None:
        """Writes words.json and words.safetensors into the folder."""
        write_json(folder / _WORDS, {"token": self.tokenization, "features": list(self.indices)})
        tensors = {f"weights:{path}": np.ascontiguousarray(matrix) for path, matrix in self.weights.items()}
        with tensors_written_to(folder / _WEIGHTS):
            save_file({"rarity": self.rarity} | tensors, folder / _WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> "WordModel":
        """Reads what `save` wrote. Raises ModelError for files that are missing or don't fit each other."""
        content = read_json(folder / _WORDS)
        if not isinstance(content, dict):
            content = {"token": _OLDEST_TOKENS, "features": content}
        tokenization, features = str(content.get("token")), content.get("features")
        try:
            tensors = load_file(folder / _WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{folder / _WEIGHTS} can't be read: {error}. Train the student again."
            ) from error
        weights = {
            name.removeprefix("weights:"): tensor
            for name, tensor in tensors.items()
            if name.startswith("weights:")
        }
        rows = {len(matrix) for matrix in weights.values()}
        if (
            tokenization not in _TOKENS
            or not isinstance(features, list)
            or not all(isinstance(feature, str) for feature in features)
            or tensors.get("rarity", np.empty(0)).shape != (len(features),)
            or rows != {len(features) + 1}
        ):
            raise ModelError(f"{folder}: the words and their weights don't fit. Train the student again.")
        return cls(features, tensors["rarity"], weights, tokenization)


@dataclass(frozen=True)
class StudentAnswer:
    """A student's answer to one text.

    `values` are by path; `answer` is the same as JSON, the way the teacher writes it. `confidence` is the
    probability that the whole answer agrees with the teacher's, `confidences` that of each field by path.

    `is_sure` says whether the confidence reaches the proven threshold. `reason` is one of sure,
    low-confidence, not-proven, and redacted (the answer contains a placeholder). `milliseconds` is the time
    for this text: the mean of its batch. `probabilities` lists, by path, each class of a field with its
    probability, for fields with one of several values.
    """

    values: Values
    answer: dict[str, Json]
    confidence: float
    confidences: dict[str, float]
    is_sure: bool
    reason: str
    milliseconds: float
    probabilities: dict[str, list[tuple[Any, float]]]


class _FieldModel(Protocol):
    """A model with outputs for each field: a WordModel or an EncoderFieldModel."""

    def logits(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Logits (E, C) by each field's path."""

    def vectors(self, texts: Sequence[str]) -> Float32s | csr_array | None:
        """Vectors (E, F), by which texts are alike; None without any."""


class EncoderFieldModel:
    """An encoder with one output layer for all fields: `widths` has the number of outputs of each field by
    path, in their order. If no field has more than one possible value there is no encoder (`predictor` is
    None), and all logits are zero. With a `memory` the nearest of the learned texts are weighed too.
    """

    def __init__(
        self, predictor: Predictor | None, widths: dict[str, int], memory: NeighbourMemory | None = None
    ) -> None:
        self.predictor, self.widths, self.memory = predictor, widths, memory

    def logits(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Logits (E, C) by each field's path. Raises ModelError if the model's outputs don't fit."""
        if self.predictor is None:
            return {path: np.zeros((len(texts), width)) for path, width in self.widths.items()}
        if self.memory is not None:
            vectors, logits = self.compute_vectors(texts)
            return self.memory.weigh(vectors, self._split_by_path(logits))
        outputs = outputs_of(self.predictor.model, self._encode(self.predictor, texts))
        return self._split_by_path(np.stack(outputs).astype(np.float64))

    def vectors(self, texts: Sequence[str]) -> Float32s | None:
        """The input (E, F) of the output layer; None without an encoder."""
        return None if self.predictor is None else self.compute_vectors(texts)[0]

    def compute_vectors(self, texts: Sequence[str]) -> tuple[Float32s, Floats]:
        """The input (E, F) of the output layer, and its outputs (E, C) for all fields, in one pass. There
        must be a predictor.
        """
        assert self.predictor is not None
        model, encoded = self.predictor.model, self._encode(self.predictor, texts)
        head = model.head
        assert isinstance(head, ClassifierHead)  # of every task that a student has

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            features = head.features(model.states(batch, layout), layout).float()
            return torch.cat([features, head.to_label_units(head.out(features)).float()], 1)

        both: list[Float32s] = [np.empty(0, np.float32)] * len(encoded)
        with evaluating(model):
            for numbers, _, outputs in forward_passes(compute, encoded, next(model.parameters()).device):
                for number, output in zip(numbers, outputs, strict=True):
                    both[number] = output
        width = sum(self.widths.values())
        rows = np.stack(both)
        return rows[:, :-width], rows[:, -width:].astype(np.float64)

    def _encode(self, predictor: Predictor, texts: Sequence[str]) -> list[Any]:
        task = predictor.task
        examples = [task.example(text, f"input {number}") for number, text in enumerate(texts, 1)]
        return list(encode_examples(task, examples, predictor.tokenizer).encoded)

    def _split_by_path(self, logits: Floats) -> dict[str, Floats]:
        if logits.ndim != 2 or logits.shape[1] != sum(self.widths.values()):
            raise ModelError(
                f"The student's model has {logits.shape[1:]} outputs a text; its fields need "
                f"{sum(self.widths.values())}. Train the student again."
            )
        ends = np.cumsum(list(self.widths.values()))[:-1]
        return dict(zip(self.widths, np.split(logits, ends, axis=1), strict=True))


class MirrorStudent:
    """A trained student: `file` is its description, `model` has the outputs of its fields, and `tagger` finds
    the quotes, the spans of the input that an answer repeats. Several threads may call it at the same time.
    `proven_threshold` is the one that a proof in shadow has named by now, where the file has its plan.
    """

    def __init__(self, file: StudentFile, model: _FieldModel | None, tagger: Predictor | None = None) -> None:
        self.file, self._model, self._tagger = file, model, tagger
        self.proven_threshold: float | None = None

    @classmethod
    def open(cls, folder: Path | str) -> "MirrorStudent":
        """Opens the folder that `bertsmith mirror train` made, and answers one text to warm up. Raises
        ModelError if the folder is incomplete or was altered.
        """
        folder = Path(folder)
        file = read_student_file(folder)
        tagger = Predictor.load(folder / SPANS) if file.span_tags else None
        student = cls(file, _load_field_model(folder, file), tagger)
        student.answer(["warm up"])
        return student

    def input_of(self, request: CompletionRequest, version: str) -> str | None:
        """The request's input text. None for a version that the student wasn't trained on, and for a request
        that doesn't match the version's template: then the LLM has to answer.
        """
        template = self.file.templates.get(version)
        return None if template is None else template.input_of(request)

    def answer(self, texts: Sequence[str]) -> list[StudentAnswer]:
        """Answers each text; the answers have the order of the texts."""
        answers: list[StudentAnswer] = []
        for begin in range(0, len(texts), _BATCH_SIZE):
            batch = texts[begin : begin + _BATCH_SIZE]
            began = time.perf_counter()
            predictions = self.predict_fields(batch)
            milliseconds = (time.perf_counter() - began) * 1000 / len(batch)
            answers += [
                self._build_answer(
                    {path: of_field[row] for path, of_field in predictions.items()}, milliseconds
                )
                for row in range(len(batch))
            ]
        return answers

    def most_telling_first(self, texts: Sequence[str]) -> list[str]:
        """The texts in the order in which the LLM is to be asked about them, so that a student of the answers
        gains most: each tells most of texts like it that this student is unsure of (`order_by_gain`). Where
        its model has no vectors, those of which it is least sure come first.
        """
        worth = 1 - np.array([answer.confidence for answer in self.answer(texts)])
        vectors = None if self._model is None else self._model.vectors(texts)
        order = np.argsort(-worth, kind="stable") if vectors is None else order_by_gain(vectors, worth)
        return [texts[index] for index in order.tolist()]

    def predict_fields(self, texts: Sequence[str]) -> dict[str, list[FieldPrediction]]:
        """The prediction for every field, by path, and in it for each text."""
        predictions: dict[str, list[FieldPrediction]] = {}
        shape = self.file.shape
        if self._model is not None:
            logits = self._model.logits(texts)
            for head in self.file.heads:
                predictions[head.path] = head.predict(shape.field(head.path), logits[head.path])
        if self._tagger is not None:
            predictions |= predict_spans(self._tagger, self.file.span_tags, shape.fields, texts)
        return predictions

    def _build_answer(self, predictions: dict[str, FieldPrediction], milliseconds: float) -> StudentAnswer:
        values = {path: prediction.value for path, prediction in predictions.items()}
        confidences = {path: prediction.confidence for path, prediction in predictions.items()}
        confidence, threshold = prod(confidences.values()), self.file.claims.threshold_for(values)
        confidence = 0.0 if isnan(confidence) else confidence  # the model overflowed: never sure
        threshold = self.proven_threshold if threshold is None else threshold
        answer = self.file.shape.compose(values)
        if threshold is None or confidence < threshold or confidence <= 0:
            reason = UNPROVEN if threshold is None else UNSURE
        else:
            reason = REDACTED if holds_placeholder(answer) else SURE
        return StudentAnswer(
            values,
            answer,
            confidence,
            confidences,
            reason == SURE,
            reason,
            milliseconds,
            {
                path: list(prediction.probabilities)
                for path, prediction in predictions.items()
                if prediction.probabilities
            },
        )


def _load_field_model(folder: Path, file: StudentFile) -> _FieldModel | None:
    if not file.heads:
        return None
    if file.tier == "tf-idf":
        return WordModel.load(folder / MODEL)
    widths = {head.path: len(head.classes) for head in file.heads}
    needs_encoder = any(head.has_alternatives(file.shape.field(head.path)) for head in file.heads)
    if not needs_encoder:
        return EncoderFieldModel(None, widths)
    return EncoderFieldModel(load_predictor(folder / MODEL), widths, NeighbourMemory.load(folder / MODEL))


def load_predictor(folder: Path) -> Predictor:
    """Loads a student's encoder. With several fields its task is the mirror's own, `Fields`; with one field
    it is an ordinary task.
    """
    manifest = read_verified_manifest(folder)
    return Predictor.load(folder, None if manifest is None else _OWN_TASKS.get(manifest.task))


def predict_spans(
    tagger: Predictor, tags: dict[str, tuple[str, str]], fields: Sequence[Field], texts: Sequence[str]
) -> dict[str, list[FieldPrediction]]:
    """Predicts the quotes (spans of the input that an answer repeats) of every spans field with the tagger:
    by path, a prediction for each text.

    The confidence is the probability that every word has the right tag: the product over the words. It is 0
    if a quote is required and the tagger finds none, or if the schema allows no list of so many, so that the
    LLM answers. `tags` maps the tagger's labels to (field's path, kind of span).
    """
    span_fields = [field for field in fields if field.kind == "spans"]
    predictions: dict[str, list[FieldPrediction]] = {field.path: [] for field in span_fields}
    for text, prediction in zip(texts, tagger.predict(list(texts)), strict=True):
        confidence = float(np.prod(np.asarray(prediction["confidence"], np.float64)))
        quotes: dict[str, list[tuple[str, str]]] = {field.path: [] for field in span_fields}
        for entity in prediction["entities"]:
            path, kind = tags[entity["label"]]
            quotes[path].append((kind, text[entity["start"] : entity["end"]]))
        for field in span_fields:
            is_one = field.spans is not None and field.spans.form == "text"  # holds at most one quote
            value = tuple(quotes[field.path][:1] if is_one else quotes[field.path]) or field.empty_value
            is_allowed = (value is not None or field.nullable) and field.allows_length(value)
            predictions[field.path].append(FieldPrediction(value, confidence if is_allowed else 0.0))
    return predictions
