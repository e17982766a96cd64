"""A model's rows for pieces that were added to its vocabulary, and the model again without them.

A new piece's embedding, and its bias in the masked-language head, begin as the mean of those of the old
pieces that it is made of (as in Gee et al. 2022, "Fast vocabulary transfer", section 3): the model reads the
word nearly as before, and training goes on from there. Rows that had no piece, which some models have behind
their vocabulary, stay behind it.

V rows, H hidden size, P added pieces.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig

#: Ours with a row or a value for each piece. The head's matrix is the embeddings themselves.
_OF_PIECES = ("encoder.embeddings.token.weight", "masked_language.bias")


def with_rows(tensors: Mapping[str, Tensor], base: int, parts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Tensors under our names with rows for P more pieces from row `base` on: (V, H) -> (V + P, H).

    `parts` are the rows that each is the mean of. All else is the same tensor as before.
    """

    def extended(rows: Tensor) -> Tensor:
        added = torch.stack([rows[list(part)].double().mean(0) for part in parts]).to(rows.dtype)
        return torch.cat([rows[:base], added, rows[base:]])

    return {name: extended(rows) if name in _OF_PIECES else rows for name, rows in tensors.items()}


def without_rows(tensors: Mapping[str, Tensor], base: int, count: int) -> dict[str, Tensor]:
    """The reverse: rows `base` up to `base + count` are gone, and all others have the same bits."""

    def cut(rows: Tensor) -> Tensor:
        return torch.cat([rows[:base], rows[base + count :]])

    return {name: cut(rows) if name in _OF_PIECES else rows for name, rows in tensors.items()}


def resized(config: BertConfig, change: int, where: str) -> BertConfig:
    """The shape with `change` rows more. Raises ModelError when that is no vocabulary."""
    size = config.vocab_size + change
    if size < 1:
        raise ModelError(
            f"{where} has {config.vocab_size:,} rows, {-change:,} of which are to go. Its extension.json is "
            "that of another model."
        )
    return config.model_copy(update={"vocab_size": size})
