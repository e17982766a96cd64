"""An encoder with a task's head, and what it gives for many examples.

N tokens in the packed batch, E examples, R rows that the head reads, H hidden size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.layers.initialisation import initialise
from bertsmith.progress import Progress
from bertsmith.tasks.encoding import Encoded, Layout
from bertsmith.tasks.evaluation_mode import evaluating
from bertsmith.tasks.forward_passes import forward_passes
from bertsmith.tasks.task import Head, Outputs


class TaskModel(nn.Module):
    """What is fine-tuned and saved. A pooler that no head reads is left out: nothing would train it.

    `new_pooler`: the encoder came without one that the head reads, and has one of random weights now.
    """

    def __init__(self, encoder: Bert, head: Head) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        self.head = head
        self.new_pooler = head.pooled and encoder.pooler is None
        if not head.pooled:
            encoder.pooler = None
        elif self.new_pooler:
            size = encoder.config.hidden_size
            encoder.pooler = nn.Linear(size, size)
            initialise(encoder.pooler, encoder.config.initializer_range)

    def forward(self, batch: PackedBatch, layout: Layout) -> Tensor:
        """-> (E, ...), or (R, ...) where the head answers for each row."""
        outputs: Tensor = self.head(self.states(batch, layout), layout)
        return outputs

    def states(self, batch: PackedBatch, layout: Layout) -> Tensor:
        """What the head reads of the encoder."""
        states: Tensor = self.encoder(batch, None if self.head.reads_all else layout.rows)
        return self.encoder.pool(states) if self.head.pooled else states


def outputs_of(
    model: TaskModel,
    encoded: Sequence[Encoded],
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Outputs]:
    """The head's outputs for each example, on the host: (C,), or (R, C) if it answers per row. In float32, or
    in float64 where the head does.

    Computed where the model is, in batches of `batch_tokens` as `forward_passes` has them.
    """
    device = next(model.parameters()).device
    results: list[Outputs | None] = [None] * len(encoded)
    done = 0

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        found: Tensor = model(batch, layout)
        return found.to(torch.promote_types(found.dtype, torch.float32))

    with evaluating(model):
        for numbers, layout, outputs in forward_passes(compute, encoded, device, batch_tokens):
            ends = np.cumsum(layout.rows_of_example)[:-1] if model.head.per_row else None
            pieces = outputs if ends is None else np.split(outputs, ends)
            for number, piece in zip(numbers, pieces, strict=True):
                results[number] = piece
            done += len(numbers)
            if progress is not None:
                progress(done, len(encoded), "texts")
    return [result for result in results if result is not None]
