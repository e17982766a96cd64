"""What a teacher's outputs teach: how those of several teachers become one, and how far a student's are from
them. A task names its loss; a head of one's own is taught by its numbers unless it does.

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
from bertsmith.data.batch import to_device

_LEAST = 1e-7  # of a probability: what is impossible to a teacher has no infinite price


@dataclass(frozen=True)
class DistillationTarget:
    """The target of an example that has a teacher. `gold` is the task's own target, None where it needs a
    label and there is none; `answer` the teacher's, (C,), (R, C) or (T, H), None where a label is all there
    is; `rows` how many rows the head reads of each window; `labelled` whether `gold` is to be learned.
    """

    gold: Any
    answer: Float32s | None
    rows: tuple[int, ...]
    labelled: bool


class DistillationLoss:
    """By squares: numbers, scores and cosines, in units of `deviation`, by default the standard deviation of
    the answers that are learned from.
    """

    needs_global_batch = False

    def __init__(self, deviation: float | None = None) -> None:
        self.deviation = deviation

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Sees all answers that will be learned from."""
        if self.deviation is None:
            self.deviation = float(np.concatenate([answer.reshape(-1) for answer in answers]).std()) or 1.0

    def answer(self, output: Float32s) -> Float32s:
        """One teacher's output of an example as it can be averaged."""
        return output

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """Several teachers' answers to one example as one."""
        return answers[0] if len(answers) == 1 else np.mean(answers, axis=0, dtype=np.float64)

    def count(self, taught: Sequence[DistillationTarget]) -> float:
        """What the summed loss is divided by."""
        return len(taught)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        """(E, …) -> (E,), each example's part of the summed loss."""
        assert self.deviation is not None
        answers = _stacked(taught, outputs.device)
        return ((outputs.double() - answers) / self.deviation).square().flatten(1).mean(1)


class RowLoss(DistillationLoss):
    """The same of a head that answers for each row. The teacher's answers are (R, …)."""

    def count(self, taught: Sequence[DistillationTarget]) -> float:
        return max(sum(sum(each.rows) for each in taught), 1)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        """(R, …) -> (E,)."""
        assert self.deviation is not None
        answers = to_device(np.concatenate(_answers(taught)), outputs.device)
        squares = ((outputs.double() - answers) / self.deviation).square()
        sizes = np.array([sum(each.rows) for each in taught])
        return _summed(squares.reshape(len(squares), -1).mean(1), sizes)


class ClassLoss(DistillationLoss):
    """Cross-entropy of the softened probabilities, less the teacher's own entropy: the divergence of Hinton
    et al. 2015, times the square of the temperature (section 2). Answers are log-probabilities.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Nothing to be learned."""

    def answer(self, output: Float32s) -> Float32s:
        return _log_softmax(output)

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """The log of the mean probability."""
        if len(answers) == 1:
            return answers[0]
        mean = np.mean(np.exp(np.asarray(answers, np.float64)), axis=0)
        return np.asarray(np.log(mean + _LEAST), np.float32)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        return self.divergence(outputs, _stacked(taught, outputs.device))

    def divergence(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """(…, C) logits and log-probabilities -> (…)."""
        ours = F.log_softmax(outputs.float() / self.temperature, -1)
        theirs = F.log_softmax(answers.float() / self.temperature, -1)
        return (theirs.exp() * (theirs - ours)).sum(-1) * self.temperature**2


class LabelLoss(ClassLoss):
    """The same of each label by itself, the mean over labels. Answers are log-odds."""

    def answer(self, output: Float32s) -> Float32s:
        return output

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """The log-odds of the mean probability."""
        if len(answers) == 1:
            return answers[0]
        mean = np.mean(1 / (1 + np.exp(-np.asarray(answers, np.float64))), axis=0).clip(_LEAST, 1 - _LEAST)
        return np.asarray(np.log(mean / (1 - mean)), np.float32)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        answers = _stacked(taught, outputs.device).float()
        either = [torch.stack([each, torch.zeros_like(each)], -1) for each in (outputs.float(), answers)]
        return self.divergence(*either).mean(-1)


class WordLoss(ClassLoss):
    """The same of each word. The teacher's answers are (R, C), R the words."""

    def count(self, taught: Sequence[DistillationTarget]) -> float:
        return max(sum(sum(each.rows) for each in taught), 1)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        answers = to_device(np.concatenate(_answers(taught)), outputs.device)
        sizes = np.array([sum(each.rows) for each in taught])
        return _summed(self.divergence(outputs, answers), sizes)


class SpanLoss(ClassLoss):
    """The same of where an answer starts, and of where it ends, over the rows of each window: half of either.
    The teacher's answers are logits (R, 2).
    """

    def answer(self, output: Float32s) -> Float32s:
        return output

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """The mean of the logits."""
        return DistillationLoss.together(self, answers)

    def count(self, taught: Sequence[DistillationTarget]) -> float:
        return sum(len(each.rows) for each in taught)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        """(R, 2) -> (E,)."""
        answers = to_device(np.concatenate(_answers(taught)), outputs.device).float()
        sizes = np.array([rows for each in taught for rows in each.rows])
        window = to_device(np.repeat(np.arange(len(sizes)), sizes), outputs.device)
        ours, theirs = (
            _log_softmax_of_groups(each / self.temperature, window, len(sizes))
            for each in (outputs.float(), answers)
        )
        parts = (theirs.exp() * (theirs - ours)).sum(1) / 2 * self.temperature**2
        return _summed(parts, np.array([sum(each.rows) for each in taught]))


class VectorLoss(DistillationLoss):
    """How a query's vector stands to the documents of the batch: the divergence between the softmax of the
    student's similarities and that of the teacher's, over the same documents, each multiplied by `scale`.
    Vectors may have any size: the two sides need not have the same. Answers are (T, H).
    """

    needs_global_batch = True

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Nothing to be learned."""

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """End to end: their products are the mean of the teachers'."""
        return np.asarray(np.concatenate(answers, -1) / np.sqrt(len(answers)), np.float32)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        """(E, T, H) -> (E,)."""
        answers = _answers(taught)
        counts = np.array([len(answer) - 1 for answer in answers])
        present = np.arange(outputs.shape[1] - 1) < counts[:, None]  # (E, T - 1)
        rows = to_device(np.flatnonzero(present), outputs.device)
        documents = outputs[:, 1:].flatten(0, 1).index_select(0, rows).float()  # (D, H)
        queries = to_device(np.stack([answer[0] for answer in answers]), outputs.device).float()
        their = to_device(np.concatenate([answer[1:] for answer in answers]), outputs.device).float()
        with torch.autocast(outputs.device.type, enabled=False):
            ours = F.log_softmax(self.scale * outputs[:, 0].float() @ documents.T, 1)
            theirs = F.log_softmax(self.scale * queries @ their.T, 1)
        return (theirs.exp() * (theirs - ours)).sum(1)


class CosineLoss(DistillationLoss):
    """The squared error of the cosines of all texts of a batch with each other: of an example's own pair, and
    the mean over the pairs that its texts make with other examples' (relational distillation: Park et al.
    2019). A few thousand pairs so teach a hundred times as many. Answers are vectors (2, H), of any size.
    """

    needs_global_batch = True

    def begin(self, answers: Sequence[Float32s]) -> None:
        """Nothing to be learned."""

    def together(self, answers: Sequence[Float32s]) -> Float32s:
        """End to end: their cosines are the mean of the teachers'."""
        return np.asarray(np.concatenate(answers, -1) / np.sqrt(len(answers)), np.float32)

    def losses(self, outputs: Tensor, taught: Sequence[DistillationTarget]) -> Tensor:
        """(E, 2, H) -> (E,)."""
        ours, theirs = outputs.float().flatten(0, 1), _stacked(taught, outputs.device).float().flatten(0, 1)
        with torch.autocast(outputs.device.type, enabled=False):
            squares = (ours @ ours.T - theirs @ theirs.T).square()  # (2 E, 2 E)
        count = len(taught)
        blocks = squares.view(count, 2, count, 2).sum((1, 3))  # of each example's texts with each other's
        own = squares.view(count, 2, count, 2).diagonal(dim1=0, dim2=2)[0, 1]
        others = (blocks.sum(1) - blocks.diagonal()) / (4 * max(count - 1, 1))
        return own + others


def _answers(taught: Sequence[DistillationTarget]) -> list[Float32s]:
    return [each.answer for each in taught if each.answer is not None]


def _stacked(taught: Sequence[DistillationTarget], device: torch.device) -> Tensor:
    return to_device(np.stack(_answers(taught)), device)


def _log_softmax(outputs: Float32s) -> Float32s:
    shifted = outputs - outputs.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _summed(values: Tensor, sizes: Ints) -> Tensor:
    """(R,) -> (E,): sums of so many rows each."""
    example = to_device(np.repeat(np.arange(len(sizes)), sizes), values.device)
    return values.new_zeros(len(sizes)).index_add(0, example, values)


def _log_softmax_of_groups(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """(R, K), each column normalised over the rows of a group (R,)."""
    index = group[:, None].expand_as(values)
    highest = torch.full((groups, values.shape[1]), -torch.inf, device=values.device)
    highest = highest.scatter_reduce(0, index, values.detach(), "amax")
    shifted = values - highest[group]
    total = torch.zeros_like(highest).index_add(0, group, shifted.exp())
    return shifted - total.log()[group]
