"""Locks for one writer of a folder and one creator of an index; the system releases them when a
process dies.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertsmith.errors import InputError, ResourceError
from bertsmith.files import is_still, lock, locked_folder, make_folder

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Holds the folder's write lock. Raises InputError naming the process that holds it already,
    ResourceError if the folder can't be written to.

    The file with the writer's process id stays behind, but its lock doesn't: after SIGKILL, a crash or a
    power cut the next writer can take it. Readers take no lock.
    """
    path = Path(folder) / LOCK
    try:
        opened = path.open("a+")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(
            f"{path.parent} can't be written to: {reason}. It can still be searched."
        ) from error
    with opened as file:
        if not lock(file):
            file.seek(0)
            raise InputError(
                f"{folder} is being written to by process {file.read().strip() or 'unknown'}. "
                "Wait until it has ended: there can be one writer at a time."
            )
        if not is_still(path, file.fileno()):
            raise InputError(f"{folder} was removed by another process a moment ago. Run this again.")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def sole_maker(folder: Path) -> Iterator[None]:
    """Holds the lock of the parent folder while an index is created in it; waits if another process holds it.
    Creates the parent folder if it doesn't exist.

    The folder itself is locked, so that no lock file is left in it.
    """
    parent = Path(folder).absolute().parent
    make_folder(parent)
    with locked_folder(parent, wait=True):
        yield
