"""The encoder taught by pairs before there is a head: texts of one label near each other, others apart
(supervised contrastive learning: Khosla et al. 2020, equation 2; for few rows: Tunstall et al. 2022, SetFit).

E examples, F features.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.data.batch import to_device
from bertsmith.model.config import BertConfig
from bertsmith.tasks.classifier_head import PooledHead
from bertsmith.tasks.encoding import Encoded, Layout
from bertsmith.tasks.task import Head, Metrics, Outputs, Prediction, Task
from bertsmith.text.tokens.tokenizer import Pieces, Tokenizer

_TEMPERATURE = 0.1


class FeatureHead(PooledHead):
    """What a linear head would read, and no layer of its own."""

    def __init__(self, config: BertConfig, pooling: Any) -> None:
        super().__init__(config, 1, pooling)
        del self.out

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """-> (E, F), of length 1."""
        return self.features(states, layout)


class ClassContrast(Task[Any]):
    """A classification's texts, with a loss between them in place of one on their labels."""

    main_metric = "accuracy"

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task.settings, task.labels)
        self._task, self.name = task, task.name  # type: ignore[misc]

    @property
    def whole_batch(self) -> bool:
        return True

    def head(self, config: BertConfig) -> Head:
        return FeatureHead(config, self._task.settings.linear_pooling)  # type: ignore[attr-defined]

    def loss(self, outputs: Tensor, targets: Sequence[int]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[int]) -> Tensor:
        """(E, F) -> (E,); 0 for a text whose label no other of the batch has."""
        labels = to_device(np.array(targets, np.int64), outputs.device)
        itself = torch.eye(len(targets), dtype=torch.bool, device=outputs.device)
        alike = (labels[:, None] == labels) & ~itself
        near = (outputs.float() @ outputs.float().T / _TEMPERATURE).masked_fill(itself, -torch.inf)
        shares = F.log_softmax(near, 1).masked_fill(~alike, 0.0)
        return -shares.sum(1) / alike.sum(1).clamp(min=1)

    def divide(self, targets: Sequence[int], order: Ints, batch_size: int) -> list[Ints]:
        """Batches of several texts a label, as many labels as fit: each text meets some of its own label."""
        labels = np.array(targets, np.int64)[order]
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
        return [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]

    # -- the rest is the task's own ------------------------------------------------------------------------

    def example(self, text: Any, where: str = "the input") -> Any:
        return self._task.example(text, where)

    def read(self, path: Path | str, *, labelled: bool = True) -> list[Any]:
        return self._task.read(path, labelled=labelled)

    def texts(self, example: Any) -> Sequence[str]:
        return self._task.texts(example)

    def encode(self, example: Any, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> Encoded:
        return self._task.encode(example, pieces, tokenizer)

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[Any], encoded: Sequence[Encoded]
    ) -> list[Prediction]:
        return self._task.decode(outputs, examples, encoded)

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> Metrics:
        return self._task.metrics(predictions, examples)
