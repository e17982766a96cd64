"""The threads of a service: one a core for batches, one with all cores for a request that comes alone, and
shared threads for slow work that isn't computing, which keys use in turn.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from threading import Thread
from typing import Any, TypeVar

import torch

from bertsmith.data.batch import usual_batch_tokens
from bertsmith.model.cpu.process import start_one_core_threads
from bertsmith.serving.http_server import lower_thread_priority
from bertsmith.serving.queue import Job, JobBatch, WorkQueue

_CPU_TOKENS = 384  # tokens of a batch on a core: larger ones are no faster, and a short text waits longer
_FINISHING = 4  # threads of a key: a search waits for a disk more than for a core
Result = TypeVar("Result")


class Workers:
    """The threads that compute batches. On a CPU each core computes its own batch, so that none waits for
    another; a batch that finds all cores idle and an empty queue gets all of them. A GPU has one thread.
    """

    def __init__(self, queue: WorkQueue, device: torch.device, budget: int | None = None) -> None:
        """`budget`: tokens computed together on a core, None for what suits the device."""
        self.queue, self.device = queue, device
        self.budget = budget or default_batch_tokens(device)
        self.cores = torch.get_num_threads() if device.type == "cpu" else 1
        self._stopping = False
        self._one_core: ThreadPoolExecutor | None = None
        self._finishing: SharedThreads | None = None
        self._reading: SharedThreads | None = None
        self._alone = Thread(target=self._work, args=(True,), name="all-cores", daemon=True)

    def start(self) -> None:
        """Starts all threads."""
        self._alone.start()
        self._finishing = SharedThreads(_FINISHING, "finishing", self.queue.make_deadline_error)
        self._reading = SharedThreads(torch.get_num_threads(), "reading", self.queue.make_deadline_error)
        if self.cores > 1:
            self._one_core = start_one_core_threads(self.cores, "one-core")
            for _ in range(self.cores):
                self._one_core.submit(self._work, False)

    def stop(self) -> None:
        """Waits for the batches in progress and drops those that wait. Blocks: don't call it in the event
        loop.
        """
        with self.queue.changed:
            self._stopping = True
            self.queue.changed.notify_all()
        self._alone.join()
        for threads in (self._finishing, self._reading):
            if threads is not None:
                threads.stop()
        if self._one_core is not None:
            self._one_core.shutdown()

    async def finish(self, job: Job, outputs: list[Any]) -> Any:
        """Finishes a request whose last step is slow, such as a search, in a shared thread.
        Raises DeadlineError if its deadline passes before a thread begins with it.
        """
        assert self._finishing is not None
        return await self._finishing.run(job.key, job.deadline, job.prepared.finish, outputs)

    async def read(
        self, key: str, deadline: float, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls a slow reader, such as the tokeniser of a long text, in a shared thread. Raises DeadlineError
        if it isn't done by the deadline; a call that has begun goes on, its result is dropped.
        """
        assert self._reading is not None
        left = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        try:
            async with asyncio.timeout(left):
                return await self._reading.run(key, deadline, function, *arguments)
        except TimeoutError:
            raise self.queue.make_deadline_error() from None

    def _work(self, has_all_cores: bool) -> None:
        lower_thread_priority()
        while (batch := self._next(has_all_cores)) is not None:
            began = time.monotonic()
            _compute_batch(batch)
            with self.queue.changed:
                beside = self.cores if not has_all_cores else 1
                self.queue.finish_batch(batch, time.monotonic() - began, beside)
                self.queue.changed.notify_all()

    def _next(self, has_all_cores: bool) -> JobBatch | None:
        """Waits for the next batch; None once the service stops."""
        with self.queue.changed:
            while not self._stopping:
                waits = self.queue.size and self.queue.computing < self.cores
                alone = self.queue.computing == 0 and self.queue.waiting_tokens <= self.budget
                if waits and (has_all_cores == alone or self.cores == 1):
                    batch = self.queue.take(self.budget, time.monotonic())
                    if batch is not None:
                        return batch
                self.queue.changed.wait()
            return None


def default_batch_tokens(device: torch.device) -> int:
    """The tokens that are computed together on this device by default."""
    return _CPU_TOKENS if device.type == "cpu" else usual_batch_tokens(device.type)


def _compute_batch(batch: JobBatch) -> None:
    """Computes a batch. If it fails, each sequence is computed alone, so that only the guilty ones fail."""
    try:
        outputs = batch.run.compute_outputs([sequence.encoded for sequence in batch.sequences])
    except Exception as error:
        if len(batch.sequences) == 1:
            batch.sequences[0].job.fail(error)
            return
        for sequence in batch.sequences:
            _compute_batch(JobBatch(batch.run, [sequence], sequence.encoded.tokens))
        return
    for sequence, output in zip(batch.sequences, outputs, strict=True):
        sequence.job.settle(sequence.index, output)


class SharedThreads:
    """A thread pool that keys share, so that one client's flood leaves a thread for the others.

    A key has at most `most` threads at a time; the pool has one more, for another key. The next turn goes to
    the key with the fewest threads, among equals to the one whose last turn was longest ago, and within a key
    to the call with the earliest deadline. A call whose deadline passes before its turn is refused at that
    moment. The event loop does all bookkeeping. The threads start with the object. `expired` makes the
    exception for a deadline that has passed.
    """

    def __init__(self, most: int, name: str, expired: Callable[[], Exception]) -> None:
        self.most, self._expired = most, expired
        self._threads = start_one_core_threads(most + 1, name)
        self._free = most + 1
        self._busy = Counter[str]()  # threads of each key
        self._waiting = dict[str, list[tuple[float, int, _ThreadCall]]]()  # of each key a heap
        self._last_turn = dict[str, int]()  # each key's last turn
        self._numbers = count()

    def stop(self) -> None:
        """Waits for the calls that have begun and ends the threads."""
        self._threads.shutdown()

    async def run(
        self, key: str, deadline: float, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls `function` in a thread and returns its result. Raises `expired` as soon as the deadline (by
        time.monotonic) passes before the call has begun; a call that has begun is waited for.
        """
        work = _ThreadCall(key, deadline, partial(function, *arguments))
        heappush(self._waiting.setdefault(key, []), (deadline, next(self._numbers), work))
        self._give_turns()
        left = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        try:
            await asyncio.wait({work.answer}, timeout=left)
            if not work.begun:
                raise self._expired()
            result: Result = await work.answer
            return result
        finally:  # nobody waits any more: its texts are held no longer, though its place may be
            work.answer.cancel()
            work.call = lambda: None

    def _give_turns(self) -> None:
        while self._free and (work := self._next()) is not None:
            work.begun = True
            self._free -= 1
            self._busy[work.key] += 1
            self._last_turn[work.key] = next(self._numbers)
            self._threads.submit(work.call).add_done_callback(partial(self._report_end, work))

    def _next(self) -> "_ThreadCall | None":
        """Removes and returns the call whose turn it is."""
        able = [key for key in self._waiting if self._busy[key] < self.most]
        for key in sorted(able, key=lambda name: (self._busy[name], self._last_turn.get(name, -1))):
            waiting = self._waiting[key]
            while waiting:
                _, _, work = heappop(waiting)
                if not work.answer.done() and work.deadline > time.monotonic():
                    return work
            del self._waiting[key]
        return None

    def _report_end(self, work: "_ThreadCall", done: "Future[Any]") -> None:
        """Tells the event loop, from the thread, that a call has ended."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            work.answer.get_loop().call_soon_threadsafe(self._finish_call, work, done)

    def _finish_call(self, work: "_ThreadCall", done: "Future[Any]") -> None:
        self._free += 1
        self._busy[work.key] -= 1
        if not work.answer.done():
            error = done.exception()
            if error is None:
                work.answer.set_result(done.result())
            else:
                work.answer.set_exception(error)
        self._give_turns()


class _ThreadCall:
    """A call that waits for a thread or runs in one (`begun`). `answer` is cancelled if nobody waits for
    it.
    """

    def __init__(self, key: str, deadline: float, call: Callable[[], Any]) -> None:
        self.key, self.deadline, self.call = key, deadline, call
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.begun = False
