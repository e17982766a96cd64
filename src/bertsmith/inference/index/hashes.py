"""The hash of each file of an index's table, kept at every commit, so that a damaged one is found.

hashes-….json   path -> SHA-256, of the files of one commit

Its own hash stands in its name and in index.json, as that of golden-….json does.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import atomic_write, sha256
from bertsmith.inference.index.manifest import MANIFEST, IndexManifest, stated_sha256

HASHES = "hashes"
_WAY_ON = "Take it from a copy, or remove the folder and build it again."


def read_hashes(folder: Path, digest: str) -> dict[str, str]:
    """Of the commit that names `digest`; empty where it names none, as in indexes of older versions. Raises
    InputError where the list itself was damaged.
    """
    return dict(read_hashed(folder, HASHES, digest)) if digest else {}


def read_hashed(folder: Path, kind: str, digest: str) -> Any:
    """Raises InputError where the file was damaged or is missing."""
    path = _path(folder, kind, digest)
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} was damaged or lost. {_WAY_ON}")
    return json.loads(content)


def write_hashed(folder: Path, kind: str, value: object) -> str:
    """Beside the file of the commit before, which counts until index.json names this one. Returns its own
    hash.
    """
    content = json.dumps(value, indent=0, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    atomic_write(_path(folder, kind, digest), content)
    return digest


def forget_others(folder: Path, kind: str, digest: str) -> None:
    """Those of earlier commits."""
    for path in folder.glob(f"{kind}-*.json"):
        if path != _path(folder, kind, digest):
            path.unlink(missing_ok=True)


def verify_hashes(folder: Path, manifest: IndexManifest) -> None:
    """Raises InputError naming a file that isn't what was committed."""
    if manifest.sha256 and stated_sha256(folder) != manifest.sha256:
        raise InputError(f"{folder / MANIFEST} was altered since it was written. {_WAY_ON}")
    for name, expected in read_hashes(folder, manifest.hashes).items():
        path = folder / name
        if not path.is_file() or sha256(path) != expected:
            what = "was damaged" if path.is_file() else "is missing"
            raise InputError(f"{path} {what} since it was committed: the index can't be trusted. {_WAY_ON}")


def _path(folder: Path, kind: str, digest: str) -> Path:
    return folder / f"{kind}-{digest[:16]}.json"
