"""What a task tells about its predictions in addition to the metrics: where the model errs, and how confident
it is.

Plain values that the report draws for any task; what makes no sense for a task stays empty. E examples, C
classes or labels, A answers with a known confidence (texts, words, or labels of texts).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats
from bertsmith.metrics.calibration import probabilities_of
from bertsmith.metrics.entities import EntityScores, spans_of_tags
from bertsmith.metrics.scores import ClassScore, confusion, per_class

NOTHING = "nothing"
# Predictions are rounded to six places: anything below is taken as half of the last place.
_SMALLEST = 5e-7


@dataclass(frozen=True)
class ScoredPrediction:
    """A prediction for one example, in words. `score` is 1 if it is right, and lower the worse it is."""

    gold: str
    given: str
    score: float
    confidence: float | None = None


@dataclass(frozen=True)
class ConfusionMatrix:
    """`counts` (C, C): rows are true classes, columns predicted ones."""

    labels: tuple[str, ...]
    counts: npt.NDArray[np.int64]

    def most_frequent(self) -> list[tuple[str, str, int]]:
        """(true class, predicted class, count) of the confusions, the most frequent first."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
        cells = [divmod(cell, len(self.labels)) for cell in order.tolist()]
        return [(self.labels[row], self.labels[column], int(wrong[row, column])) for row, column in cells]


@dataclass(frozen=True)
class Calibration:
    """Confidences (A,) of the model, and whether those answers were `correct`. `before` is the confidence
    without temperature scaling, None if there is none. `unit` says what an answer is.
    """

    confidence: Floats
    correct: npt.NDArray[np.bool_]
    before: Floats | None = None
    unit: str = "texts"


@dataclass(frozen=True)
class ErrorAnalysis:
    """`answers` has one item for each example, or is empty; `numbers` are the true and the predicted scores,
    (E,) each.
    """

    answers: tuple[ScoredPrediction, ...] = ()
    per_class: tuple[ClassScore, ...] = ()
    confusion: ConfusionMatrix | None = None
    calibration: Calibration | None = None
    numbers: tuple[Floats, Floats] | None = None


def class_errors(
    labels: Sequence[str],
    gold: Sequence[str],
    given: Sequence[str],
    confidence: Sequence[float],
    before: Floats | None = None,
) -> ErrorAnalysis:
    """For one class for each example, by name; `before` (E,) as in `Calibration`."""
    number = {label: index for index, label in enumerate(labels)}
    right, chosen = (np.array([number[label] for label in side]) for side in (gold, given))
    answers = (
        ScoredPrediction(g, p, float(g == p), c) for g, p, c in zip(gold, given, confidence, strict=True)
    )
    return ErrorAnalysis(
        tuple(answers),
        tuple(per_class(right, chosen, labels)),
        ConfusionMatrix(tuple(labels), confusion(right, chosen, len(labels))),
        Calibration(np.array(confidence, np.float64), right == chosen, before),
    )


def label_set_errors(
    labels: Sequence[str],
    gold: Sequence[Sequence[str]],
    given: Sequence[Sequence[str]],
    probabilities: Floats,
    temperature: float = 1.0,
) -> ErrorAnalysis:
    """For any number of labels for each example, with the probability of each (E, C).

    An answer's score is the F1 of the two sets; its confidence is that of the whole set, as if labels were
    independent. True labels that the model doesn't know count as missed.
    """
    right, chosen = (np.array([np.isin(labels, names) for names in side]) for side in (gold, given))
    confidence = np.where(chosen, probabilities, 1 - probabilities).prod(axis=1).tolist()
    answers = (
        ScoredPrediction(_join_labels(g), _join_labels(p), _set_f1(g, p), c)
        for g, p, c in zip(gold, given, confidence, strict=True)
    )
    before = without_temperature(probabilities, temperature, multi_label=True)
    return ErrorAnalysis(
        tuple(answers),
        tuple(per_class(right, chosen, labels)),
        calibration=Calibration(probabilities.ravel(), right.ravel(), before.ravel(), "labels of texts"),
    )


def number_errors(gold: Sequence[float], given: Sequence[float]) -> ErrorAnalysis:
    """For a number for each example: the further from the true one, the lower the score."""
    answers = (
        ScoredPrediction(f"{g:g}", f"{p:.4g}", 1 - abs(g - p)) for g, p in zip(gold, given, strict=True)
    )
    return ErrorAnalysis(tuple(answers), numbers=(np.array(gold, np.float64), np.array(given, np.float64)))


def tag_errors(
    words: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    given: Sequence[Sequence[str]],
    confidence: Sequence[Sequence[float]],
    entities: EntityScores | None,
) -> ErrorAnalysis:
    """For a tag for each word. An answer is a sentence, right as a whole, with the confidence of its least
    certain word; it names only what differs. Classes are entity labels or, without `entities`, tags.
    """
    names = _name_entities if entities else _name_tags
    answers = []
    for sentence, gold_tags, predicted_tags, word_confidence in zip(
        words, gold, given, confidence, strict=True
    ):
        gold_names, predicted_names = names(sentence, gold_tags), names(sentence, predicted_tags)
        missed = [name for span, name in gold_names.items() if predicted_names.get(span) != name]
        wrong = [name for span, name in predicted_names.items() if gold_names.get(span) != name]
        answers.append(
            ScoredPrediction(
                "; ".join(missed) or NOTHING,
                "; ".join(wrong) or NOTHING,
                float(gold_names == predicted_names),
                min(word_confidence, default=1.0),
            )
        )
    return _analyse_words(answers, gold, given, confidence, entities)


def _analyse_words(
    answers: Sequence[ScoredPrediction],
    gold: Sequence[Sequence[str]],
    given: Sequence[Sequence[str]],
    confidence: Sequence[Sequence[float]],
    entities: EntityScores | None,
) -> ErrorAnalysis:
    """Completes the analysis with the metrics that count words."""
    flat = [[tag for tags in side for tag in tags] for side in (gold, given)]
    if not flat[0]:  # sentences without a word
        return ErrorAnalysis(tuple(answers))
    kinds = [[tag[2:] or tag for tag in side] if entities else side for side in flat]
    labels = sorted({*kinds[0], *kinds[1]}, key=lambda label: (label != "O", label))
    number = {label: index for index, label in enumerate(labels)}
    right, chosen = (np.array([number[kind] for kind in side]) for side in kinds)
    return ErrorAnalysis(
        tuple(answers),
        entity_classes(entities) if entities else tuple(per_class(right, chosen, labels)),
        ConfusionMatrix(tuple(labels), confusion(right, chosen, len(labels))),
        Calibration(np.concatenate(confidence), np.array(flat[0]) == np.array(flat[1]), unit="words"),
    )


def span_errors(
    golds: Sequence[Sequence[str]],
    given: Sequence[str],
    confidence: Sequence[float | None],
    exact: Floats,
    f1: Floats,
) -> ErrorAnalysis:
    """For a span of a passage for each example, or none: "". The score is F1; calibration is that of
    predicted answers.
    """
    answers = tuple(
        ScoredPrediction(
            " / ".join(dict.fromkeys(gold)) or "no answer", answer or "no answer", float(score), number
        )
        for gold, answer, score, number in zip(golds, given, f1, confidence, strict=True)
    )
    is_known = np.array([number is not None for number in confidence])
    known = np.array([number for number in confidence if number is not None], np.float64)
    unit = "answers given, right when exact"
    calibration = Calibration(known, exact[is_known] == 1, unit=unit) if is_known.any() else None
    return ErrorAnalysis(answers, calibration=calibration)


def without_temperature(probabilities: Floats, temperature: float, *, multi_label: bool = False) -> Floats:
    """Calibrated probabilities (E, C) -> probabilities without temperature scaling. Up to a constant, logits
    are the logarithms of probabilities times the temperature. Accurate to 0.002 for temperatures from 0.5 on;
    below that, rounding of the probabilities would matter.
    """
    probabilities = np.clip(probabilities, _SMALLEST, 1 - _SMALLEST)
    logits = np.log(probabilities / (1 - probabilities)) if multi_label else np.log(probabilities)
    return probabilities_of(logits, 1 / temperature, multi_label=multi_label)


def entity_classes(entities: EntityScores) -> tuple[ClassScore, ...]:
    """Precision, recall and F1 of each entity label."""
    return tuple(
        ClassScore(label, counts.precision, counts.recall, counts.f1, counts.support)
        for label, counts in entities.by_label.items()
    )


def _name_entities(words: Sequence[str], tags: Sequence[str]) -> dict[tuple[int, int], str]:
    """Names by (first word, end): 'New York [LOC]'."""
    return {
        (span.start, span.end): f"{' '.join(words[span.start : span.end])} [{span.label}]"
        for span in spans_of_tags(tags)
    }


def _name_tags(words: Sequence[str], tags: Sequence[str]) -> dict[tuple[int, int], str]:
    named = enumerate(zip(words, tags, strict=True))
    return {(word_index, word_index + 1): f"{word} [{tag}]" for word_index, (word, tag) in named}


def _join_labels(labels: Sequence[str]) -> str:
    return ", ".join(sorted(labels)) or NOTHING


def _set_f1(gold: Sequence[str], given: Sequence[str]) -> float:
    both = len(set(gold)) + len(set(given))
    return 2 * len(set(gold) & set(given)) / both if both else 1.0
