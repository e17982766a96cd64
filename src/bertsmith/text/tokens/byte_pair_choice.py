"""Which words a byte-level vocabulary should have next, and the merges that make one piece of each.

A word's merges come behind all that are there: everything is first spelt as before, then its pieces are put
together from left to right. No text gets more pieces by that. What lies between its first two pieces and the
whole word becomes a piece as well, since a merge can only make a piece that the vocabulary has.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

from bertsmith.text.tokens.added_pieces import Merge
from bertsmith.text.tokens.word_choice import ChosenWord


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
        now[word] = merged(now[word], ranks)
        saved = counts[word] * (len(now[word]) - 1)
        if saved != -negative:
            heappush(heap, (-saved, word))
        elif saved <= 0:
            break
        else:
            _put_together(now[word], vocabulary, ranks, added)
            added.words.append(ChosenWord(word, counts[word], saved))
    return added


def merged(pieces: Sequence[str], ranks: Mapping[Merge, int]) -> list[str]:
    """Pieces after all merges that apply: each time the earliest of them, wherever it stands first."""
    pieces = list(pieces)
    while len(pieces) > 1:
        pairs = list(pairwise(pieces))
        best = min(range(len(pairs)), key=lambda at: ranks.get(pairs[at], len(ranks)))
        if pairs[best] not in ranks:
            break
        pieces[best : best + 2] = ["".join(pairs[best])]
    return pieces


def _put_together(
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
