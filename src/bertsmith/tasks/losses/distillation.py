"""Distillation losses: how several teachers' outputs are averaged, and how far a student's outputs are from
them. Each task names its loss; a task of your own gets the squared difference of numbers by default.

E examples, R rows that a head answers for, W windows, C outputs, T texts of an example, H hidden size, and D
documents of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.arrays import Float32s, Ints
from bertsmith.data.batch import to_device, widest_float

_LEAST = 1e-7  # the smallest probability: an event that the teacher excludes has no infinite loss


@dataclass(frozen=True)
class DistillationTarget:
    """The target of an example that a teacher has answered. `gold` is the task's own target, None if the
    example has no label; `answer` is the teacher's, (C,), (R, C) or (T, H), None if there is only a label;
    `rows` has how many rows the head reads of each window; `labelled` says whether `gold` is to be learned.
    """

    gold: Any
    answer: Float32s | None
    rows: tuple[int, ...]
    labelled: bool


class DistillationLoss:
    """Squared differences of numbers, scores or cosines, in units of `deviation`: by default the standard
    deviation of the answers that are learned from.
    """

    needs_global_batch = False

    def __init__(self, deviation: float | None = None) -> None:
        self.deviation = deviation

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Sees all answers that will be learned from, before training starts."""
        if self.deviation is None:
            self.deviation = float(np.concatenate([answer.reshape(-1) for answer in answers]).std()) or 1.0

    def answer(self, output: Float32s) -> Float32s:
        """One teacher's output for an example, in the form in which outputs are averaged."""
        return output

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """Averages several teachers' answers to one example."""
        return answers[0] if len(answers) == 1 else np.mean(answers, axis=0, dtype=np.float64)

    def count(self, targets: Sequence[DistillationTarget]) -> float:
        """The number by which the summed loss is divided."""
        return len(targets)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        """(E, …) -> each example's loss (E,), whose sum the training loop divides by `count`."""
        assert self.deviation is not None
        answers = _stack_answers(targets, outputs.device)
        differences = (outputs.to(widest_float(outputs.device)) - answers) / self.deviation
        return differences.square().flatten(1).mean(1)


class RowLoss(DistillationLoss):
    """Squared differences for a head that answers for each row. The teacher's answers are (R, …)."""

    def count(self, targets: Sequence[DistillationTarget]) -> float:
        return max(sum(sum(target.rows) for target in targets), 1)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        """Outputs (R, …) of all examples -> each example's loss (E,)."""
        assert self.deviation is not None
        answers = to_device(np.concatenate(_answers(targets)), outputs.device)
        squares = ((outputs.to(widest_float(outputs.device)) - answers) / self.deviation).square()
        sizes = np.array([sum(target.rows) for target in targets])
        return _sum_rows(squares.reshape(len(squares), -1).mean(1), sizes)


class ClassLoss(DistillationLoss):
    """Kullback-Leibler divergence of the softened probabilities from the teacher's, times the square of the
    temperature (Hinton et al. 2015, section 2). Answers are log-probabilities.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Does nothing: the loss has no unit to learn."""

    def answer(self, output: Float32s) -> Float32s:
        return _log_softmax(output)

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """The logarithm of the mean probability."""
        if len(answers) == 1:
            return answers[0]
        mean = np.mean(np.exp(np.asarray(answers, np.float64)), axis=0)
        return np.asarray(np.log(mean + _LEAST), np.float32)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        return self.divergence(outputs, _stack_answers(targets, outputs.device))

    def divergence(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Logits and log-probabilities, (…, C) each -> (…)."""
        ours = F.log_softmax(outputs.float() / self.temperature, -1)
        theirs = F.log_softmax(answers.float() / self.temperature, -1)
        return (theirs.exp() * (theirs - ours)).sum(-1) * self.temperature**2


class LabelLoss(ClassLoss):
    """The divergence of each label by itself, averaged over labels. Answers are log-odds."""

    def answer(self, output: Float32s) -> Float32s:
        return output

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """The log-odds of the mean probability."""
        if len(answers) == 1:
            return answers[0]
        mean = np.mean(1 / (1 + np.exp(-np.asarray(answers, np.float64))), axis=0).clip(_LEAST, 1 - _LEAST)
        return np.asarray(np.log(mean / (1 - mean)), np.float32)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        answers = _stack_answers(targets, outputs.device).float()
        two_classes = [torch.stack([odds, torch.zeros_like(odds)], -1) for odds in (outputs.float(), answers)]
        return self.divergence(*two_classes).mean(-1)


class WordLoss(ClassLoss):
    """The divergence of each word. The teacher's answers are (R, C), one row for each word."""

    def count(self, targets: Sequence[DistillationTarget]) -> float:
        return max(sum(sum(target.rows) for target in targets), 1)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        answers = to_device(np.concatenate(_answers(targets)), outputs.device)
        sizes = np.array([sum(target.rows) for target in targets])
        return _sum_rows(self.divergence(outputs, answers), sizes)


class SpanLoss(ClassLoss):
    """The divergence of the answer's start and of its end over the rows of each window, half of either. The
    teacher's answers are logits (R, 2).
    """

    def answer(self, output: Float32s) -> Float32s:
        return output

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """The mean of the teachers' logits, not of their probabilities."""
        return DistillationLoss.together(self, answers)

    def count(self, targets: Sequence[DistillationTarget]) -> float:
        return sum(len(target.rows) for target in targets)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        """Logits (R, 2) of all examples -> each example's loss (E,)."""
        answers = to_device(np.concatenate(_answers(targets)), outputs.device).float()
        sizes = np.array([rows for target in targets for rows in target.rows])
        window = to_device(np.repeat(np.arange(len(sizes)), sizes), outputs.device)
        ours, theirs = (
            _log_softmax_of_groups(logits / self.temperature, window, len(sizes))
            for logits in (outputs.float(), answers)
        )
        parts = (theirs.exp() * (theirs - ours)).sum(1) / 2 * self.temperature**2
        return _sum_rows(parts, np.array([sum(target.rows) for target in targets]))


class VectorLoss(DistillationLoss):
    """The divergence between the student's and the teacher's softmax of a query's similarities to the
    documents of the batch, each multiplied by `scale`. The vectors of the two sides may have different sizes.
    Answers are (T, H).
    """

    needs_global_batch = True

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Does nothing: similarities have no unit to learn."""

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """Concatenates the teachers' vectors, scaled so that products are the mean of the teachers'
        products.
        """
        return np.asarray(np.concatenate(answers, -1) / np.sqrt(len(answers)), np.float32)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        """Vectors (E, T, H), each query's before those of its documents -> (E,)."""
        answers = _answers(targets)
        counts = np.array([len(answer) - 1 for answer in answers])
        present = np.arange(outputs.shape[1] - 1) < counts[:, None]  # (E, T - 1)
        rows = to_device(np.flatnonzero(present), outputs.device)
        own_documents = outputs[:, 1:].flatten(0, 1).index_select(0, rows).float()  # (D, H)
        queries = to_device(np.stack([answer[0] for answer in answers]), outputs.device).float()
        teacher_documents = to_device(
            np.concatenate([answer[1:] for answer in answers]), outputs.device
        ).float()
        with torch.autocast(outputs.device.type, enabled=False):
            ours = F.log_softmax(self.scale * outputs[:, 0].float() @ own_documents.T, 1)
            theirs = F.log_softmax(self.scale * queries @ teacher_documents.T, 1)
        return (theirs.exp() * (theirs - ours)).sum(1)


class CosineLoss(DistillationLoss):
    """The squared error of the cosines between all texts of a batch: of an example's own pair, plus the mean
    over the pairs that its texts form with those of other examples (relational distillation, Park et al.
    2019). A few thousand labelled pairs thus give a hundred times as many to learn from. Answers are vectors
    (2, H) of any size.
    """

    needs_global_batch = True

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Does nothing: cosines have no unit to learn."""

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """Concatenates the teachers' vectors, scaled so that cosines are the mean of the teachers'
        cosines.
        """
        return np.asarray(np.concatenate(answers, -1) / np.sqrt(len(answers)), np.float32)

    def losses(self, outputs: Tensor, targets: Sequence[DistillationTarget]) -> Tensor:
        """Vectors (E, 2, H) of each example's two texts -> (E,)."""
        ours, theirs = (
            outputs.float().flatten(0, 1),
            _stack_answers(targets, outputs.device).float().flatten(0, 1),
        )
        with torch.autocast(outputs.device.type, enabled=False):
            squares = (ours @ ours.T - theirs @ theirs.T).square()  # (2 E, 2 E)
        count = len(targets)
        blocks = squares.view(count, 2, count, 2).sum((1, 3))  # of each example's texts with each other's
        own = squares.view(count, 2, count, 2).diagonal(dim1=0, dim2=2)[0, 1]
        others = (blocks.sum(1) - blocks.diagonal()) / (4 * max(count - 1, 1))
        return own + others


def _answers(targets: Sequence[DistillationTarget]) -> list[Float32s]:
    return [target.answer for target in targets if target.answer is not None]


def _stack_answers(targets: Sequence[DistillationTarget], device: torch.device) -> Tensor:
    return to_device(np.stack(_answers(targets)), device)


def _log_softmax(outputs: Float32s) -> Float32s:
    shifted = outputs - outputs.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _sum_rows(values: Tensor, sizes: Ints) -> Tensor:
    """Sums (R,) -> (E,): `sizes` is how many rows each example has."""
    example = to_device(np.repeat(np.arange(len(sizes)), sizes), values.device)
    return values.new_zeros(len(sizes)).index_add(0, example, values)


def _log_softmax_of_groups(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """(R, K): each column is normalised over the rows of one group, given each row's group (R,)."""
    index = group[:, None].expand_as(values)
    highest = torch.full((groups, values.shape[1]), -torch.inf, device=values.device)
    highest = highest.scatter_reduce(0, index, values.detach(), "amax")
    shifted = values - highest[group]
    total = torch.zeros_like(highest).index_add(0, group, shifted.exp())
    return shifted - total.log()[group]
