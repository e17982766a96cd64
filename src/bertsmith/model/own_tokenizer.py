"""Reads the tokenizer of a model folder, and checks that it fits the model."""

import hashlib
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from tokenizers import Tokenizer as Backend

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.model.folder_keys import TOKENIZER_CONFIG
from bertsmith.model.locate import SENTENCE_SETTINGS
from bertsmith.model.manifest import MANIFEST
from bertsmith.model.sentence_files import StaticConfig, is_cross_encoder
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.tokenizer_files import SENTENCEPIECE_FILES, TOKENIZER_FILES, reads_one_segment
from bertsmith.text.tokens.tokenizer_json import read_object
from bertsmith.text.tokens.value_tokenizers import VALUE_FILES, load_tokenizer

_IN_USE: WeakValueDictionary[tuple[Hashable, ...], Tokenizer] = WeakValueDictionary()
_BY_FILES: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()  # by the hash of the files read
# transformers' classes that do just what tokenizer.json says.
_GENERAL_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer")


def load_own_tokenizer(folder: Path, config: BertConfig | StaticConfig) -> Tokenizer:
    """The tokenizer of a model folder with this config. Raises as `read_own_tokenizer` does, and ModelError
    where the tokenizer has more tokens than the model, or doesn't fit it otherwise.
    """
    tokenizer = read_own_tokenizer(folder)
    _require_fit(tokenizer, folder, config)
    return tokenizer


def load_shared_tokenizer(folder: Path, config: BertConfig | StaticConfig) -> Tokenizer:
    """As `load_own_tokenizer`, but an equal tokenizer that was shared before and is in use is given again: a
    vocabulary takes some megabytes, and a tenth of a second. For callers that don't change its attributes.
    """
    files_hash = _hash_tokenizer_files(folder)
    tokenizer = None if files_hash is None else _BY_FILES.get(files_hash)
    if tokenizer is None:
        tokenizer = read_own_tokenizer(folder)
        if type(tokenizer) is Tokenizer:  # not one of values, whose scales aren't in its hash
            roles = tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
            key = tokenizer.sha256, tokenizer.truncation, tokenizer.one_segment, roles
            tokenizer = _IN_USE.setdefault(key, tokenizer)
            if files_hash is not None and files_hash == _hash_tokenizer_files(folder):
                _BY_FILES[files_hash] = tokenizer
    _require_fit(tokenizer, folder, config)
    return tokenizer


def _hash_tokenizer_files(folder: Path) -> str | None:
    """A hash of all files that `read_own_tokenizer` reads of a folder of ours; None for another folder, and
    for links, which it may refuse.
    """
    names = (*TOKENIZER_FILES, *SENTENCEPIECE_FILES, *VALUE_FILES, *SENTENCE_SETTINGS)
    paths = [folder / name for name in names]
    if not (folder / MANIFEST).exists() or any(path.is_symlink() or path.is_dir() for path in paths):
        return None
    config = folder / "config.json"
    settings = read_object(config, "a model's settings") if config.exists() else {}
    parts: list[object] = [settings.get("model_type"), settings.get("tokenizer_class")]
    parts += [(parent / "modules.json").exists() for parent in (folder, folder.parent)]
    parts += [hashlib.sha256(path.read_bytes()).digest() if path.exists() else None for path in paths]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _require_fit(tokenizer: Tokenizer, folder: Path, config: BertConfig | StaticConfig) -> None:
    """Raises ModelError where `load_own_tokenizer` would."""
    if tokenizer.vocab_size > config.vocab_size:
        first = tokenizer.id_to_token(config.vocab_size)
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} pieces, the model only "
            f"{config.vocab_size:,} rows. Remove the pieces from {first!r} on, or use the model's own "
            "tokenizer."
        )
    if not isinstance(config, BertConfig):
        return
    _require_special_tokens(folder)
    # otherwise a token of a text would be taken for padding, and would have no position
    if config.family.positions_after_padding and tokenizer.pad_id != config.pad_token_id:
        raise ModelError(
            f"{folder}: pad_token_id of config.json is {config.pad_token_id}, the tokenizer's padding is "
            f"{tokenizer.pad_id}, and a {config.model_type} counts positions by it. Use a folder whose files "
            "belong together."
        )


def _require_special_tokens(folder: Path) -> None:
    """Raises ModelError where transformers would add no special tokens to texts: its general classes follow
    tokenizer.json, and that has no post-processor. Models trained by Bertsmith always read special tokens.
    """
    path, settings = folder / "tokenizer.json", folder / TOKENIZER_CONFIG.file
    class_name = (
        read_object(settings, "a tokenizer's settings").get("tokenizer_class") if settings.exists() else ""
    )
    if class_name not in _GENERAL_CLASSES or not path.exists() or (folder / MANIFEST).exists():
        return
    if Backend.from_file(str(path)).num_special_tokens_to_add(is_pair=True) == 0:
        raise ModelError(
            f"{path} puts no special tokens around texts, and {class_name} adds none: the model learned "
            "without [CLS] and [SEP], which Bertsmith always puts there. If it learned with them, add the "
            "post-processor that its tokenizer had."
        )


def read_own_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder, set up as the model's own library uses it: sentence-transformers'
    cross-encoders truncate the longer of two texts, its encoders may lower-case texts, and transformers gives
    both texts of a pair the same segment where its class does, whatever tokenizer.json says.

    Raises TokenizerError as `Tokenizer.load` does, and ModelError for a link that leads out of the folder,
    and for settings that we don't support.
    """
    for name in (*TOKENIZER_FILES, *SENTENCEPIECE_FILES, *VALUE_FILES):
        if (folder / name).is_symlink():
            plain_file(folder, name)
    path = folder / TOKENIZER_CONFIG.file
    TOKENIZER_CONFIG.require(read_object(path, "a tokenizer's settings") if path.exists() else {}, str(path))
    tokenizer = load_tokenizer(folder)
    # Our folders of version 0.3 may name a class without segments, though their models read two.
    tokenizer.one_segment = reads_one_segment(folder, by_class=not (folder / MANIFEST).exists())
    # sentence-transformers lower-cases texts before the tokenizer, where a modules.json in this folder or the
    # one above names the encoder
    if any((parent / "modules.json").exists() for parent in (folder, folder.parent)):
        settings = next((name for name in SENTENCE_SETTINGS if (folder / name).exists()), None)
        if settings is not None and read_settings(plain_file(folder, settings)).get("do_lower_case"):
            tokenizer = tokenizer.in_small_letters()
    if is_cross_encoder(folder) and not (folder / MANIFEST).exists():  # our folders say how to truncate
        tokenizer.truncation = replace(tokenizer.truncation, strategy="longest_first")
    return tokenizer
