"""Forward passes over many examples without gradients: sorted by length, packed, one batch for each core.
Outputs are checked to be finite, because finite weights can still overflow.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bertsmith.arrays import Ints
from bertsmith.data.batch import PackedBatch, batches_by_length, usual_batch_tokens
from bertsmith.errors import NotFinite
from bertsmith.model.bert import AdaptedRows, Bert
from bertsmith.model.cpu.onednn_layer import ROWS
from bertsmith.model.cpu.onednn_matmul import MIN_TOKENS, fast_matmul
from bertsmith.model.cpu.process import one_core_threads
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, Window, every_row, pack_examples
from bertsmith.tasks.task import Outputs

_BATCH_TOKENS = 640  # for each core: 1,024 are one per cent faster and need 40 MB more
_BATCHES = 4  # for each core at least, if there are enough tokens: otherwise cores end at different times
_CPU = torch.device("cpu")
Compute = Callable[[PackedBatch, Layout], Tensor]


def require_finite(values: Tensor) -> Tensor:
    """Returns the values unchanged. Raises NotFinite if one is infinite or NaN."""
    if not bool(values.isfinite().all()):
        raise NotFinite(
            "The model was expected to give finite values, but they overflow: its weights are too large or "
            "damaged. Take another copy of it or, if it was trained so, train again at a lower learning rate."
        )
    return values


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode and restores its mode afterwards, also after an error.

    A model in evaluation mode is left alone: walking through its modules takes a tenth of the time that a
    small model needs for one text.
    """
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


class BatchOutputs(NamedTuple):
    """The outputs of one batch on the host, with the indices of its examples and their layout in the
    batch.
    """

    numbers: list[int]
    layout: Layout
    outputs: npt.NDArray[Any]


def forward_passes(
    compute: Compute, encoded: Sequence[EncodedExample], device: torch.device, batch_tokens: int | None = None
) -> Iterator[BatchOutputs]:
    """Runs `compute` on each batch, without gradients, the longest examples first.

    A batch has examples of at most `batch_tokens` in total, and at least one example: by default 640 tokens,
    32,768 on a GPU. On a processor each core gets four batches or more, unless they would become small, and
    several threads call `compute` at the same time. How examples are divided into batches changes only the
    last bits, and with our kernels not even those. Raises NotFinite.
    """
    tokens = batch_tokens or usual_forward_tokens(device)
    on_cpu = device.type == "cpu"
    lengths = [example.tokens for example in encoded]
    if on_cpu and (total := sum(lengths)) > tokens:
        share = total // (_BATCHES * torch.get_num_threads())
        tokens = min(tokens, max(MIN_TOKENS, share))
    batches = list(batches_by_length(lengths, tokens))
    run = partial(_run, compute, encoded, device)
    if not on_cpu:  # a GPU computes a batch while the next one is packed
        yield from _fetch_one_behind(map(run, batches))
        return
    cores = torch.get_num_threads()
    with _CALLS.counted() as calls:
        if tokens >= MIN_TOKENS and min(cores, len(batches)) > 1:
            # This setting belongs to the process. If each batch set it, a small batch would run with it
            # whenever a large one happened to run beside it, and its last bits would vary from call to call.
            with fast_matmul():
                yield from _run_in_threads(run, batches, cores)
        elif calls > 1:  # several calling threads would wait for one another if each used all cores
            yield from _run_in_threads(run, batches, cores)
        else:
            yield from map(_fetch, map(run, batches))


class _CallCounter:
    """Counts the threads of this process that are in `forward_passes`."""

    def __init__(self) -> None:
        self._lock, self._count = Lock(), 0

    @contextmanager
    def counted(self) -> Iterator[int]:
        """Counts the caller while the block runs, and yields the count with it."""
        with self._lock:
            self._count += 1
            count = self._count
        try:
            yield count
        finally:
            with self._lock:
                self._count -= 1


_CALLS = _CallCounter()


def usual_forward_tokens(device: torch.device) -> int:
    """The default number of tokens in a batch."""
    return _BATCH_TOKENS if device.type == "cpu" else usual_batch_tokens(device.type)


class _PendingOutputs(NamedTuple):
    """Like `BatchOutputs`, but a GPU may still be computing them."""

    numbers: list[int]
    layout: Layout
    outputs: Tensor


def forward_pass(compute: Compute, encoded: Sequence[EncodedExample], device: torch.device) -> BatchOutputs:
    """Runs `compute` on one batch, in this thread and without gradients. Raises NotFinite."""
    return _fetch(_run(compute, encoded, device, list(range(len(encoded)))))


def _run(
    compute: Compute, encoded: Sequence[EncodedExample], device: torch.device, numbers: list[int]
) -> _PendingOutputs:
    part = [encoded[number] for number in numbers]
    batch, layout = packed_batch(part, numbers, device), Layout(part, device)
    with torch.inference_mode(), fast_matmul(len(batch.token_ids)):
        return _PendingOutputs(numbers, layout, compute(batch, layout))


def packed_batch(
    encoded: Sequence[EncodedExample], numbers: Sequence[int], device: torch.device
) -> PackedBatch:
    """Packs the examples into one batch on the device; `numbers` become its keys."""
    multiple = ROWS if device.type == "cpu" else 1  # otherwise each packed product would copy to pad rows
    return PackedBatch.of(pack_examples(encoded, numbers), device, multiple)


@dataclass(frozen=True, eq=False)
class HeadPass:
    """What is computed of the hidden states that an encoder shared by several heads gives.

    `answer` makes the outputs of the states of the rows that the layout names (R, H), or with `reads_all` of
    all tokens (N, H). `per_row`: there is an output for each row, else one for each example. `adapter` is
    what LoRA adds to the encoder for this head, as in `AdaptedRows`.
    """

    answer: Callable[[Tensor, Layout], Tensor]
    per_row: bool = False
    reads_all: bool = False
    adapter: nn.Module | None = None


def answer_heads(
    encoder: Bert, heads: Sequence[HeadPass], encoded: Sequence[EncodedExample]
) -> list[Outputs]:
    """The outputs of each example (E,) by its head (E,), in one forward pass of the encoder on a processor,
    in this thread and without gradients. Windows that several examples have are computed once.

    With the kernels the outputs are those of each example alone, to the bit. Raises NotFinite.
    """
    windows = dict[
        tuple[Any, ...], list[Window]
    ]()  # those of equal tokens, by these, which heads may read in part
    adapters = {
        adapter: number for number, adapter in enumerate(dict.fromkeys(head.adapter for head in heads))
    }
    keys = [
        [(adapters[head.adapter], *_tokens_of(window)) for window in example.windows]
        for head, example in zip(heads, encoded, strict=True)
    ]
    for head, example, example_keys in zip(heads, encoded, keys, strict=True):
        for window, key in zip(example.windows, example_keys, strict=True):
            if head.reads_all:
                window = replace(window, rows=every_row(len(window.token_ids)))
            windows.setdefault(key, []).append(window)
    windows = dict(sorted(windows.items(), key=lambda item: item[0][0]))  # those of an adapter together
    merged = [replace(equal[0], rows=_join_rows(equal)) for equal in windows.values()]
    starts = dict(zip(windows, accumulate((len(window.rows) for window in merged), initial=0), strict=False))
    rows = dict(zip(windows, (window.rows for window in merged), strict=True))
    packed = [EncodedExample((window,)) for window in merged]
    batch, layout = packed_batch(packed, range(len(packed)), _CPU), Layout(packed, _CPU)
    adapted, start = list[AdaptedRows](), 0
    for adapter, number in adapters.items():
        end = start + sum(len(equal[0].token_ids) for key, equal in windows.items() if key[0] == number)
        adapted.append(AdaptedRows(adapter, start, end))
        start = end
    numbers_of = dict[HeadPass, list[int]]()
    for number, head in enumerate(heads):
        numbers_of.setdefault(head, []).append(number)
    results = dict[int, Outputs]()
    with torch.inference_mode(), fast_matmul(len(batch.token_ids)):
        states = encoder(
            batch, layout.rows, adapted if any(adapter is not None for adapter in adapters) else None
        )
        for head, numbers in numbers_of.items():
            places = [
                starts[key]
                + np.searchsorted(rows[key], every_row(len(rows[key])) if head.reads_all else window.rows)
                for number in numbers
                for window, key in zip(encoded[number].windows, keys[number], strict=True)
            ]
            own = Layout([encoded[number] for number in numbers], _CPU)
            answer = head.answer(states[torch.from_numpy(np.concatenate(places))], own)
            outputs = require_finite(answer).numpy()
            ends = np.cumsum(own.rows_of_example)[:-1]
            results |= zip(numbers, np.split(outputs, ends) if head.per_row else outputs, strict=True)
    return [results[number] for number in range(len(encoded))]


def _tokens_of(window: Window) -> tuple[Hashable, ...]:
    """All that an encoder reads of a window."""
    values = None if window.values is None else window.values.tobytes()
    return window.token_ids.tobytes(), window.segment_ids.tobytes(), values


def _join_rows(windows: Sequence[Window]) -> Ints:
    """The rows that at least one of several windows of equal tokens has, ascending."""
    first = windows[0].rows
    if all(window.rows is first for window in windows):
        return first
    return np.unique(np.concatenate([window.rows for window in windows]))


def _run_in_threads(
    run: Callable[[list[int]], _PendingOutputs], batches: Sequence[list[int]], cores: int
) -> Iterator[BatchOutputs]:
    """Yields outputs in order. One batch a core is computed at a time, with one more queued for each."""
    threads, running = one_core_threads(cores), deque[Future[_PendingOutputs]]()
    try:
        for numbers in batches:
            running.append(threads.submit(run, numbers))
            if len(running) > 2 * cores:
                yield _fetch(running.popleft().result())
        while running:
            yield _fetch(running.popleft().result())
    finally:  # after Ctrl-C or an error, or if the caller stops early
        for future in running:
            future.cancel()


def _fetch_one_behind(pending_batches: Iterable[_PendingOutputs]) -> Iterator[BatchOutputs]:
    """Fetches each batch's outputs after the next batch has been started."""
    previous = None
    for pending in pending_batches:
        if previous is not None:
            yield _fetch(previous)
        previous = pending
    if previous is not None:
        yield _fetch(previous)


def _fetch(pending: _PendingOutputs) -> BatchOutputs:
    return BatchOutputs(pending.numbers, pending.layout, require_finite(pending.outputs.cpu()).numpy())
