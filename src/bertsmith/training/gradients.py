"""The gradient of one step: of the global batch's loss, however micro-batches and ranks divide the work."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bertsmith.data.batch import Division, Sequences, divide
from bertsmith.model.cpu.onednn_matmul import fast_products
from bertsmith.tasks.objective import Objective
from bertsmith.training.machine import Machine, gather_over_ranks, sum_over_ranks
from bertsmith.training.sharding import clip_gradients, distribute, exchange, with_whole_weights

T = TypeVar("T")


@dataclass
class StepResult:
    """Losses per name, each the mean over the whole global batch; the gradient's norm before clipping;
    whether any rank was asked to stop; and what the first rank's clock said.
    """

    losses: dict[str, float]
    gradient_norm: float
    stop: bool
    elapsed: float

    @property
    def loss(self) -> float:
        return sum(self.losses.values())


class Gradients:
    """Fills the gradients of a task's weights, the same on every rank."""

    def __init__(self, task: Objective, machine: Machine, clip: float) -> None:
        """`clip` is the largest norm that is left as it is."""
        self.task, self.machine, self.clip = task, machine, clip
        self._computation = distribute(task.model, machine)

    @fast_products()
    def compute(
        self,
        sequences: Sequences,
        seed: int,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> StepResult:
        """Of one global batch. `seed` is dropout's; `stop` says, once the gradients are on their way, whether
        this rank was asked to stop, and `clock` the seconds of training.
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
        micro_batches = self._own_or_spare(division)
        for number, (micro_batch, weight) in enumerate(micro_batches, start=1):
            with exchange(self._computation, number == len(micro_batches)):
                with self.machine.autocast():
                    losses: dict[str, Tensor] = self._computation(partial(self.task.loss, micro_batch))
                    # the ranks' gradients are averaged, but the loss is a sum: hence the factor
                    shares = torch.stack([losses[name] / counts[name] for name in counts]) * weight
                (shares.sum() * ranks.count).backward()
            totals += shares.detach()
        norm = clip_gradients(self.task.model, self.clip)
        # filled and not copied, for which the host would wait
        stopped = torch.full_like(totals[:1], float(stop()), dtype=torch.float64)
        time = torch.full_like(stopped, clock() if ranks.is_first else 0.0)
        everywhere = sum_over_ranks(torch.cat([totals.double(), stopped, time]))
        # read together, since the host waits for a GPU each time it reads
        *means, asked, elapsed, length = torch.cat([everywhere, norm.double().view(1)]).tolist()
        return StepResult(dict(zip(counts, means, strict=True)), length, asked > 0, elapsed)

    @fast_products()
    def with_whole_weights(self, compute: Callable[[], T]) -> T:
        """`compute()`, without a gradient and in the machine's precision, however the model is divided."""
        with self.machine.autocast():
            return with_whole_weights(self._computation, compute)

    @fast_products()
    def warm_up_ddp(self, sequences: Sequences) -> None:
        """One backward pass for nothing, since DDP arranges its buckets anew after the first one.

        The arrangement decides in what order three or more ranks' gradients are added up, and so their last
        bit: a resumed run must start with the one that the uninterrupted run had by then.
        """
        division = divide(sequences, self.machine.ranks.count, self.machine.micro_batch_tokens)
        (micro_batch, _), *_ = self._own_or_spare(division)
        with self.machine.autocast():
            losses: dict[str, Tensor] = self._computation(partial(self.task.loss, micro_batch))
        torch.stack(list(losses.values())).sum().backward()
        self.task.model.zero_grad()

    @property
    def needs_settling(self) -> bool:
        return isinstance(self._computation, DistributedDataParallel)

    def _own_or_spare(self, division: Division) -> list[tuple[Sequences, float]]:
        """A rank's micro-batches with the weight 1, and another's with the weight 0 where it has too few.

        Ranks exchange gradients together or not at all, so each needs one; and where they gather the weights
        for every micro-batch, as many as the others.
        """
        own = [(micro_batch, 1.0) for micro_batch in division.of(self.machine.ranks.rank)]
        missing = (division.most if self.machine.sharded else 1) - len(own)
        return own + [(division.spare(), 0.0)] * missing if missing > 0 else own


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """A function of where the run stands, so that there is no random state to save."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))
