"""The threads of a service: those that compute, one a core and one that has all cores for a request that
comes alone, and those that keys take turns at, for what is slow beside computing.
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
from bertsmith.serving.http_server import give_way
from bertsmith.serving.queue import Batch, Job, WorkQueue

_BUDGET = 384  # tokens of a batch on a core: larger ones are no faster, and a short text waits longer
_FINISHING = 4  # threads of a key: a search waits for a disk more than for a core
Result = TypeVar("Result")


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
                waits = self.queue.size and self.queue.computing < self.cores
                alone = self.queue.computing == 0 and self.queue.waiting_tokens <= self.budget
                if waits and (has_all_cores == alone or self.cores == 1):
                    batch = self.queue.take(self.budget, time.monotonic())
                    if batch is not None:
                        return batch
                self.queue.changed.wait()
            return None


def usual_budget(device: torch.device) -> int:
    """Tokens that are computed together where nobody says how many."""
    return _BUDGET if device.type == "cpu" else usual_batch_tokens(device.type)


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


class SharedThreads:
    """Threads beside the event loop that keys share, so that one client's flood leaves one for the others.

    A key has at most `most` of them at a time; there is one more, for another key. The next turn is that of
    the key that has the fewest threads, and of several of the one whose last turn was longest ago; of a key,
    of what is due first. What is due before its turn comes is refused at that moment. All but the work itself
    is done by the event loop.

    Begun when it is made. `expired` makes what is raised where a deadline passes.
    """

    def __init__(self, most: int, name: str, expired: Callable[[], Exception]) -> None:
        self.most, self._expired = most, expired
        self._threads = start_one_core_threads(most + 1, name)
        self._free = most + 1
        self._busy = Counter[str]()  # threads of each key
        self._waiting = dict[str, list[tuple[float, int, _Work]]]()  # of each key a heap
        self._last = dict[str, int]()  # each key's last turn
        self._numbers = count()

    def stop(self) -> None:
        """Waits for what was begun."""
        self._threads.shutdown()

    async def run(
        self, key: str, deadline: float, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls it in a thread. Raises `expired` as soon as the deadline, of time.monotonic, has passed and
        it was not begun; what was begun is waited for.
        """
        work = _Work(key, deadline, partial(function, *arguments))
        heappush(self._waiting.setdefault(key, []), (deadline, next(self._numbers), work))
        self._give_turns()
        left = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        try:
            await asyncio.wait({work.answer}, timeout=left)
            if not work.begun:
                raise self._expired()
            found: Result = await work.answer
            return found
        finally:  # nobody waits any more: its texts are held no longer, though its place may be
            work.answer.cancel()
            work.call = lambda: None

    def _give_turns(self) -> None:
        while self._free and (work := self._next()) is not None:
            work.begun = True
            self._free -= 1
            self._busy[work.key] += 1
            self._last[work.key] = next(self._numbers)
            self._threads.submit(work.call).add_done_callback(partial(self._tell, work))

    def _next(self) -> "_Work | None":
        """The one whose turn it is, taken out."""
        able = [key for key in self._waiting if self._busy[key] < self.most]
        for key in sorted(able, key=lambda each: (self._busy[each], self._last.get(each, -1))):
            waiting = self._waiting[key]
            while waiting:
                _, _, work = heappop(waiting)
                if not work.answer.done() and work.deadline > time.monotonic():
                    return work
            del self._waiting[key]
        return None

    def _tell(self, work: "_Work", done: "Future[Any]") -> None:
        """From the thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            work.answer.get_loop().call_soon_threadsafe(self._ended, work, done)

    def _ended(self, work: "_Work", done: "Future[Any]") -> None:
        self._free += 1
        self._busy[work.key] -= 1
        if not work.answer.done():
            error = done.exception()
            if error is None:
                work.answer.set_result(done.result())
            else:
                work.answer.set_exception(error)
        self._give_turns()


class _Work:
    """`begun`: a thread has it. `answer` is cancelled where nobody waits for it."""

    def __init__(self, key: str, deadline: float, call: Callable[[], Any]) -> None:
        self.key, self.deadline, self.call = key, deadline, call
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.begun = False
