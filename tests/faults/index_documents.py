"""Documents to be indexed, an embedder that needs no model, and all that two indexes are compared by."""

import random
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tiny_run import WORDS

from bertsmith.inference.index.manifest import read_index_manifest
from bertsmith.inference.index.passage_table import PassageTable
from bertsmith.text.retrieval.passages import PassageSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

SETTINGS = PassageSettings(tokens=10, overlap=3)
Rows = dict[str, tuple[object, ...]]


class Counting:
    """A vector of a text's words: how often each of eight kinds of them occurs."""

    def __init__(self) -> None:
        self.max_length = 64
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
        self.tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)

    def queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = np.full((len(texts), 8), 0.1, np.float32)
        for row, text in zip(vectors, texts):
            for word in text.lower().split():
                row[zlib.crc32(word.encode()) % 8] += 1
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)

    documents = queries


def write_documents(folder: Path, seed: int, names: Sequence[str]) -> Path:
    """The same seed and name give the same text."""
    folder.mkdir(exist_ok=True)
    for name in names:
        draw = random.Random(f"{seed} {name}")
        count = 300 if name.startswith("big") else 4
        text = " ".join(" ".join(draw.choices(WORDS, k=5)).capitalize() + "." for _ in range(count))
        (folder / name).write_text(text)
    return folder


def rows_of(index: Path) -> Rows:
    """Every passage that a reader sees, with all that is known of it."""
    manifest = read_index_manifest(index)
    table = PassageTable.open(index, manifest.version)
    rows: Rows = {}
    for batch in table.scan(table.table.schema.names):
        for row in batch.to_pylist():
            assert row["id"] not in rows, "a passage stands twice"
            row["vector"] = tuple(row["vector"])
            rows[row["id"]] = tuple(row.values())
    assert len(rows) == manifest.rows
    assert len({row[1] for row in rows.values()}) == manifest.documents
    return rows


def whole_documents(rows: Rows) -> dict[str, Rows]:
    """Document id -> its rows."""
    found: dict[str, Rows] = {}
    for id, row in rows.items():
        found.setdefault(str(row[1]), {})[id] = row
    return found
