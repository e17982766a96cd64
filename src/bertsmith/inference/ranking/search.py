"""Search without an index: every query against every document, so that what is missed is the model's fault.

By vectors, or by BM25 (Robertson and Zaragoza 2009), the baseline that any search has to beat, computed by
bm25s. A document's BM25 is the sum over the query's words of
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
_SCORES_AT_ONCE = 16_000_000  # 64 MB, and what finding the best of them takes beside
_QUERIES_AT_ONCE = 4096  # embedded together, however few of them fit in the scores: enough of one length


class DenseEncoder(Protocol):
    """What makes vectors of length 1: an Embedder, for one."""

    def queries(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """(Q, D)."""
        ...

    def documents(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """(E, D)."""
        ...


class Scorer(Protocol):
    """A way to search: it scores all documents for some queries."""

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[Vectors]:
        """(…, E), the higher the better, of `size` queries in order or fewer at a time."""
        ...


class RankedDocuments(NamedTuple):
    """Documents by their places (K,), best first, of equal ones the first; and their scores (K,)."""

    places: Positions
    scores: Vectors


def search_exactly(
    search: Scorer, queries: Sequence[str], documents: int, k: int, heard: Watch | None = None
) -> Iterator[RankedDocuments]:
    """The K best of all documents for each query in turn; `documents` is how many there are."""
    for scores in scores_in_parts(search, queries, documents, heard):
        for row, places in zip(scores, top_k(scores, k), strict=True):
            yield RankedDocuments(places, row[places])


def search_among(
    search: Scorer,
    queries: Sequence[str],
    documents: int,
    candidates: Sequence[Positions],
    heard: Watch | None = None,
) -> Iterator[RankedDocuments]:
    """Each query's own candidates, given by their places, all of them in order."""
    rows = (row for scores in scores_in_parts(search, queries, documents, heard) for row in scores)
    for row, places in zip(rows, candidates, strict=True):
        places = np.sort(places)
        best = places[np.argsort(-row[places], kind="stable")]
        yield RankedDocuments(best, row[best])


def scores_in_parts(
    search: Scorer, queries: Sequence[str], documents: int, heard: Watch | None = None
) -> Iterator[Vectors]:
    """Scores (…, E) of some queries at a time, which bounds memory; `heard` is told how many are done."""
    done = 0
    for scores in search.in_parts(queries, max(1, _SCORES_AT_ONCE // max(documents, 1))):
        yield scores
        done += len(scores)
        if heard is not None:
            heard(done)


def top_k(scores: Vectors, k: int) -> Positions:
    """(Q, E) -> (Q, K), the places of the K highest scores of each row, best first; of equal ones the first.

    K is `k`, or E if less. Time grows with E, not with E log E.
    """
    k = min(k, scores.shape[1])
    if k == 0:
        return np.empty((len(scores), 0), np.int64)
    best = np.argpartition(scores, -k, axis=1)[:, -k:]
    lowest = np.take_along_axis(scores, best, axis=1).min(axis=1, keepdims=True)
    # Which of the documents equal to the last are among the best is chance. Duplicates make that common.
    for row in np.flatnonzero((scores >= lowest).sum(axis=1) > k):
        above = np.flatnonzero(scores[row] > lowest[row])
        equal = np.flatnonzero(scores[row] == lowest[row])
        best[row] = np.concatenate([above, equal])[:k]
    found = np.take_along_axis(scores, best, axis=1)
    return np.take_along_axis(best, np.lexsort((best, -found), axis=1), axis=1)


class DenseSearch:
    """Cosines between the vectors of queries and documents.

    Held in memory are the documents' vectors (E, D), 4 bytes a number: 1.5 GB for a million of 384.
    """

    def __init__(
        self, embedder: DenseEncoder, documents: Sequence[str], progress: Progress | None = None
    ) -> None:
        self._embedder = embedder
        self._vectors = embedder.documents(documents, progress)

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[Vectors]:
        """(…, E) of `size` queries at a time."""
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            vectors = self._embedder.queries(queries[first : first + _QUERIES_AT_ONCE])
            for start in range(0, len(vectors), size):
                yield np.asarray(vectors[start : start + size] @ self._vectors.T, np.float32)


@dataclass(frozen=True)
class Bm25Settings:
    """k1 and b as Anserini has them for BEIR's published baselines; Lucene's own defaults are 1.2 and 0.75.

    english: without Lucene's 33 stop words, and reduced to stems by Porter's rules of 2001 (Snowball). For
    any other language turn it off: words are then compared as they are, in lower case.
    """

    k1: float = 0.9
    b: float = 0.4
    english: bool = True

    def __post_init__(self) -> None:
        if self.k1 < 0 or not 0 <= self.b <= 1:
            raise InputError(f"BM25 needs k1 of 0 or more and b from 0 to 1, found {self.k1} and {self.b}.")


class LexicalSearch:
    """An inverted index of texts in memory. The same texts always give the same scores."""

    def __init__(self, documents: Sequence[str], settings: Bm25Settings | None = None) -> None:
        """Raises MissingExtra without the extra `retrieval`."""
        bm25s = _import_bm25s()
        settings = settings or Bm25Settings()
        self._split = _make_splitter(settings)
        self._count = len(documents)
        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(w, len(vocabulary)) for w in self._split(text)] for text in documents]
        # Compiled code would have to be compiled first, which takes half a minute.
        self._index = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene", auto_compile=False)
        self._vocabulary = vocabulary
        if vocabulary:
            self._index.index((ids, vocabulary), create_empty_token=False, show_progress=False)

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[npt.NDArray[np.float32]]:
        """(…, E) of `size` queries at a time."""
        return (self.scores(queries[start : start + size]) for start in range(0, len(queries), size))

    def scores(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        """(Q, E); 0 where query and document share no word."""
        found = np.zeros((len(queries), self._count), np.float32)
        for row, query in enumerate(queries):
            known = [self._vocabulary[word] for word in self._split(query) if word in self._vocabulary]
            if known:
                found[row] = self._index.get_scores_from_ids(known)
        return found


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
    """The package, imported without JAX: where that is installed, bm25s would run it once, which takes three
    quarters of a GPU's memory for nothing that is used here.
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
