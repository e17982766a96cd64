"""Files and folders that are whole or absent: write under a temporary name, flush, rename.

Then the one file that a command writes, where nothing is replaced unasked; JSON; checksums; and locks that
the system itself lets go of when their process dies.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from safetensors import SafetensorError

from bertsmith.errors import DiskFull, InputError, ResourceError

try:
    from isal.isal_zlib import crc32 as crc32  # six times as fast
except ImportError:  # a checkout on a machine without; the sums are the same
    from zlib import crc32 as crc32

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def atomic_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields an empty folder beside `path` that becomes `path` when the block ends without an error.

    Everything in it is flushed to disk first. On an error nothing remains; what a killed process left is
    cleared by the next that writes `path`. Raises InputError when `path` exists, isn't an empty folder, and
    `overwrite` is False, also where it came to be while the block ran. A link stays, and what it leads to is
    written.
    """
    path = Path(path)
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    _clear_remains(path)
    if not overwrite:
        refuse_existing(path)
    made = make_folder(path.parent)
    partial = _partial(path)
    try:
        partial.mkdir()
    except OSError as error:
        raise _refusal(error, path) from error
    try:
        yield partial
        flush_folder(partial)
        if not overwrite:
            refuse_existing(path)
        if path.exists():
            old = path.parent / f".{path.name}.old-{os.getpid()}"
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            partial.rename(path)
        flush(path.parent)
    except OSError as error:
        raise _as_resource_error(error, path) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        remove_empty(made)


def atomic_write(path: Path, content: bytes | str) -> None:
    """Writes a file that is either the old one or the whole new one, whatever happens."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """The same for content that is never in memory at once: yields a file that becomes `path` when the block
    ends without an error, or nothing does. What killed processes left of writing `path` is cleared first.
    """
    path = Path(path)
    file = _open_partial(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _partial(path).replace(path)
        flush(path.parent)
    except OSError as error:
        raise _as_resource_error(error, path) from error
    finally:
        _partial(path).unlink(missing_ok=True)


def refuse_existing(path: Path) -> None:
    """Raises InputError where something is called `path` that isn't an empty folder."""
    if path.exists() and not is_empty_folder(path):
        raise InputError(f"{path} already exists. Choose another name or remove it first.")


def require_free(path: Path) -> None:
    """To be asked before the work, not only after it: raises InputError as `refuse_existing` does, and
    InputError or ResourceError where no folder can be made there.
    """
    refuse_existing(path)
    require_writable_folder(path)


def is_empty_folder(path: Path) -> bool:
    """Whether a folder can take its place: not that of the current one, or where another disk begins."""
    try:
        empty = path.is_dir() and not any(path.iterdir())
        return empty and not os.path.ismount(path) and path.resolve() != Path.cwd()
    except OSError:
        return False


def require_writable(path: Path) -> None:
    """Raises InputError or ResourceError, before the work of hours is lost, when `path` can't be made."""
    _open_partial(path).close()
    _partial(path).unlink()


def require_writable_folder(path: Path) -> None:
    """The same for a folder. Of those above it that aren't there either, the first is tried; none is made."""
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    while not path.parent.exists():
        path = path.parent
    require_writable(path)


def require_free_space(folder: Path, needed: int, purpose: str) -> None:
    """Raises DiskFull unless the disk of `folder`, or of its nearest parent, has `needed` bytes."""
    existing = Path(folder).absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        unit, size = ("GB", 1e9) if needed >= 1e9 else ("MB", 1e6)
        raise DiskFull(
            f"{purpose} needs about {needed / size:.1f} {unit} in {existing}, but {free / size:.1f} {unit} "
            "are free. Free some space or choose another folder."
        )


def _open_partial(path: Path) -> BinaryIO:
    _clear_remains(path)
    try:
        return _partial(path).open("wb")
    except OSError as error:
        raise _refusal(error, path) from error


def _partial(path: Path) -> Path:
    """What `path` is called until it is whole."""
    return path.parent / f".{path.name}.partial-{os.getpid()}"


def _clear_remains(path: Path) -> None:
    """What processes that are gone left of writing the file or folder `path`. A folder that was put aside for
    another that never came gets its name back.
    """
    if not path.parent.is_dir():
        return
    for remains in path.parent.glob(f".{glob.escape(path.name)}.*-*"):
        kind, _, owner = remains.name.removeprefix(f".{path.name}.").rpartition("-")
        if kind not in ("partial", "old") or not owner.isdigit() or _others_at_work(int(owner)):
            continue
        if kind == "old" and not path.exists():
            remains.rename(path)
        elif remains.is_dir() and not remains.is_symlink():
            shutil.rmtree(remains, ignore_errors=True)
        else:
            remains.unlink(missing_ok=True)


def _others_at_work(process: int) -> bool:
    import psutil  # here, for reading files needs no more than the standard library

    try:
        return process != os.getpid() and psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _refusal(error: OSError, path: Path) -> Exception:
    """Why nothing can be begun under the name `path`."""
    known = _as_resource_error(error, path)
    if known is not error:
        return known
    return InputError(f"{path} cannot be written: {error.strerror}. Choose another place.")


def _as_resource_error(error: OSError, path: Path) -> Exception:
    """A full disk or a missing right is the user's to mend; any other failure stays what it is."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"The disk is full: {path} was not written. Free some space and run this again.")
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return ResourceError(f"No permission to write {path}. Choose a folder you may write to.")
    return error


@contextlib.contextmanager
def tensors_written_to(path: Path) -> Iterator[None]:
    """Around safetensors' save_file, which gives the system's error in words only: raises it as an OSError.

    Inside `atomic_folder` a full disk is then known as one. save_file makes a file that its owner alone may
    read, whatever the umask: it gets the mode of any other new file here.
    """
    try:
        yield
        path.chmod(_mode_of_new_files(path.parent))
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error), str(path)) from error


def _mode_of_new_files(folder: Path) -> int:
    """As the umask and the folder's own rules say: one file is made to see it. To read the umask is to change
    it for a moment, for every thread.
    """
    with tempfile.TemporaryDirectory(prefix=".mode-", dir=folder) as own:
        (Path(own) / "new").touch()
        return stat.S_IMODE((Path(own) / "new").stat().st_mode)


def make_folder(path: Path) -> list[Path]:
    """The folder and those above it. Returns those that weren't there, the innermost first. Raises InputError
    where none can be made.
    """
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} can't be made: {error.strerror}. Choose another folder.") from error
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Those of the folders that nothing is in."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def flush_folder(path: Path) -> None:
    """Forces every file below `path`, and the folders themselves, to disk."""
    for entry in sorted(path.rglob("*")):
        flush(entry)
    flush(path)


def flush(path: Path) -> None:
    """Forces one file or folder to disk. Windows does so with files alone, opened for writing."""
    if not can_open_folders() and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if can_open_folders() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def can_open_folders() -> bool:
    """Whether the system opens a folder, to force it to disk or to lock it. Windows doesn't."""
    return hasattr(os, "O_DIRECTORY")


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
        if any(_is_among(path, read) for read in reads):
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


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON; the file appears whole or not at all."""
    atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises InputError naming the file when it is missing, a folder, or isn't JSON."""
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder. Expected a file of JSON.") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a list 100,000 deep
        raise InputError(f"{path} is not valid JSON ({error}). It may have been cut or altered.") from error


def parse_json(text: str, to_object: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """As json.loads, but a comma too many is called that: Python complains of what stands behind it.
    `to_object` makes an object of its keys and values.
    """
    try:
        return json.loads(text, object_pairs_hook=to_object)
    except json.JSONDecodeError as error:
        before, behind = text[: error.pos].rstrip(), text[error.pos :].strip()
        if before.endswith(",") and behind.startswith(("]", "}")):
            raise json.JSONDecodeError("A comma behind the last item", text, len(before) - 1) from error
        if behind == ",":
            raise json.JSONDecodeError("A comma at the end", text, error.pos) from error
        raise


def with_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `parse_json`: raises ValueError for a key that stands twice in an object, as pyarrow and so
    Hugging Face's datasets refuse it: one of the two values would be lost.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {max(keys, key=keys.count)[:80]!r} stands twice in one object")
    return found


def sha256(path: Path) -> str:
    """The file's SHA-256 as hexadecimal digits, read in one pass with bounded memory."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def crc32_of(path: Path) -> str:
    """The file's CRC-32 as hexadecimal digits, read as `sha256` is, in a small part of its time: it tells
    damage, and nobody's intent.
    """
    found, block = 0, memoryview(bytearray(1 << 20))
    with Path(path).open("rb", buffering=0) as file:
        while count := file.readinto(block):
            found = crc32(block[:count], found)
    return f"{found:08x}"


def lock(file: int | TextIO, wait: bool = False) -> bool:
    """Whether this process has the file, or the folder of a descriptor, for itself until it closes it. With
    `wait` it comes back only when it has.

    By flock(2). Windows has none, nor have some file systems of networks: there nobody is kept out.
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


@contextlib.contextmanager
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
