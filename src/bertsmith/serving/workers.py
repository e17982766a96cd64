"""The threads that compute: one a core, and one that has all cores for a request that comes alone."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any, TypeVar

import torch

from bertsmith.data.batch import usual_batch_tokens
from bertsmith.model.cpu.one_core_threads import start_one_core_threads
from bertsmith.serving.http_server import give_way
from bertsmith.serving.queue import Batch, Job, WorkQueue
from bertsmith.serving.shared_threads import SharedThreads

_BUDGET = (
    384  # tokens of a batch on a core: larger ones are no faster, and a short text waits longer for them
)
_FINISHING = 4  # threads of a key: a search waits for a disk more than for a core

Result = TypeVar("Result")


def usual_budget(device: torch.device) -> int:
    """Tokens that are computed together where nobody says how many."""
    return _BUDGET if device.type == "cpu" else usual_batch_tokens(device.type)


class Workers:
    """On a processor a batch a core, so that none waits for another. A batch that finds all cores idle, and
    nothing behind it, has them all. A GPU has one thread.
    """

    def __init__(self, queue: WorkQueue, device: torch.device, budget: int | None = None) -> None:
        """`budget`: tokens computed together on a core, None for what suits the device."""
        self.queue, self.device = queue, device
        self.budget = budget or usual_budget(device)
        self.cores = torch.get_num_threads() if device.type == "cpu" else 1
        self._stopping = False
        self._one_core: ThreadPoolExecutor | None = None
        self._finishing: SharedThreads | None = None
        self._reading: SharedThreads | None = None
        self._alone = Thread(target=self._work, args=(True,), name="all-cores", daemon=True)

    def start(self) -> None:
        """Begins the threads."""
        self._alone.start()
        self._finishing = SharedThreads(_FINISHING, "finishing", self.queue.expired)
        self._reading = SharedThreads(torch.get_num_threads(), "reading", self.queue.expired)
        if self.cores > 1:
            self._one_core = start_one_core_threads(self.cores, "one-core")
            for _ in range(self.cores):
                self._one_core.submit(self._work, False)

    def stop(self) -> None:
        """Waits for what is being computed; what waits is left. It would hold the event loop."""
        with self.queue.changed:
            self._stopping = True
            self.queue.changed.notify_all()
        self._alone.join()
        for threads in (self._finishing, self._reading):
            if threads is not None:
                threads.stop()
        if self._one_core is not None:
            self._one_core.shutdown()

    async def finish(self, job: Job, kept: list[Any]) -> Any:
        """What is slow to finish, as a search: beside the threads that compute, in turn with other keys'.
        Raises Expired where its deadline passes before a thread begins with it.
        """
        assert self._finishing is not None
        return await self._finishing.run(job.key, job.deadline, job.prepared.finish, kept)

    async def read(
        self, key: str, deadline: float, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """What is slow to read, as a long text that is tokenised: likewise. The deadline holds for what was
        begun, too, which isn't worth waiting for: its thread goes on alone.
        """
        assert self._reading is not None
        left = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        try:
            async with asyncio.timeout(left):
                return await self._reading.run(key, deadline, function, *arguments)
        except TimeoutError:
            raise self.queue.expired() from None

    def _work(self, has_all_cores: bool) -> None:
        give_way()
        while (batch := self._next(has_all_cores)) is not None:
            began = time.monotonic()
            _compute(batch)
            with self.queue.changed:
                beside = self.cores if not has_all_cores else 1
                self.queue.finished(batch, time.monotonic() - began, beside)
                self.queue.changed.notify_all()

    def _next(self, has_all_cores: bool) -> Batch | None:
        """Waits for a batch; None at the end."""
        with self.queue.changed:
            while not self._stopping:
                if self._is_for(has_all_cores):
                    batch = self.queue.take(self.budget, time.monotonic())
                    if batch is not None:
                        return batch
                self.queue.changed.wait()
            return None

    def _is_for(self, has_all_cores: bool) -> bool:
        """Whether what waits is for this kind of thread."""
        if not self.queue.size or self.queue.computing >= self.cores:
            return False
        alone = self.queue.computing == 0 and self.queue.waiting_tokens <= self.budget
        return has_all_cores == alone or self.cores == 1


def _compute(batch: Batch) -> None:
    """An error is of the whole batch at first; then each is computed alone, and only the guilty ones fail."""
    try:
        outputs = batch.run.outputs([each.encoded for each in batch.taken])
    except Exception as error:
        if len(batch.taken) == 1:
            batch.taken[0].job.fail(error)
            return
        for each in batch.taken:
            _compute(Batch(batch.run, [each], each.encoded.tokens))
        return
    for each, output in zip(batch.taken, outputs, strict=True):
        each.job.settle(each.place, output)
