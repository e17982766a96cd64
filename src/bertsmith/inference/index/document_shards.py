"""Documents → shards; a shard → its passages and their vectors, in this process or on a cluster.

E passages of a shard, D width of a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import tee
from typing import NamedTuple

from bertsmith.inference.index.text_embedder import TextEmbedder, Vectors, room_of
from bertsmith.text.retrieval.documents import Document
from bertsmith.text.retrieval.passages import Passage, PassageSettings, passages
from bertsmith.text.workers import Engine, ordered, ordered_by_ray

CHARACTERS_OF_A_TOKEN = 4  # in English; only how large shards come out hangs on it


class Cut(NamedTuple):
    """The passages of each document of a shard, and their vectors (E, D)."""

    passages: list[list[Passage]]
    vectors: Vectors


def embedded_shards(
    documents: Iterable[Document],
    size: int,
    embedder: TextEmbedder,
    settings: PassageSettings,
    engine: Engine,
) -> Iterator[tuple[Cut, list[Document]]]:
    """What was made of each shard, and the shard: whole documents in order, of about `size` passages."""
    function = partial(cut_and_embed, embedder, settings)
    shards, sent = tee(_shards(documents, size, settings))
    tasks = (([(document.title, document.text) for document in shard],) for shard in sent)
    made = ordered_by_ray(function, tasks) if engine == "ray" else ordered(function, tasks, workers=1)
    return zip(made, shards)  # in this order: a shard is drawn when its result is there, not before


def cut_and_embed(
    embedder: TextEmbedder, settings: PassageSettings, documents: Sequence[tuple[str, str]]
) -> Cut:
    """`documents`: title and text of each."""
    cut = [passages(text, embedder.tokenizer, settings) for _, text in documents]
    titles = _short([title for title, _ in documents], embedder, settings)
    read = [_read(title, each.text) for title, found in zip(titles, cut, strict=True) for each in found]
    return Cut(cut, embedder.documents(read))


def _short(titles: Sequence[str], embedder: TextEmbedder, settings: PassageSettings) -> list[str]:
    """As much of each title as leaves room for the longest passage."""
    room = max(0, room_of(embedder) - settings.tokens)
    pieces = embedder.tokenizer.encode_pieces(titles)
    return [
        title[: each.offsets[room][0]] if len(each.ids) > room else title
        for title, each in zip(titles, pieces, strict=True)
    ]


def _shards(documents: Iterable[Document], size: int, settings: PassageSettings) -> Iterator[list[Document]]:
    """How many passages there are is known after cutting; here their number is guessed by the characters."""
    characters = CHARACTERS_OF_A_TOKEN * (settings.tokens - settings.overlap)  # that a passage adds
    shard, guessed = list[Document](), 0
    for document in documents:
        shard.append(document)
        guessed += 1 + len(document.text) // characters
        if guessed >= size:
            yield shard
            shard, guessed = [], 0
    if shard:
        yield shard


def _read(title: str, text: str) -> str:
    """What the model reads: the title says what a passage from the middle is about."""
    return text if not title or text.startswith(title) else f"{title}\n{text}"
