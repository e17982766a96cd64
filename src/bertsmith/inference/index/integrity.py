"""Reference data that an index stores at every commit, by which damaged files and changed models are
detected.

hashes-….json   path -> SHA-256 of the table's files
golden-….json   fixed texts with their vectors, and their best hits by meaning and by words

Each file's own hash is in its name and in index.json.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import InputError
from bertsmith.files import atomic_write, sha256
from bertsmith.inference.index.manifest import MANIFEST, IndexManifest, stated_sha256
from bertsmith.inference.index.passage_table import PassageTable, Vectors
from bertsmith.inference.index.search import Hit, IndexQuery, find_passages
from bertsmith.tasks.golden.subject import FIXED
from bertsmith.validation import Strict

HASHES = "hashes"
_WAY_ON = "Take it from a copy, or remove the folder and build it again."
GOLDEN = "golden"
QUERIES = tuple(text for text in FIXED if isinstance(text, str))[:8]
HITS = 10
_DIGITS = 7
_WORDS = 200  # characters
Hits = tuple[tuple[str, float], ...]  # ids of passages with their scores, best first


def read_hashes(folder: Path, digest: str) -> dict[str, str]:
    """Reads the hashes of files by path. `digest` is the list's hash in index.json; if that is empty, as in
    indexes of older versions, so is the result. Raises InputError when the list is damaged.
    """
    return dict(read_hashed(folder, HASHES, digest)) if digest else {}


def read_hashed(folder: Path, kind: str, digest: str) -> Any:
    """Reads a JSON file of this kind and verifies its hash. Raises InputError if it is damaged or missing."""
    path = _hashed_path(folder, kind, digest)
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} was damaged or lost. {_WAY_ON}")
    return json.loads(content)


def write_hashed(folder: Path, kind: str, value: object) -> str:
    """Writes a JSON file named by its hash, and returns the hash. The previous commit's file stays and counts
    until index.json names the new one.
    """
    content = json.dumps(value, indent=0, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    atomic_write(_hashed_path(folder, kind, digest), content)
    return digest


def remove_others(folder: Path, kind: str, digest: str) -> None:
    """Deletes files of this kind that earlier commits left, keeping the one with this hash."""
    for path in folder.glob(f"{kind}-*.json"):
        if path != _hashed_path(folder, kind, digest):
            path.unlink(missing_ok=True)


def verify_hashes(folder: Path, manifest: IndexManifest) -> None:
    """Raises InputError naming a file whose content isn't what was committed."""
    if manifest.sha256 and stated_sha256(folder) != manifest.sha256:
        raise InputError(f"{folder / MANIFEST} was altered since it was written. {_WAY_ON}")
    for name, expected in read_hashes(folder, manifest.hashes).items():
        path = folder / name
        if not path.is_file() or sha256(path) != expected:
            what = "was damaged" if path.is_file() else "is missing"
            raise InputError(f"{path} {what} since it was committed: the index can't be trusted. {_WAY_ON}")


def _hashed_path(folder: Path, kind: str, digest: str) -> Path:
    return folder / f"{kind}-{digest[:16]}.json"


class GoldenQuery(Strict):
    """A fixed text with its `vector` and its hits. `words` is the full-text query: the beginning of the
    vector's best hit, because most indexes hold none of the fixed texts.
    """

    text: str
    vector: tuple[float, ...]
    words: str
    by_vector: Hits
    by_words: Hits


def ask_golden(
    table: PassageTable, manifest: IndexManifest, text: str, vector: Sequence[float], words: str | None = None
) -> GoldenQuery:
    """Searches the table by a golden query's vector and by its words, which are chosen if not given. Raises
    InputError when the table can't be read.
    """
    by_vector = find_passages(
        table, manifest, IndexQuery(text, np.array(vector, np.float32), HITS, "vector", None)
    )
    if words is None:
        words = by_vector[0].text[:_WORDS] if by_vector else text
    by_words = find_passages(table, manifest, IndexQuery(words, None, HITS, "text", None))
    return GoldenQuery(
        text=text,
        vector=tuple(vector),
        words=words,
        by_vector=_scored_hits(by_vector),
        by_words=_scored_hits(by_words),
    )


def write_golden_queries(
    folder: Path, table: PassageTable, manifest: IndexManifest, vectors: Vectors | Sequence[Sequence[float]]
) -> str:
    """Searches by the vectors (E, D) of QUERIES and writes what they find. Returns the hash for
    index.json.
    """
    rounded = np.asarray(vectors, np.float64).round(_DIGITS).tolist()
    queries = [ask_golden(table, manifest, *pair) for pair in zip(QUERIES, rounded, strict=True)]
    return write_hashed(folder, GOLDEN, [query.model_dump(mode="json") for query in queries])


def read_golden_queries(folder: Path, manifest: IndexManifest) -> list[GoldenQuery]:
    """Reads the golden queries. Empty if an older Bertsmith changed the index last, or a change was
    interrupted. Raises InputError if they are damaged.
    """
    if not manifest.golden:
        return []
    return [GoldenQuery.model_validate(query) for query in read_hashed(folder, GOLDEN, manifest.golden)]


def _scored_hits(hits: Sequence[Hit]) -> Hits:
    return tuple((f"{hit.document_id}@{hit.start}", hit.score) for hit in hits)
