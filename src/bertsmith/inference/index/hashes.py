"""The hash of each file of an index's table, kept at every commit, so that a damaged one is found.

hashes-….json   path -> SHA-256, of the files of one commit; its own hash stands in its name and in index.json
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.files import atomic_write, sha256
from bertsmith.inference.index.manifest import MANIFEST, IndexManifest, stated_sha256

_WAY_ON = "Take it from a copy, or remove the folder and build it again."


def read_hashes(folder: Path, digest: str) -> dict[str, str]:
    """Of the commit that names `digest`; empty where it names none, as in indexes of older versions. Raises
    InputError where the list itself was damaged.
    """
    if not digest:
        return {}
    path = _path(folder, digest)
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} was damaged or lost. {_WAY_ON}")
    hashes: dict[str, str] = json.loads(content)
    return hashes


def write_hashes(folder: Path, hashes: Mapping[str, str]) -> str:
    """Beside the list of the commit before, which counts until index.json names this one. Returns its own
    hash.
    """
    content = json.dumps(hashes, indent=0, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    atomic_write(_path(folder, digest), content)
    return digest


def forget_other_hashes(folder: Path, digest: str) -> None:
    """Those of earlier commits."""
    for path in folder.glob("hashes-*.json"):
        if path != _path(folder, digest):
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


def _path(folder: Path, digest: str) -> Path:
    return folder / f"hashes-{digest[:16]}.json"
