"""Worker processes that keep order, bound what is in flight, and never outlive their parent."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bertsmith.errors import ResourceError

Result = TypeVar("Result")
IN_FLIGHT = 2  # tasks a worker: one at work, one waiting


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Result]:
    """function(*task) for each task, in their order, over `workers` processes; one worker is this process.

    Tasks are drawn as results are taken, so at most 2 x workers + 1 are in memory. Processes are spawned, not
    forked: a fork copies locks that threads of torch or tokenizers may hold.
    """
    if workers == 1:
        for task in tasks:
            yield function(*task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_follow_parent) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(function, *task))
                if len(waiting) >= IN_FLIGHT * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise ResourceError(
                "A worker process ended early, probably because memory ran out. Try fewer workers "
                "(--workers 1). In a script of your own, call this below `if __name__ == '__main__':`."
            ) from error
        finally:
            for future in waiting:
                future.cancel()


def _follow_parent() -> None:
    """Leaves Ctrl-C and a terminal that closes to the parent, and ends this worker should that be killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
