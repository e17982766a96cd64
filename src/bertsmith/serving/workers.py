"""The threads of a service.

One thread a core computes batches; one thread with all cores computes a request that comes alone. Other slow
work (reading long texts, searching an index) runs in threads that the keys share fairly.
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
from threading import Condition, Thread
from typing import Any, TypeVar

import torch

from bertsmith.data.batch import usual_batch_tokens
from bertsmith.model.cpu.process import start_one_core_threads
from bertsmith.serving.http_server import lower_thread_priority
from bertsmith.serving.queue import Job, JobBatch, WorkQueue

_CPU_TOKENS = 384  # tokens of a batch on a core: larger ones are no faster, and a short text waits longer
_FINISHING_THREADS = 4  # of a key: a search waits for a disk more than for a core
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
        # One condition for each kind of thread, so that a change wakes a thread that may begin and no other:
        # whoever wakes takes the GIL, for which the event loop then waits.
        self._all_cores_turn, self._one_core_turn = Condition(queue.lock), Condition(queue.lock)
        queue.on_change = self._wake_thread
        self._one_core_threads: ThreadPoolExecutor | None = None
        self._finishing_threads: SharedThreads | None = None
        self._reading_threads: SharedThreads | None = None
        self._all_cores_thread = Thread(
            target=self._compute_batches, args=(True,), name="all-cores", daemon=True
        )

    def start(self) -> None:
        """Starts the computing threads and the shared threads. Call it once, before any other method."""
        self._all_cores_thread.start()
        self._finishing_threads = SharedThreads(
            _FINISHING_THREADS, "finishing", self.queue.make_deadline_error
        )
        self._reading_threads = SharedThreads(
            torch.get_num_threads(), "reading", self.queue.make_deadline_error
        )
        if self.cores > 1:
            self._one_core_threads = start_one_core_threads(self.cores, "one-core")
            for _ in range(self.cores):
                self._one_core_threads.submit(self._compute_batches, False)

    def stop(self) -> None:
        """Waits for the batches in progress and drops those that wait. Blocks: don't call it in the event
        loop.
        """
        with self.queue.lock:
            self._stopping = True
            self._all_cores_turn.notify_all()
            self._one_core_turn.notify_all()
        self._all_cores_thread.join()
        for threads in (self._finishing_threads, self._reading_threads):
            if threads is not None:
                threads.stop()
        if self._one_core_threads is not None:
            self._one_core_threads.shutdown()

    async def finish(self, job: Job, outputs: list[Any]) -> Any:
        """Finishes a request whose last step is slow, such as a search, in a shared thread.
        Raises DeadlineError if its deadline passes before a thread begins with it.
        """
        assert self._finishing_threads is not None
        return await self._finishing_threads.run(job.key, job.deadline, job.prepared.finish, outputs)

    async def run_in_reading_thread(
        self, key: str, deadline: float, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls a slow reader, such as the tokeniser of a long text, in a shared thread. Raises DeadlineError
        if it isn't done by the deadline; a call that has begun goes on, its result is dropped.
        """
        assert self._reading_threads is not None
        timeout = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        try:
            async with asyncio.timeout(timeout):
                return await self._reading_threads.run(key, deadline, function, *arguments)
        except TimeoutError:
            raise self.queue.make_deadline_error() from None

    def _compute_batches(self, has_all_cores: bool) -> None:
        """Takes and computes batches until the service stops: what a computing thread runs."""
        lower_thread_priority()
        while (batch := self._wait_for_batch(has_all_cores)) is not None:
            began = time.monotonic()
            _compute_batch(batch)
            with self.queue.lock:
                at_a_time = self.cores if not has_all_cores else 1
                self.queue.finish_batch(batch, time.monotonic() - began, at_a_time)

    def _wait_for_batch(self, has_all_cores: bool) -> JobBatch | None:
        """Waits for the next batch that this thread should compute; None once the service stops."""
        own_turn = self._all_cores_turn if has_all_cores else self._one_core_turn
        with self.queue.lock:
            while not self._stopping:
                if self._find_turn() is own_turn:
                    batch = self.queue.take(self.budget, time.monotonic())
                    self._wake_thread()  # what is left may be another thread's
                    if batch is not None:
                        return batch
                else:
                    self._wake_thread()  # this one was woken too late, or by the end of its own batch
                    own_turn.wait()
            return None

    def _wake_thread(self) -> None:
        """Wakes a thread that may take a batch now, if there is one. Call it under the lock."""
        if (turn := self._find_turn()) is not None:
            turn.notify()

    def _find_turn(self) -> Condition | None:
        """The condition for which those threads wait that may take a batch now; None if none may."""
        if not self.queue.size or self.queue.computing >= self.cores:
            return None
        is_alone = self.queue.computing == 0 and self.queue.waiting_tokens <= self.budget
        return self._all_cores_turn if is_alone or self.cores == 1 else self._one_core_turn


def default_batch_tokens(device: torch.device) -> int:
    """The default number of tokens that are computed together on this device."""
    return _CPU_TOKENS if device.type == "cpu" else usual_batch_tokens(device.type)


def _compute_batch(batch: JobBatch) -> None:
    """Computes a batch. If it fails, each sequence is computed alone, so that only those that cause it
    fail.
    """
    try:
        outputs = batch.compute_outputs()
    except Exception as error:
        if len(batch.sequences) == 1:
            batch.sequences[0].job.fail(error)
            return
        for sequence in batch.sequences:
            _compute_batch(JobBatch([sequence], sequence.encoded.tokens))
        return
    for sequence, output in zip(batch.sequences, outputs, strict=True):
        sequence.job.settle(sequence.position, output)


class SharedThreads:
    """A thread pool that keys share, so that one client's flood leaves a thread for the others.

    A key has at most `most` threads at a time; the pool has one more, for another key. The next turn goes to
    the key with the fewest threads, among equals to the one whose last turn was longest ago, and within a key
    to the call with the earliest deadline. A call whose deadline passes before its turn is refused at that
    moment. All bookkeeping is done in the event loop. The constructor starts the threads.
    `make_deadline_error` makes the exception for a deadline that has passed.
    """

    def __init__(self, most: int, name: str, make_deadline_error: Callable[[], Exception]) -> None:
        self.most, self._make_deadline_error = most, make_deadline_error
        self._threads = start_one_core_threads(most + 1, name)
        self._free_threads = most + 1
        self._threads_of_key = Counter[str]()
        self._waiting = dict[str, list[tuple[float, int, _ThreadCall]]]()  # a heap for each key
        self._last_turn = dict[str, int]()  # the number of each key's last turn
        self._numbers = count()

    def stop(self) -> None:
        """Waits for the calls that have begun and ends the threads."""
        self._threads.shutdown()

    async def run(
        self, key: str, deadline: float, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls `function` in a thread and returns its result. Raises the deadline error as soon as the
        deadline (by time.monotonic) passes before the call has begun; a call that has begun is waited for.
        """
        call = _ThreadCall(key, deadline, partial(function, *arguments))
        heappush(self._waiting.setdefault(key, []), (deadline, next(self._numbers), call))
        self._start_calls()
        timeout = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        try:
            await asyncio.wait({call.future}, timeout=timeout)
            if not call.begun:
                raise self._make_deadline_error()
            result: Result = await call.future
            return result
        finally:  # nobody waits any more: the heap may hold the call, but not its texts
            call.future.cancel()
            call.function = lambda: None

    def _start_calls(self) -> None:
        """Starts waiting calls as long as a thread is free."""
        while self._free_threads and (call := self._pop_next_call()) is not None:
            call.begun = True
            self._free_threads -= 1
            self._threads_of_key[call.key] += 1
            self._last_turn[call.key] = next(self._numbers)
            self._threads.submit(call.function).add_done_callback(partial(self._report_end, call))

    def _pop_next_call(self) -> "_ThreadCall | None":
        """Removes and returns the call whose turn it is, None if none may start."""
        keys = [key for key in self._waiting if self._threads_of_key[key] < self.most]
        for key in sorted(keys, key=lambda name: (self._threads_of_key[name], self._last_turn.get(name, -1))):
            waiting = self._waiting[key]
            while waiting:
                _, _, call = heappop(waiting)
                if not call.future.done() and call.deadline > time.monotonic():
                    return call
            del self._waiting[key]
        return None

    def _report_end(self, call: "_ThreadCall", done: "Future[Any]") -> None:
        """Tells the event loop, from the thread, that a call has ended."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            call.future.get_loop().call_soon_threadsafe(self._finish_call, call, done)

    def _finish_call(self, call: "_ThreadCall", done: "Future[Any]") -> None:
        """Frees the thread of a call that has ended, and passes its outcome on, in the event loop."""
        self._free_threads += 1
        self._threads_of_key[call.key] -= 1
        if not call.future.done():
            error = done.exception()
            if error is None:
                call.future.set_result(done.result())
            else:
                call.future.set_exception(error)
        self._start_calls()


class _ThreadCall:
    """A call that waits for a thread or runs in one (`begun`). `future` gets its result, and is cancelled if
    nobody waits for it.
    """

    def __init__(self, key: str, deadline: float, function: Callable[[], Any]) -> None:
        self.key, self.deadline, self.function = key, deadline, function
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.begun = False
