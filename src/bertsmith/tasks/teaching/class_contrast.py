"""The encoder taught by pairs before there is a head: texts of one label near each other, others apart
(supervised contrastive learning: Khosla et al. 2020, equation 2; for few rows: Tunstall et al. 2022, SetFit).

E examples, F features, C labels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.data.batch import to_device
from bertsmith.model.config import BertConfig
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.task import Head
from bertsmith.tasks.teaching.teaching import Teaching

FEWEST_A_BATCH = 4  # two texts of each of two labels: of fewer none has both its like and another
_TEMPERATURE = 0.1


class FeatureHead(PooledHead):
    """What a linear head would read, and no layer of its own."""

    def __init__(self, config: BertConfig, pooling: Any) -> None:
        super().__init__(config, 1, pooling)
        del self.out

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """-> (E, F), of length 1."""
        return self.features(states, layout)


class ClassContrast(Teaching):
    """A loss between the texts of a batch in place of one on their labels. Targets are a class each, or
    (C,) which labels a text has: two are then alike by the share of their labels that both have.
    """

    @property
    def needs_global_batch(self) -> bool:
        return True

    def head(self, config: BertConfig) -> Head:
        return FeatureHead(config, self._task.settings.linear_pooling)  # type: ignore[attr-defined]

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E, F) -> (E,); 0 for a text that shares no label with another of the batch."""
        alike = to_device(_alikeness(targets), outputs.device)
        itself = torch.eye(len(targets), dtype=torch.bool, device=outputs.device)
        near = (outputs.float() @ outputs.float().T / _TEMPERATURE).masked_fill(itself, -torch.inf)
        shares = F.log_softmax(near, 1).masked_fill(itself, 0.0)
        total = alike.sum(1)
        return -(alike * shares).sum(1) / total.where(total > 0, 1.0)

    def make_batches(self, targets: Sequence[Any], order: Ints, batch_size: int) -> list[Ints]:
        """Batches of several texts a label, as many labels as fit: each text meets some of its own label. A
        text of several labels is counted as one of the rarest. `batch_size` is FEWEST_A_BATCH or more.
        """
        labels = _rarest(targets)[order]
        drawn = {label: place for place, label in enumerate(dict.fromkeys(labels.tolist()))}
        several = max(batch_size // len(drawn), min(4, batch_size // 2))
        seen = dict.fromkeys(drawn, 0)
        turn = np.zeros(len(order), np.int64)
        for place, label in enumerate(labels.tolist()):
            turn[place] = seen[label] // several
            seen[label] += 1
        of_label = np.array([drawn[label] for label in labels.tolist()], np.int64)
        by_turn = np.lexsort((of_label, turn))
        ordered = order[by_turn]
        starts = list(range(0, len(ordered), batch_size))
        if len(starts) > 1:  # the last two share their texts: a few left over would meet hardly any others
            starts[-1] = (starts[-2] + len(ordered) + 1) // 2
        return np.split(ordered, starts[1:])


def _alikeness(targets: Sequence[Any]) -> npt.NDArray[np.float32]:
    """(E, E) in 0 … 1, 0 of each with itself: Jaccard's index of two sets of labels."""
    sets = np.array(targets)
    if sets.ndim == 1:
        sets = sets[:, None] == np.unique(sets)
    sets = sets.astype(np.float32)
    both, sizes = sets @ sets.T, sets.sum(1)
    alike: npt.NDArray[np.float32] = both / np.maximum(sizes[:, None] + sizes - both, 1)
    np.fill_diagonal(alike, 0.0)
    return alike


def _rarest(targets: Sequence[Any]) -> Ints:
    """(E,) each text's label, or the rarest of several; -1 where there is none."""
    given = np.array(targets)
    if given.ndim == 1:
        return given.astype(np.int64)
    times = np.where(given, given.sum(0), len(given) + 1)
    return np.where(given.any(1), times.argmin(1), -1).astype(np.int64)
