"""What a model that learned from all rows will reach on others, as far as cross-validation can tell.

Folds learn from fewer rows, which costs most where a label has few; and they share their rows, so that their
score moves by half as much again as rows that are independent would have it.
"""

import math
from dataclasses import dataclass

from bertsmith.training.finetuning.learning_curve import LearningCurve

_SURE = 1.96  # of a normal distribution, 95 %
_SHARED = 1.5  # measured: LOG.md, 2026-11-25, "How far is a cross-validated score from the truth?"


@dataclass(frozen=True)
class Expectation:
    """Of the main metric: the likeliest score, and the ends of its 95 % interval."""

    score: float
    low: float
    high: float

    def as_sentence(self, metric: str) -> str:
        """'Expected of other texts: accuracy 0.8450 (95 % interval 0.7912 to 0.8901).'"""
        interval = f"95 % interval {self.low:.4f} to {self.high:.4f}"
        return f"Expected of other texts: {metric} {self.score:.4f} ({interval})."


def expect(
    score: float, error: float | None, rows: int, folds: int, curve: LearningCurve | None
) -> Expectation:
    """From the cross-validated score of so many rows, those of one source counted as one, its standard error
    (None: all rows alike), and how a linear model's score grows with rows: what is missing to 1 is taken to
    fall as its does.

    The interval is Wilson's (1927), made wider; for a score that may be below 0 the normal one.
    """
    gain = (1 - score) * (1 - _left_by_all(folds, curve))
    if not 0 <= score <= 1:
        half = _SHARED * _SURE * (error or 0.0)
        return Expectation(score + gain, score + gain - half, min(score + gain + half, 1.0))
    independent = rows if error is None else max(score * (1 - score) / error**2, 1.0)
    squared = _SURE**2 / independent
    middle = (score + squared / 2) / (1 + squared)
    spread = score * (1 - score) / independent + squared / (4 * independent)
    half = _SHARED * _SURE / (1 + squared) * math.sqrt(spread)
    low, high = max(middle + gain - half, 0.0), min(middle + gain + half, 1.0)
    return Expectation(min(max(score + gain, low), high), low, high)


def _left_by_all(folds: int, curve: LearningCurve | None) -> float:
    """What learning from all rows leaves of the errors of learning from all folds but one."""
    if curve is None or folds < 2:
        return 1.0
    before, now = (max(1 - score, 1e-9) for score in curve.scores[-2:])
    doublings = math.log2(folds / (folds - 1))
    return float(min(now / before, 1.0) ** doublings)
