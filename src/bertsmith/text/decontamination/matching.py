"""Documents as ids of words, and an index of texts → where the documents hold copies of the texts.

A seed that a document shares with a text lays the text beside the document: word n of the one belongs beside
word n of the other. What is found that way is judged by the words themselves, never by hashes:

| kind | when |
| --- | --- |
| exact | all words of the text, one behind the other |
| near | of 8 words and more, four in five or more in their order, where a copy of the text would stand |
| part | 13 words in a run, of a text that is longer (Brown et al. 2020, appendix C, on GPT-3) |

Where words were put in or left out, what lies behind them is shifted. Such places are compared once more by
their longest common blocks.

N words of the documents, C candidates, E words of all candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.text.decontamination.text_index import (
    LONGEST_EXACT,
    Int32s,
    Int64s,
    TextIndex,
    seeds,
)

Kind = Literal["exact", "near", "part"]
LEAST_SHARE = 0.8  # of a text's words, for "near"
LEAST_RUN = 13  # words, for "part"
_WORTH_ALIGNING = 0.3  # share of words in their place from which a shifted copy is looked for
_WORDS_AT_A_TIME = 1 << 21  # of candidates: 2 million, some 60 MB


class Match(NamedTuple):
    """Text `text` is in the documents' words `first` to `last` (last included), of which it has `share`."""

    text: int
    first: int
    last: int
    share: float
    kind: Kind


@dataclass(frozen=True)
class Words:
    """The words of some documents: `ids` (N,), which `document` (N,) and `sentence` (N,) each is of.

    A gap, one UNKNOWN word, stands behind each document.
    """

    ids: Int32s
    document: Int32s
    sentence: Int32s


class _Candidates(NamedTuple):
    """Text `texts[c]` may stand from word `begins[c]` on, in a document whose words are `low[c]:high[c]`."""

    texts: Int64s
    begins: Int64s
    low: Int64s
    high: Int64s


def find_matches(words: Words, index: TextIndex) -> list[Match]:
    """Every copy of a text in the documents, each text and place once, by place."""
    found = {
        (match.text, match.first, match.last): match
        for candidates in _in_portions(_candidates(words, index), index)
        for match in _judged(words, index, candidates)
    }
    return sorted(found.values(), key=lambda match: (match.first, match.text))


def _candidates(words: Words, index: TextIndex) -> _Candidates:
    """What the seeds say, each text, place and document once."""
    documents = int(words.document[-1]) + 1 if len(words.document) else 0
    longest = int(index.lengths.max(initial=0))
    span = len(words.ids) + longest
    packed = [np.zeros(0, np.int64)]
    for kind in index.seeds:
        hashes = seeds(words.ids, kind.length)
        places = kind.places(hashes)
        if kind.whole:
            places = places[_are_sentences(words, places, kind.length)]
        low = np.searchsorted(kind.hashes, hashes[places], "left")
        counts = np.searchsorted(kind.hashes, hashes[places], "right") - low
        places, low, counts = (each[counts > 0] for each in (places, low, counts))
        entries, at = np.repeat(low, counts) + _counted(counts), np.repeat(places, counts)
        begins = at - kind.offsets[entries] + longest  # none below 0
        key = (kind.texts[entries].astype(np.int64) * span + begins) * documents + words.document[at]
        packed.append(np.unique(key))
    key, document = np.divmod(np.unique(np.concatenate(packed)), max(documents, 1))
    texts, begins = np.divmod(key, max(span, 1))
    low = np.searchsorted(words.document, document, "left")
    high = np.searchsorted(words.document, document, "right") - 1  # without the gap
    return _Candidates(texts, begins - longest, low, high)


def _in_portions(candidates: _Candidates, index: TextIndex) -> Iterator[_Candidates]:
    """Some million words of texts at a time."""
    ends = np.cumsum(index.lengths[candidates.texts])
    portion = ends // _WORDS_AT_A_TIME
    cuts = np.flatnonzero(np.diff(portion)) + 1
    for part in zip(*(np.split(each, cuts) for each in candidates), strict=True):
        if len(part[0]):
            yield _Candidates(*part)


def _are_sentences(words: Words, places: Int64s, length: int) -> npt.NDArray[np.bool_]:
    """Whether a sentence begins at each place, and one ends so many words later."""
    edge = np.full(1, -1, words.sentence.dtype)
    padded = np.concatenate([edge, words.sentence, edge])  # word n at n + 1
    own = padded[places + 1]
    whole: npt.NDArray[np.bool_] = padded[places] != own
    whole &= padded[places + length] != padded[places + length + 1]
    return whole


def _counted(counts: Int64s) -> Int64s:
    """[2, 3] -> [0, 1, 0, 1, 2]"""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _judged(words: Words, index: TextIndex, candidates: _Candidates) -> Iterator[Match]:
    """The candidates that hold, after all words of each were compared in their places."""
    texts, begins, low, high = candidates
    lengths = index.lengths[texts]
    segments = np.cumsum(lengths) - lengths
    within = _counted(lengths)  # (E,) number of the word in its text
    at = np.repeat(begins, lengths) + within
    inside = (at >= np.repeat(low, lengths)) & (at < np.repeat(high, lengths))
    at[~inside] = 0
    equal = inside & (words.ids[at] == index.words[np.repeat(index.starts[texts], lengths) + within])
    shares = np.add.reduceat(equal, segments, dtype=np.int64) / lengths
    longest = _longest_runs(equal, segments)
    copies = shares >= np.where(lengths <= LONGEST_EXACT, 1.0, LEAST_SHARE)
    shifted = ~copies & (lengths > LONGEST_EXACT) & (shares >= _WORTH_ALIGNING)
    for c in np.flatnonzero(copies | shifted | (longest >= LEAST_RUN)).tolist():
        text, begin, length, share = int(texts[c]), int(begins[c]), int(lengths[c]), float(shares[c])
        own = equal[segments[c] :][:length]
        aligned = _aligned(words, index, candidates, c) if shifted[c] else None
        if copies[c]:
            there = np.flatnonzero(own)  # not where the text would begin: that word may be a neighbour's
            first, last = begin + int(there[0]), begin + int(there[-1])
            yield Match(text, first, last, share, "exact" if share == 1 else "near")
        elif aligned is not None:
            yield aligned
        else:
            for first, end in _long_runs(own):
                yield Match(text, begin + first, begin + end - 1, (end - first) / length, "part")


def _longest_runs(equal: npt.NDArray[np.bool_], segments: Int64s) -> Int64s:
    """(C,) the longest run of equal words of each candidate."""
    places = np.arange(len(equal))
    before = np.where(equal, -1, places)  # the last word ahead of each that isn't of its run
    before[segments] = np.where(equal[segments], segments - 1, segments)
    return np.maximum.reduceat(places - np.maximum.accumulate(before), segments)


def _long_runs(equal: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Of one candidate the runs of `LEAST_RUN` equal words and more: the first word of each, and its end."""
    edges = np.flatnonzero(np.diff(equal, prepend=False, append=False))
    return ((first, end) for first, end in edges.reshape(-1, 2).tolist() if end - first >= LEAST_RUN)


def _aligned(words: Words, index: TextIndex, candidates: _Candidates, c: int) -> Match | None:
    """The text against the words around its place, wherever it was shifted; None below the least share."""
    text, begin = int(candidates.texts[c]), int(candidates.begins[c])
    wanted = index.words[index.starts[text] : index.starts[text + 1]].tolist()
    slack = max(2, len(wanted) // 8)
    start = max(int(candidates.low[c]), begin - slack)
    there = words.ids[start : min(int(candidates.high[c]), begin + len(wanted) + slack)].tolist()
    present = set(there)
    if sum(word in present for word in wanted) < LEAST_SHARE * len(wanted):
        return None
    blocks = SequenceMatcher(None, wanted, there, autojunk=False).get_matching_blocks()[:-1]
    share = sum(block.size for block in blocks) / len(wanted)
    if share < LEAST_SHARE:
        return None
    return Match(text, start + blocks[0].b, start + blocks[-1].b + blocks[-1].size - 1, share, "near")
