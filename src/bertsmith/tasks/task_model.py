"""An encoder with a task's head, and its outputs for many examples.

N tokens in the packed batch, E examples, R rows that the head reads, T texts, H hidden size.
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

LONGEST = 1 << 13  # tokens of one example that are computed at once


class TaskModel(nn.Module):
    """The encoder and head that are fine-tuned and saved. If the head doesn't read the pooler, it is left
    out, because nothing would train it.

    `new_pooler`: the head reads a pooler, and the encoder came without one, so it has random weights.
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
        """The head's outputs (E, ...), or (R, ...) if it is `per_row`."""
        outputs: Tensor = self.head(self.states(batch, layout), layout)
        return outputs

    def answer(self, states: Tensor, layout: Layout) -> Tensor:
        """The head's outputs, as of `forward`, for the encoder's hidden states: of the layout's rows (R, H),
        or of all tokens (N, H) where the head reads them.
        """
        outputs: Tensor = self.head(self.encoder.pool(states) if self.head.pooled else states, layout)
        return outputs

    def states(self, batch: PackedBatch, layout: Layout) -> Tensor:
        """The hidden states that the head reads: of the layout's rows, all tokens, or the pooler."""
        states: Tensor = self.encoder(batch, None if self.head.reads_all else layout.rows)
        return self.encoder.pool(states) if self.head.pooled else states


def outputs_of(
    model: TaskModel,
    encoded: Sequence[EncodedExample],
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Outputs]:
    """The head's outputs for each example, on the host: (C,), or (R, C) if it is `per_row`. In float32, or in
    float64 if the head uses that.

    They are computed on the model's device, in batches of `batch_tokens` as in `forward_passes`. An example
    of more than `LONGEST` tokens is computed in parts. Progress counts tokens.
    """
    results: list[Outputs | None] = [None] * len(encoded)
    divides = model.head.per_row or model.head.joins is not None
    long = [index for index, example in enumerate(encoded) if divides and example.tokens > LONGEST]
    short = sorted({*range(len(encoded))}.difference(long))
    done, total = 0, sum(example.tokens for example in encoded)

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens
        if progress is not None:
            progress(done, total, "tokens")

    with evaluating(model):
        for indices, outputs in _batch_outputs(model, [encoded[n] for n in short], batch_tokens, count):
            for index, output in zip(indices, outputs, strict=True):
                results[short[index]] = output
        for index in long:
            results[index] = _long_output(model, encoded[index], batch_tokens, count)
    return [result for result in results if result is not None]


def _batch_outputs(
    model: TaskModel,
    encoded: Sequence[EncodedExample],
    batch_tokens: int | None,
    count: Callable[[int], None],
) -> Iterator[tuple[list[int], Sequence[Outputs]]]:
    """Yields, for each batch, the indices of its examples and their outputs."""

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        outputs: Tensor = model(batch, layout)
        return at_least_float32(outputs)

    device = next(model.parameters()).device
    for indices, layout, outputs in forward_passes(compute, encoded, device, batch_tokens):
        ends = np.cumsum(layout.rows_of_example)[:-1] if model.head.per_row else None
        yield indices, list(outputs) if ends is None else np.split(outputs, ends)
        count(sum(example.tokens for example in layout.encoded))


def _long_output(
    model: TaskModel, encoded: EncodedExample, batch_tokens: int | None, count: Callable[[int], None]
) -> Outputs:
    """The outputs of one long example, part by part. Rows are independent of each other; pooled vectors of a
    text's parts are combined as the head `joins` them.
    """
    parts = encoded.parts(LONGEST)
    if model.head.per_row:
        ends = np.cumsum([sum(len(window.rows) for window in part.windows) for part in parts])
        joined: Outputs | None = None  # one array: small ones kept between batches would fragment memory
        for indices, outputs in _batch_outputs(model, parts, batch_tokens, count):
            for index, output in zip(indices, outputs, strict=True):
                if joined is None:
                    joined = np.empty((ends[-1], *output.shape[1:]), output.dtype)
                joined[ends[index] - len(output) : ends[index]] = output
        assert joined is not None  # a text has a window at least
        return joined
    device = next(model.parameters()).device
    vectors = np.empty((len(parts), model.config.hidden_size), np.float32)

    def compute(batch: PackedBatch, layout: Layout) -> Tensor:
        return model.head.pool(model.states(batch, layout), layout).float()

    for indices, layout, pooled_parts in forward_passes(compute, parts, device, batch_tokens):
        vectors[indices] = pooled_parts
        count(sum(part.tokens for part in layout.encoded))
    assert model.head.joins is not None  # `outputs_of` divides examples for such heads only
    texts = np.array([part.windows[0].text for part in parts])
    by_tokens = model.head.joins == "mean"
    sizes = np.array([part.tokens if by_tokens else len(part.windows) for part in parts])
    pooled = torch.from_numpy(join_pooled(vectors, texts, sizes, model.head.joins)).to(device)  # (T, H)
    with torch.inference_mode():
        (output,) = at_least_float32(model.head.answer(pooled, Layout([encoded], device)))
    return np.asarray(require_finite(output.cpu()).numpy())


def at_least_float32(outputs: Tensor) -> Tensor:
    """Converts lower precisions to float32; float64 stays as it is."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
