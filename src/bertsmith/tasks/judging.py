"""A model's figures on labelled examples, beside those of what it has to beat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertsmith.tasks.finetuning import Split
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task


@dataclass(frozen=True)
class Side:
    """One file's figures: the model's, and each baseline's, the most frequent answer first."""

    model: Metrics
    baselines: dict[str, Metrics]
    predictions: list[Prediction]
    split: Split

    @property
    def rows(self) -> int:
        return len(self.split)

    def warnings(self, name: str, metric: str) -> list[str]:
        """A sentence when the model does no better than always giving the most frequent answer."""
        majority = next(iter(self.baselines.values()), {}).get(metric)
        if majority is None or self.model[metric] > majority + 1e-6:
            return []
        return [
            f"on {name} the model's {metric} of {self.model[metric]:.4f} is no better than always giving the "
            f"most frequent answer ({majority:.4f}): it has learned nothing"
        ]


def judge(task: Task[Any], outputs: Sequence[Outputs], train: Sequence[Any], split: Split) -> Side:
    """The model's metrics and its baselines', which learn from `train`."""
    predictions = task.decode(outputs, split.examples, split.encoded)
    baselines = task.baselines(train, split.examples)
    return Side(
        task.metrics(predictions, split.examples),
        {name: task.metrics(guessed, split.examples) for name, guessed in baselines.items()},
        predictions,
        split,
    )
