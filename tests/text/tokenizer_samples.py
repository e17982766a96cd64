"""Small tokenizers' files, written by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
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
