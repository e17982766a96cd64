"""Vectors of queries and documents against what is sought: the losses of contrastive.py laid on examples.

E   examples     T   texts of an example: the query, its document, its negatives     H   hidden size
D   documents of all examples
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.data.batch import to_device
from bertsmith.tasks.losses import contrastive

LossName = Literal["softmax", "margin", "margin-mse", "kl"]


@dataclass(frozen=True)
class Sought:
    """An example by the numbers of its texts. `known` are documents that must never count as negatives;
    `scores` a teacher's, of each document.
    """

    query: int
    documents: tuple[int, ...]
    known: tuple[int, ...]
    scores: tuple[float, ...] | None


@dataclass(frozen=True)
class RetrievalLoss:
    """Which loss, and its settings. `scale` multiplies similarities; not used by `margin`."""

    name: LossName
    scale: float
    symmetric: bool
    margin: float

    def __call__(self, outputs: Tensor, targets: Sequence[Sought]) -> Tensor:
        """(E, T, H) -> (E,). In float32 at least: similarities of half precision would lose what sets near
        documents apart.
        """
        counts = np.array([len(target.documents) for target in targets])
        present = np.arange(outputs.shape[1] - 1) < counts[:, None]  # (E, T - 1)
        with torch.autocast(outputs.device.type, enabled=False):
            outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
            queries, documents = outputs[:, 0], outputs[:, 1:]
            if self.name == "softmax":
                rows = to_device(np.flatnonzero(present), outputs.device)
                documents = documents.flatten(0, 1).index_select(0, rows)
                return self._in_batch(queries, documents, counts.cumsum() - counts, targets)
            similarities = (queries[:, None] * documents).sum(2)  # (E, T - 1)
            return self._among_own(similarities, to_device(present, outputs.device), targets)

    def _in_batch(
        self, queries: Tensor, documents: Tensor, positive: Ints, targets: Sequence[Sought]
    ) -> Tensor:
        """documents (D, H), positive (E,)."""
        numbers = np.array([number for target in targets for number in target.documents])
        known = [target.known for target in targets]
        excluded = to_device(contrastive.false_negatives(known, numbers, positive), documents.device)
        rows = to_device(positive, documents.device)
        return contrastive.in_batch_softmax(
            queries, documents, rows, excluded, self.scale, symmetric=self.symmetric
        )

    def _among_own(self, similarities: Tensor, present: Tensor, targets: Sequence[Sought]) -> Tensor:
        if self.name == "margin":
            present = present & to_device(~_known_answers(targets, similarities.shape[1]), present.device)
            return contrastive.triplet_margin(similarities, present, self.margin)
        taught = np.zeros(similarities.shape)
        for row, target in enumerate(targets):
            scores = target.scores or ()
            taught[row, : len(scores)] = scores
        teacher = to_device(taught, similarities.device).to(similarities.dtype)
        if self.name == "kl":
            return contrastive.kl_divergence(self.scale * similarities, teacher, present)
        return contrastive.margin_mse(self.scale * similarities, teacher, present)


def _known_answers(targets: Sequence[Sought], most: int) -> npt.NDArray[np.bool_]:
    """(E, T - 1): which documents behind an example's first answer its query too."""
    answers = np.zeros((len(targets), most), np.bool_)
    for row, target in enumerate(targets):
        answers[row, 1 : len(target.documents)] = np.isin(target.documents[1:], target.known)
    return answers
