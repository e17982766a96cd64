"""Exact search without an index: compares every query with every document, by vectors or by BM25.

So whatever is missed is the model's fault. BM25 (Robertson and Zaragoza 2009) is the baseline that any search
has to beat; bm25s computes it. A document's BM25 is the sum over the query's words of
idf * tf / (tf + k1 * (1 - b + b * length / mean)), where mean is the documents' mean length in words and
idf = ln(1 + (E - df + 0.5) / (df + 0.5)), as in Lucene.

Q queries, E documents, D width of a vector, K results a query.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError, require
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.progress import Progress
from bertsmith.text.words import WORD

Positions = npt.NDArray[np.int64]
Watch = Callable[[int], None]
_SCORES_AT_ONCE = 16_000_000  # 64 MB, plus what finding the best of them takes
_QUERIES_AT_ONCE = 4096  # embedded together, enough to batch queries of like length


class DenseEncoder(Protocol):
    """Anything that embeds texts as vectors of length 1, such as an Embedder."""

    def queries(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Embeds texts that are searched for: (Q, D)."""
        ...

    def documents(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Embeds texts that are searched in: (E, D)."""
        ...


class Scorer(Protocol):
    """A way to search: scores all documents for each query."""

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[Vectors]:
        """Yields scores (…, E) of at most `size` queries at a time, in order; higher is better."""
        ...


class RankedDocuments(NamedTuple):
    """Documents ranked for a query: `positions` (K,) of documents, best first and ties in their order, and
    their `scores` (K,).
    """

    positions: Positions
    scores: Vectors


def search_exactly(
    search: Scorer, queries: Sequence[str], documents: int, k: int, watch: Watch | None = None
) -> Iterator[RankedDocuments]:
    """Yields the k best of all documents for each query. `documents` is their number."""
    for scores in scores_in_parts(search, queries, documents, watch):
        for row, positions in zip(scores, top_k(scores, k), strict=True):
            yield RankedDocuments(positions, row[positions])


def search_among(
    search: Scorer,
    queries: Sequence[str],
    documents: int,
    candidates: Sequence[Positions],
    watch: Watch | None = None,
) -> Iterator[RankedDocuments]:
    """Ranks each query's own candidates, given by their positions; yields all of them, best first."""
    rows = (row for scores in scores_in_parts(search, queries, documents, watch) for row in scores)
    for row, positions in zip(rows, candidates, strict=True):
        positions = np.sort(positions)
        best = positions[np.argsort(-row[positions], kind="stable")]
        yield RankedDocuments(best, row[best])


def scores_in_parts(
    search: Scorer, queries: Sequence[str], documents: int, watch: Watch | None = None
) -> Iterator[Vectors]:
    """Yields scores (…, E) of so few queries at a time that memory is bounded. `watch` is called with the
    number of queries done.
    """
    done = 0
    for scores in search.in_parts(queries, max(1, _SCORES_AT_ONCE // max(documents, 1))):
        yield scores
        done += len(scores)
        if watch is not None:
            watch(done)


def top_k(scores: Vectors, k: int) -> Positions:
    """(Q, E) -> (Q, K): the positions of the K highest scores of each row, best first, ties in their order.

    K is `k`, or E if that is less. Takes time in O(E) per row, not O(E log E).
    """
    k = min(k, scores.shape[1])
    if k == 0:
        return np.empty((len(scores), 0), np.int64)
    best = np.argpartition(scores, -k, axis=1)[:, -k:]
    lowest = np.take_along_axis(scores, best, axis=1).min(axis=1, keepdims=True)
    # argpartition chooses arbitrarily among documents that tie with the last. Duplicates make that common.
    for row in np.flatnonzero((scores >= lowest).sum(axis=1) > k):
        above = np.flatnonzero(scores[row] > lowest[row])
        equal = np.flatnonzero(scores[row] == lowest[row])
        best[row] = np.concatenate([above, equal])[:k]
    best_scores = np.take_along_axis(scores, best, axis=1)
    return np.take_along_axis(best, np.lexsort((best, -best_scores), axis=1), axis=1)


class DenseSearch:
    """Search by the cosines of queries' and documents' vectors.

    The documents' vectors (E, D) are in memory, in float32: 1.5 GB for a million of 384 dimensions.
    """

    def __init__(
        self, embedder: DenseEncoder, documents: Sequence[str], progress: Progress | None = None
    ) -> None:
        self._embedder = embedder
        self._vectors = embedder.documents(documents, progress)

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[Vectors]:
        """Yields cosines (…, E) of at most `size` queries at a time."""
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            vectors = self._embedder.queries(queries[first : first + _QUERIES_AT_ONCE])
            for start in range(0, len(vectors), size):
                yield np.asarray(vectors[start : start + size] @ self._vectors.T, np.float32)


@dataclass(frozen=True)
class Bm25Settings:
    """BM25's parameters. k1 and b default to Anserini's for BEIR's published baselines; Lucene's are 1.2,
    0.75.

    english: drop Lucene's 33 stop words and stem words by Snowball's English stemmer (Porter2). Turn it off
    for any other language: words are then compared in lower case, unstemmed.
    """

    k1: float = 0.9
    b: float = 0.4
    english: bool = True

    def __post_init__(self) -> None:
        if self.k1 < 0 or not 0 <= self.b <= 1:
            raise InputError(f"BM25 needs k1 of 0 or more and b from 0 to 1, found {self.k1} and {self.b}.")


class LexicalSearch:
    """Search by BM25, with an inverted index in memory. The same texts always give the same scores."""

    def __init__(self, documents: Sequence[str], settings: Bm25Settings | None = None) -> None:
        """Indexes the documents. Raises MissingExtra without the extra `retrieval`."""
        bm25s = _import_bm25s()
        settings = settings or Bm25Settings()
        self._split = _make_splitter(settings)
        self._count = len(documents)
        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(w, len(vocabulary)) for w in self._split(text)] for text in documents]
        # No compiled code: compiling it would take half a minute.
        self._index = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene", auto_compile=False)
        self._vocabulary = vocabulary
        if vocabulary:
            self._index.index((ids, vocabulary), create_empty_token=False, show_progress=False)

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yields BM25 scores (…, E) of at most `size` queries at a time."""
        return (self.scores(queries[start : start + size]) for start in range(0, len(queries), size))

    def scores(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        """BM25 scores (Q, E); 0 where query and document share no word."""
        scores = np.zeros((len(queries), self._count), np.float32)
        for row, query in enumerate(queries):
            word_ids = [self._vocabulary[word] for word in self._split(query) if word in self._vocabulary]
            if word_ids:
                scores[row] = self._index.get_scores_from_ids(word_ids)
        return scores


def _make_splitter(settings: Bm25Settings) -> Callable[[str], list[str]]:
    if not settings.english:
        return lambda text: WORD.findall(text.lower())
    from Stemmer import Stemmer

    stop_words, stemmer = frozenset(_import_bm25s().stopwords.STOPWORDS_EN), Stemmer("english")

    def split(text: str) -> list[str]:
        stems: list[str] = stemmer.stemWords(
            [word for word in WORD.findall(text.lower()) if word not in stop_words]
        )
        return stems

    return split


def _import_bm25s() -> ModuleType:
    """Imports bm25s while JAX is hidden from it: bm25s would initialise JAX, which reserves three quarters of
    a GPU's memory, for nothing that is used here. Raises MissingExtra if it isn't installed.
    """
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # `import jax` raises ImportError
    try:
        for module, package in (("bm25s", "bm25s"), ("Stemmer", "PyStemmer")):
            require(module, "retrieval", "BM25, the baseline of every search,", package)
    finally:
        if hidden:
            del sys.modules["jax"]
    import bm25s.stopwords

    return bm25s  # type: ignore[no-any-return]
