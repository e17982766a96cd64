"""bertsmith.json: what a model folder is for, where it came from, and the hash of each of its files."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

import bertsmith
from bertsmith.errors import ModelError
from bertsmith.files import sha256, write_json
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.validation import first_problem

MANIFEST = "bertsmith.json"
IMPORTED = "imported"  # a task's name that says: what another tool made, as its config.json says
_WAY_ON = (
    f"take it from a copy, or remove {MANIFEST} if you changed the file yourself: the max_length, "
    "temperature and thresholds of a fine-tuned model go with it."
)


def _inside(name: str) -> str:
    """A name that can't lead out of the folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} leads out of the model folder")
    return name


class FileEntry(BaseModel):
    """Size in bytes and SHA-256 of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """`settings` is for decoding (labels, thresholds), `provenance` how the model came about."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    bertsmith: str = bertsmith.__version__
    architecture: str
    task: str
    settings: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    files: dict[Annotated[str, AfterValidator(_inside)], FileEntry] = {}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest` with the sizes and hashes of the files that are in the folder now."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {
        path.relative_to(folder).as_posix(): FileEntry(bytes=path.stat().st_size, sha256=sha256(path))
        for path in files
    }
    write_json(folder / MANIFEST, manifest.model_copy(update={"files": entries}).model_dump())


def write_hash_of(folder: Path, name: str) -> None:
    """Into the manifest that is there, of a file that was added or replaced; what it says of others stays."""
    manifest = _parse(plain_file(folder, MANIFEST))
    path = plain_file(folder, name)
    files = {**manifest.files, name: FileEntry(bytes=path.stat().st_size, sha256=sha256(path))}
    write_json(folder / MANIFEST, manifest.model_copy(update={"files": files}).model_dump())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest, once every file in it has its size and hash; None for a folder that another tool wrote.

    Raises ModelError naming the file that is missing or was altered. Hashing reads each file once, at
    1 to 2 GB/s.
    """
    with hashed_meanwhile(folder) as manifest:
        return manifest


def stated_manifest(folder: Path) -> Manifest | None:
    """The manifest as it stands, no file hashed: enough to choose who opens the folder, and hashes it."""
    return _parse(plain_file(folder, MANIFEST)) if (folder / MANIFEST).exists() else None


@contextmanager
def hashed_meanwhile(folder: Path) -> Iterator[Manifest | None]:
    """As `read_manifest`, with the hashes taken beside what is done inside, which ends when they are right.

    Whatever an altered file led to inside, the ModelError that names the file is raised in its place.
    """
    manifest = stated_manifest(folder)
    entries = [] if manifest is None else [(plain_file(folder, n), e) for n, e in manifest.files.items()]
    for path, entry in entries:  # a cut file is found without reading the others
        size = path.stat().st_size
        if size != entry.bytes:
            raise ModelError(
                f"{path} has {size:,} bytes; {MANIFEST} says {entry.bytes:,}. It was cut or altered: "
                f"{_WAY_ON}"
            )
    with ThreadPoolExecutor(1) as beside:
        hashes = beside.submit(_check_hashes, entries)
        try:
            yield manifest
        finally:
            hashes.result()


def _parse(path: Path) -> Manifest:
    try:
        return Manifest.model_validate(read_settings(path))
    except ValidationError as error:
        raise ModelError(
            f"{path}: {first_problem(error, Manifest)} It was altered, or written by a newer Bertsmith than "
            f"{bertsmith.__version__}."
        ) from error


def _check_hashes(entries: Sequence[tuple[Path, FileEntry]]) -> None:
    for path, entry in entries:
        found = sha256(path)
        if found != entry.sha256:
            raise ModelError(
                f"{path} has the SHA-256 {found[:16]}…; {MANIFEST} says {entry.sha256[:16]}…. "
                f"It was altered: {_WAY_ON}"
            )
