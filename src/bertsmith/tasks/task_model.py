"""An encoder with a task's head, and what it gives for many examples.

N tokens in the packed batch, E examples, R rows that the head reads, H hidden size.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch, usual_batch_tokens
from bertsmith.model.bert import Bert, initialise
from bertsmith.model.products import fast_products
from bertsmith.progress import Progress
from bertsmith.tasks.encoding import Encoded, Layout, lay_out, pack_examples
from bertsmith.tasks.evaluation_mode import evaluating
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
        states = self.encoder(batch, layout.rows)
        outputs: Tensor = self.head(self.encoder.pool(states) if self.head.pooled else states, layout)
        return outputs


@torch.inference_mode()
def outputs_of(
    model: TaskModel,
    encoded: Sequence[Encoded],
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Outputs]:
    """The head's outputs for each example, on the host: (C,), or (R, C) if it answers per row. In float32, or
    in float64 where the head does.

    Computed where the model is. Examples of like length go together, as many as have `batch_tokens`, by
    default a micro-batch's. Which ones changes the last bits only.
    """
    device = next(model.parameters()).device
    batch_tokens = batch_tokens or usual_batch_tokens(device.type)
    results: list[Outputs | None] = [None] * len(encoded)
    done = 0
    with evaluating(model):
        for numbers, batch, layout in packed_by_length(encoded, batch_tokens, device):
            with fast_products(sum(batch.lengths)):
                found = model(batch, layout)
            outputs = found.to(torch.promote_types(found.dtype, torch.float32)).cpu().numpy()
            ends = np.cumsum(layout.rows_of_example)[:-1] if model.head.per_row else None
            pieces = outputs if ends is None else np.split(outputs, ends)
            for number, piece in zip(numbers, pieces, strict=True):
                results[number] = piece
            done += len(numbers)
            if progress is not None:
                progress(done, len(encoded), "texts")
    return [result for result in results if result is not None]


def packed_by_length(
    encoded: Sequence[Encoded], batch_tokens: int, device: torch.device | str
) -> Iterator[tuple[list[int], PackedBatch, Layout]]:
    """As `batches_by_length`, each with its examples on the device."""
    for numbers in batches_by_length(encoded, batch_tokens):
        part = [encoded[number] for number in numbers]
        yield numbers, PackedBatch.of(pack_examples(part, numbers), device), lay_out(part, device)


def batches_by_length(encoded: Sequence[Encoded], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of examples, longest first, as many at a time as have at most `batch_tokens`, at least one."""
    lengths = [sum(len(window.token_ids) for window in each.windows) for each in encoded]
    held: list[int] = []
    tokens = 0
    for number in sorted(range(len(encoded)), key=lambda number: -lengths[number]):
        if held and tokens + lengths[number] > batch_tokens:
            yield held
            held, tokens = [], 0
        held.append(number)
        tokens += lengths[number]
    if held:
        yield held
