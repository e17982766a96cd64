"""What a head's outputs mean, without torch: classes, numbers, spans, tags.

E texts    R words of a text    C outputs
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Float32s, Floats, Ints
from bertsmith.errors import InputError, ModelError
from bertsmith.metrics.calibration import Confidence, probabilities_of
from bertsmith.metrics.entities import NONE, Scheme, legal_transitions, scheme_of_labels
from bertsmith.tasks.examples.answer_spans import LONGEST_ANSWER, predict_span
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.tagged_example import (
    TaggedExample,
    example_of_text,
    tagged_prediction,
    windows_of_words,
    word_pieces,
)
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class TaskState:
    """What a task learnt, as bertsmith.json has it. `tagger` is there for tagging."""

    state: Mapping[str, Any]
    labels: tuple[str, ...]
    confidence: Confidence | None
    tagger: "Tagger | None"

    @property
    def abstains(self) -> bool:
        settings = self.state["settings"]
        return settings.get("coverage") is not None or settings.get("error_cost") is not None


def _temperature(task: TaskState) -> float:
    return task.confidence.temperature if task.confidence else 1.0


def _classes(task: TaskState, outputs: Float32s) -> list[dict[str, Any]]:
    predictions = list[dict[str, Any]]()
    for row in probabilities_of(outputs, _temperature(task)):
        best = int(row.argmax())
        prediction: dict[str, Any] = {
            "label": task.labels[best],
            "confidence": round(float(row[best]), 6),
            "probabilities": dict(zip(task.labels, np.round(row, 6).tolist(), strict=True)),
        }
        if task.confidence is not None and task.abstains:
            prediction["abstain"] = bool(row[best] < task.confidence.threshold)
        predictions.append(prediction)
    return predictions


def _several_labels(task: TaskState, outputs: Float32s) -> list[dict[str, Any]]:
    own = task.confidence.label_thresholds if task.confidence else None
    thresholds = [0.5] * len(task.labels) if own is None else own
    return [
        {
            "labels": [
                label for label, p, least in zip(task.labels, row, thresholds, strict=True) if p >= least
            ],
            "probabilities": dict(zip(task.labels, np.round(row, 6).tolist(), strict=True)),
        }
        for row in probabilities_of(outputs, _temperature(task), multi_label=True)
    ]


def _numbers(task: TaskState, outputs: Float32s) -> list[dict[str, Any]]:
    numbers = outputs[:, 0].astype(np.float64)
    if task.state.get("has_sigmoid"):
        numbers = np.exp(-np.logaddexp(0, -numbers))
    return [{"score": float(number)} for number in numbers]


def _relevances(task: TaskState, outputs: Float32s) -> list[dict[str, Any]]:
    logits = outputs[:, 0].astype(np.float64)
    return [{"score": score} for score in np.exp(-np.logaddexp(0, -logits)).tolist()]


def _similarities(task: TaskState, outputs: Float32s) -> list[dict[str, Any]]:
    if task.labels:
        return [
            {"label": task.labels[int(row.argmax())], "confidence": round(float(row.max()), 6)}
            for row in probabilities_of(outputs)
        ]
    lowest, highest = task.state.get("range", (0.0, 1.0))
    cosines = [min(max(float(output[0]), -1.0), 1.0) for output in outputs]
    return [{"similarity": c, "score": lowest + (highest - lowest) * max(c, 0.0)} for c in cosines]


def _spans(
    task: TaskState,
    outputs: Sequence[Float32s],
    pairs: Sequence[Sequence[str]],
    encoded: Sequence[EncodedExample],
) -> list[dict[str, Any]]:
    longest = task.state["settings"].get("longest_answer", LONGEST_ANSWER)
    threshold = task.state.get("threshold")
    return [
        predict_span(output, passage, example, longest=longest, threshold=threshold)
        for output, (_, passage), example in zip(outputs, pairs, encoded, strict=True)
    ]


class TransitionArrays(NamedTuple):
    """Scores of a sentence's first tag (C,), of neighbouring tags, [before, after] (C, C), and of its last
    tag (C,); -inf forbids a transition.
    """

    start: Floats
    pairs: Floats
    end: Floats


class Tagger:
    """Words and their tags, by the rules of the labels' scheme and the transitions that a CRF learnt."""

    def __init__(
        self, labels: Sequence[str], state: Mapping[str, Any], head: Mapping[str, Float32s], folder: Path
    ) -> None:
        """`head` has the CRF's scores. Raises ModelError where they are missing."""
        settings = state.get("settings", {})
        self.labels, self.syllables = tuple(labels), state.get("syllables", False)
        self.constrained, name = settings.get("constrained", True), settings.get("scheme")
        self.scheme = Scheme(NONE)
        if name != NONE:
            self.scheme = scheme_of_labels(self.labels, trained_here=name is not None)
        self.has_crf = bool(settings.get("crf"))
        count = len(self.labels)
        scores = {"start": np.zeros(count), "transitions": np.zeros((count, count)), "end": np.zeros(count)}
        if self.has_crf:
            learned = {name: head.get(f"crf.{name}") for name in scores}
            for name, values in learned.items():
                if values is None or values.shape != scores[name].shape:
                    raise ModelError(
                        f"{folder} lacks crf.{name} of its head. It may have been cut or altered."
                    )
                scores[name] = values.astype(np.float64)
        start, pairs = legal_transitions(self.labels)
        self.transitions = TransitionArrays(
            np.where(start, scores["start"], -np.inf),
            np.where(pairs, scores["transitions"], -np.inf),
            scores["end"],
        )

    def encode(
        self, texts: Sequence[Any], tokenizer: Tokenizer, max_length: int, stride: int | None
    ) -> tuple[list[TaggedExample], list[EncodedExample]]:
        """Texts, or lists of words. Raises InputError for anything else."""
        examples = list[TaggedExample]()
        for number, text in enumerate(texts, 1):
            where = f"input {number}"
            if isinstance(text, str):
                examples.append(example_of_text(text, where, syllables=self.syllables))
            elif isinstance(text, Sequence) and all(isinstance(word, str) for word in text):
                examples.append(TaggedExample(tuple(text), None, where))
            else:
                raise InputError(f"{where}: expected a text, or its words, found {str(text)[:80]!r}.")
        encoded = list[EncodedExample]()
        for example in examples:
            pieces = tokenizer.encode_words([tokenizer.blank_before_words + run for run in example.runs])
            tokens = word_pieces(example, pieces[0 : len(pieces)], tokenizer, skip_mark=self.constrained)
            made = windows_of_words(tokens, tokenizer, max_length, stride)
            encoded.append(EncodedExample(made, None, tokens.rows))
        return examples, encoded

    def best_path(self, emissions: Float32s) -> Ints:
        """The tags (R,) of the highest sum of scores (R, C) among legal paths (Viterbi)."""
        words = emissions.astype(np.float64)
        if not self.constrained or not len(words):
            return np.asarray(words.argmax(1), np.int64)
        start, pairs, end = self.transitions
        total, befores = words[0] + start, list[Ints]()
        for word in words[1:]:
            sums = total + pairs.T  # (C after, C before)
            befores.append(sums.argmax(1))
            total = sums.max(1) + word
        path = [int((total + end).argmax())]
        for before in reversed(befores):
            path.append(int(before[path[-1]]))
        return np.array(path[::-1], np.int64)

    def probabilities(self, emissions: Float32s) -> Floats:
        """Each word's probability of each tag (R, C): by its own scores, or with a CRF given the sentence."""
        if not self.has_crf or not len(emissions):
            return probabilities_of(emissions)
        wide = emissions.astype(np.float64)
        words = wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)
        start, pairs, end = self.transitions
        forward, backward = np.empty_like(words), np.empty_like(words)
        forward[0], backward[-1] = start + words[0], end + words[-1]
        for row in range(1, len(words)):
            forward[row] = np.logaddexp.reduce(forward[row - 1] + pairs.T, axis=1) + words[row]
            backward[-1 - row] = np.logaddexp.reduce(backward[-row] + pairs, axis=1) + words[-1 - row]
        sums = forward + backward - words
        shares = np.exp(sums - sums.max(1, keepdims=True))
        return np.asarray(shares / shares.sum(1, keepdims=True), np.float64)


def _tags(
    task: TaskState,
    outputs: Sequence[Float32s],
    examples: Sequence[TaggedExample],
    encoded: Sequence[EncodedExample],
) -> list[dict[str, Any]]:
    tagger = task.tagger
    assert tagger is not None
    predictions = list[dict[str, Any]]()
    for output, example, windows in zip(outputs, examples, encoded, strict=True):
        scores = output.reshape(-1, len(tagger.labels))
        path = tagger.best_path(scores)
        confidence = tagger.probabilities(scores)[np.arange(len(path)), path]
        names = [tagger.labels[number] for number in path]
        predictions.append(tagged_prediction(example, names, confidence, windows.decoding, tagger.scheme))
    return predictions


# How outputs become answers; whether the two texts of a pair are encoded apart; the family's head.
ANSWERS: Mapping[str, tuple[Callable[..., list[dict[str, Any]]], bool, str]] = {
    "classification": (_classes, False, "sequence_head"),
    "multi-label": (_several_labels, False, "sequence_head"),
    "regression": (_numbers, False, "sequence_head"),
    "reranking": (_relevances, False, "sequence_head"),
    "similarity": (_similarities, True, "sequence_head"),
    "question-answering": (_spans, False, "span_head"),
    "tagging": (_tags, False, "token_head"),
}
