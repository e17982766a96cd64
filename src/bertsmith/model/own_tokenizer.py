"""The tokenizer in a model's folder, which must be one for this model."""

from dataclasses import replace
from pathlib import Path

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.model.cross_encoder import is_cross_encoder
from bertsmith.model.static_table import StaticConfig
from bertsmith.model.untrusted import plain_file
from bertsmith.text.tokens.any_tokenizer import VALUE_FILES, load_tokenizer
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.tokenizer_files import TOKENIZER_FILES


def load_own_tokenizer(folder: Path, config: BertConfig | StaticConfig) -> Tokenizer:
    """Raises as `read_own_tokenizer` does, and ModelError where a piece has no row in the model."""
    tokenizer = read_own_tokenizer(folder)
    if tokenizer.vocab_size > config.vocab_size:
        first = tokenizer.id_to_token(config.vocab_size)
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} pieces, the model only "
            f"{config.vocab_size:,} rows. Remove the pieces from {first!r} on, or use the model's own "
            "tokenizer."
        )
    return tokenizer


def read_own_tokenizer(folder: Path) -> Tokenizer:
    """As the model's own library uses it: sentence-transformers' cross-encoders cut the longer of two texts,
    whatever tokenizer.json says. Raises TokenizerError as `Tokenizer.load` does, and ModelError for a link
    that leads elsewhere.
    """
    for name in (*TOKENIZER_FILES, *VALUE_FILES):
        if (folder / name).is_symlink():
            plain_file(folder, name)
    tokenizer = load_tokenizer(folder)
    if is_cross_encoder(folder):
        tokenizer.truncation = replace(tokenizer.truncation, strategy="longest_first")
    return tokenizer
