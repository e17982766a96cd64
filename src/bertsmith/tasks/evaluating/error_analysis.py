"""What a task says of its predictions beside the metrics: where the model errs, and how sure it is of it.

Plain values that the report draws, whatever the task; what makes no sense for one stays empty.
E examples, C classes or labels, A answers of which a confidence is known (texts, words, or labels of texts).
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
# Predictions are rounded to six places: what is below is taken for half of the last one.
_SMALLEST = 5e-7


@dataclass(frozen=True)
class ScoredPrediction:
    """What the model said of one example, for people. `score` is 1 if right, and less the worse it is."""

    gold: str
    given: str
    score: float
    confidence: float | None = None


@dataclass(frozen=True)
class ConfusionMatrix:
    """`counts` (C, C): row = right class, column = predicted one."""

    labels: tuple[str, ...]
    counts: npt.NDArray[np.int64]

    def most_frequent(self) -> list[tuple[str, str, int]]:
        """Which class is taken for which, and how often; the most frequent first."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
        places = [divmod(place, len(self.labels)) for place in order.tolist()]
        return [(self.labels[right], self.labels[given], int(wrong[right, given])) for right, given in places]


@dataclass(frozen=True)
class Calibration:
    """(A,) confidences of the model and whether those answers were `correct`; `before` is the confidence
    without temperature scaling, None where there is none. `unit` says what an answer is.
    """

    confidence: Floats
    correct: npt.NDArray[np.bool_]
    before: Floats | None = None
    unit: str = "texts"


@dataclass(frozen=True)
class ErrorAnalysis:
    """`answers` has one for each example, or none; `numbers` are the (E,) right and (E,) predicted scores."""

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
    """One class an example, by name; `before` (E,) as in `Calibration`."""
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
    """Any number of labels an example, with the probability of each (E, C).

    An answer's score is the F1 of the two sets; its confidence is that of the whole set, as if labels were
    independent. Right labels that the model doesn't know count as missed.
    """
    right, chosen = (np.array([np.isin(labels, each) for each in side]) for side in (gold, given))
    sure = np.where(chosen, probabilities, 1 - probabilities).prod(axis=1).tolist()
    answers = (
        ScoredPrediction(_listed(g), _listed(p), _set_f1(g, p), c)
        for g, p, c in zip(gold, given, sure, strict=True)
    )
    before = without_temperature(probabilities, temperature, multi_label=True)
    return ErrorAnalysis(
        tuple(answers),
        tuple(per_class(right, chosen, labels)),
        calibration=Calibration(probabilities.ravel(), right.ravel(), before.ravel(), "labels of texts"),
    )


def number_errors(gold: Sequence[float], given: Sequence[float]) -> ErrorAnalysis:
    """A number an example: the further from the right one, the lower the score."""
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
    """A tag a word. An answer is a sentence: right as a whole, as sure as its least sure word, naming only
    what differs. Classes are entities' labels or, without `entities`, tags.
    """
    names = _entities if entities else _tagged_words
    answers = []
    for some, right, chosen, sure in zip(words, gold, given, confidence, strict=True):
        of_gold, of_given = names(some, right), names(some, chosen)
        answers.append(
            ScoredPrediction(
                "; ".join(name for place, name in of_gold.items() if of_given.get(place) != name) or NOTHING,
                "; ".join(name for place, name in of_given.items() if of_gold.get(place) != name) or NOTHING,
                float(of_gold == of_given),
                min(sure, default=1.0),
            )
        )
    return _word_details(answers, gold, given, confidence, entities)


def _word_details(
    answers: Sequence[ScoredPrediction],
    gold: Sequence[Sequence[str]],
    given: Sequence[Sequence[str]],
    confidence: Sequence[Sequence[float]],
    entities: EntityScores | None,
) -> ErrorAnalysis:
    """The answers with what is told word by word."""
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
    """A piece of a passage an example, or none: "". The score is F1; calibration is that of answers given."""
    answers = tuple(
        ScoredPrediction(
            " / ".join(dict.fromkeys(right)) or "no answer", answer or "no answer", float(score), sure
        )
        for right, answer, score, sure in zip(golds, given, f1, confidence, strict=True)
    )
    known = np.array([sure is not None for sure in confidence])
    sure = np.array([each for each in confidence if each is not None], np.float64)
    calibration = (
        Calibration(sure, exact[known] == 1, unit="answers given, right when exact") if known.any() else None
    )
    return ErrorAnalysis(answers, calibration=calibration)


def without_temperature(probabilities: Floats, temperature: float, *, multi_label: bool = False) -> Floats:
    """(E, C) calibrated probabilities -> what they were before: but for a constant, logits are the logarithm
    of probabilities times the temperature. Right to 0.002 from a temperature of 0.5 on: below it, what was
    rounded away would count.
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


def _entities(words: Sequence[str], tags: Sequence[str]) -> dict[tuple[int, int], str]:
    """By first word and end: 'New York [LOC]'."""
    return {
        (span.start, span.end): f"{' '.join(words[span.start : span.end])} [{span.label}]"
        for span in spans_of_tags(tags)
    }


def _tagged_words(words: Sequence[str], tags: Sequence[str]) -> dict[tuple[int, int], str]:
    named = enumerate(zip(words, tags, strict=True))
    return {(place, place + 1): f"{word} [{tag}]" for place, (word, tag) in named}


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(sorted(labels)) or NOTHING


def _set_f1(gold: Sequence[str], given: Sequence[str]) -> float:
    both = len(set(gold)) + len(set(given))
    return 2 * len(set(gold) & set(given)) / both if both else 1.0
