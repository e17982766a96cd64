"""TensorBoard's events of a run: a copy to look at, which never holds the run up, whatever the disk does.

tensorboardX's own writer hands events to a thread, and a full disk kills that thread: its queue then fills,
and the next event waits for ever. Here each event is written at once, and the first that can't be written is
the last.
"""

import contextlib
import socket
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO


class EventFile:
    """Scalars in a file of their own in `folder`, which is made when missing. Nothing here raises OSError.

    purge_from: TensorBoard is told to forget the points of this step and later ones, from earlier files.
    """

    def __init__(self, folder: Path, purge_from: int | None) -> None:
        from tensorboardX.proto.event_pb2 import SessionLog  # takes a second to import

        # Without nanoseconds, two short runs within one second would share a file: the second would empty it.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{time.time_ns()}"
        self._path = folder / name
        self._file: BinaryIO | None = None
        self._failure: OSError | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb", buffering=0)  # nothing is left over for `close` to fail on
        except OSError as error:
            self._failure = error
        self._write(file_version="brain.Event:2")
        if purge_from is not None:
            self._write(step=purge_from, session_log=SessionLog(status=SessionLog.START))

    def add(self, tag: str, value: float, step: int) -> None:
        """Adds a point to the curve `tag`, or nothing once a write has failed."""
        from tensorboardX.summary import scalar

        self._write(step=step, summary=scalar(tag, value))

    @property
    def failure(self) -> str | None:
        """Why no more events are written, as a sentence; None while they are."""
        if self._failure is None:
            return None
        reason = self._failure.strerror or self._failure
        return (
            f"{self._path} can't be written ({reason}): TensorBoard shows no more of this run until it is "
            "resumed"
        )

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        if self._file is None:
            return
        event = Event(wall_time=time.time(), **content).SerializeToString()
        length = struct.pack("<Q", len(event))
        record = length + _checksum(masked_crc32c(length)) + event + _checksum(masked_crc32c(event))
        try:
            if self._file.write(record) != len(record):  # the disk had room for a part of it
                raise OSError("the disk is full")
        except OSError as error:
            self._failure = error
            self.close()


def _checksum(value: int) -> bytes:
    return struct.pack("<I", value)
