"""Small tokenizers' files, written by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
WORDS = ("un", "##aff", "##able", "hello", "a", "b", "##b", "!", "[", "]", "mask")


def vocab_txt(path: Path, pieces: Sequence[str] = (*SPECIAL, *WORDS)) -> Path:
    """A vocab.txt at `path`."""
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8", newline="")
    return path


def byte_level_files(folder: Path) -> Path:
    """A RoBERTa in the small: 256 bytes, two merges, the special tokens at RoBERTa's places."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += ["he", "Ġhe", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nĠ he\n")
    return folder


def tokenizer_json(path: Path, **changes: Any) -> Path:
    """A tokenizer.json at `path`: BERT's over SPECIAL and WORDS, with `changes` at the top level."""
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(token, number) for number, token in enumerate(SPECIAL)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": wordpiece_model({piece: number for number, piece in enumerate((*SPECIAL, *WORDS))}),
    }
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def unigram_json(folder: Path, pieces: Sequence[str | tuple[str, float]] = WORDS, **changes: Any) -> Path:
    """The `folder` with a tokenizer.json, XLM-RoBERTa's in the small, with `changes` at the top level.

    `pieces` come with their scores; those without begin a word or continue one, and their scores fall by 1/8.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain = [piece for piece in pieces if isinstance(piece, str)]
    spelt = dict.fromkeys(["\u2581", *(mark + piece for piece in plain for mark in ("\u2581", ""))])
    scores = [[piece, -2 - number / 8] for number, piece in enumerate(spelt)]
    scores += [list(piece) for piece in pieces if not isinstance(piece, str)]
    vocab = [*([name, 0.0] for name in ("<s>", "<pad>", "</s>", "<unk>")), *scores, ["<mask>", 0.0]]
    numbers = {name: number for number, (name, _) in enumerate(vocab)}
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    begin, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "</s>"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    content = {
        "added_tokens": [added(name, numbers[name]) for name in special],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, first, end],
            "pair": [begin, first, end, end, second, end],
            "special_tokens": {
                name: {"id": name, "ids": [numbers[name]], "tokens": [name]} for name in ("<s>", "</s>")
            },
        },
        "decoder": METASPACE,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
    }
    tokenizer_json(folder / "tokenizer.json", **content | changes)
    return folder


def wordpiece_model(vocab: dict[str, int], **changes: Any) -> dict[str, Any]:
    """The `model` part of a tokenizer.json."""
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": vocab,
    }
    return model | changes


def added(content: str, number: int, special: bool = True) -> dict[str, Any]:
    """An entry of `added_tokens`."""
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": not special,
        "special": special,
    }
