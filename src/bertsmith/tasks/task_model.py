"""An encoder with a task's head, and its outputs for many examples.

N tokens in the packed batch, E examples, R rows that the head reads, T texts, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch, batches_by_length
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.kernel_layer import KernelLayer
from bertsmith.model.layers.initialisation import initialise
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.forward_passes import (
    HeadPass,
    answer_heads,
    evaluating,
    forward_passes,
    require_finite,
    usual_forward_tokens,
)
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


def outputs_together(
    models: Sequence[TaskModel], encoded: Sequence[Sequence[EncodedExample]]
) -> list[list[Outputs]]:
    """What `outputs_of` gives for each model and its examples, E of each. Of models that share an encoder of
    the kernels, this computes once what they read alike.
    """
    results = [list[Outputs]() for _ in models]
    groups = dict[nn.Module, list[int]]()  # by the layers: the numbers of the models
    for number, model in enumerate(models):
        if _has_shared_layers(model) and all(example.tokens <= LONGEST for example in encoded[number]):
            groups.setdefault(model.encoder.layers, []).append(number)
        else:
            results[number] = outputs_of(model, encoded[number])
    for numbers in groups.values():
        heads = [_head_pass(models[number]) for number in numbers]
        examples = [encoded[number] for number in numbers]
        lengths = [max(example.tokens for example in row) for row in zip(*examples, strict=True)]
        outputs = dict[tuple[int, int], Outputs]()  # by the numbers of model and example
        for batch in batches_by_length(lengths, usual_forward_tokens(torch.device("cpu"))):
            places = list(product(range(len(numbers)), batch))
            computed = answer_heads(
                models[numbers[0]].encoder,
                [heads[number] for number, _ in places],
                [examples[number][index] for number, index in places],
            )
            outputs |= zip(places, computed, strict=True)
        for number, place in enumerate(numbers):
            results[place] = [outputs[number, index] for index in range(len(lengths))]
    return results


def _has_shared_layers(model: TaskModel) -> bool:
    """Whether other models may have the same layers, and answers don't depend on what is in a batch."""
    encoder = model.encoder
    return (
        isinstance(encoder, Bert)
        and encoder.layer_weights is None
        and all(isinstance(layer, KernelLayer) for layer in encoder.layers)
    )


def _head_pass(model: TaskModel) -> HeadPass:
    def answer(states: Tensor, layout: Layout) -> Tensor:
        return at_least_float32(model.answer(states, layout))

    return HeadPass(answer, model.head.per_row, model.head.reads_all, model.encoder.adapter)


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
