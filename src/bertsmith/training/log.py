"""The log of a run: `log.jsonl` is the record, the TensorBoard events beside it are a copy to look at.

Each line is a JSON object with `kind` and `step`, in the order in which things happened:

    start        a process began at this step: time (seconds since 1970, filled in here), versions, ...
    step         phase, loss, mlm_loss, nsp_loss (not without next-sentence prediction; of another objective
                 sop_loss or weighted_rtd_loss), learning_rate, mask_rate (where it changes in the decay),
                 gradient_norm, tokens (real tokens so far), sequences, tokens_per_second, mfu (0..1 of the
                 measured matrix-product speed), elapsed (training seconds so far)
    evaluation   elapsed, tokens, and on held-out text mlm_loss, mlm_perplexity, mlm_accuracy, nsp_accuracy
                 (of another objective sop_… or rtd_…), with general text general_mlm_loss,
                 general_mlm_accuracy and general_mlm_majority on that; or the metrics of the task that is
                 fine-tuned
    phase        sequence_length, from this step on
    checkpoint   one of this step is being written beside the training; it stands a little later, at
                 the latest before the next such line
    warning      message
    end          elapsed, reason

A number that isn't finite is written as null: `NaN` is not JSON, and most readers of JSON refuse it.
"""

import contextlib
import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Self

from bertsmith.errors import InputError
from bertsmith.files import atomic_write

Record = dict[str, Any]

LOG_FILE = "log.jsonl"
EVENTS_FOLDER = "tensorboard"

# Seconds between two step events. Writing one takes about a millisecond of Python, which every step of a tiny
# model would feel; TensorBoard itself shows a thousand points a curve.
EVENTS_INTERVAL = 1.0

# The TensorBoard curve of each number in a line; numbers that aren't here are only in log.jsonl.
TAGS: dict[str, dict[str, str]] = {
    "step": {
        "loss": "train/loss",
        "mlm_loss": "train/mlm_loss",
        "nsp_loss": "train/nsp_loss",
        "sop_loss": "train/sop_loss",
        "weighted_rtd_loss": "train/weighted_rtd_loss",
        "learning_rate": "train/learning_rate",
        "mask_rate": "train/mask_rate",
        "gradient_norm": "train/gradient_norm",
        "tokens": "speed/tokens",
        "tokens_per_second": "speed/tokens_per_second",
        "mfu": "speed/mfu",
    },
    "evaluation": {
        "mlm_loss": "heldout/mlm_loss",
        "mlm_perplexity": "heldout/mlm_perplexity",
        "mlm_accuracy": "heldout/mlm_accuracy",
        "nsp_accuracy": "heldout/nsp_accuracy",
        "sop_accuracy": "heldout/sop_accuracy",
        "rtd_accuracy": "heldout/rtd_accuracy",
        "rtd_recall": "heldout/rtd_recall",
        "general_mlm_loss": "heldout/general_mlm_loss",
        "general_mlm_accuracy": "heldout/general_mlm_accuracy",
    },
}


class RunLog:
    """Writes the log of one run; every line has reached the operating system when `write` returns.

    A line therefore survives the death of the process. Those up to a checkpoint line also survive a loss of
    power, so that the log is never older than the checkpoint from which a run resumes. When an event can't be
    written, the later ones are left out, and `pop_failure` says why.

    folder: the run's folder, made when missing.
    append: False for a new run; True to go on with the log that is there (or to begin one).
    step: with `append`, the step of the checkpoint resumed from. Lines of later steps belong to work that
        was lost and will be done again: they are cut off, so that the log has each step once.
    events_interval: seconds between two TensorBoard events of steps (evaluations are never left out).

    Raises InputError when the folder already has a log and `append` is False, or when its log is damaged
    elsewhere than in its last line.
    """

    def __init__(
        self,
        folder: Path,
        *,
        append: bool = False,
        step: int = 0,
        events_interval: float = EVENTS_INTERVAL,
    ) -> None:
        self.path = Path(folder) / LOG_FILE
        self._events_folder = Path(folder) / EVENTS_FOLDER
        self._events_interval = events_interval
        self._next_events = 0.0
        if self.path.exists() and not append:
            raise InputError(
                f"{self.path} is the log of an earlier run. Resume that run, or choose another folder "
                "for a new one."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            _cut_lines_after(step, self.path)
        self._file: IO[bytes] = self.path.open("ab")
        self._events = EventFile(self._events_folder, step + 1 if append else None)
        self._failure_told = False

    @staticmethod
    def read(folder: Path) -> list[Record]:
        """Reads the lines of the log in a run's `folder`, oldest first. An incomplete last line, which a
        killed run leaves, is skipped.

        Raises InputError when there is no log, or when a line before the last can't be read.
        """
        path = Path(folder) / LOG_FILE
        if not path.exists():
            raise InputError(f"{path} does not exist: {folder} is not the folder of a run.")
        return [record for _, record in _read_lines(path)]

    def write(self, kind: str, step: int, **values: Any) -> Record:
        """Appends one line and returns its record as `read` will return it.

        Values may be plain values, 0-d tensors or NumPy scalars. Raises OSError when the disk is full.
        """
        record: Record = {"kind": kind, "step": step} | as_json_value(values)
        if kind == "start":
            record.setdefault("time", time.time())
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        if kind == "checkpoint":
            os.fsync(self._file.fileno())
        self._write_events(record)
        return record

    def rewind(self, step: int) -> None:
        """Cuts off all lines of steps after `step`, to which the loss guard has taken the run back."""
        self._file.close()
        _cut_lines_after(step, self.path)
        self._file = self.path.open("ab")
        self._events.close()
        if self._events.failure is None:
            self._events = EventFile(self._events_folder, step + 1)

    def pop_failure(self) -> str | None:
        """Returns once why events are no longer written, as a sentence; None otherwise. Lines of the log are
        written all the same.
        """
        if self._failure_told or self._events.failure is None:
            return None
        self._failure_told = True
        return self._events.failure

    def close(self) -> None:
        """Flushes and closes the files; a second call does nothing."""
        self._events.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_events(self, record: Record) -> None:
        tags = TAGS.get(record["kind"])
        if record["kind"] == "evaluation" and "mlm_loss" not in record:
            tags = {name: f"heldout/{name}" for name in task_metrics(record)}
        if tags is None:
            return
        if record["kind"] == "step":
            now = time.monotonic()
            if now < self._next_events:
                return
            self._next_events = now + self._events_interval
        for name, tag in tags.items():
            if record.get(name) is not None:
                self._events.add(tag, record[name], record["step"])


def task_metrics(evaluation: Record) -> dict[str, float | None]:
    """The metrics in an evaluation's record, in the task's order (main metric first); None for one that
    wasn't finite.
    """
    others = ("kind", "step", "elapsed", "tokens")
    return {name: value for name, value in evaluation.items() if name not in others}


def as_json_value(value: Any) -> Any:
    """The value as JSON can hold it: tensors and NumPy scalars become numbers, numbers that aren't finite
    None, paths strings; also inside of lists and dictionaries.
    """
    if isinstance(value, dict):
        return {str(name): as_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _read_lines(path: Path) -> Iterator[tuple[bytes, Record]]:
    """Yields each line with its record, but not an incomplete last one. Raises InputError where another line
    can't be read.
    """
    with path.open("rb") as file:
        unreadable: int | None = None
        for number, line in enumerate(file, start=1):
            if unreadable is not None:
                raise InputError(
                    f"{path}, line {unreadable}: expected one JSON object with `kind` and `step`. "
                    "The log was altered or its disk failed; remove that line to go on."
                )
            record = _parse_line(line)
            if record is None:
                unreadable = number
            else:
                yield line, record


def _parse_line(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:  # not JSON, or not UTF-8
        return None
    if isinstance(record, dict) and "kind" in record and isinstance(record.get("step"), int):
        return record
    return None


def _cut_lines_after(step: int, path: Path) -> None:
    content = b"".join(
        line.rstrip(b"\n") + b"\n" for line, record in _read_lines(path) if record["step"] <= step
    )
    atomic_write(path, content)


class EventFile:
    """Writes scalars to a TensorBoard file of its own in `folder`, which is made when missing. Never raises
    OSError: events are only a copy to look at, and must not stop a run.

    tensorboardX's own writer hands events to a thread that a full disk kills: its queue then fills up, and
    the next event waits for ever. Here each event is written at once; after the first failure no more are.

    purge_from: tells TensorBoard to drop the points of this and later steps in earlier files.
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
        length_checksum, checksum = (struct.pack("<I", masked_crc32c(part)) for part in (length, event))
        record = length + length_checksum + event + checksum
        try:
            if self._file.write(record) != len(record):  # the disk had room for a part of it
                raise OSError("the disk is full")
        except OSError as error:
            self._failure = error
            self.close()
