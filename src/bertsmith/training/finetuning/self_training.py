"""Texts without labels learned from by what the model says of them (self-training: Scudder 1965; for text
classification Nigam et al. 2000): the linear model labels them, and learns again from those it is sure of.

U unlabelled texts, E labelled ones, C classes.
"""

import time
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.progress import Progress
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.linear_start import MOST_EXAMPLES, LinearProbe, LinearStart, features_of
from bertsmith.tasks.task import Outputs
from bertsmith.tasks.task_model import TaskModel

_ROUNDS = 3
_SURE = 0.5  # of the texts that are given a class, those that are surest of it


class SelfTraining:
    """The features of both kinds of texts, computed once: a fold costs no pass. `seconds` is how long that of
    the unlabelled ones took.
    """

    def __init__(
        self, probe: LinearProbe, strength: float, features: Sequence[Tensor], seconds: float
    ) -> None:
        """`features` (F,) of each unlabelled text. See `of`."""
        self._labelled, self._strength, self.seconds = probe, strength, seconds
        self._both = probe.beside(features)
        self._unlabelled = np.arange(len(probe), len(probe) + len(features))

    @classmethod
    def of(
        cls,
        probe: LinearProbe,
        strength: float,
        model: TaskModel,
        texts: EncodedExamples,
        progress: Progress | None = None,
    ) -> "SelfTraining":
        """Beside a classification's `probe`, whose best `strength` is known; of at most 20,000 texts."""
        begun = time.monotonic()
        if len(texts) > MOST_EXAMPLES:
            draw = np.random.default_rng(0)
            texts = texts.some(np.sort(draw.choice(len(texts), MOST_EXAMPLES, replace=False)))
        features = features_of(model, texts.encoded, progress)
        return cls(probe, strength, features, time.monotonic() - begun)

    def fit(self) -> LinearStart:
        """From all labelled texts."""
        begun = time.monotonic()
        weights = self._learn(np.arange(len(self._labelled)))
        seconds = self.seconds + time.monotonic() - begun
        return LinearStart(*self._both.unscaled(weights), self._strength, seconds)

    def judge(self, folds: Ints) -> list[Outputs]:
        """(C,) of each labelled text, by what was learned from the other folds, (E,), and the unlabelled."""
        found: list[Outputs] = [np.empty(0, np.float32)] * len(folds)
        for fold in sorted(set(folds.tolist())):
            held, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            said = self._both.outputs(self._learn(others), held).numpy()
            for row, each in zip(held.tolist(), said, strict=True):
                found[row] = each
        return found

    def _learn(self, rows: Ints) -> tuple[Tensor, Tensor]:
        weights = self._both.begin()
        self._both.solve(weights, rows, self._strength)
        for _ in range(_ROUNDS):
            said = self._both.outputs(weights, self._unlabelled).softmax(1)
            surest, labels = (each.numpy() for each in said.max(1))
            chosen = [
                some[np.argsort(-surest[some], kind="stable")[: max(round(_SURE * len(some)), 1)]]
                for some in (np.flatnonzero(labels == label) for label in range(said.shape[1]))
                if len(some)
            ]
            kept = np.sort(np.concatenate(chosen))
            self._both.label(self._unlabelled[kept], labels[kept].tolist())
            self._both.solve(weights, np.concatenate([rows, self._unlabelled[kept]]), self._strength)
        return weights
