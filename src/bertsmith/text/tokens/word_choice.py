"""Chooses the whole words to add to a vocabulary: those that save most tokens in a text.

WordPiece takes the longest token that a word begins with, then the longest that continues it. A new whole
word therefore also changes how every longer word with this beginning is split, for better ("aerofoil" in
"aerofoils") or for worse. A word's saving is counted over all of these, and again after each choice: a word
that has become one token saves nothing.

In a byte-level vocabulary the merges of a new word come after all existing ones: a text is first split as
before, and then the word's tokens are merged from left to right. So no text gets more tokens. What is merged
on the way to the whole word becomes a token as well, since a merge can only produce a token of the
vocabulary.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

Merge = tuple[str, str]
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True)
class ChosenWord:
    """A word, its occurrences, and how many tokens it saved in the whole text when it was chosen."""

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
    """At most `most` of the `candidates`, the best one first; fewer if no other one saves anything.

    `counts` maps the words of the text to their occurrences. A word of more than `longest` characters is
    unknown, whatever is added. Of equal savings the first in the alphabet is taken.
    """
    spellings = _Spellings(counts, vocabulary, prefix, longest)
    remaining = {word for word in candidates if word not in vocabulary and len(word) <= longest}
    savings = {word: spellings.count_saved_tokens(word) for word in remaining}
    heap = [(-saved, word) for word, saved in savings.items()]
    heapify(heap)
    chosen: list[ChosenWord] = []
    while heap and len(chosen) < most:
        negative_saving, word = heappop(heap)
        if word not in remaining or -negative_saving != savings[word]:
            continue  # an outdated entry: the saving was counted again since
        if savings[word] <= 0:
            break
        chosen.append(ChosenWord(word, counts.get(word, 0), savings[word]))
        remaining.remove(word)
        for other in spellings.add(word) & remaining:
            savings[other] = spellings.count_saved_tokens(other)
            heappush(heap, (-savings[other], other))
    return chosen


class _Spellings:
    """How many tokens each word of the text has, by the vocabulary and the words added to it so far."""

    def __init__(
        self, counts: Mapping[str, int], vocabulary: Collection[str], prefix: str, longest: int
    ) -> None:
        self.words = sorted(word for word in counts if len(word) <= longest)
        self.counts = [counts[word] for word in self.words]
        self._prefix = prefix
        self._initial = {piece for piece in vocabulary if not piece.startswith(prefix)}
        self._continuing = {piece.removeprefix(prefix) for piece in vocabulary if piece.startswith(prefix)}
        self._longest_continuing = max(map(len, self._continuing), default=0)
        self._rest_tokens: dict[str, int | None] = {"": 0}
        self.first_lengths = [  # characters of each word's first token
            next((end for end in range(len(word), 0, -1) if word[:end] in self._initial), 0)
            for word in self.words
        ]
        self.token_counts = [
            self._count_tokens(word, first)
            for word, first in zip(self.words, self.first_lengths, strict=True)
        ]

    def count_saved_tokens(self, word: str) -> int:
        """How many tokens fewer the whole text has with `word` in the vocabulary; negative if it has more."""
        length = len(word)
        return sum(
            self.counts[index] * (self.token_counts[index] - self._count_tokens(self.words[index], length))
            for index in self._words_with_prefix(word)
            if self.first_lengths[index] < length
        )

    def add(self, word: str) -> set[str]:
        """Adds `word` to the vocabulary. Returns the words whose savings may have changed."""
        changed: set[str] = set()
        for index in self._words_with_prefix(word):
            longer = self.words[index]
            if self.first_lengths[index] < len(word):
                self.first_lengths[index] = len(word)
                self.token_counts[index] = self._count_tokens(longer, len(word))
                changed.update(longer[:end] for end in range(1, len(longer) + 1))
        return changed

    def _words_with_prefix(self, word: str) -> range:
        """The indices of the words that begin with `word`."""
        return range(bisect_left(self.words, word), bisect_left(self.words, word + _LAST_CHARACTER))

    def _count_tokens(self, word: str, first: int) -> int:
        """The tokens of a word whose first token has `first` characters; an unknown word counts as one more
        than its characters.
        """
        rest = self._count_rest(word[first:]) if first else None
        return len(word) + 1 if rest is None else 1 + rest

    def _count_rest(self, text: str) -> int | None:
        """How many continuing tokens spell `text`; None if it can't be spelled."""
        if text not in self._rest_tokens:
            longest = min(len(text), self._longest_continuing)
            length = next(
                (length for length in range(longest, 0, -1) if text[:length] in self._continuing), 0
            )
            rest = self._count_rest(text[length:]) if length else None
            self._rest_tokens[text] = None if rest is None else 1 + rest
        return self._rest_tokens[text]


@dataclass
class AddedMerges:
    """Words with the tokens and merges that they need. `parts` maps each new token to the old ones in it."""

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
    """At most `most` words by occurrences × tokens saved, the best one first.

    `spelt` maps each candidate to its tokens by the old `vocabulary` and its `merges`, with the leading
    blank. A word's saving is counted again with the merges that were added before it.
    """
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    tokens_of = {word: list(tokens) for word, tokens in spelt.items()}
    heap = [(-counts[word] * (len(tokens) - 1), word) for word, tokens in tokens_of.items()]
    heapify(heap)
    added = AddedMerges()
    while heap and len(added.words) < most:
        negative_saving, word = heappop(heap)
        tokens_of[word] = apply_merges(tokens_of[word], ranks)
        saved = counts[word] * (len(tokens_of[word]) - 1)
        if saved != -negative_saving:
            heappush(heap, (-saved, word))
        elif saved <= 0:
            break
        else:
            _add_merges(tokens_of[word], vocabulary, ranks, added)
            added.words.append(ChosenWord(word, counts[word], saved))
    return added


def apply_merges(pieces: Sequence[str], ranks: Mapping[Merge, int]) -> list[str]:
    """The tokens after all merges that apply: always the one of lowest rank, where it occurs first."""
    pieces = list(pieces)
    while len(pieces) > 1:
        pairs = list(pairwise(pieces))
        best = min(range(len(pairs)), key=lambda index: ranks.get(pairs[index], len(ranks)))
        if pairs[best] not in ranks:
            break
        pieces[best : best + 2] = ["".join(pairs[best])]
    return pieces


def _add_merges(
    pieces: Sequence[str], vocabulary: Collection[str], ranks: dict[Merge, int], added: AddedMerges
) -> None:
    """Adds the merges that join `pieces` from left to right, and the tokens that they produce, to `added`."""
    left = pieces[0]
    for right in pieces[1:]:
        merge, joined = (left, right), left + right
        if merge not in ranks:
            ranks[merge] = len(ranks)
            added.merges.append(merge)
        if joined not in vocabulary:  # an old token that no merge produced before keeps its row
            old = added.parts.get(left, (left,)) + added.parts.get(right, (right,))
            added.parts.setdefault(joined, old)
        left = joined
