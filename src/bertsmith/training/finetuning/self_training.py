"""Texts without labels learned from by what the model says of them (self-training: Scudder 1965; for text
classification Nigam et al. 2000): the linear model of the labelled ones says how likely each class is, and
another learns from both. What it says is made surer, and its classes nearly as frequent as among the labelled
texts (sharpening and distribution alignment: Berthelot et al. 2020).

U unlabelled texts, E labelled ones, F features, C classes.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.progress import Progress
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.frozen_features import features_of
from bertsmith.tasks.heads.linear_start import LinearProbe, LinearStart, minimise
from bertsmith.tasks.task import Outputs

_MOST_TEXTS = 5000  # of the unlabelled: more cost seconds a fold
_ROUNDS, _ITERATIONS = 2, 20
_WEIGHT = 0.3  # of an unlabelled text, beside 1 of a labelled one
_SHARPENING, _ALIGNMENT = 2.0, 0.5  # powers


class SelfTraining:
    """The features of both kinds of texts, computed once: a fold costs no pass. `seconds` is how long that of
    the unlabelled ones took.
    """

    def __init__(
        self, probe: LinearProbe, strength: float, features: Sequence[Tensor], seconds: float
    ) -> None:
        """`features` (F,) of each unlabelled text. See `of`."""
        self._probe, self._strength, self.seconds = probe, strength, seconds
        self._unlabelled = probe.scaled(torch.stack(list(features)))

    @classmethod
    def of(
        cls,
        probe: LinearProbe,
        strength: float,
        model: TaskModel,
        texts: EncodedExamples,
        progress: Progress | None = None,
    ) -> "SelfTraining":
        """Beside a classification's `probe`, whose best `strength` is known; of what `drawn` gives."""
        begun = time.monotonic()
        features = features_of(model, texts.encoded, progress)
        return cls(probe, strength, features, time.monotonic() - begun)

    def fit(self) -> LinearStart:
        """From all labelled texts."""
        begun = time.monotonic()
        weights = self._learn(np.arange(len(self._probe)))
        seconds = self.seconds + time.monotonic() - begun
        return LinearStart(*self._probe.unscaled(weights), self._strength, seconds)

    def judge(self, folds: Ints) -> list[Outputs]:
        """(C,) of each labelled text, by what was learned from the other folds, (E,), and the unlabelled."""
        found: list[Outputs] = [np.empty(0, np.float32)] * len(folds)
        for fold in sorted(set(folds.tolist())):
            held, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            said = self._probe.outputs(self._learn(others), held).numpy()
            for row, each in zip(held.tolist(), said, strict=True):
                found[row] = each
        return found

    def _learn(self, rows: Ints) -> tuple[Tensor, Tensor]:
        weights = self._probe.begin()
        self._probe.solve(weights, rows, self._strength)
        shares = self._probe.class_shares(rows)
        for _ in range(_ROUNDS):
            with torch.no_grad():
                targets = _aligned(self._said(weights).softmax(1), shares)

            def total(weights: tuple[Tensor, Tensor] = weights, targets: Tensor = targets) -> Tensor:
                unlabelled = F.cross_entropy(self._said(weights), targets, reduction="sum")
                return self._probe.total(weights, rows, self._strength) + _WEIGHT * unlabelled

            minimise(weights, total, _ITERATIONS)
        return weights

    def _said(self, weights: tuple[Tensor, Tensor]) -> Tensor:
        """(U, C)."""
        return self._unlabelled @ weights[0].T + weights[1]


def drawn(texts: Sequence[Any], most: int = _MOST_TEXTS) -> Sequence[Any]:
    """All, or `most` of them by chance, in their order and always the same."""
    if len(texts) <= most:
        return texts
    places = np.random.default_rng(0).choice(len(texts), most, replace=False)
    return [texts[place] for place in np.sort(places).tolist()]


def _aligned(said: Tensor, shares: Tensor) -> Tensor:
    """(U, C) probabilities and (C,) the shares of classes among labelled texts -> (U, C), surer."""
    found = said * (shares / said.mean(0)).pow(_ALIGNMENT)
    found = (found / found.sum(1, keepdim=True)).pow(_SHARPENING)
    return found / found.sum(1, keepdim=True)
