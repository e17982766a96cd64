"""What a process that computes on a CPU does with memory, forks and threads: what the C library keeps of
freed memory (glibc can be asked, elsewhere nothing happens), a fork of a process whose threads computed,
which has none of them, and threads that compute on one core each, kept from call to call.
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


def keep_memory() -> bool:
    """Asks for freed blocks up to 256 MiB to stay with the process between steps. True when it agreed.

    Blocks over 32 MB go straight back to the system otherwise, and the next step pays a page fault for each
    of their 4 kB pages: a BERT-mini step's vocabulary buffer alone costs about 20 ms that way.
    """
    mallopt = _function("mallopt")
    return bool(mallopt and mallopt(_MMAP_THRESHOLD, 1 << 28) and mallopt(_TRIM_THRESHOLD, 1 << 29))


def give_back_memory() -> bool:
    """Gives freed pages back to the system, such as a model leaves behind that was made into another one.

    True if there were any.
    """
    trim = _function("malloc_trim")
    return bool(trim and trim(0))


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


@cache
def compute_alone_after_fork() -> None:
    """From now on children of os.fork compute in one thread. What the parent's threads were to share would
    wait for them for ever, by torch's own operations too. Windows has no fork.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def one_core_threads(count: int) -> ThreadPoolExecutor:
    """`count` of them: the same ones at every call, begun at the first."""
    with _lock:
        if count not in _pools:
            _pools[count] = start_one_core_threads(count, "forward-pass")
        return _pools[count]


def start_one_core_threads(count: int, name: str) -> ThreadPoolExecutor:
    """`count` new ones of this name.

    torch has a number of threads for each thread, and one that new threads begin with: setting one sets the
    other too, so all threads are begun now, and the number for new ones is as before.
    """
    usual = torch.get_num_threads()
    everyone = Barrier(count + 1)
    threads = ThreadPoolExecutor(count, name, _on_one_core)
    try:
        for _ in range(count):
            threads.submit(everyone.wait)
        everyone.wait()
    except BaseException:  # Ctrl-C may come while they wait
        everyone.abort()
        threads.shutdown(cancel_futures=True)
        raise
    finally:
        torch.set_num_threads(usual)
    return threads


def _on_one_core() -> None:
    torch.get_num_threads()  # else torch would set the number later, to what it is then
    torch.set_num_threads(1)


def _forget() -> None:
    """A forked process has none of its parent's threads."""
    global _lock
    _pools.clear()
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
