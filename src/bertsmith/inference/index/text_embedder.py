"""The model behind an index: how an index recognises it, and how documents are divided into passages and
embedded, shard by shard, in this process or on a cluster.

E texts or passages, D width of a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import tee
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError
from bertsmith.inference.index.manifest import IndexModel
from bertsmith.tasks.examples.encoding import special_tokens
from bertsmith.text.retrieval.documents import SearchDocument
from bertsmith.text.retrieval.passages import Passage, PassageSettings, split_passages
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.workers import Engine, map_in_order, map_in_order_by_ray

Vectors = npt.NDArray[np.float32]
# What two models must have in common besides the width: the field in index.json, and its name in messages.
_MAKE_VECTORS = {
    "sha256": "set of weights",
    "tokenizer": "vocabulary",
    "pooling": "pooling",
    "max_length": "max_length",
    "long_texts": "treatment of long texts",
    "query_prefix": "query prefix",
    "document_prefix": "document prefix",
}
CHARACTERS_OF_A_TOKEN = 4  # in English; only the size of shards depends on it


class TextEmbedder(Protocol):
    """What an index needs of a model: `Embedder` implements it, and so may an embedder of your own.

    The index records these attributes too, if there are any: `prefixes` {"query": …, "document": …},
    `model_sha256` by which the model is recognised, `pooling` and `long_texts`.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_length(self) -> int: ...

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embeds texts that are searched for: (E, D), each of length 1."""

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embeds texts that are searched in: (E, D), each of length 1."""


def open_embedder(name: str) -> TextEmbedder:
    """Opens an Embedder by path, alias or hub name. Raises ModelError when there is no such model."""
    from bertsmith.inference.embedding.embedder import Embedder

    return Embedder(name)


def lasting_name(name: str) -> str:
    """A folder's absolute path, so that the index can be searched from anywhere; other names unchanged."""
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() else name


def identify(name: str, embedder: TextEmbedder) -> IndexModel:
    """What an index records about its model. Embeds one text to learn the width."""
    prefixes = getattr(embedder, "prefixes", {})
    return IndexModel(
        name=name,
        sha256=getattr(embedder, "model_sha256", ""),
        dimension=embedder.queries(["a"]).shape[1],
        tokenizer=embedder.tokenizer.sha256,
        pooling=getattr(embedder, "pooling", ""),
        max_length=embedder.max_length,
        long_texts=getattr(embedder, "long_texts", ""),
        query_prefix=prefixes.get("query", ""),
        document_prefix=prefixes.get("document", ""),
    )


def require_same_model(index: Path, recorded: IndexModel, current: IndexModel) -> None:
    """Raises InputError when the vectors of `current` can't be compared with those in the index."""
    if recorded.dimension != current.dimension:
        raise InputError(
            f"{index} holds vectors of {recorded.dimension} dimensions from {recorded.name}, but "
            f"{current.name} makes {current.dimension}. Use the same model, or build another index."
        )
    differences = []
    for field, part in _MAKE_VECTORS.items():
        old, new = getattr(recorded, field), getattr(current, field)
        # an empty prefix is a prefix; any other empty field is unknown
        if old != new and (field.endswith("_prefix") or (old and new)):
            differences.append(part)
    if differences:
        raise InputError(
            f"{index} was built by {recorded.name} with another {' and '.join(differences)} than "
            f"{current.name} has now, so that their vectors can't be compared. Use the same model, or build "
            "another index."
        )


def tokens_for_text(embedder: TextEmbedder) -> int:
    """How many tokens of a document's text the model reads, beside the special tokens and the prefix."""
    prefix = getattr(embedder, "prefixes", {}).get("document", "")
    prefix_tokens = len(embedder.tokenizer.encode_pieces([prefix])[0].ids) if prefix else 0
    return embedder.max_length - special_tokens(embedder.tokenizer, 1) - prefix_tokens


class ShardPassages(NamedTuple):
    """The passages of each of a shard's documents, and the vectors (E, D) of all of them in order."""

    passages: list[list[Passage]]
    vectors: Vectors


def embed_shards(
    documents: Iterable[SearchDocument],
    size: int,
    embedder: TextEmbedder,
    settings: PassageSettings,
    engine: Engine,
) -> Iterator[tuple[ShardPassages, list[SearchDocument]]]:
    """Yields the passages and vectors of each shard, and the shard: whole documents in order, about `size`
    passages together.
    """
    function = partial(cut_and_embed, embedder, settings)
    shards, shards_to_send = tee(_split_shards(documents, size, settings))
    tasks = (([(document.title, document.text) for document in shard],) for shard in shards_to_send)
    results = (
        map_in_order_by_ray(function, tasks) if engine == "ray" else map_in_order(function, tasks, workers=1)
    )
    return zip(results, shards)  # in this order: a shard is read only when its result is there


def _split_shards(
    documents: Iterable[SearchDocument], size: int, settings: PassageSettings
) -> Iterator[list[SearchDocument]]:
    """Divides documents into shards by an estimate from their characters: the number of passages is known
    only after cutting.
    """
    characters = CHARACTERS_OF_A_TOKEN * (settings.tokens - settings.overlap)  # that a passage adds
    shard, guessed = list[SearchDocument](), 0
    for document in documents:
        shard.append(document)
        guessed += 1 + len(document.text) // characters
        if guessed >= size:
            yield shard
            shard, guessed = [], 0
    if shard:
        yield shard


def cut_and_embed(
    embedder: TextEmbedder, settings: PassageSettings, documents: Sequence[tuple[str, str]]
) -> ShardPassages:
    """Divides documents, each (title, text), into passages and embeds these. A passage is read behind its
    document's title, shortened to what the model has room for, unless it begins with it.
    """
    passages_of_documents = [split_passages(text, embedder.tokenizer, settings) for _, text in documents]
    titles = [title for title, _ in documents]
    (line_end,) = embedder.tokenizer.encode_pieces(["\n"])  # a token of its own in byte-level vocabularies
    # beside the longest passage
    title_room = max(0, tokens_for_text(embedder) - settings.tokens - len(line_end.ids))
    texts = []
    for title, title_tokens, document_passages in zip(
        titles, embedder.tokenizer.encode_pieces(titles), passages_of_documents, strict=True
    ):
        if len(title_tokens.ids) > title_room:
            title = title[: title_tokens.offsets[title_room][0]]
        for passage in document_passages:
            # The title tells the model what a passage from the middle of a document is about.
            names_title = not title or passage.text.startswith(title)
            texts.append(passage.text if names_title else f"{title}\n{passage.text}")
    return ShardPassages(passages_of_documents, embedder.documents(texts))
