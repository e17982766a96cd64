"""The tokenizer in a model's folder, which must be one for this model."""

from pathlib import Path

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.text.tokens.tokenizer import Tokenizer


def load_own_tokenizer(folder: Path, config: BertConfig) -> Tokenizer:
    """Raises TokenizerError as `Tokenizer.load` does, ModelError where a piece has no row in the model."""
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > config.vocab_size:
        first = tokenizer.id_to_token(config.vocab_size)
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} pieces, the model only "
            f"{config.vocab_size:,} rows. Remove the pieces from {first!r} on, or use the model's own "
            "tokenizer."
        )
    return tokenizer
