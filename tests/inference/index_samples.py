"""An embedder without a model, and folders of documents, for tests of the index."""

import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertsmith.inference.index.index import Index
from bertsmith.text.retrieval.passages import PassageSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = (
    "red",
    "blue",
    "green",
    "small",
    "large",
    "old",
    "new",
    "cat",
    "dog",
    "bird",
    "runs",
    "sleeps",
    "sings",
)
SETTINGS = PassageSettings(tokens=12, overlap=4)


class WordEmbedder:
    """A text's vector is the sum of its words' own random vectors: texts that share words are close.

    `embedded` counts the texts given to `documents`, which is what an update should do little of.
    """

    def __init__(self, dimension: int = 16) -> None:
        self.dimension = dimension
        self.embedded = 0
        self.max_length = 64
        self.tokenizer = Tokenizer.from_pieces(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS], lowercase=True
        )

    def queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.stack([self._vector(text) for text in texts]).astype(np.float32)

    def documents(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.embedded += len(texts)
        return self.queries(texts)

    def _vector(self, text: str) -> npt.NDArray[np.float64]:
        words = text.lower().replace(".", " ").split() or [""]
        vector = sum(self._of_word(word) for word in words)
        return np.asarray(vector / np.linalg.norm(vector))

    def _of_word(self, word: str) -> npt.NDArray[np.float64]:
        return np.random.default_rng(zlib.crc32(word.encode())).normal(size=self.dimension)


def write_files(folder: Path, texts: Mapping[str, str]) -> Path:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def sentences(seed: int, count: int) -> str:
    draw = random.Random(seed)
    return " ".join(" ".join(draw.choices(WORDS, k=5)).capitalize() + "." for _ in range(count))


def content(index: Index) -> dict[str, tuple[object, ...]]:
    """Every row by its id, vectors rounded: what two indexes of the same documents have in common."""
    rows: dict[str, tuple[object, ...]] = {}
    for batch in index._committed.table.scan(index._committed.table.table.schema.names):
        for row in batch.to_pylist():
            assert row["id"] not in rows, "a passage stands twice"
            row["vector"] = tuple(np.round(row["vector"], 5).tolist())
            rows[row["id"]] = tuple(row.values())
    return rows
