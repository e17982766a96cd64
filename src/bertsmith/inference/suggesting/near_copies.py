"""Texts that are nearly the same: by the characters they are made of, whatever an encoder thinks of them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

SAME = 0.9  # cosine of two texts' character n-grams, from which one is a near copy of the other
_ROWS_AT_A_TIME = 512


class Pair(NamedTuple):
    """Numbers of two texts, and how alike they are: 1 is the same."""

    first: int
    second: int
    likeness: float


class Characters:
    """Texts by TF-IDF of three to five characters of their words; case and punctuation don't count."""

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        words = [re.sub(r"\W+", " ", text.casefold()).strip() for text in texts]
        vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), dtype=np.float32)
        self._rows: Any = vectors.fit_transform(words) if any(words) else None

    def pairs(self) -> Iterator[Pair]:
        """All near copies, the later text second."""
        if self._rows is None:
            return
        for start in range(0, self._rows.shape[0], _ROWS_AT_A_TIME):
            block = (self._rows[start : start + _ROWS_AT_A_TIME] @ self._rows.T).tocoo()
            rows = block.row + start
            alike = np.flatnonzero((block.col > rows) & (block.data >= SAME))
            for each in alike[np.lexsort((block.col[alike], rows[alike]))].tolist():
                yield Pair(int(rows[each]), int(block.col[each]), float(block.data[each]))

    def first_of_each(self, rows: Sequence[int], known: Sequence[int]) -> list[int]:
        """Of `rows`, in their order, those that are no near copy of an earlier one, or of a known one."""
        if self._rows is None:
            return list(rows)
        kept, seen = list[int](), self._rows[list(known)]
        if len(known):
            likeness = (self._rows[list(rows)] @ seen.T).max(axis=1).toarray().ravel()
            rows = [row for row, alike in zip(rows, likeness, strict=True) if alike < SAME]
        for row in rows:
            if not kept or (self._rows[row] @ self._rows[kept].T).max() < SAME:
                kept.append(row)
        return kept
