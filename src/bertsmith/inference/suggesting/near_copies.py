"""Texts that are nearly the same: by the characters they are made of, whatever an encoder thinks of them.

Thousands of long texts, each with each, take long. So they are compared first by their rare n-grams, which
few others have. What the frequent ones could add is bounded by their length, and only pairs that may still be
alike are compared whole: none is missed (prefix filtering: Bayardo, Ma and Srikant 2007, "Scaling up all
pairs similarity search"). 20,000 rows of 200 words take 40 seconds on a core.

E texts, N n-grams.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Bools, Floats, Ints

SAME = 0.9  # cosine of two texts' character n-grams, from which one is a near copy of the other
_FREQUENT = 0.7  # of a text's squared length, at most, that the first look leaves out; below SAME squared
_ROUNDING = 1e-4  # float32's, with room
_ROWS_AT_A_TIME, _COMPARED_AT_A_TIME = 512, 4096

PairFilter = Callable[[Ints, Ints], Bools]  # numbers of two texts each -> whether they are to be compared


class NearCopy(NamedTuple):
    """Numbers of two texts, and how alike they are: 1 is the same."""

    first: int
    second: int
    likeness: float


class CharacterNgrams:
    """Texts by TF-IDF of three to five characters of their words; case and punctuation don't count."""

    def __init__(self, texts: Sequence[str]) -> None:
        words = [re.sub(r"\W+", " ", text.casefold()).strip() for text in texts]
        self._rows: Any = _count_ngrams(words) if any(words) else None

    def pairs(self, kinds: Sequence[int] | None = None) -> Iterator[NearCopy]:
        """All near copies, the later text second; with `kinds` (E,) only those of different kinds."""
        if self._rows is None:
            return
        every = np.arange(self._rows.shape[0])
        kind = every if kinds is None else np.array(kinds)
        for first, others, likeness in self._alike(every, lambda a, b: (a < b) & (kind[a] != kind[b])):
            for second, alike in zip(others.tolist(), likeness.tolist(), strict=True):
                yield NearCopy(first, second, alike)

    def first_of_each(self, rows: Sequence[int], known: Sequence[int]) -> list[int]:
        """Of `rows`, in their order, those that are no near copy of an earlier one, or of a known one."""
        if self._rows is None:
            return list(rows)
        asked = np.zeros(self._rows.shape[0], np.bool_)
        asked[[*rows, *known]] = True
        found = self._alike(np.array(rows, np.int64), lambda _, other: asked[other])
        near = {row: set(others.tolist()) for row, others, _ in found}
        kept, taken = list[int](), set(known)
        for row in rows:
            if taken.isdisjoint(near.get(row, ())):
                kept.append(row)
                taken.add(row)
        return kept

    def _alike(self, rows: Ints, wanted: PairFilter) -> Iterator[tuple[int, Ints, Floats]]:
        """Each of `rows`, its near copies among all texts, itself included, and how alike they are."""
        rare, rest = _split_rare(self._rows)
        others_rare = rare.T.tocsr()
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            block = rows[start : start + _ROWS_AT_A_TIME]
            shared = (rare[block] @ others_rare).tocoo()
            first, second = block[shared.row], shared.col
            most = shared.data + np.maximum(rest[first], rest[second])
            close = np.flatnonzero((most >= SAME - _ROUNDING) & wanted(first, second))
            close = close[np.lexsort((second[close], shared.row[close]))]
            places, begins = np.unique(shared.row[close], return_index=True)
            for place, others in zip(places, np.split(second[close], begins[1:])):
                likeness = self._likeness(int(block[place]), others)
                near = likeness >= SAME
                if near.any():
                    yield int(block[place]), others[near], likeness[near]

    def _likeness(self, row: int, others: Ints) -> Floats:
        """Of one text and each of the others."""
        one = self._rows[row].toarray()[0]  # (N,)
        parts = range(0, len(others), _COMPARED_AT_A_TIME)
        return np.concatenate([self._rows[others[at : at + _COMPARED_AT_A_TIME]] @ one for at in parts])


def _count_ngrams(texts: Sequence[str]) -> Any:
    """(E, N), sparse, rows of length 1; the n-grams that the fewest texts have stand in front. A word is cut
    into them once, however often it comes.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    words = CountVectorizer(analyzer=str.split, dtype=np.float32)
    ngrams = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5), dtype=np.float32)
    of_texts = words.fit_transform(texts)
    of_words = ngrams.fit_transform(words.get_feature_names_out())
    rows = TfidfTransformer().fit_transform(of_texts @ of_words)
    order = np.argsort(np.bincount(rows.indices, minlength=rows.shape[1]), kind="stable")
    places = np.empty(len(order), rows.indices.dtype)
    places[order] = np.arange(len(order))
    ordered = type(rows)((rows.data, places[rows.indices], rows.indptr), shape=rows.shape)
    ordered.sort_indices()
    return ordered


def _split_rare(rows: Any) -> tuple[Any, Floats]:
    """(E, N) -> (E, N), each row's rare n-grams alone, and (E,) the length of what was left out.

    For rows x and y let x' and y' be these, of which one, say x', ends first. N-grams that both have are
    either in x' and y', or behind the end of x'. So x·y is at most x'·y' plus the length of x - x'.
    """
    kept, rest = np.zeros(len(rows.data), np.bool_), np.zeros(rows.shape[0])
    begins = [0]
    for row, (start, end) in enumerate(pairwise(rows.indptr.tolist())):
        following = np.cumsum(np.square(rows.data[start:end], dtype=np.float64)[::-1])[::-1]
        rare = int((following > _FREQUENT).sum())
        kept[start : start + rare] = True
        rest[row] = np.sqrt(following[rare]) if rare < len(following) else 0.0
        begins.append(begins[-1] + rare)
    return type(rows)((rows.data[kept], rows.indices[kept], begins), shape=rows.shape), rest
