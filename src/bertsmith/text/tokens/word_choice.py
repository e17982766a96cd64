"""Which whole words a WordPiece vocabulary should have next: those that save most pieces in a text.

WordPiece takes the longest piece that a word begins with, then the longest that goes on. A new whole word
therefore changes the spelling of every longer word that begins with it too, for better ("aerofoil" in
"aerofoils") or for worse. What a word saves is counted over all of these, and again after each choice: words
that are one piece by then save nothing.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

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
        self.first = [self._first(word) for word in self.words]  # characters of each word's first piece
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

    def _first(self, word: str) -> int:
        return next((end for end in range(len(word), 0, -1) if word[:end] in self._whole), 0)

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
