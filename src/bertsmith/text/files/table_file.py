"""A path, an address or standard input → an opened table, and the format it is read by."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertsmith.errors import InputError
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import find_filesystem, find_sources
from bertsmith.text.files.streams import SourceFile, SourceStream
from bertsmith.text.files.tables import FORMATS


class TableFile(NamedTuple):
    """An opened file and its format. Errors call it by `name`."""

    stream: SourceStream
    format: str

    @property
    def name(self) -> str:
        """The file's own name, or as `open_table` was told."""
        return self.stream.name

    def lines(self) -> Iterator[str]:
        """Decoded, without their ends and without a byte-order mark."""
        return self.stream.lines()

    def whole_lines(self) -> Iterator[str]:
        """The same with their ends, which in CSV may be part of a cell."""
        return self.stream.whole_lines()

    def binary(self) -> contextlib.AbstractContextManager[Any]:
        """A file to jump about in."""
        return self.stream.seekable()


@contextlib.contextmanager
def open_table(
    path: str | Path,
    format: str | None,
    encoding: str,
    by_ending: Mapping[str, str],
    otherwise: str | None,
    *,
    encoding_errors: Literal["strict", "replace"] = "strict",
    whole_name: bool = False,
) -> Iterator[TableFile]:
    """The file `path` ('-': standard input), read as `format`.

    No `format`: the one its ending has in `by_ending`, and `otherwise` where the ending is not listed.
    Errors call the file by its own name or, with `whole_name`, as `path` does, folders included.
    Raises InputError when there is no such file, no such format, or binary data where text is expected.
    """
    settings = CorpusSettings(encoding=encoding, encoding_errors=encoding_errors)
    file = _find_file(str(path), settings)
    if whole_name and file.path != "-":
        file = replace(file, name=str(path))
    known = sorted({*by_ending.values(), *filter(None, [otherwise])})
    if format is not None and format not in known:
        raise InputError(f"There is no format {format!r} for {file.name}. Choose one of {', '.join(known)}.")
    chosen = format or by_ending.get(file.suffix, otherwise)
    if chosen is None:
        raise InputError(
            f"{file.name}: the ending {file.suffix or '(none)'} tells no format. "
            f"Name it with --format ({', '.join(known)}), or save the file as CSV."
        )
    with SourceStream(file, settings) as stream:
        is_text = chosen not in FORMATS or FORMATS[chosen].IS_TEXT
        if is_text and stream.looks_binary:
            raise stream.binary_error(f"{chosen} text")
        yield TableFile(stream, chosen)


def _find_file(path: str, settings: CorpusSettings) -> SourceFile:
    if path == "-":
        return SourceFile("standard input", "-", _StandardInput(), "-", 0)
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder. Name one file in it.")
    if "://" not in path:
        filesystem, place = find_filesystem(path)
        if not filesystem.exists(place):
            raise InputError(f"{path} does not exist. Name a file to read.")
    found = find_sources([path], settings).sources
    if len(found) != 1 or not isinstance(found[0], SourceFile):
        raise InputError(f"{path} is not one file. Name the file to read.")
    return found[0]


class _StandardInput:
    """Looks like a file system with one file, which stays open when its reader is done."""

    def open(self, path: str, mode: str) -> Any:
        """A file of its own over the same descriptor. A thread that waits at a quiet pipe holds the lock of
        its file, and Python aborts at its end where that is sys.stdin's. Raises InputError where it is
        closed.
        """
        if sys.stdin is None:
            raise InputError("Standard input is closed. Name a file, or redirect one: < FILE.")
        try:
            return open(sys.stdin.fileno(), "rb", closefd=False)
        except OSError:  # something that was put in its place has none
            return contextlib.nullcontext(sys.stdin.buffer)
