"""A model's figures on labelled examples, beside those of what it has to beat."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task

THE_MODEL = "the model"  # as tables call it, beside its baselines


@dataclass(frozen=True)
class Evaluation:
    """One file's figures: the model's, and each baseline's, the most frequent answer first. `data_warnings`
    are sentences on what the figures rest on, `remarks` say how the file was understood.
    """

    model: Metrics
    baselines: dict[str, Metrics]
    predictions: list[Prediction]
    split: EncodedExamples
    data_warnings: tuple[str, ...] = ()
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.split)

    @property
    def by_name(self) -> dict[str, Metrics]:
        """Figures of the model, then of each baseline."""
        return {THE_MODEL: self.model, **self.baselines}

    def best(self, metric: str) -> str:
        """Which of them is the best; the model, if it is best as figures are shown."""
        scores = {name: _as_shown(figures.get(metric, math.nan)) for name, figures in self.by_name.items()}
        return max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])

    def warnings(self, name: str, metric: str) -> list[str]:
        """Those of the data, and a sentence when the model does no better than the first baseline, which
        knows nothing, or worse than another one, as figures are shown; or when nothing can be better.
        """
        ours, scores = self.model[metric], {by: given.get(metric) for by, given in self.baselines.items()}
        simplest, simple = next(iter(scores.items()), ("", None))
        labels = [getattr(example, "label", None) for example in self.split.examples]
        says_nothing = len(labels) > 1 and labels[0] is not None and labels.count(labels[0]) == len(labels)
        if simple is not None and (says_nothing or is_always_right(self.baselines[simplest], metric)):
            return [
                *self.data_warnings,
                f"on {name} the baseline {simplest!r} has {metric} {simple:.4f}, the model {ours:.4f}: the "
                "rows have one answer only, and figures on them tell nothing",
            ]
        if simple is not None and ours <= simple + 1e-6:
            return [
                *self.data_warnings,
                f"on {name} the model's {metric} of {ours:.4f} is no better than the baseline "
                f"{simplest!r} ({simple:.4f}): it has learned nothing",
            ]
        beaten = [
            f"on {name} {by} has {metric} {score:.4f}, the model {ours:.4f}: on few rows the simpler one "
            "may be the better choice; an encoder that is trained may need more epochs, or a higher rate"
            for by, score in scores.items()
            if score is not None and _as_shown(score) > _as_shown(ours)
        ]
        return [*self.data_warnings, *beaten]


def _as_shown(score: float) -> float:
    """As tables and sentences have it: two scores that look alike there are told as equal."""
    return round(score, 4)


def is_always_right(baseline: Metrics, metric: str) -> bool:
    """Whether no score can be better than the baseline's, which says nothing of the model then. By accuracy
    too, for Matthews of rows of one answer is 0.
    """
    return any(math.isclose(baseline.get(name) or 0.0, 1) for name in (metric, "accuracy"))


def evaluate(
    task: Task[Any],
    outputs: Sequence[Outputs],
    train: Sequence[Any] | None,
    split: EncodedExamples,
    others: Mapping[str, list[Prediction]] | None = None,
) -> Evaluation:
    """The model's metrics and its baselines', which learn from `train`; None leaves out those that learn.
    `others` are predictions of more baselines by name.
    """
    predictions = task.decode(outputs, split.examples, split.encoded)
    possible = train is not None or not task.baselines_learn
    baselines = dict(task.baselines(train or (), split.examples) if possible else {}) | dict(others or {})
    return Evaluation(
        task.metrics(predictions, split.examples),
        {name: task.metrics(guessed, split.examples) for name, guessed in baselines.items()},
        predictions,
        split,
    )
