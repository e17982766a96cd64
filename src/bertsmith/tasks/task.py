"""What the training loop asks of a task: pre-training here, a head per task beside it."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn

from bertsmith.data.batch import Sequences
from bertsmith.data.stream import Cursor, GlobalBatch


class Task(Protocol):
    """Batches in a replayable order, a loss that is one number, and the field's metrics.

    The loop divides each summed loss by its count over the whole global batch, so that neither accumulation
    nor the number of ranks changes the value.
    """

    @property
    def model(self) -> nn.Module:
        """Encoder and head: what is trained and saved."""
        ...

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Global batches from `cursor` on; `cursor.phase` says which phase of the run."""
        ...

    def counts(self, sequences: Sequences) -> dict[str, int]:
        """The denominator of each loss, for a global batch."""
        ...

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Summed losses of one micro-batch, by the names of `counts`."""
        ...

    def operations(self, sequences: Sequences) -> float:
        """Floating-point operations of one training step on these sequences that no implementation can
        avoid.
        """
        ...

    def sums(self, rank: int, ranks: int) -> dict[str, float]:
        """This rank's share of the held-out evaluation, as sums that add up over ranks."""
        ...

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The sums of all ranks as the metrics people know."""
        ...
