"""Which piece of a tokenizer is read for each word of a sentence.

W words, R pieces that are read, T pieces of a run, K words of a run.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.tasks.examples.tagged_example import TaggedExample
from bertsmith.text.tokens.long_texts import Pieces
from bertsmith.text.tokens.tokenizer import Tokenizer


class WordPieces(NamedTuple):
    """`ids` of the sentence, `firsts` (R,) the places of those that are read, ascending, and `rows` (W,)
    which of these is each word's; None where each word has its own.
    """

    ids: "array[int]"
    firsts: Ints
    rows: Ints | None


def word_pieces(example: TaggedExample, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> WordPieces:
    """The first piece of each word or, in a script without blanks, that which holds the word's beginning:
    offsets of pieces decide there. `pieces` are those of the example's runs.
    """
    ids, firsts, rows = array("i"), array("i"), array("i")
    divided = _Divided(example, tokenizer) if pieces and len(pieces) < len(example.words) else None
    for number, piece in enumerate(pieces):
        found = None if divided is None else divided.pieces_of(number)
        # a word of control characters alone has no pieces; its tag is read from an unknown one
        of_run, places = found or (piece.ids or [tokenizer.unk_id], [0])
        for place in places:
            if not firsts or firsts[-1] != len(ids) + place:
                firsts.append(len(ids) + place)
            rows.append(len(firsts) - 1)
        ids.extend(of_run)
    alone = len(firsts) == len(rows)
    return WordPieces(ids, np.array(firsts, np.int64), None if alone else np.array(rows, np.int64))


class _Divided:
    """The runs of a text that have several words, with their offsets."""

    def __init__(self, example: TaggedExample, tokenizer: Tokenizer) -> None:
        assert example.offsets is not None
        self._tokenizer = tokenizer
        self._blank = " " if tokenizer.family == "byte-level" else ""  # as `pieces_of` puts it before words
        self._words, self._offsets = example.words, example.offsets
        self._numbers = dict[int, range]()
        for number, words in enumerate(example.offsets.words_of_runs()):
            if len(words) > 1:
                self._numbers[number] = words
        runs = example.runs
        found = tokenizer.encode_pieces([self._blank + runs[number] for number in self._numbers])
        self._pieces = dict(zip(self._numbers, found, strict=True))

    def pieces_of(self, number: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """The ids of a run, and (K,) the place among them of each word's; None for a run of one word."""
        if number not in self._numbers:
            return None
        words, pieces = self._numbers[number], self._pieces[number]
        ids = list(pieces.ids)
        bounds = np.array([self._offsets[word] for word in words]) - self._offsets[words[0]][0]  # (K, 2)
        offsets = np.asarray(pieces.offsets, np.int64).reshape(-1, 2) - len(self._blank)  # (T, 2)
        places = _places(bounds, offsets)
        return self._without_unknown(ids, places, [self._words[word] for word in words])

    def _without_unknown(
        self, ids: list[int], places: Ints, words: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """An unknown piece of several words, as a run of over a hundred characters is, says nothing of any of
        them: each is read by itself then.
        """
        found, of_words = list[int](), list[int]()
        for place, id in enumerate(ids or [self._tokenizer.unk_id]):
            here = [words[each] for each in np.flatnonzero(places == place).tolist()]
            if id != self._tokenizer.unk_id or len(here) < 2:
                of_words += [len(found)] * len(here)
                found.append(id)
                continue
            for of_word in self._tokenizer.encode_batch([self._blank + word for word in here]):
                of_words.append(len(found))
                found += of_word or [self._tokenizer.unk_id]
        return found, of_words


def _places(words: Ints, offsets: Ints) -> Ints:
    """(K, 2) characters of words and (T, 2) of pieces -> (K,) the piece of each word: the first that reaches
    into it, else that of the word before, for characters that the tokenizer leaves out.
    """
    if not len(offsets):
        return np.zeros(len(words), np.int64)
    found = np.searchsorted(np.maximum.accumulate(offsets[:, 1]), words[:, 0], side="right")
    within = np.minimum(found, len(offsets) - 1)
    has_own = (found < len(offsets)) & (offsets[within, 0] < words[:, 1])
    return np.maximum.accumulate(np.where(has_own, within, 0))
