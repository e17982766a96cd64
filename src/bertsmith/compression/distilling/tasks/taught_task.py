"""A task whose examples have a teacher: the loss is how far the student is from it, and from the labels.

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
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.losses.distillation import DistillationLoss, DistillationTarget
from bertsmith.tasks.task import Head, Outputs, Task
from bertsmith.tasks.teaching import AuxiliaryTask


class TaughtTask(AuxiliaryTask):
    """Fulfils the contract with the task's own head. `soft_weight` is the teacher's share in the loss of an
    example that has a label; of one without, the teacher has all of it.

    A task whose own loss compares examples with each other, while the distillation's doesn't (re-ranking by
    lists), is taught by the teacher alone.
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
        """As the task does where the soft loss compares the examples of a batch."""
        if not self.needs_global_batch:
            return super().make_batches(targets, order, batch_size)
        return self._task.make_batches([each.gold for each in targets], order, batch_size)

    def count(self, targets: Sequence[DistillationTarget]) -> float:
        return self._soft_loss.count(targets)

    def loss(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        """(E,) each example's part; where the task's own loss is a sum alone, the first of those it sums has
        all of it.
        """
        answered = np.array([each.answer is not None for each in targets])
        labelled = np.array([each.labelled for each in targets])
        weight = self._soft_weight
        found = torch.zeros(len(targets), device=outputs.device)
        for part, chosen, share in (
            (self._soft_loss.losses, answered & ~labelled, 1.0),
            (self._soft_loss.losses, answered & labelled, weight),
            (self._hard, answered & labelled, 1 - weight),
            (self._hard, labelled & ~answered, 1.0),
        ):
            if share and chosen.any():
                losses = share * part(*self._some(outputs, targets, chosen)).float()
                found = found.index_add(0, to_device(np.flatnonzero(chosen), outputs.device), losses)
        return found

    def _hard(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        gold = [each.gold for each in targets]
        if self.needs_global_batch:
            return self._task.losses(outputs, gold)
        first = torch.zeros(len(gold), device=outputs.device)
        first[0] = 1.0
        return first * self._task.loss(outputs, gold)

    def _some(
        self, outputs: Tensor, targets: Sequence[DistillationTarget], chosen: Bools
    ) -> tuple[Tensor, list[DistillationTarget]]:
        """What belongs to these examples (E,)."""
        if chosen.all():
            return outputs, list(targets)
        kept = np.repeat(chosen, [sum(each.rows) for each in targets]) if self._per_row else chosen
        rows = to_device(np.flatnonzero(kept), outputs.device)
        return outputs.index_select(0, rows), [targets[number] for number in np.flatnonzero(chosen).tolist()]


def taught_examples(split: EncodedExamples, answers: Sequence[Outputs | None]) -> EncodedExamples:
    """The examples with what the teacher says of each as a part of their targets. A pair of retrieval has a
    target of its own, by which batches are made, though nobody has said that it is right.
    """
    encoded = []
    for example, each, answer in zip(split.examples, split.encoded, answers, strict=True):
        rows = tuple(len(window.rows) for window in each.windows)
        labelled = each.target is not None and getattr(example, "labelled", True)
        encoded.append(replace(each, target=DistillationTarget(each.target, answer, rows, labelled)))
    return EncodedExamples(split.examples, encoded)
