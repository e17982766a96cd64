"""What would more labelled rows bring? The linear model of frozen features, learned from parts of the rows.

It costs no pass over the texts, and how its errors fall tells how those of other methods do.
"""

from dataclasses import dataclass
from typing import Any

from bertsmith.arrays import Ints
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.linear_start import LinearProbe
from bertsmith.tasks.task import Outputs, Prediction, Task
from bertsmith.training.finetuning.choosing import gain_of, score_of

_SHARES = (0.25, 0.5)
_FEWEST = 20  # rows, below which a quarter of them teaches nothing


@dataclass(frozen=True)
class LearningCurve:
    """The main metric by how many rows were learned from: a quarter, half and all of the other folds. Twice
    the rows would bring `gain`, as far as `error`, its standard error, lets one say.
    """

    rows: tuple[int, ...]
    scores: tuple[float, ...]
    gain: float
    error: float

    def as_sentence(self, metric: str) -> str:
        """'Twice the rows would bring a linear model about +0.0210 ± 0.0080 accuracy.'"""
        return (
            f"Twice the rows would bring a linear model about {self.gain:+.4f} ± {self.error:.4f} {metric}."
        )


def draw_learning_curve(
    task: Task[Any], probe: LinearProbe, strength: float, train: EncodedExamples, folds: Ints
) -> LearningCurve | None:
    """None for too few rows.

    Doubling the rows once more is taken to divide what is missing to 1 by as much as the last doubling did:
    errors fall as a power of the rows. Where more of them were missing after it than before, which is chance,
    it is taken to change as much as the last one.
    """
    if len(train) < _FEWEST:
        return None

    def predictions(outputs: list[Outputs]) -> list[Prediction]:
        return task.decode_by_folds(outputs, train.examples, train.encoded, folds)

    parts = [predictions(probe.judge(folds, strength, share)) for share in _SHARES]
    whole = predictions(probe.judge(folds, strength))
    reached, last, error = gain_of(task, whole, parts[-1], train.examples)
    missing = max(1 - reached, 0.0)
    before = missing + last
    left = min(missing / before, 1.0) if before > 0 else 1.0
    learned = len(train) * (1 - 1 / len(set(folds.tolist())))
    return LearningCurve(
        tuple(round(share * learned) for share in (*_SHARES, 1.0)),
        (*(score_of(task, part, train.examples) for part in parts), reached),
        last * left,
        error * left,
    )
