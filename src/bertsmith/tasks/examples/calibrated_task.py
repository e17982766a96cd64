"""Tasks whose probabilities are calibrated on dev: what they keep of it, and what they do with it."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertsmith.errors import ModelError
from bertsmith.metrics.confidence import Confidence, fit_confidence
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.task import Metrics, Outputs


class CalibratedTask(TextTask):
    """Its outputs are logits of classes or of labels. `confidence` is None until dev has been looked at."""

    confidence: Confidence | None = None

    @property
    def temperature(self) -> float:
        """What logits are divided by: 1 before calibration."""
        return self.confidence.temperature if self.confidence else 1.0

    def threshold(self, confidence: npt.ArrayLike) -> float:
        """The lowest confidence to answer with, given dev's (E,): 0, every text is answered."""
        return 0.0

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[Encoded]
    ) -> Metrics:
        """Temperature, and the thresholds, on dev."""
        gold = np.array([each.target for each in encoded])
        self.confidence = fit_confidence(np.stack(outputs), gold, self.threshold)
        return self.confidence.figures()

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
