"""Finds the files and installed packages that SOURCE arguments name, in a stable order."""

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

# Bertsmith's own folders are recognised by a model's file, or by a manifest that begins with its author.
_MODEL_FILE = "bertsmith.json"
_MANIFEST_FILES = ("manifest.json", "index.json")
_MANIFEST_AUTHOR = b'"created_by": "bertsmith '
_MANIFEST_HEAD = 1000  # bytes of a manifest that are searched for its author


@dataclass
class SourceListing:
    """The files and packages of the SOURCEs, and how many hidden and excluded files were left out."""

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

    A SOURCE is a file, a folder, an address that fsspec understands (s3://…, memory://…), or `pydocs:`, with
    or without names of packages. A folder is searched with all folders below it; hidden files and folders,
    the folder `leave_out`, and any corpus, token store, index or model of Bertsmith's below it are left out.
    Raises InputError for a SOURCE that does not exist or has no file, for a folder that can't be read, and
    for an entry of a folder that is neither file nor folder: a link to a folder, which could lead in circles,
    a broken link, or a pipe, which might have no writer.
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
    source: str, settings: CorpusSettings, listing: SourceListing, leave_out: Path | None
) -> list[SourceFile]:
    filesystem, root = find_filesystem(source)
    origin = as_utf8(source)
    try:
        if filesystem.isfile(root):
            size = filesystem.size(root) or 0  # not every web server tells it
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
        if _passes_filters(path[len(root.rstrip("/")) + 1 :], settings, listing)
    ]
    files = []
    for path in paths:
        # A link to a file is listed as another type, but is as good as a file: look such entries up.
        if entries[path]["type"] != "file" and not filesystem.isfile(path):
            raise InputError(
                f"{path} is no file but a link to a folder, a broken link, a pipe or the like. Name the "
                "folder itself as a SOURCE, or leave this out with --exclude."
            )
        # Named by the folder and the path below it, so that no path of this machine gets into a corpus.
        name = as_utf8(PurePosixPath(root).name + "/" + path[len(root.rstrip("/")) + 1 :])
        files.append(SourceFile(name, origin, filesystem, path, int(entries[path]["size"] or 0)))
    if not files:
        raise InputError(
            f"The folder {source} holds no file to read (hidden and excluded ones are left out, "
            "and what is in corpora, token stores, indexes and models of Bertsmith's)."
        )
    return files


def _list_files(root: str, filesystem: Any, settings: CorpusSettings) -> dict[str, Any]:
    """Maps paths to fsspec's entries, for all files below `root`.

    fsspec's own `find` would silently skip unreadable folders.
    """
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
        if folder != root and _is_bertsmith_folder(entries, filesystem):
            continue
        for entry in entries:
            path = entry["name"].rstrip("/")
            if entry["type"] != "directory":
                entries_by_path[entry["name"]] = entry
            elif path != folder.rstrip("/"):  # some file systems list the folder itself
                folders.append(path)
    return entries_by_path


def _is_bertsmith_folder(entries: Sequence[Mapping[str, Any]], filesystem: Any) -> bool:
    """Whether these are the entries of a corpus, token store, index or model folder of Bertsmith's."""
    files = {PurePosixPath(entry["name"]).name: entry["name"] for entry in entries if entry["type"] == "file"}
    if _MODEL_FILE in files:
        return True
    with contextlib.suppress(OSError):
        manifests = (files[name] for name in _MANIFEST_FILES if name in files)
        return any(_MANIFEST_AUTHOR in filesystem.cat_file(path, 0, _MANIFEST_HEAD) for path in manifests)
    return False


def _leave_out_folder(entries: Mapping[str, Any], root: str, folder: Path) -> dict[str, Any]:
    """The entries outside of `folder`; its path and that of `root` may be spelled differently."""
    root_path, folder_path = Path(root).resolve(), folder.resolve()
    if root_path.is_relative_to(folder_path):
        return {}
    if not folder_path.is_relative_to(root_path):
        return dict(entries)
    prefix = f"{root.rstrip('/')}/{folder_path.relative_to(root_path).as_posix()}/"
    return {path: entry for path, entry in entries.items() if not path.startswith(prefix)}


def find_filesystem(source: str) -> tuple[Any, str]:
    """The file system of a SOURCE, and its path in it. Raises InputError for an unreadable address."""
    if "://" not in source:  # fsspec would interpret '::' and '*' in a local name
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
    """The name as valid UTF-8; bytes that aren't, which file names may have, are escaped: caf\\xe9.txt."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _passes_filters(relative: str, settings: CorpusSettings, listing: SourceListing) -> bool:
    """Whether a file of a folder is to be read. If not, it is counted in `listing`."""
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
