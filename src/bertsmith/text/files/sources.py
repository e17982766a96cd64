"""Finds the files and installed packages that SOURCE arguments stand for, in a stable order."""

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

# How Bertsmith's folders are recognised: a model's file, and manifests that begin with who made them.
_MODEL, _MANIFESTS, _OURS = "bertsmith.json", ("manifest.json", "index.json"), b'"created_by": "bertsmith '
_BEGINNING = 1000  # bytes


@dataclass
class SourceListing:
    """The files and packages of the SOURCE arguments, and how many files were hidden or excluded."""

    sources: list[SourceFile | Package] = field(default_factory=list)
    hidden: int = 0
    excluded: int = 0

    @property
    def size(self) -> int:
        """The total size of all sources in bytes on disk."""
        return sum(source.size for source in self.sources)


def find_sources(
    sources: Sequence[str], settings: CorpusSettings, leave_out: Path | None = None
) -> SourceListing:
    """Finds the files and packages of all SOURCEs, in their order; a folder's files are sorted by path.

    A SOURCE is a file, a folder, an address that fsspec understands (s3://…, memory://…), or `pydocs:`,
    which names of packages may follow. A folder is searched with all folders below it; hidden names, the
    folder `leave_out`, and any corpus, token store, index or model of Bertsmith's below it are left out.
    Raises InputError for a SOURCE that does not exist or holds no file, for a folder that can't be read, and
    for an entry of a folder that is neither file nor folder: a link to a folder, which could lead in circles,
    a broken link, or a pipe, whose writer might never come.
    """
    listing = SourceListing()
    for source in sources:
        if not source.strip():
            raise InputError("A SOURCE is empty. Is a shell variable not set? The current folder is '.'.")
        if source.startswith(PREFIX):
            listing.sources += find_packages(source)
        else:
            listing.sources += _find_files(source, settings, listing, leave_out)
    if not listing.sources:
        raise InputError("No source was given. Name files, folders, addresses, or pydocs: as SOURCE.")
    return listing


def _find_files(
    source: str, settings: CorpusSettings, listing_of_sources: SourceListing, leave_out: Path | None
) -> list[SourceFile]:
    filesystem, root = find_filesystem(source)
    origin = as_utf8(source)
    try:
        if filesystem.isfile(root):
            size = filesystem.size(root) or 0  # not every web server says
            return [SourceFile(as_utf8(PurePosixPath(root).name), origin, filesystem, root, int(size))]
        if not filesystem.isdir(root):
            problem = "is neither a file nor a folder" if filesystem.exists(root) else "does not exist"
            raise InputError(f"The source {source} {problem}. Name a file or a folder to read.")
        entries = _list_files(root, filesystem, settings)
    except OSError as error:
        raise InputError(f"The source {source} cannot be read: {error}.") from error
    if leave_out is not None and isinstance(filesystem, LocalFileSystem):
        entries = _leave_out_folder(entries, root, leave_out)
    paths = [
        path
        for path in sorted(entries)
        if _is_wanted(path[len(root.rstrip("/")) + 1 :], settings, listing_of_sources)
    ]
    files = []
    for path in paths:
        # A link to a file isn't listed as a file, but is as good: only such entries are looked up again.
        if entries[path]["type"] != "file" and not filesystem.isfile(path):
            raise InputError(
                f"{path} is no file but a link to a folder, a broken link, a pipe or the like. Name the "
                "folder itself as a SOURCE, or leave this out with --exclude."
            )
        # The folder's own name and the path below it: no path of this machine gets into a corpus.
        name = as_utf8(PurePosixPath(root).name + "/" + path[len(root.rstrip("/")) + 1 :])
        files.append(SourceFile(name, origin, filesystem, path, int(entries[path]["size"] or 0)))
    if not files:
        raise InputError(
            f"The folder {source} holds no file to read (hidden and excluded ones are left out, "
            "and what is in corpora, token stores, indexes and models of Bertsmith's)."
        )
    return files


def _list_files(root: str, filesystem: Any, settings: CorpusSettings) -> dict[str, Any]:
    """Path → fsspec's entry, for all files below `root`. fsspec's `find` would skip unreadable folders."""
    entries_by_path: dict[str, Any] = {}
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
                entries_by_path[entry["name"]] = entry
            elif path != folder.rstrip("/"):  # some list the folder itself
                folders.append(path)
    return entries_by_path


def _is_ours(entries: Sequence[Mapping[str, Any]], filesystem: Any) -> bool:
    """Whether a folder with these entries is a corpus, token store, index or model of Bertsmith's."""
    files = {PurePosixPath(entry["name"]).name: entry["name"] for entry in entries if entry["type"] == "file"}
    if _MODEL in files:
        return True
    with contextlib.suppress(OSError):
        manifests = (files[name] for name in _MANIFESTS if name in files)
        return any(_OURS in filesystem.cat_file(path, 0, _BEGINNING) for path in manifests)
    return False


def _leave_out_folder(listing: Mapping[str, Any], root: str, folder: Path) -> dict[str, Any]:
    """The entries outside of `folder`, whose path may be spelled otherwise than that of `root`."""
    root_path, folder_path = Path(root).resolve(), folder.resolve()
    if root_path.is_relative_to(folder_path):
        return {}
    if not folder_path.is_relative_to(root_path):
        return dict(listing)
    prefix = f"{root.rstrip('/')}/{folder_path.relative_to(root_path).as_posix()}/"
    return {path: entry for path, entry in listing.items() if not path.startswith(prefix)}


def find_filesystem(source: str) -> tuple[Any, str]:
    """The file system of a SOURCE, and its path there. Raises InputError for an unreadable address."""
    if "://" not in source:  # fsspec would give '::' and '*' in a local name a meaning
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
    """The name as valid UTF-8; other bytes, which file names may hold, are escaped: caf\\xe9.txt."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _is_wanted(relative: str, settings: CorpusSettings, listing: SourceListing) -> bool:
    parts = relative.split("/")
    if any(part.startswith(".") for part in parts):
        listing.hidden += 1
        return False
    included = not settings.include or _matches(parts[-1], settings.include)
    if not included or _matches(parts[-1], settings.exclude):
        listing.excluded += 1
        return False
    return True


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
