"""An index of texts, and the documents' words → where the documents hold copies of the texts.

The index is of seeds: short runs of a text's words by which a copy gives itself away. A copy of n words of
which k were replaced still holds one of any k + 1 pieces of the text that don't overlap (the pigeonhole
principle). So each text is cut into pieces of one length, from its beginning to its end, short enough that
one piece more fits in than a word in ten, rounded up, can spoil:

| words of the text | words of a piece | what is looked for |
| --- | --- | --- |
| 1 to 4 | all of them | whole sentences that are these words and no others |
| 5 to 7 | 4 | these words, wherever they stand |
| 8 to 19 | 4; of 11 words 3, since two of them may be replaced | these words but for some |
| 20 to 48 | 5 | the same |
| 49 and more | 7 | the same |

The pieces also find every run of 13 words that a text shares with a document: it holds a whole piece, 7 being
the longest. Texts of one or two words aren't looked for at all (`is_too_short`); here such come only of
longer ones whose punctuation is left out.

A seed that a document shares with a text lays the text beside the document: word n of the one belongs beside
word n of the other. What is found that way is judged by the words themselves, never by hashes:

| kind | when |
| --- | --- |
| exact | all words of the text, one behind the other |
| near | of 8 words and more, four in five or more in their order, where a copy of the text would stand |
| part | 13 words in a run, of a text that is longer (Brown et al. 2020, appendix C, on GPT-3) |

Where words were put in or left out, what lies behind them is shifted. Such places are compared once more by
their longest common blocks.

T texts, W words of all of them, S seeds of one length; N words of the documents, C candidates, E words of all
candidates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Kind = Literal["exact", "near", "part"]

LONGEST_WHOLE = 4  # up to here a sentence must consist of the text and nothing else
LONGEST_EXACT = 7  # up to here every word must be there
LEAST_SHARE = 0.8  # of a text's words, for "near"
LEAST_RUN = 13  # words, for "part"
UNKNOWN = 0  # the id of a word that no text has, and of the gap between two documents
_FILTER_BITS = 22  # 4 MB: nine seeds of ten that there aren't are turned away in cache
_WORTH_ALIGNING = 0.3  # share of words in their place from which a shifted copy is looked for
_WORDS_AT_A_TIME = 1 << 21  # of candidates: 2 million, some 60 MB

_generator = np.random.Generator(np.random.Philox(key=13))
_WEIGHTS: UInt64s = _generator.integers(0, 1 << 64, LONGEST_EXACT, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True)
class Seeds:
    """All pieces of one length: `hashes` (S,) sorted, and of each its `texts` (S,) and `offsets` (S,) there.

    `whole`: they count only where they are a whole sentence.
    """

    length: int
    whole: bool
    hashes: UInt64s
    texts: Int32s
    offsets: Int32s
    filter: npt.NDArray[np.bool_]

    def places(self, hashes: UInt64s) -> Int64s:
        """Indices of those hashes that may be among the seeds; of others hardly one in ten."""
        return np.flatnonzero(self.filter[hashes >> np.uint64(64 - _FILTER_BITS)])


@dataclass(frozen=True)
class TextIndex:
    """The words of all texts as ids, `words` (W,), text t at `starts[t]:starts[t + 1]`, and their seeds."""

    words: Int32s
    starts: Int64s
    seeds: tuple[Seeds, ...]

    @property
    def lengths(self) -> Int64s:
        """(T,) words of each text."""
        return np.diff(self.starts)

    @classmethod
    def of_texts(cls, texts: Sequence[Int32s]) -> "TextIndex":
        """The index of texts given as ids of their words, none of them UNKNOWN."""
        starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
        words = np.concatenate([np.zeros(0, np.int32), *texts]).astype(np.int32)
        pieces: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        for number, length in enumerate(np.diff(starts).tolist()):
            if length:
                piece = piece_length(length)
                kind = pieces.setdefault((piece, length <= LONGEST_WHOLE), [])
                kind += [(number, offset) for offset in range(0, length - piece + 1, piece)]
        found = [_sort_seeds(*kind, pieces[kind], words, starts) for kind in sorted(pieces)]
        return cls(words, starts, tuple(found))

    def save(self, path: Path) -> None:
        """To one file, from which each worker reads it."""
        named = {
            f"{number}.{name}": getattr(each, name)
            for number, each in enumerate(self.seeds)
            for name in ("length", "whole", "hashes", "texts", "offsets", "filter")
        }
        np.savez(path, words=self.words, starts=self.starts, **named)

    @classmethod
    def load(cls, path: Path) -> "TextIndex":
        """What `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            found = list[Seeds]()
            for number in range(sum(name.endswith(".hashes") for name in file.files)):
                arrays = {name: file[f"{number}.{name}"] for name in ("hashes", "texts", "offsets", "filter")}
                found.append(Seeds(int(file[f"{number}.length"]), bool(file[f"{number}.whole"]), **arrays))
            return cls(file["words"], file["starts"], tuple(found))


def piece_length(words: int) -> int:
    """How many words each piece of a text has; for 8 words and more, floor(n / length) > ceil(n / 10)."""
    if words <= LONGEST_WHOLE:
        return words
    if words == 11:
        return 3
    return 4 if words < 20 else 5 if words < 49 else 7


def _sort_seeds(
    length: int, whole: bool, pieces: Sequence[tuple[int, int]], words: Int32s, starts: Int64s
) -> Seeds:
    texts, offsets = (np.array(column, np.int32) for column in zip(*pieces, strict=True))
    hashes = hash_seeds(words, length)[starts[texts] + offsets]
    order = np.argsort(hashes, kind="stable")
    present = np.zeros(1 << _FILTER_BITS, np.bool_)
    present[hashes >> np.uint64(64 - _FILTER_BITS)] = True
    return Seeds(length, whole, hashes[order], texts[order], offsets[order], present)


def hash_seeds(ids: Int32s, length: int) -> UInt64s:
    """(n,) ids of words -> (n - length + 1,) hash of each run of so many words, at the place of its first."""
    count = max(0, len(ids) - length + 1)
    mixed, found = _mix_bits(ids), np.full(count, length, np.uint64)
    for place in range(length):
        found += mixed[place : place + count] * _WEIGHTS[place]
    return found ^ (found >> np.uint64(29))


def _mix_bits(ids: Int32s) -> UInt64s:
    """The first half of MurmurHash3's finaliser, by which neighbouring ids lie far apart."""
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)


@dataclass(frozen=True)
class Words:
    """The words of some documents: `ids` (N,), which `document` (N,) and `sentence` (N,) each is of.

    A gap, one UNKNOWN word, stands behind each document.
    """

    ids: Int32s
    document: Int32s
    sentence: Int32s


class Match(NamedTuple):
    """Text `text` is in the documents' words `first` to `last` (last included), of which it has `share`."""

    text: int
    first: int
    last: int
    share: float
    kind: Kind


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
        for candidates in _find_candidates(words, index)
        for match in _judge_candidates(words, index, candidates)
    }
    return sorted(found.values(), key=lambda match: (match.first, match.text))


def _find_candidates(words: Words, index: TextIndex) -> Iterator[_Candidates]:
    """What the seeds say, each text, place and document once; some million words of texts at a time."""
    documents = int(words.document[-1]) + 1 if len(words.document) else 0
    longest = int(index.lengths.max(initial=0))
    span = len(words.ids) + longest
    packed = [np.zeros(0, np.int64)]
    for kind in index.seeds:
        hashes = hash_seeds(words.ids, kind.length)
        places = kind.places(hashes)
        if kind.whole:
            places = places[_are_sentences(words, places, kind.length)]
        low = np.searchsorted(kind.hashes, hashes[places], "left")
        counts = np.searchsorted(kind.hashes, hashes[places], "right") - low
        places, low, counts = (each[counts > 0] for each in (places, low, counts))
        entries, at = np.repeat(low, counts) + _ranges(counts), np.repeat(places, counts)
        begins = at - kind.offsets[entries] + longest  # none below 0
        key = (kind.texts[entries].astype(np.int64) * span + begins) * documents + words.document[at]
        packed.append(np.unique(key))
    key, document = np.divmod(np.unique(np.concatenate(packed)), max(documents, 1))
    texts, begins = np.divmod(key, max(span, 1))
    low = np.searchsorted(words.document, document, "left")
    high = np.searchsorted(words.document, document, "right") - 1  # without the gap
    portions = np.cumsum(index.lengths[texts]) // _WORDS_AT_A_TIME
    cuts = np.flatnonzero(np.diff(portions)) + 1
    parts = (np.split(each, cuts) for each in (texts, begins - longest, low, high))
    for part in zip(*parts, strict=True):
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


def _judge_candidates(words: Words, index: TextIndex, candidates: _Candidates) -> Iterator[Match]:
    """The candidates that hold, after all words of each were compared in their places."""
    texts, begins, low, high = candidates
    lengths = index.lengths[texts]
    segments = np.cumsum(lengths) - lengths
    within = _ranges(lengths)  # (E,) number of the word in its text
    at = np.repeat(begins, lengths) + within
    inside = (at >= np.repeat(low, lengths)) & (at < np.repeat(high, lengths))
    at[~inside] = 0
    equal = inside & (words.ids[at] == index.words[np.repeat(index.starts[texts], lengths) + within])
    shares = np.add.reduceat(equal, segments, dtype=np.int64) / lengths
    longest = _find_longest_runs(equal, segments)
    copies = shares >= np.where(lengths <= LONGEST_EXACT, 1.0, LEAST_SHARE)
    shifted = ~copies & (lengths > LONGEST_EXACT) & (shares >= _WORTH_ALIGNING)
    for c in np.flatnonzero(copies | shifted | (longest >= LEAST_RUN)).tolist():
        text, begin, length, share = int(texts[c]), int(begins[c]), int(lengths[c]), float(shares[c])
        own = equal[segments[c] :][:length]
        aligned = _align(words, index, candidates, c) if shifted[c] else None
        if copies[c]:
            there = np.flatnonzero(own)  # not where the text would begin: that word may be a neighbour's
            first, last = begin + int(there[0]), begin + int(there[-1])
            yield Match(text, first, last, share, "exact" if share == 1 else "near")
        elif aligned is not None:
            yield aligned
        else:
            edges = np.flatnonzero(np.diff(own, prepend=False, append=False))
            for first, end in edges.reshape(-1, 2).tolist():  # each run's first word, and its end
                if end - first >= LEAST_RUN:
                    yield Match(text, begin + first, begin + end - 1, (end - first) / length, "part")


def _find_longest_runs(equal: npt.NDArray[np.bool_], segments: Int64s) -> Int64s:
    """(C,) the longest run of equal words of each candidate."""
    places = np.arange(len(equal))
    before = np.where(equal, -1, places)  # the last word ahead of each that isn't of its run
    before[segments] = np.where(equal[segments], segments - 1, segments)
    return np.maximum.reduceat(places - np.maximum.accumulate(before), segments)


def _align(words: Words, index: TextIndex, candidates: _Candidates, c: int) -> Match | None:
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


def _ranges(counts: Int64s) -> Int64s:
    """[2, 3] -> [0, 1, 0, 1, 2]"""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
