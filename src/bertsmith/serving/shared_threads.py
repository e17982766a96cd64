"""Threads beside the event loop that keys share, so that one client's flood leaves a thread for the others.

A key has at most `most` of them at a time; there is one more, for another key. The next turn is that of the
key that has the fewest threads, and of several of the one whose last turn was longest ago; of a key, of what
is due first. What is due before its turn comes is refused at that moment. All but the work itself is done by
the event loop.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from bertsmith.model.cpu.one_core_threads import start_one_core_threads

Result = TypeVar("Result")


class SharedThreads:
    """Begun when it is made. `expired` makes what is raised where a deadline passes."""

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
        finally:
            work.leave()

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

    def leave(self) -> None:
        """Nobody waits any more: its texts are held no longer, though its place may be."""
        self.answer.cancel()
        self.call = _nothing


def _nothing() -> None:
    return None
