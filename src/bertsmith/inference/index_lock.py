"""One writer at a time: a lock that the system itself lets go of when its process dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from bertsmith.errors import InputError, ResourceError

LOCK = ".lock"


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Raises InputError naming the process that is writing to the index already, ResourceError if none may.

    The file with the writer's number stays behind, its lock doesn't: after SIGKILL, a crash or a power cut
    the next writer finds it free. Readers take no lock.
    """
    with _opened(Path(folder) / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise InputError(
                f"{folder} is being written to by process {file.read().strip() or 'unknown'}. "
                "Wait until it has ended: an index has one writer and any number of readers."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a+")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(
            f"{path.parent} can't be written to: {reason}. It can still be searched."
        ) from error
