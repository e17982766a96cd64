"""Which whole words a vocabulary should have next: those that save most pieces in a text.

WordPiece takes the longest piece that a word begins with, then the longest that goes on. A new whole word
therefore changes the spelling of every longer word that begins with it too, for better ("aerofoil" in
"aerofoils") or for worse. What a word saves is counted over all of these, and again after each choice: words
that are one piece by then save nothing.

Of a byte-level vocabulary a word's merges come behind all that are there: everything is first spelt as
before, then its pieces are put together from left to right. No text gets more pieces by that. What lies
between its first two pieces and the whole word becomes a piece as well, since a merge can only make a piece
that the vocabulary has.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

Merge = tuple[str, str]
_BEHIND_ALL = "\U0010ffff"


@dataclass(frozen=True)
class ChosenWord:
    """A word, its occurrences, and the pieces that it saved in all of the text when it was chosen."""

    word: str
    count: int
    saved: int


def choose_words(
    counts: Mapping[str, int],
    candidates: Iterable[str],
    vocabulary: Collection[str],
    most: int,
    *,
    prefix: str = "##",
    longest: int = 100,
) -> list[ChosenWord]:
    """At most `most` of the `candidates`, the best one first; fewer where no other saves anything.

    `counts` are the words of the text with their occurrences; a word of more than `longest` characters is
    unknown, whatever is added. Of equal savings the first in the alphabet is taken.
    """
    spellings = _Spellings(counts, vocabulary, prefix, longest)
    waiting = {word for word in candidates if word not in vocabulary and len(word) <= longest}
    savings = {word: spellings.saved_by(word) for word in waiting}
    heap = [(-saved, word) for word, saved in savings.items()]
    heapify(heap)
    chosen: list[ChosenWord] = []
    while heap and len(chosen) < most:
        negative, word = heappop(heap)
        if word not in waiting or -negative != savings[word]:
            continue  # counted anew since
        if savings[word] <= 0:
            break
        chosen.append(ChosenWord(word, counts.get(word, 0), savings[word]))
        waiting.remove(word)
        for other in spellings.add(word) & waiting:
            savings[other] = spellings.saved_by(other)
            heappush(heap, (-savings[other], other))
    return chosen


class _Spellings:
    """How many pieces each word of the text has, by the vocabulary and what was added to it."""

    def __init__(
        self, counts: Mapping[str, int], vocabulary: Collection[str], prefix: str, longest: int
    ) -> None:
        self.words = sorted(word for word in counts if len(word) <= longest)
        self.counts = [counts[word] for word in self.words]
        self._prefix = prefix
        self._whole = {piece for piece in vocabulary if not piece.startswith(prefix)}
        self._parts = {piece.removeprefix(prefix) for piece in vocabulary if piece.startswith(prefix)}
        self._longest_part = max(map(len, self._parts), default=0)
        self._rests: dict[str, int | None] = {"": 0}
        self.first = [  # characters of each word's first piece
            next((end for end in range(len(word), 0, -1) if word[:end] in self._whole), 0)
            for word in self.words
        ]
        self.pieces = [self._pieces(word, first) for word, first in zip(self.words, self.first, strict=True)]

    def saved_by(self, word: str) -> int:
        """Pieces fewer in the whole text with `word` in the vocabulary; negative where it does harm."""
        length = len(word)
        return sum(
            self.counts[at] * (self.pieces[at] - self._pieces(self.words[at], length))
            for at in self._beginning_with(word)
            if self.first[at] < length
        )

    def add(self, word: str) -> set[str]:
        """Takes `word` into the vocabulary. Returns the words whose savings may have changed by it."""
        changed: set[str] = set()
        for at in self._beginning_with(word):
            longer = self.words[at]
            if self.first[at] < len(word):
                self.first[at], self.pieces[at] = len(word), self._pieces(longer, len(word))
                changed.update(longer[:end] for end in range(1, len(longer) + 1))
        return changed

    def _beginning_with(self, word: str) -> range:
        return range(bisect_left(self.words, word), bisect_left(self.words, word + _BEHIND_ALL))

    def _pieces(self, word: str, first: int) -> int:
        """An unknown word, of which nothing is left, counts as one more than its characters."""
        rest = self._rest(word[first:]) if first else None
        return len(word) + 1 if rest is None else 1 + rest

    def _rest(self, text: str) -> int | None:
        """The pieces that go on with `text`; None where there are none."""
        if text not in self._rests:
            longest = min(len(text), self._longest_part)
            end = next((end for end in range(longest, 0, -1) if text[:end] in self._parts), 0)
            behind = self._rest(text[end:]) if end else None
            self._rests[text] = None if behind is None else 1 + behind
        return self._rests[text]


@dataclass
class AddedMerges:
    """Words with the pieces and merges that they need; `parts` has the old pieces behind each new one."""

    words: list[ChosenWord] = field(default_factory=list)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)


def choose_byte_pair_words(
    counts: Mapping[str, int],
    spelt: Mapping[str, Sequence[str]],
    vocabulary: Collection[str],
    merges: Sequence[Merge],
    most: int,
) -> AddedMerges:
    """At most `most` words by occurrences × pieces saved, the best one first.

    `spelt` has each candidate's pieces by the old `vocabulary` and its `merges`, the leading blank among
    them. What a word saves is counted anew by the merges that were added before it.
    """
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    now = {word: list(pieces) for word, pieces in spelt.items()}
    heap = [(-counts[word] * (len(pieces) - 1), word) for word, pieces in now.items()]
    heapify(heap)
    added = AddedMerges()
    while heap and len(added.words) < most:
        negative, word = heappop(heap)
        now[word] = apply_merges(now[word], ranks)
        saved = counts[word] * (len(now[word]) - 1)
        if saved != -negative:
            heappush(heap, (-saved, word))
        elif saved <= 0:
            break
        else:
            _add_merges(now[word], vocabulary, ranks, added)
            added.words.append(ChosenWord(word, counts[word], saved))
    return added


def apply_merges(pieces: Sequence[str], ranks: Mapping[Merge, int]) -> list[str]:
    """Pieces after all merges that apply: each time the earliest of them, wherever it stands first."""
    pieces = list(pieces)
    while len(pieces) > 1:
        pairs = list(pairwise(pieces))
        best = min(range(len(pairs)), key=lambda at: ranks.get(pairs[at], len(ranks)))
        if pairs[best] not in ranks:
            break
        pieces[best : best + 2] = ["".join(pairs[best])]
    return pieces


def _add_merges(
    pieces: Sequence[str], vocabulary: Collection[str], ranks: dict[Merge, int], added: AddedMerges
) -> None:
    """The merges that make one piece of these, from left to right, and what they make on the way."""
    left = pieces[0]
    for right in pieces[1:]:
        merge, whole = (left, right), left + right
        if merge not in ranks:
            ranks[merge] = len(ranks)
            added.merges.append(merge)
        if whole not in vocabulary:  # an old piece that was never reached this way keeps its row
            old = added.parts.get(left, (left,)) + added.parts.get(right, (right,))
            added.parts.setdefault(whole, old)
        left = whole
