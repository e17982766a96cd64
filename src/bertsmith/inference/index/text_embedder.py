"""The model behind an index: what embeds passages and queries, and how it is known again.

E texts, D width of a vector.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError
from bertsmith.inference.index.manifest import IndexModel
from bertsmith.tasks.examples.encoding import special_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer

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


def room_of(embedder: TextEmbedder) -> int:
    """Tokens of a document's text that the model reads: special ones and the prefix are none of it."""
    prefix = getattr(embedder, "prefixes", {}).get("document", "")
    taken = len(embedder.tokenizer.encode_pieces([prefix])[0].ids) if prefix else 0
    return embedder.max_length - special_tokens(embedder.tokenizer, 1) - taken


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
    differ = [what for field, what in _MAKE_VECTORS.items() if _differs(field, noted, found)]
    if differ:
        raise InputError(
            f"{index} was built by {noted.name} with another {' and '.join(differ)} than {found.name} has "
            "now, so that their vectors can't be compared. Use the same model, or build another index."
        )


def _differs(field: str, noted: IndexModel, found: IndexModel) -> bool:
    """An empty prefix is one; anything else that is empty isn't known."""
    before, now = getattr(noted, field), getattr(found, field)
    return before != now and (field.endswith("_prefix") or bool(before and now))
