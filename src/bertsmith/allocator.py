"""Keeps large blocks of memory with the process between steps.

The C library hands blocks over 32 MB straight back to the system, and the next step pays a page fault for
each of their 4 kB pages: a BERT-mini step's vocabulary buffer alone costs about 20 ms that way.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt(3)


def keep_memory() -> bool:
    """Asks glibc to keep freed blocks up to 256 MiB. True when it agreed; elsewhere nothing happens."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 28)) and bool(mallopt(_TRIM_THRESHOLD, 1 << 29))
