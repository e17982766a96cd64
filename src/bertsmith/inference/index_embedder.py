"""The model behind an index: what embeds passages and queries, and how it is known again.

E texts, D width of a vector.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError
from bertsmith.files import sha256
from bertsmith.inference.index_manifest import IndexModel
from bertsmith.text.tokenizer import Tokenizer

Vectors = npt.NDArray[np.float32]


class TextEmbedder(Protocol):
    """What an index needs of a model; `Embedder` has it, and so may something of your own.

    Its `prefixes`, if it has any, are noted in the index: {"query": …, "document": …}.
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
    from bertsmith.inference.embedder import Embedder

    return Embedder(name)


def identify(name: str, embedder: TextEmbedder) -> IndexModel:
    """What an index notes of its model. Embeds one text to learn the width."""
    noted = getattr(embedder, "prefixes", {})
    prefixes = {f"{kind}_prefix": noted.get(kind, "") for kind in ("query", "document")}
    return IndexModel(
        name=name, sha256=_weights_hash(name), dimension=embedder.queries(["a"]).shape[1], **prefixes
    )


def require_same_model(index: Path, noted: IndexModel, found: IndexModel) -> None:
    """Raises InputError when the vectors of `found` can't be compared with those in the index."""
    if noted.dimension != found.dimension:
        raise InputError(
            f"{index} holds vectors of {noted.dimension} dimensions from {noted.name}, but {found.name} "
            f"makes {found.dimension}. Use the same model, or build another index."
        )
    differs = noted.sha256 and found.sha256 and noted.sha256 != found.sha256
    prefixes = (noted.query_prefix, noted.document_prefix) != (found.query_prefix, found.document_prefix)
    if differs or prefixes:
        what = "other weights" if differs else "other prefixes"
        raise InputError(
            f"{index} was built by {noted.name} with {what} than {found.name} has now, so that their vectors "
            "can't be compared. Use the same model, or build another index."
        )


def _weights_hash(name: str) -> str:
    """Of the weights; empty when the name stands for no folder, as that of an embedder of your own."""
    from bertsmith.errors import ModelError
    from bertsmith.model.locate import locate_model

    try:
        path = locate_model(name).folder / "model.safetensors"
    except ModelError:
        return ""
    return sha256(path) if path.is_file() else ""
