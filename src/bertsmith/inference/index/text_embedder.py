"""The model behind an index: how it is known again, and how documents are cut and embedded by it, shard by
shard, in this process or on a cluster.

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
from bertsmith.text.retrieval.documents import Document
from bertsmith.text.retrieval.passages import Passage, PassageSettings, passages
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.workers import Engine, ordered, ordered_by_ray

Vectors = npt.NDArray[np.float32]
# What else two models must have in common, besides the width: its field in index.json, and what it is.
_MAKE_VECTORS = {
    "sha256": "set of weights",
    "tokenizer": "vocabulary",
    "pooling": "pooling",
    "max_length": "max_length",
    "long_texts": "treatment of long texts",
    "query_prefix": "query prefix",
    "document_prefix": "document prefix",
}
CHARACTERS_OF_A_TOKEN = 4  # in English; only how large shards come out hangs on it


class TextEmbedder(Protocol):
    """What an index needs of a model; `Embedder` has it, and so may something of your own.

    Noted in the index, if it has them: `prefixes` {"query": …, "document": …}, `model_sha256` by which it is
    known again, its `pooling` and `long_texts`.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_length(self) -> int: ...

    def queries(self, texts: Sequence[str]) -> Vectors:
        """(E, D), each of length 1."""

    def documents(self, texts: Sequence[str]) -> Vectors:
        """(E, D), each of length 1."""


def open_embedder(name: str) -> TextEmbedder:
    """By path, alias or hub name. Raises ModelError when there is no such model."""
    from bertsmith.inference.embedding.embedder import Embedder

    return Embedder(name)


def lasting_name(name: str) -> str:
    """A folder's absolute path, so that an index is searched from anywhere; any other name as it is."""
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() else name


def identify(name: str, embedder: TextEmbedder) -> IndexModel:
    """What an index notes of its model. Embeds one text to learn the width."""
    noted = getattr(embedder, "prefixes", {})
    return IndexModel(
        name=name,
        sha256=getattr(embedder, "model_sha256", ""),
        dimension=embedder.queries(["a"]).shape[1],
        tokenizer=embedder.tokenizer.sha256,
        pooling=getattr(embedder, "pooling", ""),
        max_length=embedder.max_length,
        long_texts=getattr(embedder, "long_texts", ""),
        query_prefix=noted.get("query", ""),
        document_prefix=noted.get("document", ""),
    )


def require_same_model(index: Path, noted: IndexModel, found: IndexModel) -> None:
    """Raises InputError when the vectors of `found` can't be compared with those in the index."""
    if noted.dimension != found.dimension:
        raise InputError(
            f"{index} holds vectors of {noted.dimension} dimensions from {noted.name}, but {found.name} "
            f"makes {found.dimension}. Use the same model, or build another index."
        )
    differ = []
    for field, what in _MAKE_VECTORS.items():
        before, now = getattr(noted, field), getattr(found, field)
        # an empty prefix is one; anything else that is empty isn't known
        if before != now and (field.endswith("_prefix") or (before and now)):
            differ.append(what)
    if differ:
        raise InputError(
            f"{index} was built by {noted.name} with another {' and '.join(differ)} than {found.name} has "
            "now, so that their vectors can't be compared. Use the same model, or build another index."
        )


def tokens_for_text(embedder: TextEmbedder) -> int:
    """Tokens of a document's text that the model reads: special ones and the prefix are none of it."""
    prefix = getattr(embedder, "prefixes", {}).get("document", "")
    taken = len(embedder.tokenizer.encode_pieces([prefix])[0].ids) if prefix else 0
    return embedder.max_length - special_tokens(embedder.tokenizer, 1) - taken


class ShardPassages(NamedTuple):
    """The passages of each document of a shard, and their vectors (E, D)."""

    passages: list[list[Passage]]
    vectors: Vectors


def embed_shards(
    documents: Iterable[Document],
    size: int,
    embedder: TextEmbedder,
    settings: PassageSettings,
    engine: Engine,
) -> Iterator[tuple[ShardPassages, list[Document]]]:
    """What was made of each shard, and the shard: whole documents in order, of about `size` passages."""
    function = partial(cut_and_embed, embedder, settings)
    shards, sent = tee(_split_shards(documents, size, settings))
    tasks = (([(document.title, document.text) for document in shard],) for shard in sent)
    made = ordered_by_ray(function, tasks) if engine == "ray" else ordered(function, tasks, workers=1)
    return zip(made, shards)  # in this order: a shard is drawn when its result is there, not before


def _split_shards(
    documents: Iterable[Document], size: int, settings: PassageSettings
) -> Iterator[list[Document]]:
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


def cut_and_embed(
    embedder: TextEmbedder, settings: PassageSettings, documents: Sequence[tuple[str, str]]
) -> ShardPassages:
    """`documents`: title and text of each."""
    cut = [passages(text, embedder.tokenizer, settings) for _, text in documents]
    titles = [title for title, _ in documents]
    room = max(0, tokens_for_text(embedder) - settings.tokens)  # for a title, beside the longest passage
    read = []
    for title, pieces, found in zip(titles, embedder.tokenizer.encode_pieces(titles), cut, strict=True):
        if len(pieces.ids) > room:
            title = title[: pieces.offsets[room][0]]
        for passage in found:
            # The title says what a passage from the middle is about.
            named = not title or passage.text.startswith(title)
            read.append(passage.text if named else f"{title}\n{passage.text}")
    return ShardPassages(cut, embedder.documents(read))
