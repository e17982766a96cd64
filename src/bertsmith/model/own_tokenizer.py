"""The tokenizer in a model's folder, which must be one for this model."""

from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as Backend

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.model.folder_keys import TOKENIZER_CONFIG
from bertsmith.model.locate import SENTENCE_SETTINGS
from bertsmith.model.manifest import MANIFEST
from bertsmith.model.sentence_files import is_cross_encoder
from bertsmith.model.static_table import StaticConfig
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.tokenizer_files import TOKENIZER_FILES, reads_one_segment
from bertsmith.text.tokens.tokenizer_json import read_object
from bertsmith.text.tokens.value_tokenizers import VALUE_FILES, load_tokenizer

# Of transformers: they read any tokenizer.json and do what it says.
_GENERAL_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer")


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
    if not isinstance(config, BertConfig):
        return tokenizer
    _require_special_tokens(folder)
    # or a piece of a text would be taken for padding, and get no position
    if config.family.positions_after_padding and tokenizer.pad_id != config.pad_token_id:
        raise ModelError(
            f"{folder}: pad_token_id of config.json is {config.pad_token_id}, the tokenizer's padding is "
            f"{tokenizer.pad_id}, and a {config.model_type} counts positions by it. Use a folder whose files "
            "belong together."
        )
    return tokenizer


def _require_special_tokens(folder: Path) -> None:
    """Raises ModelError where transformers would put no special tokens around texts: its general class does
    what tokenizer.json says, and that says nothing. Models that Bertsmith trained have read them.
    """
    path, settings = folder / "tokenizer.json", folder / TOKENIZER_CONFIG.file
    named = (
        read_object(settings, "a tokenizer's settings").get("tokenizer_class") if settings.exists() else ""
    )
    if named not in _GENERAL_CLASSES or not path.exists() or (folder / MANIFEST).exists():
        return
    if Backend.from_file(str(path)).num_special_tokens_to_add(is_pair=True) == 0:
        raise ModelError(
            f"{path} puts no special tokens around texts, and {named} adds none: the model learned without "
            "[CLS] and [SEP], which Bertsmith always puts there. If it learned with them, add the "
            "post-processor that its tokenizer had."
        )


def read_own_tokenizer(folder: Path) -> Tokenizer:
    """As the model's own library uses it: sentence-transformers' cross-encoders cut the longer of two texts,
    its encoders may put texts into small letters, and transformers gives two texts one segment where its
    class makes no other, whatever tokenizer.json says.
    Raises TokenizerError as `Tokenizer.load` does, and ModelError for a link that leads elsewhere, or a
    setting that isn't computed.
    """
    for name in (*TOKENIZER_FILES, *VALUE_FILES):
        if (folder / name).is_symlink():
            plain_file(folder, name)
    path = folder / TOKENIZER_CONFIG.file
    TOKENIZER_CONFIG.require(read_object(path, "a tokenizer's settings") if path.exists() else {}, str(path))
    tokenizer = load_tokenizer(folder)
    # Ours of version 0.3 may name a class that leaves them out, though their models read two segments.
    tokenizer.one_segment = reads_one_segment(folder, by_class=not (folder / MANIFEST).exists())
    # sentence-transformers puts texts into small letters before the tokenizer, of an encoder that a
    # modules.json names, beside it or one folder up
    if any((place / "modules.json").exists() for place in (folder, folder.parent)):
        said = next((each for each in SENTENCE_SETTINGS if (folder / each).exists()), None)
        if said is not None and read_settings(plain_file(folder, said)).get("do_lower_case"):
            tokenizer = tokenizer.in_small_letters()
    if is_cross_encoder(folder) and not (folder / MANIFEST).exists():  # ours say how they cut
        tokenizer.truncation = replace(tokenizer.truncation, strategy="longest_first")
    return tokenizer
