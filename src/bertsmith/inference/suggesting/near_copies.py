"""CharacterNgrams: finds texts that are nearly the same by their characters, whatever an encoder thinks of
them.

Comparing thousands of long texts with each other is slow. So texts are first compared by their rare n-grams,
which few others have. What the frequent n-grams can add is bounded by the length of their part of the vector,
and only pairs that may still be near copies are compared in full. No pair is missed (prefix filtering:
Bayardo, Ma and Srikant 2007, "Scaling up all pairs similarity search"). 20,000 rows of 200 words take 40
seconds on a core.

E texts, N n-grams.
"""

import unicodedata
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Bools, Floats, Ints
from bertsmith.text.words import WORD

SAME = 0.9  # the cosine of two texts' character n-grams from which on they are near copies
_FREQUENT = 0.7  # at most this share of a text's squared length is left out at first; below SAME squared
_ROUNDING = 1e-4  # float32's, with room
_FIRST, _SECOND = "1", "2"  # before a word of the first text of a pair, and of the second
_ROWS_AT_A_TIME, _COMPARED_AT_A_TIME = 512, 4096

PairFilter = Callable[
    [Ints, Ints], Bools
]  # indices of first and second texts -> whether to compare each pair


class NearCopy(NamedTuple):
    """The indices of two texts, and their `likeness`, a cosine."""

    first: int
    second: int
    likeness: float


class CharacterNgrams:
    """Texts as TF-IDF vectors of their words' n-grams of three to five characters, ignoring case and
    punctuation. A text without words, such as an emoji, is compared as it is. With `others` (E,), what stands
    beside each text, only texts beside which the same stands are copies. With `seconds` (E,), the second
    texts of pairs, a word of a second text is another than the same word of a first.
    """

    def __init__(
        self,
        texts: Sequence[str],
        others: Sequence[Hashable] | None = None,
        seconds: Sequence[str] | None = None,
    ) -> None:
        numbers = dict[Hashable, int]()
        beside = [None] * len(texts) if others is None else others
        self._beside = np.array([numbers.setdefault(other, len(numbers)) for other in beside], np.int64)
        words = [_split_words(text, _FIRST) for text in texts]
        if seconds is not None:
            of_seconds = (_split_words(text, _SECOND) for text in seconds)
            words = [[*first, *second] for first, second in zip(words, of_seconds, strict=True)]
        self._is_blank = np.array([not of_text for of_text in words], np.bool_)
        self._rows: Any = _count_ngrams(words) if any(words) else None

    def pairs(self, kinds: Sequence[int] | None = None) -> Iterator[NearCopy]:
        """Yields all pairs of near copies, the later text second; with `kinds` (E,) only pairs of different
        kinds.
        """
        if self._rows is None:
            return
        every = np.arange(self._rows.shape[0])
        kind = every if kinds is None else np.array(kinds)
        for first, others, likeness in self._find_copies(every, lambda a, b: (a < b) & (kind[a] != kind[b])):
            for second, alike in zip(others.tolist(), likeness.tolist(), strict=True):
                yield NearCopy(first, second, alike)

    def first_of_each(self, rows: Sequence[int], known: Sequence[int]) -> list[int]:
        """The `rows`, in their order, that are no near copy of an earlier row or of a `known` one. A row
        without any text is a copy of another one beside which the same stands.
        """
        is_compared = np.zeros(len(self._beside), np.bool_)
        is_compared[[*rows, *known]] = True
        copies_of = dict[int, set[int]]()
        if self._rows is not None:
            copies = self._find_copies(np.array(rows, np.int64), lambda _, other: is_compared[other])
            copies_of = {row: set(others.tolist()) for row, others, _ in copies}
        chosen, taken_rows = list[int](), set(known)
        beside_blanks = {int(self._beside[row]) for row in known if self._is_blank[row]}
        for row in rows:
            beside = int(self._beside[row])
            if self._is_blank[row] and beside in beside_blanks:
                continue
            if taken_rows.isdisjoint(copies_of.get(row, ())):
                chosen.append(row)
                taken_rows.add(row)
                if self._is_blank[row]:
                    beside_blanks.add(beside)
        return chosen

    def _find_copies(self, rows: Ints, is_compared: PairFilter) -> Iterator[tuple[int, Ints, Floats]]:
        """Yields each of `rows` with its near copies among all texts, itself included, and their cosines."""
        rare, rest_lengths = _split_rare(self._rows)
        others_rare = rare.T.tocsr()
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            block = rows[start : start + _ROWS_AT_A_TIME]
            shared = (rare[block] @ others_rare).tocoo()
            first, second = block[shared.row], shared.col
            upper_bound = shared.data + np.maximum(rest_lengths[first], rest_lengths[second])
            is_possible = (upper_bound >= SAME - _ROUNDING) & (self._beside[first] == self._beside[second])
            candidates = np.flatnonzero(is_possible & is_compared(first, second))
            candidates = candidates[np.lexsort((second[candidates], shared.row[candidates]))]
            block_rows, starts = np.unique(shared.row[candidates], return_index=True)
            for index, others in zip(block_rows, np.split(second[candidates], starts[1:])):
                likeness = self._likeness(int(block[index]), others)
                near = likeness >= SAME
                if near.any():
                    yield int(block[index]), others[near], likeness[near]

    def _likeness(self, row: int, others: Ints) -> Floats:
        """The cosines of one text and each of the others."""
        row_vector = self._rows[row].toarray()[0]  # (N,)
        starts = range(0, len(others), _COMPARED_AT_A_TIME)
        return np.concatenate(
            [self._rows[others[start : start + _COMPARED_AT_A_TIME]] @ row_vector for start in starts]
        )


def _split_words(text: str, which: str) -> list[str]:
    """A text's words, with a character before each that says of which text of a pair they are."""
    folded = unicodedata.normalize("NFC", text.casefold())
    return [which + word for word in WORD.findall(folded) or folded.split()]


def _count_ngrams(texts: Sequence[Sequence[str]]) -> Any:
    """TF-IDF vectors of the n-grams of texts' words: (E, N), sparse, rows of length 1. Columns are ordered
    from rare n-grams to frequent ones. Each different word is divided into n-grams only once.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    words = CountVectorizer(analyzer=list, dtype=np.float32)
    divide = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5)).build_analyzer()
    ngrams = CountVectorizer(
        analyzer=lambda word: [word[0] + ngram for ngram in divide(word[1:])], dtype=np.float32
    )
    words_of_texts = words.fit_transform(texts)
    ngrams_of_words = ngrams.fit_transform(words.get_feature_names_out())
    rows = TfidfTransformer().fit_transform(words_of_texts @ ngrams_of_words)
    order = np.argsort(np.bincount(rows.indices, minlength=rows.shape[1]), kind="stable")
    new_columns = np.empty(len(order), rows.indices.dtype)
    new_columns[order] = np.arange(len(order))
    ordered = type(rows)((rows.data, new_columns[rows.indices], rows.indptr), shape=rows.shape)
    ordered.sort_indices()
    return ordered


def _split_rare(rows: Any) -> tuple[Any, Floats]:
    """Keeps each row's rare n-grams: (E, N) -> (E, N), and the length of what each row lost (E,).

    Let x' and y' be what is kept of rows x and y, and let x' end first. N-grams that both rows have are
    either in x' and y' both, or behind the end of x'. So x·y is at most x'·y' plus the length of x - x'.
    """
    is_rare, rest_lengths = np.zeros(len(rows.data), np.bool_), np.zeros(rows.shape[0])
    starts = [0]
    for row, (start, end) in enumerate(pairwise(rows.indptr.tolist())):
        lengths_behind = np.cumsum(np.square(rows.data[start:end], dtype=np.float64)[::-1])[::-1]
        rare = int((lengths_behind > _FREQUENT).sum())
        is_rare[start : start + rare] = True
        rest_lengths[row] = np.sqrt(lengths_behind[rare]) if rare < len(lengths_behind) else 0.0
        starts.append(starts[-1] + rare)
    return type(rows)((rows.data[is_rare], rows.indices[is_rare], starts), shape=rows.shape), rest_lengths
