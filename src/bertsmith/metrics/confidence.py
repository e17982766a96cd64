"""What a checkpoint keeps about confidence, and how it is found on dev: temperature first, then thresholds.

E examples, C classes or labels.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bertsmith.arrays import Floats
from bertsmith.errors import ModelError
from bertsmith.metrics.calibration import (
    COLDEST,
    HOTTEST,
    expected_calibration_error,
    fit_temperature,
    probabilities_of,
)
from bertsmith.metrics.thresholds import NEVER, at_threshold, thresholds_per_label
from bertsmith.validation import first_problem


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
        """As plain JSON values, for bertsmith.json."""
        return self.model_dump(mode="json")

    def figures(self) -> dict[str, float]:
        """What to show of it beside the metrics."""
        figures = {
            "ece_before": self.ece_before,
            "ece_after": self.ece_after,
            "temperature": self.temperature,
        }
        return figures | ({"coverage": self.coverage, "risk": self.risk} if self.threshold > 0 else {})

    @classmethod
    def from_json(cls, settings: Any, where: str = "bertsmith.json") -> "Confidence":
        """The inverse; raises ModelError naming `where` and a key missing, unknown or impossible."""
        try:
            return cls.model_validate_json(json.dumps(settings))
        except ValidationError as error:
            raise ModelError(
                f"{where}: confidence: {first_problem(error, cls)} The file was altered: take it from "
                "a copy, or train again."
            ) from error


def fit_confidence(
    logits: npt.ArrayLike, gold: npt.ArrayLike, threshold: Callable[[Floats], float] = lambda _: 0.0
) -> Confidence:
    """What dev's logits (E, C) say about confidence, given gold classes (E,) or labels (E, C). `threshold`
    chooses by dev's confidences (E,) the lowest to answer with; as it is, every text is answered.

    With several labels, the calibration error compares each label's probability with how often it holds, and
    the thresholds per label are those of `thresholds_per_label`.
    Raises ValueError when shapes don't fit.
    """
    gold = np.asarray(gold)
    multi_label = gold.ndim == 2
    temperature = fit_temperature(logits, gold)
    before, after = (probabilities_of(logits, t, multi_label=multi_label) for t in (1.0, temperature))
    thresholds = thresholds_per_label(after, gold) if multi_label else None
    confidence, correct = _answered(after, gold, thresholds)
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


def confidence_of(probabilities: Floats, label_thresholds: npt.ArrayLike | None = None) -> Floats:
    """(E,) confidence of the answers that probabilities (E, C) give: that of the best class or, with
    `label_thresholds` (C,), that of the whole set, as if labels were independent.
    """
    if label_thresholds is None:
        return np.asarray(probabilities.max(axis=1))
    holds = probabilities >= np.asarray(label_thresholds)
    return np.asarray(np.where(holds, probabilities, 1 - probabilities).prod(axis=1))


def _answered(
    probabilities: Floats, gold: npt.NDArray[Any], thresholds: Floats | None
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(E,) confidences, and whether the answers are right: the class, or the whole set of labels."""
    if thresholds is None:
        return confidence_of(probabilities), probabilities.argmax(axis=1) == gold
    right = ((probabilities >= thresholds) == gold.astype(bool)).all(axis=1)
    return confidence_of(probabilities, thresholds), right


def _calibration_error(probabilities: Floats, gold: npt.NDArray[Any]) -> float:
    if gold.ndim == 2:
        return expected_calibration_error(probabilities.ravel(), gold.ravel())
    return expected_calibration_error(probabilities.max(axis=1), probabilities.argmax(axis=1) == gold)
