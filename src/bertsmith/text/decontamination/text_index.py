"""The texts to be looked for, as sorted seeds: short runs of their words by which a copy gives itself away.

A copy of n words of which k were replaced still holds one of any k + 1 pieces of the text that don't overlap
(the pigeonhole principle). So each text is cut into pieces of one length, from its beginning to its end,
short enough that one piece more fits in than a word in ten, rounded up, can spoil:

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

T texts, W words of all of them, S seeds of one length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

LONGEST_WHOLE = 4  # up to here a sentence must consist of the text and nothing else
LONGEST_EXACT = 7  # up to here every word must be there
UNKNOWN = 0  # the id of a word that no text has, and of the gap between two documents
_FILTER_BITS = 22  # 4 MB: nine seeds of ten that there aren't are turned away in cache

_generator = np.random.Generator(np.random.Philox(key=13))
_WEIGHTS: UInt64s = _generator.integers(0, 1 << 64, LONGEST_EXACT, dtype=np.uint64) | np.uint64(1)


def piece_length(words: int) -> int:
    """How many words each piece of a text has; for 8 words and more, floor(n / length) > ceil(n / 10)."""
    if words <= LONGEST_WHOLE:
        return words
    if words == 11:
        return 3
    return 4 if words < 20 else 5 if words < 49 else 7


def seeds(ids: Int32s, length: int) -> UInt64s:
    """(n,) ids of words -> (n - length + 1,) hash of each run of so many words, at the place of its first."""
    count = max(0, len(ids) - length + 1)
    mixed, found = _mixed(ids), np.full(count, length, np.uint64)
    for place in range(length):
        found += mixed[place : place + count] * _WEIGHTS[place]
    return found ^ (found >> np.uint64(29))


def _mixed(ids: Int32s) -> UInt64s:
    """The first half of MurmurHash3's finaliser, by which neighbouring ids lie far apart."""
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)


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
        found = [_sorted_seeds(*kind, pieces[kind], words, starts) for kind in sorted(pieces)]
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
            count = sum(name.endswith(".hashes") for name in file.files)
            return cls(file["words"], file["starts"], tuple(_loaded_seeds(file, n) for n in range(count)))


def _sorted_seeds(
    length: int, whole: bool, pieces: Sequence[tuple[int, int]], words: Int32s, starts: Int64s
) -> Seeds:
    texts, offsets = (np.array(column, np.int32) for column in zip(*pieces, strict=True))
    hashes = seeds(words, length)[starts[texts] + offsets]
    order = np.argsort(hashes, kind="stable")
    present = np.zeros(1 << _FILTER_BITS, np.bool_)
    present[hashes >> np.uint64(64 - _FILTER_BITS)] = True
    return Seeds(length, whole, hashes[order], texts[order], offsets[order], present)


def _loaded_seeds(file: "np.lib.npyio.NpzFile", number: int) -> Seeds:
    named = {name: file[f"{number}.{name}"] for name in ("hashes", "texts", "offsets", "filter")}
    return Seeds(int(file[f"{number}.length"]), bool(file[f"{number}.whole"]), **named)
