"""Finds copies of texts in documents, by an index of the texts' words.

The index contains seeds: short runs of a text's words that any copy shares. A copy of n words of which k were
replaced still contains one of any k + 1 pieces of the text that don't overlap (the pigeonhole principle). So
each text is cut into pieces of one length, from its beginning to its end, short enough that there are more
pieces than one word in ten, rounded up, can change:

| words of the text | words of a piece | what is found |
| --- | --- | --- |
| 1 to 4 | all of them | whole sentences that are these words and no others |
| 5 to 7 | 4 | these words, wherever they stand |
| 8 to 19 | 4; of 11 words 3, since two of them may be replaced | these words but for some |
| 20 to 48 | 5 | the same |
| 49 and more | 7 | the same |

The pieces also find every run of 13 words that a text shares with a document: it contains a whole piece,
since these have at most 7 words. Texts of one or two words aren't searched for (`is_too_short`); they occur
here only as readings of longer texts, without their punctuation.

A seed that a document shares with a text aligns the two: it says beside which word of the document the text
would begin. Such a candidate is then judged by the words themselves, never by hashes:

| kind | when |
| --- | --- |
| exact | all words of the text, one after the other |
| near | of 8 or more words at least four in five, in their order, where a copy of the text would stand |
| part | a run of 13 words, of a longer text (Brown et al. 2020, appendix C, on GPT-3) |

Where words were inserted or left out, the words after them are shifted. Such candidates are compared once
more, by their longest common blocks.

T texts, W words of all of them, S seeds of one length; N words of the documents, C candidates, E words of all
candidates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Kind = Literal["exact", "near", "part"]  # the best one first

LONGEST_WHOLE = 4  # words of a text that must be a whole sentence
LONGEST_EXACT = 7  # words of a text of which none may differ
LEAST_SHARE = 0.8  # of a text's words, for "near"
LEAST_RUN = 13  # words, for "part"
UNKNOWN = 0  # the id of a word that no text has, and of the gap between two documents
_FILTER_BITS = 22  # 4 MB: nine of ten hashes that aren't seeds are rejected within the processor's cache
_WORTH_ALIGNING = 0.3  # share of words in their position from which a shifted copy is searched for
_WORDS_AT_A_TIME = 1 << 21  # of candidates: 2 million, some 60 MB

_generator = np.random.Generator(np.random.Philox(key=13))
_WEIGHTS: UInt64s = _generator.integers(0, 1 << 64, LONGEST_EXACT, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True)
class Seeds:
    """All pieces of one length: sorted `hashes` (S,), and for each its text and its offset in it, in words.

    If `whole`, they match only a whole sentence. `filter` is True at the leading bits of each hash.
    """

    length: int
    whole: bool
    hashes: UInt64s
    texts: Int32s
    offsets: Int32s
    filter: npt.NDArray[np.bool_]

    def preselect(self, hashes: UInt64s) -> Int64s:
        """The indices of the hashes that may be among the seeds, and of hardly one in ten others."""
        return np.flatnonzero(self.filter[hashes >> np.uint64(64 - _FILTER_BITS)])


@dataclass(frozen=True)
class TextIndex:
    """The words of all texts as ids, `words` (W,), text t at `starts[t]:starts[t + 1]`, and their seeds."""

    words: Int32s
    starts: Int64s
    seeds: tuple[Seeds, ...]

    @property
    def lengths(self) -> Int64s:
        """(T,) the number of words of each text."""
        return np.diff(self.starts)

    @classmethod
    def of_texts(cls, texts: Sequence[Int32s]) -> "TextIndex":
        """The index of texts given as ids of their words, none of them UNKNOWN."""
        starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
        words = np.concatenate([np.zeros(0, np.int32), *texts]).astype(np.int32)
        pieces: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        for text_index, length in enumerate(np.diff(starts).tolist()):
            if length:
                piece = piece_length(length)
                group = pieces.setdefault((piece, length <= LONGEST_WHOLE), [])
                group += [(text_index, offset) for offset in range(0, length - piece + 1, piece)]
        seeds = [_sort_seeds(*key, pieces[key], words, starts) for key in sorted(pieces)]
        return cls(words, starts, tuple(seeds))

    def save(self, path: Path) -> None:
        """Writes the index to one file, from which each worker reads it."""
        arrays = {
            f"{number}.{name}": getattr(seeds, name)
            for number, seeds in enumerate(self.seeds)
            for name in ("length", "whole", "hashes", "texts", "offsets", "filter")
        }
        np.savez(path, words=self.words, starts=self.starts, **arrays)

    @classmethod
    def load(cls, path: Path) -> "TextIndex":
        """Reads an index that `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            all_seeds = list[Seeds]()
            for number in range(sum(name.endswith(".hashes") for name in file.files)):
                arrays = {name: file[f"{number}.{name}"] for name in ("hashes", "texts", "offsets", "filter")}
                all_seeds.append(
                    Seeds(int(file[f"{number}.length"]), bool(file[f"{number}.whole"]), **arrays)
                )
            return cls(file["words"], file["starts"], tuple(all_seeds))


def piece_length(words: int) -> int:
    """How many words each piece of a text of n words has: if n >= 8, floor(n / length) > ceil(n / 10)."""
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
    """(n,) ids of words → (n - length + 1,) the hash of each run of `length` words, by its first word."""
    count = max(0, len(ids) - length + 1)
    mixed, hashes = _mix_bits(ids), np.full(count, length, np.uint64)
    for position in range(length):
        hashes += mixed[position : position + count] * _WEIGHTS[position]
    return hashes ^ (hashes >> np.uint64(29))


def _mix_bits(ids: Int32s) -> UInt64s:
    """The first half of MurmurHash3's finaliser, by which neighbouring ids lie far apart."""
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)


@dataclass(frozen=True)
class Words:
    """The words of some documents: their ids (N,), and the index of each one's document and sentence (N,).

    A gap, one UNKNOWN word, follows each document.
    """

    ids: Int32s
    document: Int32s
    sentence: Int32s


class Match(NamedTuple):
    """The words from `first` to `last` (inclusive) have the share `share` of the words of text `text`."""

    text: int
    first: int
    last: int
    share: float
    kind: Kind


class _Candidates(NamedTuple):
    """Text `texts[c]` may begin at word `begins[c]`, in the document of the words `low[c]:high[c]`."""

    texts: Int64s
    begins: Int64s
    low: Int64s
    high: Int64s


def find_matches(words: Words, index: TextIndex) -> list[Match]:
    """Every copy of a text in the documents, each text and span once, in the order of their first words.

    Two candidates may give the same span, if a text repeats itself: the better match counts.
    """
    matches: dict[tuple[int, int, int], Match] = {}
    for candidates in _find_candidates(words, index):
        for match in _judge_candidates(words, index, candidates):
            span = match.text, match.first, match.last
            matches[span] = min(match, matches.get(span, match), key=_rank_match)
    return sorted(matches.values(), key=lambda match: (match.first, match.text))


def _rank_match(match: Match) -> tuple[int, float]:
    """A key that is lower for the better match: by its kind, then by its share."""
    return get_args(Kind).index(match.kind), -match.share


def _find_candidates(words: Words, index: TextIndex) -> Iterator[_Candidates]:
    """The candidates of all seeds, each text and position once, with a limited number of words at a time."""
    documents = int(words.document[-1]) + 1 if len(words.document) else 0
    longest = int(index.lengths.max(initial=0))
    span = len(words.ids) + longest
    packed = [np.zeros(0, np.int64)]
    for seeds in index.seeds:
        hashes = hash_seeds(words.ids, seeds.length)
        positions = seeds.preselect(hashes)
        if seeds.whole:
            positions = positions[_are_sentences(words, positions, seeds.length)]
        low = np.searchsorted(seeds.hashes, hashes[positions], "left")
        counts = np.searchsorted(seeds.hashes, hashes[positions], "right") - low
        positions, low, counts = (array[counts > 0] for array in (positions, low, counts))
        entries, at = np.repeat(low, counts) + _ragged_ranges(counts), np.repeat(positions, counts)
        begins = at - seeds.offsets[entries] + longest  # never below 0
        key = (seeds.texts[entries].astype(np.int64) * span + begins) * documents + words.document[at]
        packed.append(np.unique(key))
    key, document = np.divmod(np.unique(np.concatenate(packed)), max(documents, 1))
    texts, begins = np.divmod(key, max(span, 1))
    low = np.searchsorted(words.document, document, "left")
    high = np.searchsorted(words.document, document, "right") - 1  # the gap is excluded
    portions = np.cumsum(index.lengths[texts]) // _WORDS_AT_A_TIME
    cuts = np.flatnonzero(np.diff(portions)) + 1
    parts = (np.split(array, cuts) for array in (texts, begins - longest, low, high))
    for part in zip(*parts, strict=True):
        if len(part[0]):
            yield _Candidates(*part)


def _are_sentences(words: Words, positions: Int64s, length: int) -> npt.NDArray[np.bool_]:
    """Whether a sentence begins at each of the positions, and one ends `length` words later."""
    edge = np.full(1, -1, words.sentence.dtype)
    padded = np.concatenate([edge, words.sentence, edge])  # word n at n + 1
    begins = padded[positions] != padded[positions + 1]
    ends = padded[positions + length] != padded[positions + length + 1]
    both: npt.NDArray[np.bool_] = begins & ends
    return both


def _judge_candidates(words: Words, index: TextIndex, candidates: _Candidates) -> Iterator[Match]:
    """The candidates that are copies, judged by all their words."""
    texts, begins, low, high = candidates
    lengths = index.lengths[texts]
    segments = np.cumsum(lengths) - lengths
    within = _ragged_ranges(lengths)  # (E,) the index of the word in its text
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
        equal_words = equal[segments[c] :][:length]
        aligned = _align(words, index, candidates, c) if shifted[c] else None
        if copies[c]:
            shared = np.flatnonzero(equal_words)  # the text's first word may be missing: don't begin there
            first, last = begin + int(shared[0]), begin + int(shared[-1])
            yield Match(text, first, last, share, "exact" if share == 1 else "near")
        elif aligned is not None:
            yield aligned
        else:
            edges = np.flatnonzero(np.diff(equal_words, prepend=False, append=False))
            for first, end in edges.reshape(-1, 2).tolist():  # a run's first word, and its end
                if end - first >= LEAST_RUN:
                    yield Match(text, begin + first, begin + end - 1, (end - first) / length, "part")


def _find_longest_runs(equal: npt.NDArray[np.bool_], segments: Int64s) -> Int64s:
    """(C,) the longest run of equal words of each candidate; its words begin at `segments` (C,)."""
    indices = np.arange(len(equal))
    before = np.where(equal, -1, indices)  # after accumulation: the last word before each one's run
    before[segments] = np.where(equal[segments], segments - 1, segments)
    return np.maximum.reduceat(indices - np.maximum.accumulate(before), segments)


def _align(words: Words, index: TextIndex, candidates: _Candidates, c: int) -> Match | None:
    """Compares the text of candidate `c` with the words around its position; None if too few agree."""
    text, begin = int(candidates.texts[c]), int(candidates.begins[c])
    text_words = index.words[index.starts[text] : index.starts[text + 1]].tolist()
    slack = max(2, len(text_words) // 8)
    start = max(int(candidates.low[c]), begin - slack)
    document_words = words.ids[start : min(int(candidates.high[c]), begin + len(text_words) + slack)].tolist()
    present = set(document_words)
    if sum(word in present for word in text_words) < LEAST_SHARE * len(text_words):
        return None
    blocks = SequenceMatcher(None, text_words, document_words, autojunk=False).get_matching_blocks()[:-1]
    share = sum(block.size for block in blocks) / len(text_words)
    if share < LEAST_SHARE:
        return None
    return Match(text, start + blocks[0].b, start + blocks[-1].b + blocks[-1].size - 1, share, "near")


def _ragged_ranges(counts: Int64s) -> Int64s:
    """The indices 0 … count - 1 for each count, one after the other: [2, 3] → [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
