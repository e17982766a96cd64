"""word_neighbours: finds the words of other texts that are nearest to a word, in every layer of an encoder.

In the embeddings a word is nearest to words of its own spelling; in higher layers to words with a similar use
(Ethayarajh 2019, arXiv 1909.00512, section 4).

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

_AT_A_TIME = 256  # different texts
# Words whose vectors of all layers are in memory: 0.3 GB for BERT-base. A longer text goes alone.
_WORDS_AT_A_TIME = 8192
_AROUND = 8  # words shown on either side
_TINY = 1e-12


@dataclass(frozen=True)
class Neighbour:
    """A word with the words around it in its text, and its cosine, in [-1, 1], to the word that is
    compared.
    """

    before: str
    word: str
    after: str
    cosine: float


@dataclass(frozen=True)
class WordNeighbours:
    """The neighbours of `word` in its text. `layers` has L + 1 tuples, the embeddings first, each with the
    nearest word first.
    """

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
    """Finds the `count` words of the texts `among` nearest to the first occurrence of `word` in `text`, by
    layer.

    Vectors are centred by the mean of the first 256 texts' words before cosines are computed, because most of
    what raw vectors have in common says nothing about a word. Equal texts count once. Texts are read lazily:
    memory grows only with `count` and the longest text. Raises InputError if `text` hasn't the word, the
    texts have no words, or an item is no text.
    """
    word_index = find_word(word, text)
    word_vectors = [layer[0][word_index] for layer in _layer_vectors(features, [text])]  # L + 1 times (H,)
    centre: list[Floats] | None = None
    best: list[list[_RankedWord]] = [[] for _ in word_vectors]
    texts_done, total = 0, len(among) if isinstance(among, Sized) else None
    for texts_done, texts in _read_batches(among):
        others = [other for other in texts if other != text and _split_words(other)]
        text_parts = _split_by_words(others)
        # Layers of a single part stay in memory; those of several are computed again below.
        held_layers = [_layer_vectors(features, text_parts[0])] if len(text_parts) == 1 else None
        if centre is None and text_parts:
            centre = _mean_by_layer(held_layers or (_layer_vectors(features, part) for part in text_parts))
        for part, layers in zip(
            text_parts, held_layers or (_layer_vectors(features, part) for part in text_parts), strict=True
        ):
            positions = [
                (other, index)
                for other, vectors in zip(part, layers[0], strict=True)
                for index in range(len(vectors))
            ]
            for layer_index, layer in enumerate(layers):
                assert centre is not None
                own_vector = word_vectors[layer_index] - centre[layer_index]
                other_vectors = np.concatenate(layer) - centre[layer_index]
                best[layer_index] = _update_nearest(
                    best[layer_index], own_vector, other_vectors, positions, count
                )
        if progress is not None:
            progress(texts_done, total, "texts")
    if centre is None:
        raise InputError("The texts to find neighbours in have no words, or are all the text itself.")
    nearest = tuple(
        tuple(Neighbour(*_context(*ranked.position), ranked.cosine) for ranked in layer_best)
        for layer_best in best
    )
    return WordNeighbours(*_context(text, word_index), nearest)


class _RankedWord(NamedTuple):
    """A word by its `position`, the text and the word's index in it, with its cosine."""

    cosine: float
    position: tuple[str, int]


def _update_nearest(
    best: list[_RankedWord],
    own_vector: Floats,
    other_vectors: Floats,
    positions: list[tuple[str, int]],
    count: int,
) -> list[_RankedWord]:
    """The `count` words nearest to `own_vector` (H,), among `best` so far and the `other_vectors` (W, H) at
    `positions`. A word that is in `best` already counts once.
    """
    lengths = np.linalg.norm(own_vector) * np.linalg.norm(other_vectors, axis=1)
    cosines = np.asarray(other_vectors @ own_vector / np.maximum(lengths, _TINY))  # (W,)
    nearest = np.argsort(-cosines, kind="stable")[:count].tolist()
    seen = {ranked.position for ranked in best}
    candidates = [
        _RankedWord(float(cosines[index]), positions[index])
        for index in nearest
        if positions[index] not in seen
    ]
    return nlargest(count, [*best, *candidates], key=lambda ranked: ranked.cosine)


def _read_batches(among: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of texts read so far, and the different texts among those read since the
    last batch.
    """
    batch: dict[str, None] = {}
    count = 0
    for count, text in enumerate(among, start=1):
        if not isinstance(text, str):
            raise InputError(f"among, item {count}, must be a text, found {type(text).__name__}.")
        batch[text] = None
        if len(batch) == _AT_A_TIME:
            yield count, list(batch)
            batch = {}
    if batch:
        yield count, list(batch)


def _split_by_words(texts: list[str]) -> list[list[str]]:
    """Divides texts, in order, into parts of so few words that their vectors fit into memory."""
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
    """The index of a word's first occurrence in a text, ignoring case. Raises InputError if there is none."""
    words = [part.lower() for part in _split_words(text)]
    if word.lower() not in words:
        raise InputError(f"The text has no word {word!r}. It has: {', '.join(words[:20])}.")
    return words.index(word.lower())


def _layer_vectors(features: Features, texts: Sequence[str]) -> list[list[Vectors]]:
    """The vectors of each text's words, (words, H), for each layer."""
    return [list(layer) for layer in features.layer_by_layer(list(texts))]


def _mean_by_layer(parts: Iterable[list[list[Vectors]]]) -> list[Floats]:
    """The mean vector (H,) of all words, for each layer."""
    sums, words = [], 0
    for layers in parts:
        sums.append(np.stack([np.concatenate(layer).sum(0, dtype=np.float64) for layer in layers]))
        words += sum(map(len, layers[0]))
    return list(np.asarray(sum(sums) / words, np.float32))


def _context(text: str, index: int) -> tuple[str, str, str]:
    """The words before a word, the word itself, and the words behind it."""
    words = _split_words(text)
    before, after = words[max(index - _AROUND, 0) : index], words[index + 1 : index + 1 + _AROUND]
    return " ".join(before), words[index], " ".join(after)


def _split_words(text: str) -> tuple[str, ...]:
    """The words of a text, divided as `Features` divides them."""
    return example_of_text(text, "the text").words
