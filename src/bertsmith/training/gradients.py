"""The gradient of one step: that of the global batch's loss, however many micro-batches and ranks share the
work.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bertsmith.data.batch import Division, Sequences, divide
from bertsmith.model.cpu.onednn_matmul import fast_matmul
from bertsmith.tasks.objective import Objective
from bertsmith.training.machine import Machine, gather_over_ranks, sum_over_ranks
from bertsmith.training.sharding import clip_gradients, distribute, gradient_exchange, with_whole_weights

T = TypeVar("T")


@dataclass
class StepResult:
    """What one step computed, the same on every rank.

    losses: each the mean over the global batch, by name. gradient_norm: before clipping.
    stop: whether any rank was asked to stop. elapsed: seconds of training by the first rank's clock.
    """

    losses: dict[str, float]
    gradient_norm: float
    stop: bool
    elapsed: float

    @property
    def loss(self) -> float:
        return sum(self.losses.values())


class Gradients:
    """Computes the gradients of a task's weights into `weight.grad`, the same on every rank."""

    def __init__(self, task: Objective, machine: Machine, clip: float) -> None:
        """`clip` is the largest norm of the gradient: a longer one is scaled down to it."""
        self.task, self.machine, self.clip = task, machine, clip
        self._computation = distribute(task.model, machine)

    @fast_matmul()
    def compute(
        self,
        sequences: Sequences,
        seed: int,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> StepResult:
        """Computes the gradient of one global batch and clips it.

        seed: dropout's. stop, clock: called once the gradients are computed; whether this rank was asked to
        stop, and the seconds of training so far. The result has them agreed on by all ranks.
        """
        ranks = self.machine.ranks
        # For GPUs that nobody uses, torch.manual_seed keeps a traceback: a millisecond each step.
        (torch.default_generator if self.machine.device.type == "cpu" else torch).manual_seed(seed)
        counts = {name: count or 1 for name, count in self.task.counts(sequences).items()}
        division = divide(sequences, ranks.count, self.machine.micro_batch_tokens)
        if self.task.needs_global_batch:
            parts = [division.of(rank) for rank in range(ranks.count)]
            self.with_whole_weights(lambda: self.task.begin_step(parts, ranks.rank, gather_over_ranks))
        totals = torch.zeros(len(counts), device=self.machine.device)
        micro_batches = self._pad_micro_batches(division)
        for number, (micro_batch, weight) in enumerate(micro_batches, start=1):
            with gradient_exchange(self._computation, number == len(micro_batches)):
                with self.machine.autocast():
                    losses: dict[str, Tensor] = self._computation(partial(self.task.loss, micro_batch))
                    # the ranks' gradients are averaged, but the loss is a sum: hence `ranks.count`
                    shares = torch.stack([losses[name] / counts[name] for name in counts]) * weight
                (shares.sum() * ranks.count).backward()
            totals += shares.detach()
        norm = clip_gradients(self.task.model, self.clip)
        if totals.device.type == "mps":  # a single process, and no float64
            totals, norm = totals.cpu(), norm.cpu()
        # filled on the device: for a copy to it the host would wait
        stopped = torch.full_like(totals[:1], float(stop()), dtype=torch.float64)
        time = torch.full_like(stopped, clock() if ranks.is_first else 0.0)
        everywhere = sum_over_ranks(torch.cat([totals.double(), stopped, time]))
        # read in one go, since the host waits for the GPU at each read
        *means, stop_count, elapsed, length = torch.cat([everywhere, norm.double().view(1)]).tolist()
        return StepResult(dict(zip(counts, means, strict=True)), length, stop_count > 0, elapsed)

    @fast_matmul()
    def with_whole_weights(self, compute: Callable[[], T]) -> T:
        """Returns `compute()`, run in the machine's precision and with the full weights of a sharded model.
        No backward pass may follow.
        """
        with self.machine.autocast():
            return with_whole_weights(self._computation, compute)

    @fast_matmul()
    def warm_up_ddp(self, sequences: Sequences) -> None:
        """Runs one backward pass and drops its gradients, since DDP rearranges its buckets after the first.

        The arrangement decides in which order the gradients of three or more ranks are added up, and so
        their last bit: a resumed run must begin with the one that the uninterrupted run had by then.
        """
        division = divide(sequences, self.machine.ranks.count, self.machine.micro_batch_tokens)
        (micro_batch, _), *_ = self._pad_micro_batches(division)
        with self.machine.autocast():
            losses: dict[str, Tensor] = self._computation(partial(self.task.loss, micro_batch))
        torch.stack(list(losses.values())).sum().backward()
        self.task.model.zero_grad()

    @property
    def needs_warm_up(self) -> bool:
        """Whether `warm_up_ddp` has to run before the first step."""
        return isinstance(self._computation, DistributedDataParallel)

    def _pad_micro_batches(self, division: Division) -> list[tuple[Sequences, float]]:
        """This rank's micro-batches, each with the weight 1; where they are too few, spare ones with the
        weight 0 follow.

        All ranks exchange gradients together, so each needs at least one micro-batch; ranks of a sharded
        model gather the weights for every micro-batch, so each needs as many as the others.
        """
        own = [(micro_batch, 1.0) for micro_batch in division.of(self.machine.ranks.rank)]
        missing = (division.most if self.machine.sharded else 1) - len(own)
        return own + [(division.spare(), 0.0)] * missing if missing > 0 else own


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """The seed of dropout in this step on this rank. It depends on nothing else, so that no random state has
    to be saved.
    """
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))
