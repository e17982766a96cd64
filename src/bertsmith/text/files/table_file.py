"""Opens one table: a path, an address or standard input → a stream, and the name of its format."""

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
    """An open file and the name of its format."""

    stream: SourceStream
    format: str

    @property
    def name(self) -> str:
        """What messages call the file: its own name, or its whole path if `open_table` got `whole_name`."""
        return self.stream.name

    def lines(self) -> Iterator[str]:
        """Yields the decoded lines without their ends; a byte-order mark is dropped."""
        return self.stream.lines()

    def whole_lines(self) -> Iterator[str]:
        """Yields the decoded lines with their ends, which may be part of a cell in CSV."""
        return self.stream.whole_lines()

    def binary(self) -> contextlib.AbstractContextManager[Any]:
        """A context manager for the decompressed bytes as a seekable binary file."""
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
    """Opens the file `path` ('-' is standard input) to be read as `format`.

    Without a `format`, the file's ending decides: `by_ending` maps endings to formats, and `otherwise` is the
    format for any other ending (None: such a file is refused). Messages call the file by its own name or,
    with `whole_name`, by the whole `path`. Raises InputError when there is no such file, no such format, or
    binary data where text is expected.
    """
    settings = CorpusSettings(encoding=encoding, encoding_errors=encoding_errors)
    file = _find_file(str(path), settings)
    if whole_name and file.path != "-":
        file = replace(file, name=str(path))
    format_names = sorted({*by_ending.values(), *filter(None, [otherwise])})
    if format is not None and format not in format_names:
        raise InputError(
            f"There is no format {format!r} for {file.name}. Choose one of {', '.join(format_names)}."
        )
    format_name = format or by_ending.get(file.suffix, otherwise)
    if format_name is None:
        raise InputError(
            f"{file.name}: the ending {file.suffix or '(none)'} tells no format. "
            f"Name it with --format ({', '.join(format_names)}), or save the file as CSV."
        )
    with SourceStream(file, settings) as stream:
        is_text = format_name not in FORMATS or FORMATS[format_name].IS_TEXT
        if is_text and stream.looks_binary:
            raise stream.binary_error(f"{format_name} text")
        yield TableFile(stream, format_name)


def _find_file(path: str, settings: CorpusSettings) -> SourceFile:
    if path == "-":
        return SourceFile("standard input", "-", _StandardInput(), "-", 0)
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder. Name one file in it.")
    if "://" not in path:
        filesystem, filesystem_path = find_filesystem(path)
        if not filesystem.exists(filesystem_path):
            raise InputError(f"{path} does not exist. Name a file to read.")
    sources = find_sources([path], settings).sources
    if len(sources) != 1 or not isinstance(sources[0], SourceFile):
        raise InputError(f"{path} is not one file. Name the file to read.")
    return sources[0]


class _StandardInput:
    """A file system, as far as `SourceFile` needs one, whose only file is standard input."""

    def open(self, path: str, mode: str) -> Any:
        """Opens a new file object on the descriptor of standard input; closing it leaves the descriptor open.

        It isn't sys.stdin itself, because a thread that waits for a quiet pipe holds the lock of its file
        object, and Python aborts at exit if that is sys.stdin's. Raises InputError if standard input is
        closed.
        """
        if sys.stdin is None:
            raise InputError("Standard input is closed. Name a file, or redirect one: < FILE.")
        try:
            return open(sys.stdin.fileno(), "rb", closefd=False)
        except OSError:  # sys.stdin was replaced by an object without a descriptor
            return contextlib.nullcontext(sys.stdin.buffer)
