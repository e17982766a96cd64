"""Search without an index: every query against every document, so that what is missed is the model's fault.

Q queries, E documents, D width of a vector, K results a query.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.progress import Progress

Places = npt.NDArray[np.int64]
Hear = Callable[[int], None]

_SCORES_AT_ONCE = 16_000_000  # 64 MB, and what finding the best of them takes beside
_QUERIES_AT_ONCE = 4096  # embedded together, however few of them fit in the scores: enough of one length


class Embeds(Protocol):
    """What makes vectors of length 1: an Embedder, for one."""

    def queries(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """(Q, D)."""
        ...

    def documents(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """(E, D)."""
        ...


class Scores(Protocol):
    """A way to search: it scores all documents for some queries."""

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[Vectors]:
        """(…, E), the higher the better, of `size` queries in order or fewer at a time."""
        ...


class Found(NamedTuple):
    """Documents by their places (K,), best first, of equal ones the first; and their scores (K,)."""

    places: Places
    scores: Vectors


class DenseSearch:
    """Cosines between the vectors of queries and documents.

    Held in memory are the documents' vectors (E, D), 4 bytes a number: 1.5 GB for a million of 384.
    """

    def __init__(self, embedder: Embeds, documents: Sequence[str], progress: Progress | None = None) -> None:
        self._embedder = embedder
        self._vectors = embedder.documents(documents, progress)

    def in_parts(self, queries: Sequence[str], size: int) -> Iterator[Vectors]:
        """(…, E) of `size` queries at a time."""
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            vectors = self._embedder.queries(queries[first : first + _QUERIES_AT_ONCE])
            for start in range(0, len(vectors), size):
                yield np.asarray(vectors[start : start + size] @ self._vectors.T, np.float32)


def silent(done: int) -> None:
    """Hears and tells nobody."""


def top_k(scores: Vectors, k: int) -> Places:
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


def search_exactly(
    search: Scores, queries: Sequence[str], documents: int, k: int, heard: Hear = silent
) -> Iterator[Found]:
    """The K best of all documents for each query in turn; `documents` is how many there are."""
    for scores in scores_in_parts(search, queries, documents, heard):
        for row, places in zip(scores, top_k(scores, k), strict=True):
            yield Found(places, row[places])


def search_among(
    search: Scores,
    queries: Sequence[str],
    documents: int,
    candidates: Sequence[Places],
    heard: Hear = silent,
) -> Iterator[Found]:
    """Each query's own candidates, given by their places, all of them in order."""
    rows = (row for scores in scores_in_parts(search, queries, documents, heard) for row in scores)
    for row, places in zip(rows, candidates, strict=True):
        places = np.sort(places)
        best = places[np.argsort(-row[places], kind="stable")]
        yield Found(best, row[best])


def scores_in_parts(
    search: Scores, queries: Sequence[str], documents: int, heard: Hear = silent
) -> Iterator[Vectors]:
    """Scores (…, E) of some queries at a time, which bounds memory; `heard` is told how many are done."""
    done = 0
    for scores in search.in_parts(queries, max(1, _SCORES_AT_ONCE // max(documents, 1))):
        yield scores
        done += len(scores)
        heard(done)
