"""The files a tokenizer is read from, turned into the `tokenizers` library's object.

tokenizer.json                       any BERT or RoBERTa of the last years
vocab.txt                            WordPiece, one piece a line, the line number is the id
vocab.json, merges.txt               byte-level BPE, as RoBERTa was published
tokenizer_config.json                beside them: cased or uncased, names of the special tokens
added_tokens.json                    beside the latter two: tokens that were added to the vocabulary
"""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens.added_tokens import ADDED_TOKENS, add_tokens, read_added_tokens
from bertsmith.text.tokens.byte_level import byte_level_backend, read_byte_pairs, require_byte_symbols
from bertsmith.text.tokens.template import require_usable, template_of
from bertsmith.text.tokens.tokenizer_json import read_object, read_tokenizer_json
from bertsmith.text.tokens.truncation import Truncation, truncation_of
from bertsmith.text.tokens.wordpiece import read_vocabulary, wordpiece_backend

#: The names BERT and RoBERTa give to the five special tokens, in this order of preference.
SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}

#: Those of a folder, the one that is read first in front.
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json"),
    ADDED_TOKENS,
)

# Classes of transformers that read a vocab.txt by other rules than BERT's: a dictionary's, or byte pairs'.
_BY_OTHER_RULES = ("BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer")
# Those that follow tokenizer.json alone, and those whose own settings win over it, the defaults too.
_BY_THE_FILE = ("PreTrainedTokenizer", "TokenizersBackend")
_BY_BERTS_SETTINGS = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")


def read_backend(path: Path, lowercase: bool | None) -> tuple[Backend, dict[str, str], Truncation]:
    """The tokenizer at `path`, the names of its special tokens ("cls" → "[CLS]", ...), and how it cuts texts.

    `path` is a folder, a `vocab.txt`, or a `tokenizer.json`. `lowercase` overrides what the files say.
    Raises TokenizerError saying what is missing or wrong, and where.
    """
    source = _find_source(path)
    config = _read_config(source.with_name("tokenizer_config.json"))
    if source.suffix == ".txt":
        return *_read_wordpiece(source, config, lowercase), truncation_of(None, config, str(source.parent))
    if source.name == "vocab.json":
        return *_read_byte_level(source, config, lowercase), truncation_of(None, config, str(source.parent))
    content = read_tokenizer_json(source)
    truncation = truncation_of(content.pop("truncation", None), config, str(source.parent))
    return *_read_json(source, content, config, lowercase), truncation


def find_special_tokens(vocabulary: set[str], config: dict[str, Any], source: Path | str) -> dict[str, str]:
    """Role → token: as the settings name it, else BERT's name, else RoBERTa's.

    Raises TokenizerError naming every role for which the vocabulary has nothing.
    """
    found: dict[str, str] = {}
    for role, usual in SPECIAL_TOKENS.items():
        named = config.get(f"{role}_token")
        named = named.get("content") if isinstance(named, dict) else named
        candidates = (named,) if isinstance(named, str) else usual
        token = next((candidate for candidate in candidates if candidate in vocabulary), None)
        if token is not None:
            found[role] = token
    missing = [
        f"{role} ({' or '.join(SPECIAL_TOKENS[role])})" for role in SPECIAL_TOKENS if role not in found
    ]
    odd = next((token for token in found.values() if re.search(r"[\s:$]", token)), None)
    if odd is not None:
        raise TokenizerError(f"{source}: {odd!r} can't be a special token: it holds a blank, a colon or a $.")
    if missing:
        raise TokenizerError(
            f"{source} lacks special tokens: {', '.join(missing)}. "
            "Add each as a piece of its own; a vocabulary made by `bertsmith tokenizer train` has them."
        )
    return found


def _find_source(path: Path) -> Path:
    """The file that holds the vocabulary."""
    if not path.exists():
        raise TokenizerError(
            f"{path} does not exist: expected a tokenizer's folder, vocab.txt or tokenizer.json."
        )
    if path.is_file():
        return path
    for name in TOKENIZER_FILES[:3]:
        if (path / name).exists():
            return path / name
    raise TokenizerError(
        f"{path} holds no tokenizer: expected tokenizer.json, vocab.txt, or vocab.json with merges.txt. "
        "Make one with `bertsmith tokenizer train CORPUS --out TOKENIZER`."
    )


def _read_config(path: Path) -> dict[str, Any]:
    return read_object(path, "a tokenizer's settings") if path.exists() else {}


def _read_wordpiece(
    path: Path, config: dict[str, Any], lowercase: bool | None
) -> tuple[Backend, dict[str, str]]:
    """Cased or uncased: what the caller says, else the settings, else whether a piece has a capital."""
    _refuse_other_rules(config, path)
    pieces = read_vocabulary(path)
    special = find_special_tokens(set(pieces), config, path)
    if lowercase is None:
        lowercase = _flag(config, "do_lower_case")
    if lowercase is None:
        lowercase = not any(_has_capital(piece) for piece in pieces)
    backend = wordpiece_backend(
        pieces,
        special,
        lowercase=lowercase,
        strip_accents=_flag(config, "strip_accents"),
        chinese_characters=_flag(config, "tokenize_chinese_chars") is not False,
    )
    _read_added(backend, special, config, path)
    return backend, special


def _refuse_other_rules(config: dict[str, Any], path: Path) -> None:
    """Raises TokenizerError where the settings name such a class."""
    name = config.get("tokenizer_class")
    if name in _BY_OTHER_RULES:
        raise TokenizerError(
            f"{path.with_name('tokenizer_config.json')}: the tokenizer is a {name!r}, whose rules Bertsmith "
            "doesn't have: a vocab.txt is read as BertTokenizer does. Use another model."
        )


def _read_byte_level(
    path: Path, config: dict[str, Any], lowercase: bool | None
) -> tuple[Backend, dict[str, str]]:
    _refuse_choice_of_case(lowercase)
    vocabulary, merges = read_byte_pairs(path)
    _require_ids_without_holes(vocabulary, path)
    require_byte_symbols(vocabulary, path)
    special = find_special_tokens(set(vocabulary), config, path)
    add_prefix_space = _flag(config, "add_prefix_space") is True
    backend = byte_level_backend(vocabulary, merges, special, add_prefix_space=add_prefix_space)
    _read_added(backend, special, config, path)
    return backend, special


def _read_added(backend: Backend, special: dict[str, str], config: dict[str, Any], path: Path) -> None:
    """Tokens that the vocabulary file at `path` doesn't have, and those of it that are searched for."""
    added = read_added_tokens(path.parent, config)
    vocabulary = backend.get_vocab() | {token.content: number for number, token in added}
    _require_ids_without_holes(vocabulary, path.parent)
    add_tokens(backend, added, special)


def _flag(config: dict[str, Any], key: str) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise TokenizerError(f"tokenizer_config.json: `{key}` is {value!r}; expected true, false or null.")
    return value


def _has_capital(piece: str) -> bool:
    """Names in brackets don't count: every vocabulary has [CLS], and some <S>."""
    return piece != piece.lower() and not re.fullmatch(r"\[.*\]|<.*>", piece)


def _read_json(
    path: Path, content: dict[str, Any], config: dict[str, Any], lowercase: bool | None
) -> tuple[Backend, dict[str, str]]:
    _follow_config(content, config, lowercase)
    model = content["model"]
    vocabulary = model["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    _require_ids_without_holes(vocabulary, path)
    if model["type"] == "BPE":
        require_byte_symbols(model["vocab"], path)
    elif model["unk_token"] not in model["vocab"]:
        raise TokenizerError(
            f"{path}: unk_token is {model['unk_token']!r}, which is no piece of the model's vocabulary of "
            f"{len(model['vocab']):,}. Name one that is: unknown words become it."
        )
    special = find_special_tokens(set(vocabulary), config, path)
    try:
        backend = Backend.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{path} is not a usable tokenizer: {error}.") from error
    listed = {token["content"] for token in content["added_tokens"]}
    backend.add_special_tokens(sorted(set(special.values()) - listed, key=vocabulary.__getitem__))
    template = template_of(backend, vocabulary[special["cls"]], vocabulary[special["sep"]])
    require_usable(template, len(vocabulary), path)
    return backend, special


def _follow_config(content: dict[str, Any], config: dict[str, Any], lowercase: bool | None) -> None:
    """Where tokenizer_config.json contradicts tokenizer.json the former wins, unless transformers' class that
    it names follows tokenizer.json alone.
    """
    normalizer = content.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        _refuse_choice_of_case(lowercase)
        return
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    if name in _BY_BERTS_SETTINGS:
        normalizer.update(lowercase=True, strip_accents=None, handle_chinese_chars=True)
    wanted = {
        "lowercase": _flag(config, "do_lower_case"),
        "strip_accents": _flag(config, "strip_accents"),
        "handle_chinese_chars": _flag(config, "tokenize_chinese_chars"),
    }
    if name not in _BY_THE_FILE:
        normalizer.update({key: value for key, value in wanted.items() if value is not None})
    if lowercase is not None:
        normalizer["lowercase"] = lowercase


def _refuse_choice_of_case(lowercase: bool | None) -> None:
    if lowercase is not None:
        raise TokenizerError(
            "Cased or uncased can be chosen only for a tokenizer with BERT's normaliser, and this one has "
            "another. Leave the choice out."
        )


def _require_ids_without_holes(vocabulary: dict[str, int], path: Path) -> None:
    """Ids must be 0 … V-1, each once: the embedding table has a row for each."""
    by_id: dict[int, str] = {}
    for piece, number in vocabulary.items():
        if number in by_id:
            raise TokenizerError(
                f"{path}: {by_id[number]!r} and {piece!r} share the id {number}. Ids must differ."
            )
        by_id[number] = piece
    missing = next((number for number in range(len(by_id)) if number not in by_id), None)
    if missing is not None:
        raise TokenizerError(
            f"{path}: no piece has the id {missing}, though there are {len(by_id):,} pieces. "
            f"Ids must run from 0 to {len(by_id) - 1:,}; give the free ids to pieces such as [unused0]."
        )
