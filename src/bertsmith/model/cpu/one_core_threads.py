"""Threads of this process that compute on one core each, kept from call to call.

Cores that share a batch wait for each other at every operation, hundreds of times; with one of its own none
waits.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import torch

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = Lock()


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
