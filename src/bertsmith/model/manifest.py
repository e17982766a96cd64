"""bertsmith.json, the manifest of a model folder: its task, its provenance, and the hash of each of its
files.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

import bertsmith
from bertsmith.errors import ModelError
from bertsmith.files import sha256, sha256_of_unchanged, write_json
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.validation import describe_problem

MANIFEST = "bertsmith.json"
IMPORTED = (
    "imported"  # in place of a task's name: another tool made the model, and its config.json tells the task
)
_ADVICE = (
    f"take it from a copy, or remove {MANIFEST} if you changed the file yourself: the max_length, "
    "temperature and thresholds of a fine-tuned model go with it."
)


def _require_inside(name: str) -> str:
    """Checks that a file's name stays inside the model folder. Raises ValueError."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} leads out of the model folder")
    return name


class FileEntry(BaseModel):
    """The size in bytes and the SHA-256 of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The content of bertsmith.json. `architecture` is the class of transformers that reads the folder, such
    as BertForSequenceClassification, or StaticModel for a static table. `settings` are the task's (labels,
    thresholds, …), `provenance` tells how the model was made, `files` has every other file of the folder by
    its relative path.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    bertsmith: str = bertsmith.__version__
    architecture: str
    task: str
    settings: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    files: dict[Annotated[str, AfterValidator(_require_inside)], FileEntry] = {}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest` with the sizes and hashes of the folder's present files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {
        path.relative_to(folder).as_posix(): FileEntry(bytes=path.stat().st_size, sha256=sha256(path))
        for path in files
    }
    write_json(folder / MANIFEST, manifest.model_copy(update={"files": entries}).model_dump())


def update_file_entry(folder: Path, name: str) -> None:
    """Updates the size and hash of one file in a folder's manifest, after the file was added or replaced. The
    other entries stay.
    """
    manifest = _parse(plain_file(folder, MANIFEST))
    path = plain_file(folder, name)
    files = {**manifest.files, name: FileEntry(bytes=path.stat().st_size, sha256=sha256(path))}
    write_json(folder / MANIFEST, manifest.model_copy(update={"files": files}).model_dump())


def read_verified_manifest(folder: Path) -> Manifest | None:
    """Reads the manifest and verifies the size and hash of every file; None for a folder that another tool
    wrote.

    Raises ModelError that names a missing or altered file. Hashing reads each file once, at 1 to 2 GB/s.
    """
    with verify_while_loading(folder) as manifest:
        return manifest


def read_unverified_manifest(folder: Path) -> Manifest | None:
    """Reads the manifest alone, without a look at the other files; None for a folder that another tool wrote.
    Raises ModelError for a damaged manifest.
    """
    return _parse(plain_file(folder, MANIFEST)) if (folder / MANIFEST).exists() else None


@contextmanager
def verify_while_loading(folder: Path) -> Iterator[Manifest | None]:
    """Gives the manifest at once, and verifies the files' hashes in a thread while the block loads them. The
    end of the block waits for the thread. Sizes are verified before the block begins.

    For an altered file, the ModelError that names it replaces any exception of the block.
    """
    manifest = read_unverified_manifest(folder)
    entries = [] if manifest is None else [(plain_file(folder, n), e) for n, e in manifest.files.items()]
    for path, entry in entries:  # sizes first: a truncated file is found without hashing
        size = path.stat().st_size
        if size != entry.bytes:
            raise ModelError(
                f"{path} has {size:,} bytes; {MANIFEST} says {entry.bytes:,}. It was cut or altered: "
                f"{_ADVICE}"
            )
    with ThreadPoolExecutor(1) as executor:
        hashes = executor.submit(_check_hashes, entries)
        try:
            yield manifest
        finally:
            hashes.result()


def _parse(path: Path) -> Manifest:
    try:
        return Manifest.model_validate(read_settings(path))
    except ValidationError as error:
        raise ModelError(
            f"{path}: "
            f"{describe_problem(error, Manifest)} It was altered, or written by a newer Bertsmith than "
            f"{bertsmith.__version__}."
        ) from error


def _check_hashes(entries: Sequence[tuple[Path, FileEntry]]) -> None:
    for path, entry in entries:
        actual = sha256_of_unchanged(path)
        if actual != entry.sha256:
            raise ModelError(
                f"{path} has the SHA-256 {actual[:16]}…; {MANIFEST} says {entry.sha256[:16]}…. "
                f"It was altered: {_ADVICE}"
            )
