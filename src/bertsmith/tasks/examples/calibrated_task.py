"""The base class of tasks whose probabilities are calibrated on dev."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Floats
from bertsmith.errors import ModelError
from bertsmith.metrics.calibration import (
    Confidence,
    expected_calibration_error,
    fit_confidence,
    fit_temperature_to,
    probabilities_of,
)
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.task import Metrics, Outputs
from bertsmith.text.tokens.tokenizer import Tokenizer


class CalibratedTask(TextTask):
    """A task whose outputs are logits of classes or labels. `confidence` is None until `calibrate` has seen
    dev.
    """

    confidence: Confidence | None = None

    @property
    def temperature(self) -> float:
        """The number by which logits are divided; 1 before calibration."""
        return self.confidence.temperature if self.confidence else 1.0

    @property
    def thresholds(self) -> Floats:
        """(C,): the probability from which each label holds, if labels don't exclude each other; 0.5 before
        calibration.
        """
        thresholds = self.confidence.label_thresholds if self.confidence else None
        return np.full(len(self.labels), 0.5) if thresholds is None else np.array(thresholds)

    def threshold(self, confidence: npt.ArrayLike) -> float:
        """The lowest confidence that is answered, given dev's (E,): 0, so that every text is answered."""
        return 0.0

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[EncodedExample]
    ) -> Metrics:
        """Fits the temperature and the thresholds on dev, and returns the figures of that choice."""
        gold = np.array([example.target for example in encoded])
        self.confidence = fit_confidence(np.stack(outputs), gold, self.threshold)
        return self.confidence.figures()

    def uncalibrate(self) -> None:
        self.confidence = None

    def decoding(self, tokenizer: Tokenizer) -> dict[str, Any]:
        threshold = self.confidence.threshold if self.confidence else 0.0
        of_labels = {"label_thresholds": self.thresholds.tolist()} if self.activation == "sigmoid" else {}
        own = {"temperature": self.temperature, "threshold": threshold}
        return own | super().decoding(tokenizer) | of_labels

    def recalibrated(self, own: Sequence[Outputs], others: Sequence[Outputs]) -> Self:
        """Fits a temperature without labels. The thresholds stay: they were chosen for the model's
        probabilities, which the new temperature restores. A model that came without a temperature stays
        without one.
        """
        if self.confidence is None:
            return self
        multi_label = self.activation == "sigmoid"
        probabilities = probabilities_of(np.stack(own), self.temperature, multi_label=multi_label)
        temperature = fit_temperature_to(np.stack(others), probabilities, multi_label=multi_label)
        task = type(self).from_state(self.state(), "the exported model")
        task.confidence = self.confidence.model_copy(update={"temperature": temperature})
        return task

    def calibration_error(self, outputs: Sequence[Outputs], targets: Sequence[Any]) -> float:
        gold = np.array(targets)
        probabilities = probabilities_of(np.stack(outputs), self.temperature, multi_label=gold.ndim == 2)
        if gold.ndim == 2:
            return expected_calibration_error(probabilities.ravel(), gold.ravel())
        return expected_calibration_error(probabilities.max(1), probabilities.argmax(1) == gold)

    def state(self) -> dict[str, Any]:
        return super().state() | {"confidence": self.confidence.to_json() if self.confidence else None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], where: str) -> Self:
        task = super().from_state(state, where)
        if state.get("confidence") is not None:
            task.confidence = Confidence.from_json(state["confidence"], where)
            thresholds = task.confidence.label_thresholds
            if thresholds is not None and len(thresholds) != len(task.labels):
                raise ModelError(
                    f"{where}: confidence has {len(thresholds)} thresholds for {len(task.labels)} labels. "
                    "The file was altered: take it from a copy, or train again."
                )
        return task
