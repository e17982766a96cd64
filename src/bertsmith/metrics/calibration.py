"""Calibration: temperature scaling, the calibration error (Guo et al. 2017, "On calibration of modern neural
networks"), and what a checkpoint stores about confidence. On dev the temperature is fitted first, then the
thresholds.

E examples, C classes or labels.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertsmith.arrays import Floats
from bertsmith.errors import ModelError
from bertsmith.metrics.thresholds import NEVER, at_threshold, thresholds_per_label
from bertsmith.validation import describe_problem

# Beyond these the dev set says nothing useful: every answer certain, or every answer alike.
COLDEST, HOTTEST = 0.01, 100.0


@dataclass(frozen=True)
class ReliabilityBin:
    """The `count` answers with a confidence in (low, high]: their mean confidence, and the share right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


class Confidence(BaseModel):
    """Logits are divided by `temperature`; a text is answered where its confidence >= `threshold`.

    `coverage` and `risk` are the share of dev that is answered so and the share of those answers that are
    wrong, `ece_before` and `ece_after` the expected calibration error without and with the temperature, all
    on the same `examples` of dev that the temperature was fitted on: a little better than on new text.
    `label_thresholds` has one probability a label where a text may have several, and is None elsewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    temperature: float = Field(ge=COLDEST, le=HOTTEST)
    ece_before: float = Field(ge=0, le=1)
    ece_after: float = Field(ge=0, le=1)
    threshold: float = Field(ge=0, le=NEVER)
    coverage: float = Field(ge=0, le=1)
    risk: float = Field(ge=0, le=1)
    examples: int = Field(ge=1)
    label_thresholds: tuple[float, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """The values as JSON has them, as bertsmith.json keeps them."""
        return self.model_dump(mode="json")

    def figures(self) -> dict[str, float]:
        """The figures to show beside the metrics."""
        figures = {
            "ece_before": self.ece_before,
            "ece_after": self.ece_after,
            "temperature": self.temperature,
        }
        return figures | ({"coverage": self.coverage, "risk": self.risk} if self.threshold > 0 else {})

    @classmethod
    def from_json(cls, settings: Any, where: str = "bertsmith.json") -> "Confidence":
        """The inverse of `to_json`. Raises ModelError, naming `where`, for a key that is missing, unknown or
        impossible.
        """
        try:
            return cls.model_validate_json(json.dumps(settings))
        except ValidationError as error:
            raise ModelError(
                f"{where}: confidence: {describe_problem(error, cls)} The file was altered: take it from "
                "a copy, or train again."
            ) from error


def fit_confidence(
    logits: npt.ArrayLike, gold: npt.ArrayLike, threshold: Callable[[Floats], float] = lambda _: 0.0
) -> Confidence:
    """Fits temperature and thresholds to dev's logits (E, C), given gold classes (E,) or labels (E, C).
    `threshold` maps dev's confidences (E,) to the lowest one that is answered; by default every text is
    answered.

    With several labels, the calibration error compares each label's probability with how often it holds, and
    the thresholds per label are those of `thresholds_per_label`. Raises ValueError if shapes don't fit.
    """
    gold = np.asarray(gold)
    multi_label = gold.ndim == 2
    temperature = fit_temperature(logits, gold)
    before, after = (probabilities_of(logits, t, multi_label=multi_label) for t in (1.0, temperature))
    thresholds = thresholds_per_label(after, gold) if multi_label else None
    confidence, correct = _judge_answers(after, gold, thresholds)
    chosen = at_threshold(confidence, correct, threshold(confidence))
    return Confidence(
        temperature=temperature,
        ece_before=_calibration_error(before, gold),
        ece_after=_calibration_error(after, gold),
        threshold=chosen.threshold,
        coverage=chosen.coverage,
        risk=chosen.risk,
        examples=len(gold),
        label_thresholds=None if thresholds is None else tuple(thresholds.tolist()),
    )


def _judge_answers(
    probabilities: Floats, gold: npt.NDArray[Any], thresholds: Floats | None
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Confidences (E,), and whether the answers are right: the class, or the whole set of labels."""
    if thresholds is None:
        return confidence_of(probabilities), probabilities.argmax(axis=1) == gold
    right = ((probabilities >= thresholds) == gold.astype(bool)).all(axis=1)
    return confidence_of(probabilities, thresholds), right


def _calibration_error(probabilities: Floats, gold: npt.NDArray[Any]) -> float:
    if gold.ndim == 2:
        return expected_calibration_error(probabilities.ravel(), gold.ravel())
    return expected_calibration_error(probabilities.max(axis=1), probabilities.argmax(axis=1) == gold)


def confidence_of(probabilities: Floats, label_thresholds: npt.ArrayLike | None = None) -> Floats:
    """(E,) confidence of the answers that probabilities (E, C) give: that of the best class or, with
    `label_thresholds` (C,), that of the whole set, as if labels were independent.
    """
    if label_thresholds is None:
        return np.asarray(probabilities.max(axis=1))
    holds = probabilities >= np.asarray(label_thresholds)
    return np.asarray(np.where(holds, probabilities, 1 - probabilities).prod(axis=1))


def probabilities_of(logits: npt.ArrayLike, temperature: float = 1.0, *, multi_label: bool = False) -> Floats:
    """(E, C) logits -> (E, C) probabilities: softmax, or with `multi_label` each label's sigmoid."""
    scaled = np.asarray(logits, np.float64) / temperature
    if multi_label:
        # As tanh the sigmoid overflows at neither end.
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * scaled))
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def fit_temperature(logits: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """The temperature T under which softmax(logits / T), or each label's sigmoid, has the smallest negative
    log-likelihood on dev; it lies in 0.01 … 100.

    `gold` holds class numbers (E,), or truth values (E, C) where an example may have several labels. The
    likelihood is concave in 1 / T, so its slope has one zero, found by bisection. Where every answer is
    right, the likelihood grows for ever with sharper answers and dev says nothing of how sure they may be: T
    stays 1. Raises ValueError when shapes don't fit or a logit is not finite.
    """
    scores, gold = np.asarray(logits, np.float64), np.asarray(gold)
    multi_label = gold.ndim == 2
    if scores.ndim != 2 or len(scores) != len(gold) or (multi_label and gold.shape != scores.shape):
        raise ValueError(f"expected logits (E, C), gold (E,) or (E, C), found {scores.shape}, {gold.shape}")
    if not len(scores) or not np.isfinite(scores).all():
        raise ValueError("expected at least one example and finite logits")
    right = ((scores > 0) == gold) if multi_label else (scores.argmax(axis=1) == gold)
    if right.all():
        return 1.0
    true_logits = scores[gold.astype(bool)].sum() if multi_label else scores[np.arange(len(gold)), gold].sum()
    return _temperature(scores, float(true_logits), multi_label)


def fit_temperature_to(
    logits: npt.ArrayLike, probabilities: npt.ArrayLike, *, multi_label: bool = False
) -> float:
    """The temperature T under which softmax(logits / T), or each label's sigmoid, has the smallest cross
    entropy with probabilities (E, C) that another model gives; it lies in 0.01 … 100. Raises ValueError when
    shapes differ or a logit is not finite.
    """
    scores, targets = np.asarray(logits, np.float64), np.asarray(probabilities, np.float64)
    if scores.ndim != 2 or scores.shape != targets.shape or not len(scores):
        raise ValueError(f"expected logits and probabilities (E, C), found {scores.shape}, {targets.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("expected finite logits")
    return _temperature(scores, float((targets * scores).sum()), multi_label)


def _temperature(scores: Floats, reached: float, multi_label: bool) -> float:
    """T where the mean logit under the model is that of the truth, whose logits add up to `reached`."""

    def slope(sharpness: float) -> float:
        """Of the negative log-likelihood by 1 / T."""
        probabilities = probabilities_of(scores, 1 / sharpness, multi_label=multi_label)
        return float((probabilities * scores).sum() - reached)

    return 1 / _find_root(slope, 1 / HOTTEST, 1 / COLDEST)


def _find_root(slope: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses zero, or the end that is nearer to it.

    It halves the ratio: 1 / T spans four powers of ten, and 40 halvings leave one part in 10^11.
    """
    if slope(low) >= 0:
        return low
    if slope(high) <= 0:
        return high
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(np.sqrt(low * high))


def reliability(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 15
) -> tuple[ReliabilityBin, ...]:
    """The bars of a reliability diagram: (E,) confidences in [0, 1] in `bins` of equal width, each closed
    above; empty bins are left out.

    `correct` (E,) tells whether the answer was right; for labels of their own, give their probabilities and
    whether they hold. Raises ValueError for confidences outside [0, 1] and shapes that differ.
    """
    confidence, correct = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise ValueError(f"expected (E,) confidences and answers, found {confidence.shape}, {correct.shape}")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise ValueError("expected confidences from 0 to 1")
    edges = np.linspace(0.0, 1.0, bins + 1)
    bin_of_answer = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(bin_of_answer, minlength=bins)
    sums = (np.bincount(bin_of_answer, weights=values, minlength=bins) for values in (confidence, correct))
    means = [total / np.maximum(counts, 1) for total in sums]
    return tuple(
        ReliabilityBin(float(low), float(high), int(count), float(mean), float(accuracy))
        for low, high, count, mean, accuracy in zip(edges[:-1], edges[1:], counts, *means, strict=True)
        if count
    )


def expected_calibration_error(confidence: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 15) -> float:
    """Mean distance between a bin's confidence and the share of it that is right, weighted by its count.

    0.03 means: answers given with 80 % are typically right in 77 or 83 of 100. Raises ValueError as
    `reliability` does, and for no answers at all.
    """
    bars = reliability(confidence, correct, bins)
    if not bars:
        raise ValueError("expected at least one answer")
    distance = sum(bar.count * abs(bar.confidence - bar.accuracy) for bar in bars)
    return distance / sum(bar.count for bar in bars)


def choice_confidence(shares: Floats) -> float:
    """How sure an answer to a typed question is, as System One's specification reckons it: (n,) shares of its
    options -> how far the likeliest is above chance, 1 for a certain answer, 0 for all alike.
    """
    n = len(shares)
    return 1.0 if n == 1 else float(np.clip((shares.max() - 1 / n) / (1 - 1 / n), 0, 1))


def score_confidence(shares: Floats) -> float:
    """Likewise of an answer by levels: (n,) shares -> 1 less the mean distance from the likeliest level, as a
    share of what a flat guess has.
    """
    n = len(shares)
    if n == 1:
        return 1.0
    levels = np.arange(n)
    spread = np.abs(levels - (n - 1) / 2).mean()
    return float(max(0.0, 1 - (shares * np.abs(levels - shares.argmax())).sum() / spread))
