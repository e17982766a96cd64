"""An encoder with a task's head, and what it gives for many examples.

N tokens in the packed batch, E examples, R rows that the head reads, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.layers.initialisation import initialise
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.forward_passes import evaluating, forward_passes, require_finite
from bertsmith.tasks.heads.pooling import join_pooled
from bertsmith.tasks.task import Head, Outputs

LONGEST = 1 << 13  # tokens of an example that are computed at once


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
    encoded: Sequence[EncodedExample],
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Outputs]:
    """The head's outputs for each example, on the host: (C,), or (R, C) if it answers per row. In float32, or
    in float64 where the head does.

    Computed where the model is, in batches of `batch_tokens` as `forward_passes` has them. Of an example of
    more than `LONGEST` tokens as many are computed at a time. Progress is in tokens.
    """
    results: list[Outputs | None] = [None] * len(encoded)
    divides = model.head.per_row or model.head.joins is not None
    long = [number for number, each in enumerate(encoded) if divides and each.tokens > LONGEST]
    short = sorted({*range(len(encoded))}.difference(long))
    done, total = 0, sum(each.tokens for each in encoded)

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens
        if progress is not None:
            progress(done, total, "tokens")

    with evaluating(model):
        for places, output in _outputs(model, [encoded[number] for number in short], batch_tokens, count):
            for place, piece in zip(places, output, strict=True):
                results[short[place]] = piece
        for number in long:
            results[number] = _long_output(model, encoded[number], batch_tokens, count)
    return [result for result in results if result is not None]


def _outputs(
    model: TaskModel,
    encoded: Sequence[EncodedExample],
    batch_tokens: int | None,
    count: Callable[[int], None],
) -> Iterator[tuple[list[int], Sequence[Outputs]]]:
    """Batch by batch, with the examples' places."""

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        found: Tensor = model(batch, layout)
        return at_least_float32(found)

    device = next(model.parameters()).device
    for places, layout, found in forward_passes(compute, encoded, device, batch_tokens):
        ends = np.cumsum(layout.rows_of_example)[:-1] if model.head.per_row else None
        yield places, list(found) if ends is None else np.split(found, ends)
        count(sum(each.tokens for each in layout.encoded))


def _long_output(
    model: TaskModel, encoded: EncodedExample, batch_tokens: int | None, count: Callable[[int], None]
) -> Outputs:
    """Of one example, part by part: rows stand for themselves, and of pooled vectors the head `joins` those
    of a text.
    """
    parts = encoded.parts(LONGEST)
    if model.head.per_row:
        ends = np.cumsum([sum(len(window.rows) for window in part.windows) for part in parts])
        joined: Outputs | None = None  # at once: pieces kept between batches would hold freed memory apart
        for places, outputs in _outputs(model, parts, batch_tokens, count):
            for place, piece in zip(places, outputs, strict=True):
                if joined is None:
                    joined = np.empty((ends[-1], *piece.shape[1:]), piece.dtype)
                joined[ends[place] - len(piece) : ends[place]] = piece
        assert joined is not None  # a text has a window at least
        return joined
    device = next(model.parameters()).device
    vectors = np.empty((len(parts), model.config.hidden_size), np.float32)

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        return model.head.pool(model.states(batch, layout), layout).float()

    for places, layout, found in forward_passes(compute, parts, device, batch_tokens):
        vectors[places] = found
        count(sum(each.tokens for each in layout.encoded))
    assert model.head.joins is not None  # whoever has parts of a text joins them
    texts = np.array([part.windows[0].text for part in parts])
    by_tokens = model.head.joins == "mean"
    sizes = np.array([part.tokens if by_tokens else len(part.windows) for part in parts])
    pooled = torch.from_numpy(join_pooled(vectors, texts, sizes, model.head.joins)).to(device)  # (T, H)
    with torch.inference_mode():
        (output,) = at_least_float32(model.head.answer(pooled, Layout([encoded], device)))
    return np.asarray(require_finite(output.cpu()).numpy())


def at_least_float32(found: Tensor) -> Tensor:
    """What a head gives on the host: its own precision, where that is float64."""
    return found.to(torch.promote_types(found.dtype, torch.float32))
