"""Adds rows to a model for tokens that are added to its vocabulary, and removes them again.

The embedding of a new token, and its bias in the masked-language head, start as the mean of those of the old
tokens that spell it (Gee et al. 2022, "Fast vocabulary transfer", section 3), so that the model reads the
word nearly as before. Spare rows behind the vocabulary, which some models have, stay behind it.

V rows, H hidden size, P added tokens.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig

# Tensors with a row or a value for each token. The head's matrix is tied to the embeddings.
_VOCABULARY_TENSORS = ("encoder.embeddings.token.weight", "masked_language.bias")


def with_rows(tensors: Mapping[str, Tensor], base: int, parts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The tensors, under our names, with rows for P more tokens from row `base` on: (V, H) -> (V + P, H).

    `parts` lists for each new token the rows of which it is the mean. Other tensors are returned as they are.
    """

    def extend(rows: Tensor) -> Tensor:
        added = torch.stack([rows[list(part)].double().mean(0) for part in parts]).to(rows.dtype)
        return torch.cat([rows[:base], added, rows[base:]])

    return {name: extend(rows) if name in _VOCABULARY_TENSORS else rows for name, rows in tensors.items()}


def without_rows(tensors: Mapping[str, Tensor], base: int, count: int) -> dict[str, Tensor]:
    """The tensors without the `count` rows from row `base` on; all other rows stay as they are, to
    the bit.
    """

    def cut(rows: Tensor) -> Tensor:
        return torch.cat([rows[:base], rows[base + count :]])

    return {name: cut(rows) if name in _VOCABULARY_TENSORS else rows for name, rows in tensors.items()}


def resize_config(config: BertConfig, change: int, where: str) -> BertConfig:
    """The config with `change` rows more. Raises ModelError where less than one row is left."""
    size = config.vocab_size + change
    if size < 1:
        raise ModelError(
            f"{where} has {config.vocab_size:,} rows, {-change:,} of which are to go. Its extension.json is "
            "that of another model."
        )
    return config.model_copy(update={"vocab_size": size})
