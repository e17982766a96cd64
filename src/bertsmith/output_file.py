"""The one file that a command writes: nothing is replaced unasked, what it reads never is, and a pipe or a
device is written to as it is.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from bertsmith.errors import InputError
from bertsmith.files import atomic_file, require_writable


def require_output(path: str | Path, overwrite: bool, reads: Iterable[str | Path]) -> None:
    """Raises InputError, before any work, where `output_file` couldn't write, or would lose something as of
    `require_no_loss`.
    """
    if is_standard_output(path) or is_stream(path):
        return
    require_no_loss(Path(path), overwrite, reads)
    require_writable(behind_links(path))


def require_no_loss(path: Path, overwrite: bool, reads: Iterable[str | Path]) -> None:
    """Raises InputError for what is there, unless it is a file and `overwrite` says to replace it; that is
    never one of `reads`, the files and folders that the command reads, under whatever name. '-' among them is
    standard input.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a file as --out.")
    if path.exists():
        if not path.is_file():
            raise InputError(f"{path} is neither a file nor a pipe. Choose another --out.")
        if any(_is_among(path, each) for each in reads):
            raise InputError(f"This command reads {path}, and would overwrite it. Choose another --out.")
        if not overwrite:
            raise InputError(f"{path} already exists. Choose another --out, or replace it with --overwrite.")


@contextlib.contextmanager
def output_file(path: str | Path) -> Iterator[BinaryIO]:
    """A pipe or a device as it is; else a file that is whole or absent, behind a link where `path` is one."""
    if is_stream(path):
        with Path(path).open("wb") as file:
            yield file
    else:
        with atomic_file(behind_links(path)) as file:
            yield file


def is_standard_output(path: str | Path) -> bool:
    """By either of its names: to open the second would begin a file anew that the shell appends to."""
    return str(path) in ("-", "/dev/stdout")


def is_stream(path: str | Path) -> bool:
    """Whether `path` is a pipe, or a device such as /dev/null."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def behind_links(path: str | Path) -> Path:
    """Where a link leads; else `path` itself."""
    return Path(path).resolve() if Path(path).is_symlink() else Path(path)


def _is_among(path: Path, read: str | Path) -> bool:
    """Hard and symbolic links to a file that is read are that file."""
    if str(read) == "-":
        with contextlib.suppress(OSError):  # standard input may be closed
            return os.path.samestat(os.fstat(0), path.stat())
        return False
    files = Path(read).rglob("*") if Path(read).is_dir() else [Path(read)]
    return any(file.exists() and file.samefile(path) for file in files)
