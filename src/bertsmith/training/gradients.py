"""The gradient of one step: of the global batch's loss, however micro-batches and ranks divide the work."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertsmith.data.batch import Sequences
from bertsmith.data.split import split
from bertsmith.tasks.objective import Objective
from bertsmith.training.distributed import add_over_ranks, gather_over_ranks
from bertsmith.training.machine import Machine


@dataclass
class StepResult:
    """Losses per name, each the mean over the whole global batch; the gradient's norm before clipping; and
    whether any rank was asked to stop.
    """

    losses: dict[str, float]
    gradient_norm: float
    stop: bool

    @property
    def loss(self) -> float:
        return sum(self.losses.values())


class Gradients:
    """Fills the gradients of a task's weights, the same on every rank."""

    def __init__(self, task: Objective, machine: Machine, clip: float) -> None:
        """`clip` is the largest norm that is left as it is."""
        self.task, self.machine, self.clip = task, machine, clip
        losses = _Losses(task)
        self._parallel: nn.Module = losses
        if machine.ranks.count > 1:
            self._parallel = DistributedDataParallel(losses, gradient_as_bucket_view=True)

    def compute(self, sequences: Sequences, seed: int, stop: bool = False) -> StepResult:
        """Of one global batch. `seed` is dropout's; `stop`, whether this rank was asked to stop."""
        ranks = self.machine.ranks
        torch.manual_seed(seed)
        counts = self.task.counts(sequences)
        parts = split(sequences, ranks.count, self.machine.micro_batch_tokens)
        micro_batches, weight = _own_or_spare(parts, ranks.rank)
        with self.machine.autocast():
            self.task.begin_step(parts, ranks.rank, gather_over_ranks)
        totals = torch.zeros(len(counts), device=self.machine.device)
        for number, micro_batch in enumerate(micro_batches, start=1):
            with self._shared(number == len(micro_batches)), self.machine.autocast():
                losses = self._parallel(micro_batch)
                # the ranks' gradients are averaged by DDP, but the loss is a sum: hence the factor
                shares = torch.stack([losses[name] / counts[name] for name in counts]) * weight
                (shares.sum() * ranks.count).backward()
            totals += shares.detach()
        norm = nn.utils.clip_grad_norm_(self.task.model.parameters(), self.clip, foreach=True)
        mean = dict(zip(counts, totals.tolist(), strict=True))
        everywhere = add_over_ranks({**mean, "stop": float(stop)}, self.machine.device)
        return StepResult(stop=everywhere.pop("stop") > 0, losses=everywhere, gradient_norm=float(norm))

    def settle(self, sequences: Sequences) -> None:
        """One backward pass for nothing, since DDP arranges its buckets anew after the first one.

        The arrangement decides in what order three or more ranks' gradients are added up, and so their last
        bit: a resumed run must start with the one that the uninterrupted run had by then.
        """
        parts = split(sequences, self.machine.ranks.count, self.machine.micro_batch_tokens)
        (micro_batch, *_), _ = _own_or_spare(parts, self.machine.ranks.rank)
        with self.machine.autocast():
            torch.stack(list(self._parallel(micro_batch).values())).sum().backward()
        self.task.model.zero_grad()

    @property
    def needs_settling(self) -> bool:
        return isinstance(self._parallel, DistributedDataParallel)

    def _shared(self, last: bool) -> AbstractContextManager[None]:
        """Ranks exchange gradients once a step, after the last micro-batch."""
        if isinstance(self._parallel, DistributedDataParallel) and not last:
            context: AbstractContextManager[None] = self._parallel.no_sync()
            return context
        return nullcontext()


class _Losses(nn.Module):
    """The task's loss as a module, which is what DistributedDataParallel wraps."""

    def __init__(self, task: Objective) -> None:
        super().__init__()
        self.model = task.model
        self._loss: Callable[[Sequences], dict[str, Tensor]] = task.loss

    def forward(self, sequences: Sequences) -> dict[str, Tensor]:
        return self._loss(sequences)


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """A function of where the run stands, so that there is no random state to save."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _own_or_spare(parts: Sequence[list[Sequences]], rank: int) -> tuple[list[Sequences], float]:
    """A rank's micro-batches and their weight, 1; for a rank without any, another's with the weight 0, since
    the ranks exchange gradients together or not at all.
    """
    return (parts[rank], 1.0) if parts[rank] else (next(filter(None, parts))[:1], 0.0)
