"""Reads the files of a tokenizer into an object of the `tokenizers` library.

tokenizer.json                       any model of recent years
vocab.txt                            WordPiece, Japanese too: one token a line; the line number is the id
*.model                              SentencePiece's Unigram, where no tokenizer.json is
vocab.json, merges.txt               byte-level BPE, as RoBERTa was published
tokenizer_config.json                beside them: cased or uncased, names of the special tokens
special_tokens_map.json              the special tokens, as older versions of transformers saved them
added_tokens.json                    tokens that were added to the vocabulary
config.json                          the model's type, which tells the tokenizer's class if nothing else does
"""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, processors

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens.added_tokens import (
    ADDED_TOKENS,
    EXTRA_SPECIAL_TOKENS,
    add_tokens,
    list_named_tokens,
    read_added_tokens,
    require_searchable,
)
from bertsmith.text.tokens.byte_level import (
    build_byte_level_backend,
    build_roberta_processor,
    has_roberta_rules,
    read_byte_pairs,
    require_byte_symbols,
)
from bertsmith.text.tokens.japanese import JAPANESE_CLASS, MecabSplitter, read_splitter
from bertsmith.text.tokens.sequence_rules import (
    SequenceTemplate,
    Truncation,
    read_template,
    read_truncation,
    require_usable,
)
from bertsmith.text.tokens.tokenizer_json import read_object, read_sentencepiece_model, read_tokenizer_json
from bertsmith.text.tokens.unigram import list_parts, replaces_blanks
from bertsmith.text.tokens.wordpiece import build_wordpiece_backend, has_bert_rules, read_vocabulary

#: The names BERT and RoBERTa give to the five special tokens, in this order of preference.
SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}

#: The files of a tokenizer's folder. The vocabulary is read from the first of the first three that exists.
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json"),
    *("special_tokens_map.json", ADDED_TOKENS),
)
#: SentencePiece's own file, as XLM-RoBERTa and CamemBERT, ALBERT, DeBERTa and T5 call it.
SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")

# Classes of transformers that take casing, and the blank before a text, from tokenizer_config.json and their
# own defaults, whatever tokenizer.json says. All other classes follow tokenizer.json.
_BERTS = frozenset(
    f"{name}Tokenizer"
    for name in (
        *("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "LayoutLM", "Lxmert"),
        *("DPRQuestionEncoder", "DPRContextEncoder"),
    )
)
_ROBERTAS = frozenset(f"{name}Tokenizer" for name in ("Roberta", "Longformer", "Bart", "LED", "Mvp"))
# model_type → the class that reads the files where the settings name none.
_CLASS_OF_MODEL_TYPE = {
    **dict.fromkeys(
        ("bert", "distilbert", "electra", "mobilebert", "convbert", "squeezebert", "layoutlm", "nomic_bert"),
        "BertTokenizer",
    ),
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    **dict.fromkeys(("roberta", "roberta-prelayernorm", "longformer", "bart"), "RobertaTokenizer"),
}
# Model types whose tokenizer.json is followed whatever class is named beside it.
_FOLLOW_TOKENIZER_JSON = ("modernbert", "modernbert-decoder", "model2vec")


def read_backend(
    path: Path, lowercase: bool | None
) -> tuple[Backend, dict[str, str], Truncation, MecabSplitter | None]:
    """The tokenizer at `path`, its special tokens ("cls" → "[CLS]", …), how it truncates texts, and what
    divides Japanese ones into words.

    `path` is a folder, a `vocab.txt` or a `tokenizer.json`. `lowercase` overrides what the files say.
    Raises TokenizerError, which says what is missing or wrong and in which file.
    """
    source = _find_source(path)
    config = _read_config(source.parent)
    layout = _find_reading_class(config, source.parent)
    vocabulary = source.with_name("vocab.txt")
    if layout == JAPANESE_CLASS and vocabulary.exists():  # it follows no tokenizer.json
        backend, special, splitter = _read_japanese(vocabulary, config, lowercase)
        return backend, special, read_truncation(None, config, str(source.parent)), splitter
    if source.suffix == ".txt":
        backend, special = _read_wordpiece(source, config, lowercase)
        return backend, special, read_truncation(None, config, str(source.parent)), None
    if source.name == "vocab.json":
        backend, special = _read_byte_level(source, config, lowercase)
        return backend, special, read_truncation(None, config, str(source.parent)), None
    if source.suffix == ".model":
        names_held = {name for names in SPECIAL_TOKENS.values() for name in names}.union(
            list_named_tokens(config)
        )
        content = read_sentencepiece_model(source, layout, config, names_held)
        backend, special = _read_json(source, content, config, lowercase)
        return backend, special, read_truncation(None, config, str(source.parent)), None
    content = read_tokenizer_json(source)
    truncation = read_truncation(content.pop("truncation", None), config, str(source.parent))
    backend, special = _read_json(source, content, config, lowercase)
    return backend, special, truncation, None


def reads_one_segment(folder: Path, *, by_class: bool) -> bool:
    """Whether transformers passes the model no token_type_ids, so that both texts of a pair are one segment.

    That is so where model_input_names in tokenizer_config.json leaves them out or, if there is no such list
    and `by_class` is set, where the tokenizer's class does. Raises TokenizerError if the list leaves out
    attention_mask.
    """
    config = _read_config(folder)
    names = config.get("model_input_names")
    if isinstance(names, list) and "attention_mask" not in names:
        raise TokenizerError(
            f"{folder / 'tokenizer_config.json'}: model_input_names leaves out attention_mask, so "
            "transformers reads padding as text, and answers by what else is in the batch. List it too."
        )
    if isinstance(names, list):
        return "token_type_ids" not in names
    reading_class = _find_reading_class(config, folder)
    if not reading_class and _read_model_settings(folder).get("model_type") is None:
        return False  # Google's BERT, or a model from before transformers 2.3: two segments
    return by_class and reading_class not in _BERTS - {"DistilBertTokenizer"}


def _find_source(path: Path) -> Path:
    """The file with the vocabulary: `path` itself or one in that folder. Raises TokenizerError if none is."""
    if not path.exists():
        raise TokenizerError(
            f"{path} does not exist: expected a tokenizer's folder, vocab.txt or tokenizer.json."
        )
    if path.is_file():
        return path
    for name in TOKENIZER_FILES[:3]:
        if (path / name).exists():
            return path / name
    for name in SENTENCEPIECE_FILES:
        if (path / name).exists():
            return path / name
    raise TokenizerError(
        f"{path} holds no tokenizer: expected tokenizer.json, vocab.txt, or vocab.json with merges.txt. "
        "Make one with `bertsmith tokenizer train CORPUS --out TOKENIZER`."
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, completed from the files of older versions of transformers."""
    path = folder / "tokenizer_config.json"
    config = read_object(path, "a tokenizer's settings") if path.exists() else {}
    current, older = EXTRA_SPECIAL_TOKENS
    if older in config:
        config[current] = config.get(current) or config.pop(older)
    path = folder / "special_tokens_map.json"
    if config.get("added_tokens_decoder") is None and path.exists():
        config |= {
            key: value
            for key, value in read_object(path, "a tokenizer's special tokens").items()
            if key != current
        }
    return config


def _find_reading_class(config: dict[str, Any], folder: Path) -> str:
    """The transformers class that opens a folder, without "Fast": from the settings, or the model's type.

    Empty where the class is unknown or follows tokenizer.json anyway.
    """
    model = _read_model_settings(folder)
    if model.get("model_type") in _FOLLOW_TOKENIZER_JSON:
        return ""
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    if name is None:
        name = _CLASS_OF_MODEL_TYPE.get(str(model.get("model_type")), "")
    return str(name).removesuffix("Fast")


def _read_model_settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return read_object(path, "a model's settings") if path.exists() else {}


def _read_wordpiece(
    path: Path, config: dict[str, Any], lowercase: bool | None
) -> tuple[Backend, dict[str, str]]:
    """The tokenizer of a vocab.txt, and its special tokens by role.

    Cased or uncased is decided by the caller, else by the settings, else by the transformers class of the
    folder, whose default is uncased, else by whether any token has a capital.
    """
    _require_class(config, path, _BERTS)
    pieces = read_vocabulary(path)
    special = find_special_tokens(set(pieces), config, path)
    if lowercase is None:
        lowercase = _read_flag(config, "do_lower_case")
    if lowercase is None:
        uncased = _find_reading_class(config, path.parent) in _BERTS
        # Names in brackets don't count: every vocabulary has [CLS], and some <S>.
        capitals = (piece for piece in pieces if piece != piece.lower())
        lowercase = uncased or all(re.fullmatch(r"\[.*\]|<.*>", piece) for piece in capitals)
    backend = build_wordpiece_backend(
        pieces,
        special,
        lowercase=lowercase,
        strip_accents=_read_flag(config, "strip_accents"),
        chinese_characters=_read_flag(config, "tokenize_chinese_chars") is not False,
    )
    _add_folder_tokens(backend, special, config, path)
    return backend, special


def _read_japanese(
    path: Path, config: dict[str, Any], lowercase: bool | None
) -> tuple[Backend, dict[str, str], MecabSplitter | None]:
    """The tokenizer of a Japanese BERT's vocab.txt. Its normalizer is what MeCab's texts go through; without
    MeCab ("basic") it is BERT's, with the one rule more that transformers' class has: NFC.
    """
    if lowercase is None:
        lowercase = _read_flag(config, "do_lower_case") is True
    splitter = read_splitter(config, path.with_name("tokenizer_config.json"), lowercase)
    pieces = read_vocabulary(path)
    special = find_special_tokens(set(pieces), config, path)
    backend = build_wordpiece_backend(pieces, special, lowercase=lowercase, chinese_characters=False)
    if splitter is None:
        cleaning = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False
        )
        backend.normalizer = normalizers.Sequence([cleaning, normalizers.NFC(), backend.normalizer])
    else:
        small = [normalizers.Lowercase()] if lowercase else []
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), *small])
        backend.pre_tokenizer = None
    _add_folder_tokens(backend, special, config, path)
    return backend, special, splitter


def _require_class(config: dict[str, Any], path: Path, classes: frozenset[str]) -> None:
    """Raises TokenizerError if the settings name a class that is not among `classes`.

    Such a class reads the vocabulary file by other rules (with a dictionary, as Unigram), or not at all.
    """
    file_name, name = "tokenizer_config.json", config.get("tokenizer_class")
    if not name:
        file_name, name = "config.json", _read_model_settings(path.parent).get("tokenizer_class")
    if name and str(name).removesuffix("Fast") not in classes:
        usual = "BertTokenizer" if classes is _BERTS else "RobertaTokenizer"
        raise TokenizerError(
            f"{path.with_name(file_name)}: the tokenizer is a {name!r}, whose rules Bertsmith doesn't have: "
            f"a {path.name} is read as {usual} does. Use the tokenizer.json of this model, or another model."
        )


def _read_byte_level(
    path: Path, config: dict[str, Any], lowercase: bool | None
) -> tuple[Backend, dict[str, str]]:
    _refuse_choice_of_case(lowercase)
    _require_class(config, path, _ROBERTAS)
    vocabulary, merges = read_byte_pairs(path)
    _require_ids_without_holes(vocabulary, path)
    require_byte_symbols(vocabulary, path)
    special = find_special_tokens(set(vocabulary), config, path)
    backend = build_byte_level_backend(
        vocabulary,
        merges,
        special,
        add_prefix_space=_read_flag(config, "add_prefix_space") is True,
        trim_offsets=_read_flag(config, "trim_offsets") is not False,
    )
    _add_folder_tokens(backend, special, config, path)
    return backend, special


def _add_folder_tokens(backend: Backend, special: dict[str, str], config: dict[str, Any], path: Path) -> None:
    """Adds the added tokens found beside `path` to the backend that was built from it."""
    added = read_added_tokens(path.parent, config, [], backend.get_vocab())
    ids = backend.get_vocab() | {token.content: token.id for token in added}
    _require_ids_without_holes(ids, path.parent)
    add_tokens(backend, added, special)
    require_searchable(backend, path.parent)


def _read_json(
    path: Path, content: dict[str, Any], config: dict[str, Any], lowercase: bool | None
) -> tuple[Backend, dict[str, str]]:
    reading_class = _find_reading_class(config, path.parent)
    _follow_settings(content, config, reading_class)
    if lowercase is not None:
        normalizer = content.get("normalizer") or {}
        if normalizer.get("type") != "BertNormalizer":
            _refuse_choice_of_case(lowercase)
        normalizer["lowercase"] = lowercase
    model = content["model"]
    own_ids = model["vocab"]
    if model["type"] == "Unigram":
        own_ids = {piece: number for number, (piece, _) in enumerate(model["vocab"])}
    added = read_added_tokens(path.parent, config, content["added_tokens"], own_ids)
    content["added_tokens"] = [token.model_dump() for token in added]
    vocabulary = own_ids | {token.content: token.id for token in added}
    _require_ids_without_holes(vocabulary, path)
    is_sentencepiece = model["type"] == "Unigram" or model.get("byte_fallback") is True
    if not is_sentencepiece and any(
        part["type"] == "Split" for part in list_parts(content.get("pre_tokenizer"), "pretokenizers")
    ):
        raise TokenizerError(
            f"{path}: its pre-tokenizer is Split, which is read only where the model is BPE with "
            "byte_fallback, as in Gemma. Use another tokenizer."
        )
    if model["type"] == "BPE" and not is_sentencepiece:
        require_byte_symbols(model["vocab"], path)
    elif is_sentencepiece:
        if model["type"] == "Unigram":
            config = config | {"unk_token": model["vocab"][model["unk_id"]][0]}  # as the library reads it
        else:
            config = {"cls_token": "<bos>", "sep_token": "<eos>"} | config  # Gemma's names
        if not replaces_blanks(content):
            raise TokenizerError(
                f"{path}: it reads blanks as pieces, without Metaspace or a Replace of ' ' by '\u2581': its "
                "pieces would be found across blanks, special ones among them. Use a tokenizer that has it."
            )
    elif model["unk_token"] not in model["vocab"]:
        raise TokenizerError(
            f"{path}: unk_token is {model['unk_token']!r}, which is no piece of the model's vocabulary of "
            f"{len(model['vocab']):,}. Name one that is: unknown words become it."
        )
    special = find_special_tokens(set(vocabulary), config, path)
    if (
        reading_class in _BERTS and model["type"] == "WordPiece"
    ):  # these classes take unk_token from the settings
        model["unk_token"] = special["unk"]
    try:
        backend = Backend.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{path} is not a usable tokenizer: {error}.") from error
    clash = next((token for token in added if backend.token_to_id(token.content) != token.id), None)
    if clash is not None:
        raise TokenizerError(
            f"{path}: the added token {clash.content!r} has the id {clash.id} among those of the model's "
            f"vocabulary; the tokenizers library would give it {backend.token_to_id(clash.content)}, which "
            "another piece has. Put it into the vocabulary (model.vocab), under its id."
        )
    added_names = {token.content for token in added}
    backend.add_special_tokens(sorted(set(special.values()) - added_names, key=vocabulary.__getitem__))
    require_searchable(backend, path)
    cls_id, sep_id = vocabulary[special["cls"]], vocabulary[special["sep"]]
    template = read_template(backend, cls_id, sep_id, path)
    require_usable(template, len(vocabulary), path)
    if backend.num_special_tokens_to_add(is_pair=True) == 0:
        # Saved with a template, so that other libraries join texts as this one does.
        offsets = _find_offset_processors(content.get("post_processor"))
        backend.post_processor = processors.Sequence([*offsets, _build_template_processor(backend, template)])
    _require_rules_of_class(backend, template, reading_class, cls_id, sep_id, path)
    if reading_class in _ROBERTAS and has_roberta_rules(backend):
        backend.post_processor = build_roberta_processor(
            backend, special, trim_offsets=_read_flag(config, "trim_offsets") is not False
        )
    return backend, special


def _follow_settings(content: dict[str, Any], config: dict[str, Any], reading_class: str) -> None:
    """Changes the content of tokenizer.json where transformers follows tokenizer_config.json instead.

    That is so for the normalizer's flags with BERT's classes, whose defaults apply too if the settings name
    the class, and for add_prefix_space with RoBERTa's classes.
    """
    has_class = bool(config.get("tokenizer_class"))
    normalizer, pre_tokenizer = content.get("normalizer") or {}, content.get("pre_tokenizer") or {}
    match normalizer:
        # sentence-transformers saves do_lower_case like this; the second part lower-cases anyway
        case {
            "normalizers": [{"type": "Lowercase"}, {"type": "BertNormalizer", "lowercase": True} as second]
        }:
            content["normalizer"] = normalizer = second
    if reading_class in _BERTS and normalizer.get("type") == "BertNormalizer":
        if has_class:
            normalizer.update(lowercase=True, strip_accents=None, handle_chinese_chars=True)
        flags = {
            "lowercase": _read_flag(config, "do_lower_case"),
            "strip_accents": _read_flag(config, "strip_accents"),
            "handle_chinese_chars": _read_flag(config, "tokenize_chinese_chars"),
        }
        normalizer.update({key: value for key, value in flags.items() if value is not None})
    if reading_class in _ROBERTAS and pre_tokenizer.get("type") == "ByteLevel":
        pre_tokenizer["add_prefix_space"] = _read_flag(config, "add_prefix_space") is True


def _find_offset_processors(processor: dict[str, Any] | None) -> list[processors.ByteLevel]:
    """The byte-level post-processors, which trim offsets and add no tokens."""
    processor = processor or {}
    parts = [processor, *processor.get("processors", [])]
    return [
        processors.ByteLevel(**{key: value for key, value in part.items() if key != "type"})
        for part in parts
        if part.get("type") == "ByteLevel"
    ]


def _build_template_processor(backend: Backend, template: SequenceTemplate) -> processors.TemplateProcessing:
    ids = template.before + template.between + template.behind
    before, between, behind = (
        [str(backend.id_to_token(token_id)) for token_id in token_ids]
        for token_ids in (template.before, template.between, template.behind)
    )
    second_segment = template.segments[1]
    return processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        pair=[*before, "$A", *between, *(f"{part}:{second_segment}" for part in ("$B", *behind))],
        special_tokens=[(str(backend.id_to_token(token_id)), token_id) for token_id in dict.fromkeys(ids)],
    )


def _require_rules_of_class(
    backend: Backend, template: SequenceTemplate, reading_class: str, cls: int, sep: int, path: Path
) -> None:
    """Raises TokenizerError if the transformers class would put other special tokens around texts than
    tokenizer.json does, or split texts by other rules.
    """
    if reading_class in _BERTS and isinstance(backend.model, models.WordPiece):
        # DistilBERT has one segment, so that those of its template don't matter.
        segments = template.segments if reading_class == "DistilBertTokenizer" else (0, 1)
        class_template = SequenceTemplate((cls,), (sep,), (sep,), segments)
        has_rules = has_bert_rules(backend)
    elif reading_class in _ROBERTAS and isinstance(backend.model, models.BPE):
        # RoBERTa's models have one segment, too.
        class_template = SequenceTemplate((cls,), (sep, sep), (sep,), template.segments)
        has_rules = has_roberta_rules(backend)
    else:
        return
    if template == class_template and has_rules:
        return
    difference = (
        "its normalizer, pre_tokenizer or model divides texts otherwise"
        if template == class_template
        else "its post-processor puts other special tokens or segments around two texts"
    )
    raise TokenizerError(
        f"{path}: {difference} than {reading_class}, transformers' class for this folder, which doesn't "
        'follow it. If the file is right, set tokenizer_class to "PreTrainedTokenizerFast" in '
        "tokenizer_config.json."
    )


def _read_flag(config: dict[str, Any], key: str) -> bool | None:
    """A boolean setting, None if it is absent. Raises TokenizerError for any other value."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise TokenizerError(f"tokenizer_config.json: `{key}` is {value!r}; expected true, false or null.")
    return value


def _refuse_choice_of_case(lowercase: bool | None) -> None:
    if lowercase is not None:
        raise TokenizerError(
            "Cased or uncased can be chosen only for a tokenizer with BERT's normaliser, and this one has "
            "another. Leave the choice out."
        )


def _require_ids_without_holes(vocabulary: dict[str, int], path: Path) -> None:
    """Raises TokenizerError unless the ids are 0 … V-1, each once: they are rows of the embeddings."""
    token_of: dict[int, str] = {}
    for token, token_id in vocabulary.items():
        if token_id in token_of:
            raise TokenizerError(
                f"{path}: {token_of[token_id]!r} and {token!r} share the id {token_id}. Ids must differ."
            )
        token_of[token_id] = token
    missing = next((token_id for token_id in range(len(token_of)) if token_id not in token_of), None)
    if missing is not None:
        raise TokenizerError(
            f"{path}: no piece has the id {missing}, though there are {len(token_of):,} pieces. "
            f"Ids must run from 0 to {len(token_of) - 1:,}; give the free ids to pieces such as [unused0]."
        )


def find_special_tokens(vocabulary: set[str], config: dict[str, Any], source: Path | str) -> dict[str, str]:
    """The special token of each role: the one that the settings name, else BERT's, else RoBERTa's.

    `source` names the vocabulary in messages. Raises TokenizerError, naming every role for which the
    vocabulary has no token.
    """
    tokens: dict[str, str] = {}
    missing = list[str]()
    for role, usual_tokens in SPECIAL_TOKENS.items():
        named = config.get(f"{role}_token")
        named = named.get("content") if isinstance(named, dict) else named
        candidates = (named,) if isinstance(named, str) else usual_tokens
        token = next((candidate for candidate in candidates if candidate in vocabulary), None)
        if token is not None:
            tokens[role] = token
        elif isinstance(named, str):
            missing.append(f"{role} ({named}, as the settings beside it name it)")
        else:
            missing.append(f"{role} ({' or '.join(usual_tokens)})")
    unusable = next((token for token in tokens.values() if re.search(r"[\s:$]", token)), None)
    if unusable is not None:
        raise TokenizerError(
            f"{source}: {unusable!r} can't be a special token: it holds a blank, a colon or a $."
        )
    if missing:
        raise TokenizerError(
            f"{source} lacks special tokens: {', '.join(missing)}. "
            "Add each as a piece of its own; a vocabulary made by `bertsmith tokenizer train` has them."
        )
    return tokens
