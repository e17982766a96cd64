"""Records as JSON lines, to a file that is whole or absent, or to standard output as they come."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from bertsmith.errors import InputError
from bertsmith.files import flush
from bertsmith.terminal import printable


def write_jsonl(records: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Writes one JSON object a line, taking records one at a time; '-' is standard output. Returns how many.

    A file appears under its name only when the last record is written: an error in `records` leaves the old
    file, or none. Standard output is flushed after each record, so that a pipe's reader has it at once.
    Half of a UTF-16 pair, which UTF-8 can't hold, is written as its escape (\\ud83d), as it will have been
    read. NaN and infinity are a ValueError, for JSON has neither. Raises InputError when the file can't be
    made.
    """
    if str(path) == "-":
        return _write(records, sys.stdout, at_once=True)
    with _whole_or_absent(Path(path)) as file:
        return _write(records, file, at_once=False)


def require_writable(path: str | Path) -> None:
    """Raises InputError, before the work of hours is lost, when `write_jsonl` couldn't make the file."""
    if str(path) != "-":
        partial, file = _open_partial(Path(path))
        file.close()
        partial.unlink()


def _write(records: Iterable[Mapping[str, Any]], file: TextIO, at_once: bool) -> int:
    count = 0
    for record in records:
        line = printable(json.dumps(record, ensure_ascii=False, allow_nan=False)) + "\n"
        file.write(line.encode(errors="backslashreplace").decode())
        if at_once:
            file.flush()
        count += 1
    return count


@contextmanager
def _whole_or_absent(path: Path) -> Iterator[TextIO]:
    """As files.atomic_write, for content that is never in memory at once."""
    partial, file = _open_partial(path)
    try:
        with file:
            yield file
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _open_partial(path: Path) -> tuple[Path, TextIO]:
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a file as --out.")
    partial = path.parent / f".{path.name}.partial-{os.getpid()}"
    try:
        return partial, partial.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}. Choose another --out.") from error
