"""The interface between the training loop and what it trains: pre-training, or the fine-tuning of a task."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torch import Tensor, nn

from bertsmith.data.batch import Sequences
from bertsmith.data.stream import Cursor, GlobalBatch

Add = Callable[[dict[str, float]], dict[str, float]]
Gather = Callable[[Tensor], list[Tensor]]


class Objective(Protocol):
    """Batches in a replayable order, a loss that is one number, and the field's metrics.

    The loop divides each summed loss by its count over the whole global batch, so neither accumulation nor
    the number of ranks changes the value.
    """

    @property
    def model(self) -> nn.Module:
        """Encoder and head, which are trained and saved."""
        ...

    @property
    def needs_global_batch(self) -> bool:
        """Whether losses depend on other examples of the global batch, so that `begin_step` is needed."""
        ...

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Global batches from `cursor` on; `cursor.phase` is the phase of the run."""
        ...

    def prepare_step(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        """Called before each step with the position of its batch, and how much of the learning rate's decay
        is over, in [0, 1]. Returns values that the objective sets by it, such as the masking rate, for the
        log.
        """
        ...

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The denominator of each loss, for a global batch: what `loss` sums is divided by it."""
        ...

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """Called before the losses of a step, for an objective that must see the whole global batch. Takes
        the micro-batches of every rank; `rank` is this one. `gather` collects a tensor of each rank, in the
        order of ranks.
        """
        ...

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Summed losses of one micro-batch, by the names of `counts`."""
        ...

    def flops(self, sequences: Sequences) -> float:
        """Floating-point operations of one training step on these sequences that no implementation
        can avoid.
        """
        ...

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """Metrics on held-out data, the same on every rank; `add` sums dictionaries over the ranks."""
        ...
