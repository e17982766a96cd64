"""Writes records as JSON lines: a file appears when it is complete, a pipe gets each record at once."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import printable
from bertsmith.files import is_standard_output, is_stream, output_file


def write_jsonl(records: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Writes one JSON object per line, drawing records one at a time; '-' is standard output.

    Returns the number of records. A file appears under its name only when the last record is written: an
    error in `records` leaves the old file, or none. Pipes, devices and standard output are flushed after each
    record, so that their reader gets it at once. A lone surrogate, which UTF-8 can't encode, is written as
    its escape (\\ud83d). Raises ValueError for NaN and infinity, which JSON doesn't have, and InputError when
    the file can't be written.
    """
    if is_standard_output(path):
        return _write(records, lambda line: sys.stdout.write(line.decode()), sys.stdout.flush)
    with output_file(path) as file:
        return _write(records, file.write, file.flush if is_stream(path) else None)


def _write(
    records: Iterable[Mapping[str, Any]], write: Callable[[bytes], object], flush: Callable[[], None] | None
) -> int:
    count = 0
    for record in records:
        line = printable(json.dumps(record, ensure_ascii=False, allow_nan=False)) + "\n"
        write(line.encode(errors="backslashreplace"))
        if flush is not None:
            flush()
        count += 1
    return count
