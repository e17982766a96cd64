"""Similarity by cosine with a head that shows the vectors, so that a student can learn them.

E examples, each of two texts, H hidden size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bertsmith.data.batch import to_device
from bertsmith.model.config import BertConfig
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.heads.vector_head import VectorHead
from bertsmith.tasks.similarity import Similarity, compares_vectors
from bertsmith.tasks.task import Head, Outputs, Prediction, Task


class VectorSimilarity(Similarity):
    """Is saved as Similarity: neither head has weights."""

    def head(self, config: BertConfig) -> Head:
        return VectorHead(self.settings.pooling, normalise=True)

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E, 2, H) -> the summed squares."""
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E, 2, H) -> (E,), the squared error of each cosine."""
        gold = to_device(np.array(targets, np.float32), outputs.device)
        first, second = outputs.float().unbind(1)
        return ((first * second).sum(1) - gold).square()

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[TextExample], encoded: Sequence[Encoded]
    ) -> list[Prediction]:
        """As Similarity, of vectors (2, H)."""
        cosines = [(output[0] * output[1]).sum(keepdims=True) for output in outputs]
        return super().decode(cosines, examples, encoded)


def showing_vectors(model: TaskModel, task: Task[Any]) -> tuple[TaskModel, Task[Any]]:
    """The same with this head where that is what the task compares; a task of one's own stays as it is."""
    if type(task) is not Similarity or not compares_vectors(task):
        return model, task
    shown = VectorSimilarity.from_state(task.state(), "the teacher")
    return TaskModel(model.encoder, shown.head(model.config)), shown
