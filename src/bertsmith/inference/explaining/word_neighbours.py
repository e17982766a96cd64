"""A word of a text beside the words of other texts, in every layer: which are nearest to it, and so what it
means there. In the embeddings a word is near its own spelling; further up it comes to stand among words that
are used alike (Ethayarajh 2019, arXiv 1909.00512, section 4).

L layers, W words, H hidden size.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.inference.features import Features
from bertsmith.progress import Progress
from bertsmith.tasks.examples.tagged_example import example_of_text

_AT_A_TIME = 256  # texts, of which equal ones count once
# Whose vectors of all layers are held, 0.3 GB of a BERT-base; a longer text goes alone.
_WORDS_AT_A_TIME = 8192
_AROUND = 8  # words shown on either side
_TINY = 1e-12


@dataclass(frozen=True)
class Neighbour:
    """A word with those around it in its text, and its cosine in [-1, 1] to the one that was asked about."""

    before: str
    word: str
    after: str
    cosine: float


@dataclass(frozen=True)
class WordNeighbours:
    """Of `word` in its text. `layers` has L + 1 lists, the embeddings' first, each with the nearest first."""

    before: str
    word: str
    after: str
    layers: tuple[tuple[Neighbour, ...], ...]


def word_neighbours(
    features: Features,
    text: str,
    word: str,
    among: Iterable[str],
    count: int = 8,
    progress: Progress | None = None,
) -> WordNeighbours:
    """The `count` words of the texts `among` nearest to the first `word` of `text`, in each layer.

    Cosines are of vectors less the mean of the first 256 texts' words, for most of what raw vectors have in
    common says nothing of the word. Equal texts count once. Texts are read as they come: memory grows with
    `count` and the longest text alone. Raises InputError for a word that isn't there, texts without words,
    and what is no text.
    """
    place = find_word(word, text)
    wanted = [layer[0][place] for layer in _layer_vectors(features, [text])]  # L + 1 times (H,)
    centre: list[Floats] | None = None
    best: list[list[_RankedWord]] = [[] for _ in wanted]
    done, total = 0, len(among) if isinstance(among, Sized) else None
    for done, texts in _read_batches(among):
        parts = _split_by_words([each for each in texts if each != text and _split_words(each)])
        kept = [_layer_vectors(features, parts[0])] if len(parts) == 1 else None  # several are computed again
        if centre is None and parts:
            centre = _mean_by_layer(kept or (_layer_vectors(features, part) for part in parts))
        for part, layers in zip(
            parts, kept or (_layer_vectors(features, part) for part in parts), strict=True
        ):
            places = [
                (each, at) for each, found in zip(part, layers[0], strict=True) for at in range(len(found))
            ]
            for number, layer in enumerate(layers):
                assert centre is not None
                own, others = wanted[number] - centre[number], np.concatenate(layer) - centre[number]
                best[number] = _update_nearest(best[number], own, others, places, count)
        if progress is not None:
            progress(done, total, "texts")
    if centre is None:
        raise InputError("The texts to find neighbours in have no words, or are all the text itself.")
    nearest = tuple(tuple(Neighbour(*_context(*each.place), each.cosine) for each in layer) for layer in best)
    return WordNeighbours(*_context(text, place), nearest)


class _RankedWord(NamedTuple):
    """A word by its text and its number in it, and its cosine."""

    cosine: float
    place: tuple[str, int]


def _update_nearest(
    best: list[_RankedWord], own: Floats, others: Floats, places: list[tuple[str, int]], count: int
) -> list[_RankedWord]:
    """The `count` nearest to `own` (H,) of those so far and of `others` (W, H) at `places`; what stood in an
    earlier batch already counts once.
    """
    lengths = np.linalg.norm(own) * np.linalg.norm(others, axis=1)
    cosines = np.asarray(others @ own / np.maximum(lengths, _TINY))  # (W,)
    nearest = np.argsort(-cosines, kind="stable")[:count].tolist()
    known = {each.place for each in best}
    new = [_RankedWord(float(cosines[each]), places[each]) for each in nearest if places[each] not in known]
    return nlargest(count, [*best, *new], key=lambda each: each.cosine)


def _read_batches(among: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """How many texts were read, and those that differ of them since the last time."""
    some: dict[str, None] = {}
    done = 0
    for done, each in enumerate(among, start=1):
        if not isinstance(each, str):
            raise InputError(f"among, item {done}, must be a text, found {type(each).__name__}.")
        some[each] = None
        if len(some) == _AT_A_TIME:
            yield done, list(some)
            some = {}
    if some:
        yield done, list(some)


def _split_by_words(texts: list[str]) -> list[list[str]]:
    """The texts in their order, in runs of so few words that their vectors fit into memory."""
    parts: list[list[str]] = []
    room = 0
    for text in texts:
        count = len(_split_words(text))
        if not parts or count > room:
            parts.append([])
            room = _WORDS_AT_A_TIME
        parts[-1].append(text)
        room -= count
    return parts


def find_word(word: str, text: str) -> int:
    """The number of the first such word, in any case. Raises InputError where there is none."""
    words = [each.lower() for each in _split_words(text)]
    if word.lower() not in words:
        raise InputError(f"The text has no word {word!r}. It has: {', '.join(words[:20])}.")
    return words.index(word.lower())


def _layer_vectors(features: Features, texts: Sequence[str]) -> list[list[Vectors]]:
    """For each layer, each text's words: (words, H)."""
    return [list(each) for each in features.layer_by_layer(list(texts))]


def _mean_by_layer(parts: Iterable[list[list[Vectors]]]) -> list[Floats]:
    """Of all words, in each layer: (H,)."""
    sums, words = [], 0
    for layers in parts:
        sums.append(np.stack([np.concatenate(layer).sum(0, dtype=np.float64) for layer in layers]))
        words += sum(map(len, layers[0]))
    return list(np.asarray(sum(sums) / words, np.float32))


def _context(text: str, place: int) -> tuple[str, str, str]:
    """What stands before a word, the word, and what stands behind it."""
    words = _split_words(text)
    before, after = words[max(place - _AROUND, 0) : place], words[place + 1 : place + 1 + _AROUND]
    return " ".join(before), words[place], " ".join(after)


def _split_words(text: str) -> tuple[str, ...]:
    """As `Features` reads them."""
    return example_of_text(text, "the text").words
