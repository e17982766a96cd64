"""BM25 (Robertson and Zaragoza 2009), the baseline that any search has to beat, computed by bm25s.

A document's score is the sum over the query's words of idf * tf / (tf + k1 * (1 - b + b * length / mean)),
where mean is the documents' mean length in words and idf = ln(1 + (E - df + 0.5) / (df + 0.5)), as in Lucene.

Q queries, E documents.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError, require
from bertsmith.text.words import WORD


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
        bm25s = _bm25s()
        settings = settings or Bm25Settings()
        self._split = _splitter(settings)
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


def _splitter(settings: Bm25Settings) -> Callable[[str], list[str]]:
    if not settings.english:
        return lambda text: WORD.findall(text.lower())
    from Stemmer import Stemmer

    stop_words, stemmer = frozenset(_bm25s().stopwords.STOPWORDS_EN), Stemmer("english")

    def split(text: str) -> list[str]:
        stems: list[str] = stemmer.stemWords(
            [word for word in WORD.findall(text.lower()) if word not in stop_words]
        )
        return stems

    return split


def _bm25s() -> ModuleType:
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
