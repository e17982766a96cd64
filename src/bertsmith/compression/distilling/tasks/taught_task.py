"""A task with a teacher: its loss is the student's distance from the teacher's answers and from the labels.

E examples, R rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.arrays import Bools, Ints
from bertsmith.data.batch import to_device
from bertsmith.model.config import BertConfig
from bertsmith.tasks.auxiliary_tasks import AuxiliaryTask
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.losses.distillation import DistillationLoss, DistillationTarget
from bertsmith.tasks.task import Head, Outputs, Task


class TaughtTask(AuxiliaryTask):
    """Wraps a task, with the task's own head, for training with a teacher. `soft_weight` is the teacher's
    share in the loss of a labelled example; the loss of an unlabelled one is the teacher's alone.

    The labels are ignored where the task's own loss compares examples with each other and the distillation's
    loss doesn't (re-ranking by lists).
    """

    def __init__(self, task: Task[Any], soft_loss: DistillationLoss, soft_weight: float) -> None:
        super().__init__(task)
        self._soft_loss, self._soft_weight, self._per_row = soft_loss, soft_weight, False
        if task.needs_global_batch and not soft_loss.needs_global_batch:
            self._soft_weight = 1.0

    @property
    def main_metric(self) -> str:  # type: ignore[override]
        return self._task.main_metric

    @property
    def needs_global_batch(self) -> bool:
        return self._soft_loss.needs_global_batch

    def head(self, config: BertConfig) -> Head:
        return self._task.head(config)

    def bind(self, head: Head) -> None:
        self._task.bind(head)
        self._per_row = head.per_row

    def make_batches(self, targets: Sequence[DistillationTarget], order: Ints, batch_size: int) -> list[Ints]:
        """The task's own batches where the soft loss compares the examples of a batch."""
        if not self.needs_global_batch:
            return super().make_batches(targets, order, batch_size)
        return self._task.make_batches([target.gold for target in targets], order, batch_size)

    def count(self, targets: Sequence[DistillationTarget]) -> float:
        return self._soft_loss.count(targets)

    def loss(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        """The loss of each example (E,). A task's own loss is only known as a sum over several examples: it
        is added to the first of them.
        """
        answered = np.array([target.answer is not None for target in targets])
        labelled = np.array([target.labelled for target in targets])
        weight = self._soft_weight
        total = torch.zeros(len(targets), device=outputs.device)
        for part, chosen, share in (
            (self._soft_loss.losses, answered & ~labelled, 1.0),
            (self._soft_loss.losses, answered & labelled, weight),
            (self._hard, answered & labelled, 1 - weight),
            (self._hard, labelled & ~answered, 1.0),
        ):
            if share and chosen.any():
                losses = share * part(*self._select(outputs, targets, chosen)).float()
                total = total.index_add(0, to_device(np.flatnonzero(chosen), outputs.device), losses)
        return total

    def _hard(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        gold = [target.gold for target in targets]
        if self.needs_global_batch:
            return self._task.losses(outputs, gold)
        first = torch.zeros(len(gold), device=outputs.device)
        first[0] = 1.0
        return first * self._task.loss(outputs, gold)

    def _select(
        self, outputs: Tensor, targets: Sequence[DistillationTarget], chosen: Bools
    ) -> tuple[Tensor, list[DistillationTarget]]:
        """The outputs and targets of the chosen examples (E,)."""
        if chosen.all():
            return outputs, list(targets)
        mask = np.repeat(chosen, [sum(target.rows) for target in targets]) if self._per_row else chosen
        rows = to_device(np.flatnonzero(mask), outputs.device)
        return outputs.index_select(0, rows), [targets[number] for number in np.flatnonzero(chosen).tolist()]


def add_teacher_answers(split: EncodedExamples, answers: Sequence[Outputs | None]) -> EncodedExamples:
    """The examples with the teacher's answers added to their targets; None for an example without
    an answer.
    """
    taught = []
    for example, encoded, answer in zip(split.examples, split.encoded, answers, strict=True):
        rows = tuple(len(window.rows) for window in encoded.windows)
        # an unlabelled pair of retrieval has a target all the same, by which batches are made
        labelled = encoded.target is not None and getattr(example, "labelled", True)
        taught.append(replace(encoded, target=DistillationTarget(encoded.target, answer, rows, labelled)))
    return EncodedExamples(split.examples, taught)
