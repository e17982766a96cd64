"""A process that was forked off one whose model has computed: it has none of the threads that did."""

import os
from functools import cache

import torch


@cache
def compute_alone_after_fork() -> None:
    """From now on children of os.fork compute in one thread. What the parent's threads were to share would
    wait for them for ever, by torch's own operations too. Windows has no fork.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
