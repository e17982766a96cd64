"""The tokenizer in a model's folder, which must be one for this model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.model.cross_encoder import is_cross_encoder
from bertsmith.model.folder_keys import TOKENIZER_CONFIG
from bertsmith.model.static_table import StaticConfig
from bertsmith.model.untrusted import plain_file
from bertsmith.text.tokens.any_tokenizer import VALUE_FILES, load_tokenizer
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.tokenizer_files import TOKENIZER_FILES
from bertsmith.text.tokens.tokenizer_json import read_object


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
    _require_segments(folder, tokenizer, config)
    if isinstance(config, BertConfig) and config.family.positions_after_padding:
        _require_padding(folder, tokenizer, config)
    return tokenizer


def _require_segments(folder: Path, tokenizer: Tokenizer, config: BertConfig | StaticConfig) -> None:
    """Raises ModelError where transformers would read both texts of a pair as the first segment, for the
    settings leave token_type_ids out.
    """
    names = _settings(folder).get("model_input_names")
    leaves_out = isinstance(names, list) and "token_type_ids" not in names
    if leaves_out and getattr(config, "type_vocab_size", 0) > 1 and any(tokenizer.template.segments):
        raise ModelError(
            f"{folder / TOKENIZER_CONFIG.file}: model_input_names leaves out token_type_ids, but the "
            "model has segments, and the tokenizer gives the texts of a pair different ones. List it too."
        )


def _require_padding(folder: Path, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Raises ModelError where a piece of a text would be taken for padding, and get no position."""
    if tokenizer.pad_id != config.pad_token_id:
        raise ModelError(
            f"{folder}: pad_token_id of config.json is {config.pad_token_id}, the tokenizer's padding is "
            f"{tokenizer.pad_id}, and a {config.model_type} counts positions by it. Use a folder whose files "
            "belong together."
        )


def read_own_tokenizer(folder: Path) -> Tokenizer:
    """As the model's own library uses it: sentence-transformers' cross-encoders cut the longer of two texts,
    whatever tokenizer.json says. Raises TokenizerError as `Tokenizer.load` does, and ModelError for a link
    that leads elsewhere, or a setting that isn't computed.
    """
    for name in (*TOKENIZER_FILES, *VALUE_FILES):
        if (folder / name).is_symlink():
            plain_file(folder, name)
    TOKENIZER_CONFIG.require(_settings(folder), str(folder / TOKENIZER_CONFIG.file))
    tokenizer = load_tokenizer(folder)
    if is_cross_encoder(folder):
        tokenizer.truncation = replace(tokenizer.truncation, strategy="longest_first")
    return tokenizer


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / TOKENIZER_CONFIG.file
    return read_object(path, "a tokenizer's settings") if path.exists() else {}
