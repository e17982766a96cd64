"""A student: the model that answers in an LLM's place where it is proven to agree with it.

    Student.open(folder).answer(["Where is my card?"])

The cheapest is a linear model of a text's words and pairs of words, weighed by TF-IDF:

words.json          words and pairs of them, in the order of the weights' rows, and what counts as a word
words.safetensors   how rare each is, and the weights of each field's outputs

E texts, F features, C outputs of all fields together.
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
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertsmith.arrays import Float32s, Floats
from bertsmith.errors import ModelError
from bertsmith.files import read_json, tensors_written_to, write_json
from bertsmith.inference.predictor import Predictor
from bertsmith.metrics.baselines import TOKEN
from bertsmith.mirror.call import CompletionRequest, Json
from bertsmith.mirror.fields import Field, FieldPrediction, Values
from bertsmith.mirror.redaction import holds_placeholder
from bertsmith.mirror.student_file import MODEL, SPANS, StudentFile, read_student_file
from bertsmith.model.manifest import read_manifest
from bertsmith.tasks.fields import Fields
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.task_model import outputs_of

_WORDS, _WEIGHTS = "words.json", "words.safetensors"
# What a word is, by the name that words.json has for it. A student answers by those it was proven by.
_TOKENS = {"without marks": re.compile(r"\w+|[^\w\s]"), "with marks": re.compile(TOKEN)}
_CURRENT_TOKENS, _OLDEST_TOKENS = "with marks", "without marks"  # unnamed: words.json was a list

SURE, UNSURE, UNPROVEN, REDACTED = "sure", "low-confidence", "not-proven", "redacted"
_BATCH_SIZE = 1024  # texts
_OWN_TASKS = {Fields.name: Fields}  # which a file may not name: it is the mirror's


class WordModel:
    """`rarity` (F,) is each feature's IDF. `weights` has (F + 1, C) a field, in float32, the last row for
    what all texts have.
    """

    def __init__(
        self,
        features: Sequence[str],
        rarity: Floats | Float32s,
        weights: Mapping[str, Float32s],
        token: str = _CURRENT_TOKENS,
    ) -> None:
        self.places = {feature: place for place, feature in enumerate(features)}
        self.rarity = np.asarray(rarity, np.float32)
        self.weights = dict(weights)
        self.token = token

    def logits(self, texts: Sequence[str]) -> dict[str, Floats]:
        """(E, C) by the field's path. A text without a known word gets what all texts have."""
        found = {path: np.empty((len(texts), each.shape[1])) for path, each in self.weights.items()}
        for number, text in enumerate(texts):
            places, values = self._vector(text)
            for path, weights in self.weights.items():
                found[path][number] = values @ weights[places] + weights[-1]
        return found

    def _vector(self, text: str) -> tuple[list[int], Float32s]:
        """Which features a text has, and their weights: 1 + log of how often, by rarity, of length 1."""
        words = _TOKENS[self.token].findall(text.lower())
        pairs = (f"{first} {second}" for first, second in pairwise(words))
        counts = Counter(place for each in (*words, *pairs) if (place := self.places.get(each)) is not None)
        if not counts:
            return [], np.zeros(0, np.float32)
        places = list(counts)
        values = (1 + np.log(np.array(list(counts.values()), np.float32))) * self.rarity[places]
        return places, np.asarray(values / np.linalg.norm(values))

    def save(self, folder: Path) -> None:
        """Two files."""
        write_json(folder / _WORDS, {"token": self.token, "features": list(self.places)})
        tensors = {f"weights:{path}": np.ascontiguousarray(each) for path, each in self.weights.items()}
        with tensors_written_to(folder / _WEIGHTS):
            save_file({"rarity": self.rarity} | tensors, folder / _WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> "WordModel":
        """Raises ModelError for files that are missing or don't fit each other."""
        found = read_json(folder / _WORDS)
        if not isinstance(found, dict):
            found = {"token": _OLDEST_TOKENS, "features": found}
        token, features = str(found.get("token")), found.get("features")
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
        rows = {len(weight) for weight in weights.values()}
        if (
            token not in _TOKENS
            or not isinstance(features, list)
            or not all(isinstance(feature, str) for feature in features)
            or tensors.get("rarity", np.empty(0)).shape != (len(features),)
            or rows != {len(features) + 1}
        ):
            raise ModelError(f"{folder}: the words and their weights don't fit. Train the student again.")
        return cls(features, tensors["rarity"], weights, token)


@dataclass(frozen=True)
class StudentAnswer:
    """`values` by path, and the same as the `answer` that the teacher would have written; `confidence` that
    all of it agrees with the teacher, and that of each field. `is_sure`: the confidence reaches the threshold
    that is proven; `reason` says so in a word: sure, low-confidence, not-proven, redacted where it holds a
    placeholder. `milliseconds` is what this text took, its share where several were asked together.
    `probabilities` are of each value of a field that holds one of several, by path.
    """

    values: Values
    answer: dict[str, Json]
    confidence: float
    confidences: dict[str, float]
    is_sure: bool
    reason: str
    milliseconds: float
    probabilities: dict[str, list[tuple[Any, float]]]


class _Outputs(Protocol):
    def logits(self, texts: Sequence[str]) -> dict[str, Floats]:
        """(E, C) by the field's path."""


class EncoderOutputs:
    """One encoder whose outputs, side by side, are those of all fields: `widths` by path, in their order.
    Where no field has two answers to tell apart there is no encoder, and outputs are zeros.
    """

    def __init__(self, predictor: Predictor | None, widths: dict[str, int]) -> None:
        self.predictor, self.widths = predictor, widths

    def logits(self, texts: Sequence[str]) -> dict[str, Floats]:
        """(E, C) by the field's path."""
        if self.predictor is None:
            return {path: np.zeros((len(texts), width)) for path, width in self.widths.items()}
        task = self.predictor.task
        examples = [task.example(text, f"input {number}") for number, text in enumerate(texts, 1)]
        encoded = encode_examples(task, examples, self.predictor.tokenizer).encoded
        whole = np.stack(outputs_of(self.predictor.model, encoded)).astype(np.float64)
        if whole.ndim != 2 or whole.shape[1] != sum(self.widths.values()):
            raise ModelError(
                f"The student's model has {whole.shape[1:]} outputs a text; its fields need "
                f"{sum(self.widths.values())}. Train the student again."
            )
        ends = np.cumsum(list(self.widths.values()))[:-1]
        return dict(zip(self.widths, np.split(whole, ends, axis=1), strict=True))


class MirrorStudent:
    """Several threads may ask it at once."""

    def __init__(self, file: StudentFile, outputs: _Outputs | None, tagger: Predictor | None = None) -> None:
        self.file, self._outputs, self._tagger = file, outputs, tagger

    @classmethod
    def open(cls, folder: Path | str) -> "MirrorStudent":
        """From the folder that `bertsmith mirror train` made, warmed up. Raises ModelError for one that is
        incomplete or altered.
        """
        folder = Path(folder)
        file = read_student_file(folder)
        tagger = Predictor.load(folder / SPANS) if file.span_tags else None
        student = cls(file, _load_outputs(folder, file), tagger)
        student.answer(["warm up"])
        return student

    @property
    def is_promotable(self) -> bool:
        """Whether anything is proven of it: otherwise it is never sure."""
        return self.file.claims.coverage > 0

    def input_of(self, request: CompletionRequest, version: str) -> str | None:
        """The text to answer for. None for a version it wasn't trained on, and for a call that doesn't fit
        its template: then the LLM answers.
        """
        template = self.file.templates.get(version)
        return None if template is None else template.input_of(request)

    def answer(self, texts: Sequence[str]) -> list[StudentAnswer]:
        """One answer a text."""
        found: list[StudentAnswer] = []
        for begin in range(0, len(texts), _BATCH_SIZE):
            some = texts[begin : begin + _BATCH_SIZE]
            began = time.perf_counter()
            guesses = self.guesses(some)
            each = (time.perf_counter() - began) * 1000 / len(some)
            found += [
                self._answer({path: of[number] for path, of in guesses.items()}, each)
                for number in range(len(some))
            ]
        return found

    def unsure_first(self, texts: Sequence[str]) -> list[str]:
        """Texts in the order in which their answers would teach it most: those that it is least sure of."""
        answers = self.answer(texts)
        return [texts[n] for n in sorted(range(len(texts)), key=lambda number: answers[number].confidence)]

    def guesses(self, texts: Sequence[str]) -> dict[str, list[FieldPrediction]]:
        """Every field's value and confidence for each text, by path."""
        found: dict[str, list[FieldPrediction]] = {}
        shape = self.file.shape
        if self._outputs is not None:
            logits = self._outputs.logits(texts)
            for head in self.file.heads:
                found[head.path] = head.guesses(shape.field(head.path), logits[head.path])
        if self._tagger is not None:
            found |= predict_spans(self._tagger, self.file.span_tags, shape.fields, texts)
        return found

    def _answer(self, guesses: dict[str, FieldPrediction], milliseconds: float) -> StudentAnswer:
        values = {path: guess.value for path, guess in guesses.items()}
        confidences = {path: guess.confidence for path, guess in guesses.items()}
        confidence, threshold = prod(confidences.values()), self.file.claims.threshold_for(values)
        confidence = 0.0 if isnan(confidence) else confidence  # of a model that overflowed: it knows nothing
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
            {path: list(guess.spread) for path, guess in guesses.items() if guess.spread},
        )


def _load_outputs(folder: Path, file: StudentFile) -> _Outputs | None:
    if not file.heads:
        return None
    if file.tier == "tf-idf":
        return WordModel.load(folder / MODEL)
    widths = {head.path: len(head.classes) for head in file.heads}
    needs_encoder = any(head.tells_apart(file.shape.field(head.path)) for head in file.heads)
    return EncoderOutputs(load_predictor(folder / MODEL) if needs_encoder else None, widths)


def load_predictor(folder: Path) -> Predictor:
    """An encoder of several fields, or of one, which is a task by name, as a tagger is."""
    manifest = read_manifest(folder)
    return Predictor.load(folder, None if manifest is None else _OWN_TASKS.get(manifest.task))


def predict_spans(
    tagger: Predictor, tags: dict[str, tuple[str, str]], fields: Sequence[Field], texts: Sequence[str]
) -> dict[str, list[FieldPrediction]]:
    """What the tagger quotes for each spans field. Its confidence is that every word has its tag: the product
    of the words' probabilities; 0 where a text has to be quoted and none is found, so that the LLM answers.
    """
    spans = [field for field in fields if field.kind == "spans"]
    found: dict[str, list[FieldPrediction]] = {span.path: [] for span in spans}
    for text, prediction in zip(texts, tagger.predict(list(texts)), strict=True):
        confidence = float(np.prod(np.asarray(prediction["confidence"], np.float64)))
        quotes: dict[str, list[tuple[str, str]]] = {span.path: [] for span in spans}
        for entity in prediction["entities"]:
            path, kind = tags[entity["label"]]
            quotes[path].append((kind, text[entity["start"] : entity["end"]]))
        for span in spans:
            is_one = span.spans is not None and span.spans.form == "text"  # one text can hold one quote
            value = tuple(quotes[span.path][:1] if is_one else quotes[span.path]) or span.nothing
            is_allowed = value is not None or span.nullable
            found[span.path].append(FieldPrediction(value, confidence if is_allowed else 0.0))
    return found
