"""Memory, forks and threads of a process that computes on a CPU: how much freed memory the C library keeps
(only glibc can be told), forks of a process with computing threads, which the child lacks, and threads that
compute on one core each and are reused from call to call.
"""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, Lock
from typing import Any

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt(3)
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = Lock()


def keep_freed_memory() -> bool:
    """Asks the C library to keep freed blocks up to 256 MiB for the process. Returns whether it agreed.

    Otherwise blocks over 32 MB go back to the system at once, and the next step has a page fault for each of
    their 4 kB pages: for a BERT-mini step's vocabulary buffer alone that takes about 20 ms.
    """
    mallopt = _find_c_function("mallopt")
    return bool(mallopt and mallopt(_MMAP_THRESHOLD, 1 << 28) and mallopt(_TRIM_THRESHOLD, 1 << 29))


def give_back_memory() -> bool:
    """Gives freed pages back to the system, as after a model was converted to another one.

    Returns whether there were any.
    """
    trim = _find_c_function("malloc_trim")
    return bool(trim and trim(0))


def _find_c_function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


@cache
def compute_alone_after_fork() -> None:
    """Makes children of os.fork compute in one thread from now on. A parallel operation, torch's own too,
    would wait for ever for the parent's threads, which a child lacks. Windows has no fork.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def one_core_threads(count: int) -> ThreadPoolExecutor:
    """A pool of `count` threads that compute on one core each: started at the first call, the same at every
    further one.
    """
    with _lock:
        if count not in _pools:
            _pools[count] = start_one_core_threads(count, "forward-pass")
        return _pools[count]


def start_one_core_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Starts a pool of `count` threads with this name that compute on one core each.

    torch has a number of threads for each thread, and one for new threads: setting the first sets the second
    too. So all threads are started now, and then the number for new threads is set back.
    """
    thread_count = torch.get_num_threads()
    everyone = Barrier(count + 1)
    threads = ThreadPoolExecutor(count, name, _use_one_core)
    try:
        for _ in range(count):
            threads.submit(everyone.wait)
        everyone.wait()
    except BaseException:  # Ctrl-C may come while they wait
        everyone.abort()
        threads.shutdown(cancel_futures=True)
        raise
    finally:
        torch.set_num_threads(thread_count)
    return threads


def _use_one_core() -> None:
    torch.get_num_threads()  # otherwise torch would set this thread's number later, to the default
    torch.set_num_threads(1)


def _forget_threads() -> None:
    """Drops the pools in a forked process, which has none of its parent's threads."""
    global _lock
    _pools.clear()
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
