"""What the C library does with freed memory: where it is glibc it can be asked, elsewhere nothing happens."""

import ctypes
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt(3)


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
