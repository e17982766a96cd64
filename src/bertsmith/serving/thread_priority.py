"""Threads that compute let the event loop go first."""

import os
import sys
import threading
from contextlib import suppress

_NICENESS = 5


def give_way() -> None:
    """Of the thread that calls it, where Linux can tell threads apart: a refusal is then a matter of a
    millisecond while all cores compute.
    """
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
