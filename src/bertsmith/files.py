"""Writes files and folders that are complete or absent: under a temporary name, flushed, then renamed.

Also: the one file that a command writes, which replaces nothing without --overwrite; JSON and JSON
lines; checksums; and locks that the system releases when their process dies. Read `atomic_folder`
and `atomic_file` first.
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
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from bertsmith.errors import DiskFull, InputError, ResourceError, printable

try:
    from isal.isal_zlib import crc32 as crc32  # six times as fast
except ImportError:  # a checkout on a machine without; the sums are the same
    from zlib import crc32 as crc32

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


_YOUNG = 2_000_000_000  # nanoseconds; times of files are some milliseconds exact, on some systems two seconds


@contextlib.contextmanager
def atomic_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields an empty folder beside `path` that becomes `path` when the block ends without an error.

    Everything in it is flushed to disk first. On an error nothing remains; what a killed process left is
    removed by the next that writes `path`. A symbolic link stays, and its target is written. A folder that is
    replaced, also an empty one, leaves its mode to the new one; a file is never replaced. Raises InputError
    if `path` exists, isn't an empty folder and `overwrite` is False, also if it was created while the block
    ran; DiskFull and ResourceError if it can't be written.
    """
    path = Path(path)
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    _clear_remains(path)
    if not overwrite or not path.is_dir():
        refuse_existing(path)
    made = make_folder(path.parent)
    partial = _partial(path)
    try:
        partial.mkdir()
    except OSError as error:
        raise _as_user_error(error, path) from error
    try:
        yield partial
        flush_folder(partial)
        if not overwrite or not path.is_dir():
            refuse_existing(path)
        if path.exists():
            copy_mode(path, partial)
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
    """Writes a file. Whatever happens, `path` is then the old file or the complete new one.

    Half of a UTF-16 pair, which UTF-8 can't hold, is written as JSON writes it, such as \\ud83d.
    """
    with atomic_file(path) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a file that becomes `path` when the block ends without an error; on an error nothing remains.

    For content that doesn't fit into memory. A file that is replaced leaves its mode to the new one. What
    killed processes left of writing `path` is removed first. Raises InputError, DiskFull or ResourceError if
    it can't be written.
    """
    path = Path(path)
    file = _open_partial(path)
    try:
        copy_mode(path, _partial(path))
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


def copy_mode(path: Path, new: Path) -> None:
    """Gives `new` the mode of what it replaces: what is private stays private."""
    with contextlib.suppress(OSError):  # nothing is replaced, or the file system has no modes
        new.chmod(stat.S_IMODE(path.stat().st_mode))


def refuse_existing(path: Path) -> None:
    """Raises InputError if `path` exists and isn't an empty folder."""
    if path.exists() and not is_empty_folder(path):
        raise InputError(f"{path} already exists. Choose another name or remove it first.")


def require_new_folder(path: Path) -> None:
    """Checks before the work that a folder can be created at `path`.

    Raises InputError if something is there, and InputError or ResourceError if no folder can be created.
    """
    refuse_existing(path)
    require_writable_folder(path)


def is_empty_folder(path: Path) -> bool:
    """Whether `path` is empty and another folder can replace it: no mount point or current folder."""
    try:
        empty = path.is_dir() and not any(path.iterdir())
        return empty and not os.path.ismount(path) and path.resolve() != Path.cwd()
    except OSError:
        return False


def require_writable(path: Path) -> None:
    """Raises InputError or ResourceError if the file `path` can't be made: to be called before the work."""
    _open_partial(path).close()
    _partial(path).unlink()


def require_writable_folder(path: Path) -> None:
    """Raises InputError or ResourceError if `path`, whose missing parents will be made, can't be created. It
    tries the outermost missing folder above it, and creates none.
    """
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
        raise _as_user_error(error, path) from error


def _partial(path: Path) -> Path:
    """The temporary name of `path`, beside it, until it is complete."""
    return path.parent / f".{path.name}.partial-{os.getpid()}"


def _clear_remains(path: Path) -> None:
    """Removes what processes that are gone left behind when they wrote the file or folder `path`. A folder
    that was put aside for a new one gets its name back if the new one never came.
    """
    if not path.parent.is_dir():
        return
    for remains in path.parent.glob(f".{glob.escape(path.name)}.*-*"):
        kind, _, owner = remains.name.removeprefix(f".{path.name}.").rpartition("-")
        if kind not in ("partial", "old") or not owner.isdigit() or _is_other_process(int(owner)):
            continue
        if kind == "old" and not path.exists():
            remains.rename(path)
        elif remains.is_dir() and not remains.is_symlink():
            shutil.rmtree(remains, ignore_errors=True)
        else:
            remains.unlink(missing_ok=True)


def _is_other_process(process: int) -> bool:
    """Whether the number is that of another process that still runs; without psutil, which bertsmith-run
    does without, also of one that has ended but is not forgotten yet.
    """
    if process == os.getpid():
        return False
    try:
        import psutil  # here, for reading files needs no more than the standard library
    except ImportError:
        try:
            if sys.platform != "win32":  # there it would end the process
                os.kill(process, 0)
            return True
        except OSError as error:
            return error.errno == errno.EPERM  # somebody else's
        except OverflowError:  # no number of a process
            return False
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _as_user_error(error: OSError, path: Path) -> Exception:
    """The error to raise if nothing can be created under the name `path`: always one of Bertsmith's own."""
    known = _as_resource_error(error, path)
    if known is not error:
        return known
    return InputError(f"{path} cannot be written: {error.strerror}. Choose another place.")


def _as_resource_error(error: OSError, path: Path) -> Exception:
    """Turns a full disk or a missing permission, which the user can mend, into an error of Bertsmith's; any
    other error is returned as it is.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"The disk is full: {path} was not written. Free some space and run this again.")
    if error.errno == errno.EFBIG:
        return ResourceError(
            f"{path} was not written: it has a larger file than its file system or `ulimit -f` allows. "
            "Write to another disk, or raise the limit."
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return ResourceError(f"No permission to write {path}. Choose a folder you may write to.")
    return error


@contextlib.contextmanager
def tensors_written_to(path: Path) -> Iterator[None]:
    """Wraps safetensors' save_file: raises the system's error, which it has in its message only, as OSError.

    So `atomic_folder` recognises a full disk. save_file creates a file that only its owner may read, whatever
    the umask: it gets the mode that any other new file gets in this folder.
    """
    from safetensors import SafetensorError

    try:
        yield
        path.chmod(_find_new_file_mode(path.parent))
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error), str(path)) from error


def _find_new_file_mode(folder: Path) -> int:
    """The mode of a new file in the folder, by the umask and the folder's own rules. A file is created to see
    it: the umask can't be read without changing it for a moment, for every thread.
    """
    with tempfile.TemporaryDirectory(prefix=".mode-", dir=folder) as own:
        (Path(own) / "new").touch()
        return stat.S_IMODE((Path(own) / "new").stat().st_mode)


def make_folder(path: Path) -> list[Path]:
    """Creates the folder and its missing parents, and returns those that it created, the innermost first.

    Raises InputError if it can't create them.
    """
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} can't be made: {error.strerror}. Choose another folder.") from error
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes those of the folders that are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def flush_folder(path: Path) -> None:
    """Forces every file below `path`, and the folders themselves, to disk."""
    for entry in sorted(path.rglob("*")):
        flush(entry)
    flush(path)


def flush(path: Path) -> None:
    """Forces one file or folder to disk. Windows can do that only for files opened for writing."""
    if not can_open_folders() and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if can_open_folders() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def can_open_folders() -> bool:
    """Whether the system can open a folder, to force it to disk or to lock it. Windows can't."""
    return hasattr(os, "O_DIRECTORY")


def require_output(path: str | Path, overwrite: bool, reads: Iterable[str | Path]) -> None:
    """Raises InputError, before any work, if `output_file` couldn't write `path` or would replace a file that
    it must not (see `require_no_loss`).
    """
    if is_standard_output(path) or is_stream(path):
        return
    require_no_loss(Path(path), overwrite, reads)
    require_writable_folder(behind_links(path))


def require_no_loss(path: Path, overwrite: bool, reads: Iterable[str | Path]) -> None:
    """Raises InputError if `path` exists, unless it is a file and `overwrite` is True.

    A file that the command reads is never replaced: `reads` are its files and folders, under whatever name,
    and '-' is standard input.
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
    """Opens `path` for writing: a pipe or a device as it is, a file or a link's target by `atomic_file`, in a
    folder that is made where it is missing.
    """
    if is_stream(path):
        with Path(path).open("wb") as file:
            yield file
        return
    target = behind_links(path)
    made = make_folder(target.parent)
    try:
        with atomic_file(target) as file:
            yield file
    finally:
        remove_empty(made)


def is_standard_output(path: str | Path) -> bool:
    """Whether `path` is '-' or /dev/stdout: to open that would truncate a file that the shell appends to."""
    return str(path) in ("-", "/dev/stdout")


def is_stream(path: str | Path) -> bool:
    """Whether `path` is a pipe, or a device such as /dev/null."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def behind_links(path: str | Path) -> Path:
    """The target of a symbolic link; any other path as it is."""
    return Path(path).resolve() if Path(path).is_symlink() else Path(path)


def _is_among(path: Path, read: str | Path) -> bool:
    """Whether `path` is the file `read`, or in the folder `read`, also by a hard or symbolic link."""
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
    """Like json.loads, but names a comma too many as the fault: Python names what follows it. `to_object`
    makes an object from its pairs of key and value.
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
    """A `to_object` for `parse_json`: raises ValueError for a key that is in an object twice, since one of
    the two values would be lost. pyarrow, and so Hugging Face's datasets, refuse it too.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {max(keys, key=keys.count)[:80]!r} stands twice in one object")
    return values


def sha256(path: Path) -> str:
    """The file's SHA-256 as hexadecimal digits, read in one pass with bounded memory."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_unchanged(path: Path) -> str:
    """As `sha256`, but a file that this process read before, and nobody wrote to since, isn't read again."""
    status = path.stat()
    if time.time_ns() - status.st_ctime_ns < _YOUNG:  # another write may leave the same time
        return sha256(path)
    return _sha256_at(
        path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    )


@lru_cache(maxsize=1024)
def _sha256_at(path: Path, state: tuple[int, ...]) -> str:
    return sha256(path)


def crc32_of(path: Path) -> str:
    """The file's CRC-32 as hexadecimal digits. It takes a fraction of the time of `sha256`, and finds
    damage, but not tampering.
    """
    checksum, block = 0, memoryview(bytearray(1 << 20))
    with Path(path).open("rb", buffering=0) as file:
        while count := file.readinto(block):
            checksum = crc32(block[:count], checksum)
    return f"{checksum:08x}"


def lock(file: int | TextIO, wait: bool = False) -> bool:
    """Locks the file, or the folder of a descriptor, until it is closed. Returns whether this process got the
    lock; with `wait` it waits for it.

    By flock(2). Where there is none, as on Windows and on some network file systems, it returns True and
    keeps nobody out.
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
    """Whether `path` is still the file of the descriptor. A lock on a removed file keeps nobody out."""
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


@contextlib.contextmanager
def locked_folder(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Locks the folder itself for the block, without a file in it, and yields whether this process got the
    lock. For a folder that another process has removed meanwhile it yields False.
    """
    if not can_open_folders():
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield lock(descriptor, wait) and is_still(folder, descriptor)
    finally:
        os.close(descriptor)


def write_jsonl(records: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Writes one JSON object per line, drawing records one at a time; '-' is standard output.

    Returns the number of records. A file appears under its name only when the last record is written: an
    error in `records` leaves the old file, or none. Pipes, devices and standard output are flushed after each
    record, so that their reader gets it at once. A lone surrogate, which UTF-8 can't encode, is written as
    its escape (\\ud83d). Raises ValueError for NaN and infinity, which JSON doesn't have, and InputError when
    the file can't be written.
    """
    if is_standard_output(path):
        return _write_records(records, lambda line: sys.stdout.write(line.decode()), sys.stdout.flush)
    with output_file(path) as file:
        return _write_records(records, file.write, file.flush if is_stream(path) else None)


def _write_records(
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
