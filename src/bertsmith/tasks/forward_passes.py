"""Many examples without gradients: sorted by length, packed, a batch for each core. What was computed is
looked at before anybody believes it, for finite weights can have values that are not.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch, usual_batch_tokens
from bertsmith.errors import NotFinite
from bertsmith.model.cpu.onednn_layer import ROWS
from bertsmith.model.cpu.onednn_matmul import FEWEST_TOKENS, fast_products
from bertsmith.model.cpu.process import one_core_threads
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, pack_examples

_BATCH_TOKENS = 640  # of a core: 1,024 are one per cent faster and hold 40 MB more
_BATCHES = 4  # of a core at least, where there is enough for them: else one has more than the others
Compute = Callable[[PackedBatch, Layout], Tensor]


def require_finite(values: Tensor) -> Tensor:
    """The values as they are. Raises NotFinite where one is infinite or NaN."""
    if not bool(values.isfinite().all()):
        raise NotFinite(
            "The model was expected to give finite values, but they overflow: its weights are too large or "
            "damaged. Take another copy of it or, if it was trained so, train again at a lower learning rate."
        )
    return values


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards, also after an error, in the mode that it was in.

    One that is in evaluation mode stays as it is: to walk through its modules takes a tenth of the time of a
    text that a small model answers alone.
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
    """What was computed of a batch, on the host, with its examples' numbers and how they lay in it."""

    numbers: list[int]
    layout: Layout
    found: npt.NDArray[Any]


def forward_passes(
    compute: Compute, encoded: Sequence[EncodedExample], device: torch.device, batch_tokens: int | None = None
) -> Iterator[BatchOutputs]:
    """What `compute` makes of each batch, without gradients. Longest examples come first.

    A batch has examples of at most `batch_tokens` together, at least one: 640 by default, 32,768 on a GPU.
    On a processor each core gets four or more, unless they would be small, and several threads call `compute`
    at a time. Which examples a batch has changes the last bits only, by the kernels not even them. Raises
    NotFinite.
    """
    tokens = batch_tokens or usual_forward_tokens(device)
    on_cpu = device.type == "cpu"
    lengths = [each.tokens for each in encoded]
    if on_cpu and (total := sum(lengths)) > tokens:
        each = total // (_BATCHES * torch.get_num_threads())
        tokens = min(tokens, max(FEWEST_TOKENS, each))
    batches = list(batches_by_length(lengths, tokens))
    run = partial(_run, compute, encoded, device)
    if not on_cpu:  # a GPU computes a batch while the next one is packed
        yield from _one_behind(map(run, batches))
        return
    cores = torch.get_num_threads()
    with _CALLS.counted() as calls:
        if tokens >= FEWEST_TOKENS and min(cores, len(batches)) > 1:
            # The setting of products is the process's. Each batch for itself, a small one would have it when
            # a large one happens to be at work beside it, and so other last bits from call to call.
            with fast_products():
                yield from _by_threads(run, batches, cores)
        elif calls > 1:  # callers in several threads: each with all cores, they would wait for one another
            yield from _by_threads(run, batches, cores)
        else:
            yield from map(_on_host, map(run, batches))


class _Calls:
    """How many threads of the process are at `forward_passes`."""

    def __init__(self) -> None:
        self._lock, self._count = Lock(), 0

    @contextmanager
    def counted(self) -> Iterator[int]:
        """With this one."""
        with self._lock:
            self._count += 1
            count = self._count
        try:
            yield count
        finally:
            with self._lock:
                self._count -= 1


_CALLS = _Calls()


def usual_forward_tokens(device: torch.device) -> int:
    """Tokens of a batch where nobody says how many."""
    return _BATCH_TOKENS if device.type == "cpu" else usual_batch_tokens(device.type)


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of examples of so many tokens each, longest first, as many at a time as have at most
    `batch_tokens`, at least one.
    """
    held: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if held and tokens + lengths[number] > batch_tokens:
            yield held
            held, tokens = [], 0
        held.append(number)
        tokens += lengths[number]
    if held:
        yield held


class _PendingOutputs(NamedTuple):
    """As `BatchOutputs`, while a GPU may still be at it."""

    numbers: list[int]
    layout: Layout
    found: Tensor


def forward_pass(compute: Compute, encoded: Sequence[EncodedExample], device: torch.device) -> BatchOutputs:
    """What `compute` makes of one batch, in this thread, without gradients. Raises NotFinite."""
    return _on_host(_run(compute, encoded, device, list(range(len(encoded)))))


def _run(
    compute: Compute, encoded: Sequence[EncodedExample], device: torch.device, numbers: list[int]
) -> _PendingOutputs:
    part = [encoded[number] for number in numbers]
    batch, layout = packed_batch(part, numbers, device), Layout(part, device)
    with torch.inference_mode(), fast_products(len(batch.token_ids)):
        return _PendingOutputs(numbers, layout, compute(batch, layout))


def packed_batch(
    encoded: Sequence[EncodedExample], numbers: Sequence[int], device: torch.device
) -> PackedBatch:
    """Examples by their numbers, on the device."""
    multiple = ROWS if device.type == "cpu" else 1  # else each packed product fills its rows up, by a copy
    return PackedBatch.of(pack_examples(encoded, numbers), device, multiple)


def _by_threads(
    run: Callable[[list[int]], _PendingOutputs], batches: Sequence[list[int]], cores: int
) -> Iterator[BatchOutputs]:
    """In order, a batch a core at a time, and one more for each that is done early."""
    threads, begun = one_core_threads(cores), deque[Future[_PendingOutputs]]()
    try:
        for numbers in batches:
            begun.append(threads.submit(run, numbers))
            if len(begun) > 2 * cores:
                yield _on_host(begun.popleft().result())
        while begun:
            yield _on_host(begun.popleft().result())
    finally:  # after Ctrl-C or an error, and where nobody asks for the rest
        for each in begun:
            each.cancel()


def _one_behind(computing: Iterable[_PendingOutputs]) -> Iterator[BatchOutputs]:
    """Each is fetched when the next one is under way."""
    before = None
    for each in computing:
        if before is not None:
            yield _on_host(before)
        before = each
    if before is not None:
        yield _on_host(before)


def _on_host(computed: _PendingOutputs) -> BatchOutputs:
    return BatchOutputs(computed.numbers, computed.layout, require_finite(computed.found.cpu()).numpy())
