"""SOURCE arguments → the files and installed packages to read, in a stable order."""

import contextlib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from bertsmith.errors import InputError
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.streams import SourceFile
from bertsmith.text.prose.pydocs import PREFIX, Package, find_packages

# What Bertsmith's folders are known by: a model, and what says at its beginning who made it.
_MODEL, _ACCOUNTS, _OURS = "bertsmith.json", ("manifest.json", "index.json"), b'"created_by": "bertsmith '
_BEGINNING = 1000  # bytes


@dataclass
class SourceListing:
    """What the SOURCE arguments stand for, and how many files were passed over while looking."""

    sources: list[SourceFile | Package] = field(default_factory=list)
    hidden: int = 0
    excluded: int = 0

    @property
    def size(self) -> int:
        """Bytes on disk of everything found."""
        return sum(source.size for source in self.sources)


def find_sources(
    sources: Sequence[str], settings: CorpusSettings, leave_out: Path | None = None
) -> SourceListing:
    """Files and packages in the order given; inside a folder sorted by path, so that any machine agrees.

    A SOURCE is a file, a folder (searched through, hidden names left out), an address fsspec understands
    (s3://…, memory://…), or `pydocs:` with, optionally, names of packages behind the colon. Where a
    folder is searched through, what lies in the folder `leave_out` is passed over, and in any corpus, token
    store, index or model of Bertsmith's below it.
    Raises InputError for a SOURCE that does not exist or holds no file, for a folder that can't be read, and
    for what is neither file nor folder in a folder: a link to a folder, which could lead in circles, a broken
    link, a pipe, whose writer might never come.
    """
    found = SourceListing()
    for source in sources:
        if not source.strip():
            raise InputError("A SOURCE is empty. Is a shell variable not set? The current folder is '.'.")
        if source.startswith(PREFIX):
            found.sources += find_packages(source)
        else:
            found.sources += _find_files(source, settings, found, leave_out)
    if not found.sources:
        raise InputError("No source was given. Name files, folders, addresses, or pydocs: as SOURCE.")
    return found


def _find_files(
    source: str, settings: CorpusSettings, found: SourceListing, leave_out: Path | None
) -> list[SourceFile]:
    filesystem, root = find_filesystem(source)
    origin = as_utf8(source)
    try:
        if filesystem.isfile(root):
            size = filesystem.size(root) or 0  # not every web server says
            return [SourceFile(as_utf8(PurePosixPath(root).name), origin, filesystem, root, int(size))]
        if not filesystem.isdir(root):
            there = "is neither a file nor a folder" if filesystem.exists(root) else "does not exist"
            raise InputError(f"The source {source} {there}. Name a file or a folder to read.")
        listing = _list_files(root, filesystem, settings)
    except OSError as error:
        raise InputError(f"The source {source} cannot be read: {error}.") from error
    if leave_out is not None and isinstance(filesystem, LocalFileSystem):
        listing = _leave_out_folder(listing, root, leave_out)
    wanted = [
        path for path in sorted(listing) if _is_wanted(path[len(root.rstrip("/")) + 1 :], settings, found)
    ]
    files = []
    for path in wanted:
        # Only what isn't listed as a file is looked at again, for a link to one is as good.
        if listing[path]["type"] != "file" and not filesystem.isfile(path):
            raise InputError(
                f"{path} is no file but a link to a folder, a broken link, a pipe or the like. Name the "
                "folder itself as a SOURCE, or leave this out with --exclude."
            )
        # The folder's own name and the way from there: nothing of the machine's paths gets into a corpus.
        name = as_utf8(PurePosixPath(root).name + "/" + path[len(root.rstrip("/")) + 1 :])
        files.append(SourceFile(name, origin, filesystem, path, int(listing[path]["size"] or 0)))
    if not files:
        raise InputError(
            f"The folder {source} holds no file to read (hidden and excluded ones are left out, "
            "and what is in corpora, token stores, indexes and models of Bertsmith's)."
        )
    return files


def _list_files(root: str, filesystem: Any, settings: CorpusSettings) -> dict[str, Any]:
    """By path. fsspec's `find` would leave out what is in a folder that can't be read."""
    found: dict[str, Any] = {}
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            entries = filesystem.ls(folder, detail=True)
        except OSError as error:
            names = folder[len(root.rstrip("/")) + 1 :].split("/")
            if any(name.startswith(".") or _matches(name, settings.exclude) for name in names):
                continue
            raise InputError(
                f"The folder {folder} cannot be read: {error}. Make it readable, or leave it out with "
                "--exclude."
            ) from error
        if folder != root and _is_ours(entries, filesystem):
            continue
        for entry in entries:
            path = entry["name"].rstrip("/")
            if entry["type"] != "directory":
                found[entry["name"]] = entry
            elif path != folder.rstrip("/"):  # some list the folder itself
                folders.append(path)
    return found


def _is_ours(entries: Sequence[Mapping[str, Any]], filesystem: Any) -> bool:
    """Whether a folder that holds these is Bertsmith's."""
    files = {PurePosixPath(each["name"]).name: each["name"] for each in entries if each["type"] == "file"}
    if _MODEL in files:
        return True
    with contextlib.suppress(OSError):
        accounts = (files[name] for name in _ACCOUNTS if name in files)
        return any(_OURS in filesystem.cat_file(path, 0, _BEGINNING) for path in accounts)
    return False


def _leave_out_folder(listing: Mapping[str, Any], root: str, folder: Path) -> dict[str, Any]:
    """Less what lies in `folder`, which may be spelled otherwise than `root` spells it."""
    inside, below = Path(root).resolve(), folder.resolve()
    if inside.is_relative_to(below):
        return {}
    if not below.is_relative_to(inside):
        return dict(listing)
    beginning = f"{root.rstrip('/')}/{below.relative_to(inside).as_posix()}/"
    return {path: entry for path, entry in listing.items() if not path.startswith(beginning)}


def find_filesystem(source: str) -> tuple[Any, str]:
    """Where it is, and its path there. Raises InputError for an address that can't be read."""
    if "://" not in source:  # spares local names with '::' or '*' the meaning fsspec gives to these
        filesystem = fsspec.filesystem("file")
        return filesystem, filesystem._strip_protocol(source)
    try:
        filesystem, root = fsspec.core.url_to_fs(source)
    except ImportError as error:
        raise InputError(f"The source {source} needs a package for its kind of address: {error}.") from error
    except ValueError as error:
        raise InputError(f"The source {source} is no address that can be read: {error}.") from error
    return filesystem, str(root).rstrip("/")


def as_utf8(name: str) -> str:
    """A file's name may be any bytes; those that are no UTF-8 are spelled as in caf\\xe9.txt."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _is_wanted(relative: str, settings: CorpusSettings, found: SourceListing) -> bool:
    parts = relative.split("/")
    if any(part.startswith(".") for part in parts):
        found.hidden += 1
        return False
    included = not settings.include or _matches(parts[-1], settings.include)
    if not included or _matches(parts[-1], settings.exclude):
        found.excluded += 1
        return False
    return True


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
