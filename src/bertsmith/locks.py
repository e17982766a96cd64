"""Locks on files and folders that the system itself lets go of when their process dies.

By flock(2). Windows has none, nor have some file systems of networks: there nobody is kept out.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from bertsmith.files import can_open_folders

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def lock(file: int | TextIO, wait: bool = False) -> bool:
    """Whether this process has the file, or the folder of a descriptor, for itself until it closes it. With
    `wait` it comes back only when it has.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a network's file system may lock nothing, or no folders
        return True
    return True


def is_still(path: Path, descriptor: int) -> bool:
    """Whether that is still what the name stands for. A lock on what was removed keeps nobody out."""
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


@contextmanager
def locked_folder(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Whether this process has the folder itself for the block: no file is left in it. A folder that another
    process has removed meanwhile is nobody's.
    """
    if not can_open_folders():
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield lock(descriptor, wait) and is_still(folder, descriptor)
    finally:
        os.close(descriptor)
