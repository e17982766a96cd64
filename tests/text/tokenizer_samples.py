"""Small tokenizers' files, written by hand."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

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


def character_table(replacements: dict[str, str]) -> str:
    """SentencePiece's table of characters in base64: spelling → what it is replaced by."""
    texts, places = b"", dict[str, int]()
    for spelling, replacement in replacements.items():
        places[spelling] = len(texts)
        texts += replacement.encode() + b"\0"
    trie: dict[int, Any] = {}
    for spelling in replacements:
        node = trie
        for byte in spelling.encode():
            node = node.setdefault(byte, {})
        node[0] = places[spelling]
    units, used = [0] * 256, {0}
    pending, base = [(0, trie)], 0
    while pending:
        place, node = pending.pop()
        base = next(
            free for free in range(1, 1 << 20) if used.isdisjoint(free ^ label for label in (0, *node))
        )
        units += [0] * (base // 256 * 256 + 256 - len(units))
        units[place] |= (place ^ base) << 10 | (0 in node) << 8
        used.add(base)
        for label, child in node.items():
            used.add(base ^ label)
            if label:
                units[base ^ label] = label
                pending.append((base ^ label, child))
            else:
                units[base] = child | 1 << 31
    table = b"".join(unit.to_bytes(4, "little") for unit in units)
    return base64.b64encode(len(table).to_bytes(4, "little") + table + texts).decode()


TABLE = {
    "type": "Precompiled",
    "precompiled_charsmap": character_table(
        {chr(0xFEE0 + code): chr(code) for code in range(0x21, 0x7F)}
        | {"\u00a0": " ", "\u3000": " ", "\u200b": " ", "\ufb01": "fi", "\u2460": "1", "\u00ad": ""}
        | {"\uff76": "\u30ab", "\uff76\uff9e": "\u30ac", "e\u0301": "\u00e9", "\u2026": "...", "\t": " "}
    ),
}
BLANKS_JOINED = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def sequence(kind: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """A component of tokenizer.json of several, under the key `kind`."""
    return {"type": "Sequence", kind: list(parts)}


def replaced(what: str, content: str) -> dict[str, Any]:
    """A Replace of a text."""
    return {"type": "Replace", "pattern": {"String": what}, "content": content}


SPLIT_AND_MARKED = sequence("pretokenizers", {"type": "WhitespaceSplit"}, METASPACE)
STRIPPED = {"type": "Strip", "strip_left": True, "strip_right": True}
OLD_METASPACE = {"type": "Metaspace", "replacement": "\u2581", "str_rep": "\u2581", "add_prefix_space": True}
BLANKS_MARKED = sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replaced(" ", "\u2581"))
#: normalizer and pre_tokenizer of the shapes in which Unigram tokenizers are published
UNIGRAM_SHAPES: dict[str, tuple[Any, Any]] = {
    "XLM-R": (TABLE, SPLIT_AND_MARKED),
    "NFKC": (sequence("normalizers", {"type": "NFKC"}, BLANKS_JOINED), SPLIT_AND_MARKED),
    "DeBERTa": (sequence("normalizers", STRIPPED, TABLE, BLANKS_JOINED), METASPACE),
    "ALBERT": (
        sequence(
            "normalizers",
            *(replaced("``", '"'), replaced("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"}),
            *({"type": "Lowercase"}, TABLE),
        ),
        SPLIT_AND_MARKED,
    ),
    "CamemBERT": (sequence("normalizers", replaced("\n", " "), TABLE, BLANKS_JOINED), OLD_METASPACE),
    "T5": (
        sequence("normalizers", {"type": "Nmt"}, {"type": "NFC"}, STRIPPED | {"strip_left": False}),
        METASPACE | {"prepend_scheme": "first", "split": False},
    ),
    "never": ({"type": "NFKC"}, METASPACE | {"prepend_scheme": "never"}),
    "Llama": (BLANKS_MARKED, None),
}


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


GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
#: Pieces of Gemma's that a user wrote down: texts are searched for them.
GEMMA_WRITTEN = (
    "<2mass>",
    "<unused0>",
    "\n",
    "\n\n",
    "\n\n\n",
    "\u2581\u2581",
    "<table>",
    "</table>",
    "<start_of_turn>",
)
GEMMA_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def gemma_json(folder: Path, texts: Sequence[str], pieces: int = 900, **changes: Any) -> Path:
    """The `folder` with a tokenizer.json, Gemma's in the small as mmBERT has it, whose pieces are learned
    from `texts`, with `changes` at the top level. Its tokenizer_config.json is mmBERT's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    first = [*GEMMA_SPECIAL, *GEMMA_WRITTEN, *byte_pieces]
    trainer = trainers.BpeTrainer(vocab_size=pieces, special_tokens=first, show_progress=False)
    backend.train_from_iterator([line for text in texts for line in text.split("\n")], trainer)
    model = json.loads(backend.to_str())["model"]
    for run in ("\u2581\u2581\u2581", "\u2581\u2581\u2581\u2581"):
        model["vocab"][run] = len(model["vocab"])
    runs = [["\u2581", "\u2581"], ["\u2581\u2581", "\u2581"], ["\u2581\u2581", "\u2581\u2581"]]
    model["merges"] = [*runs, *model["merges"]]
    begin, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("<bos>", "<eos>"))
    text, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    decoders = [replaced("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    content = {
        "added_tokens": [
            added(name, number, number < 5) | {"normalized": False}
            for number, name in enumerate((*GEMMA_SPECIAL, *GEMMA_WRITTEN))
        ],
        "normalizer": replaced(" ", "\u2581"),
        "pre_tokenizer": GEMMA_SPLIT,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text, end],
            "pair": [begin, text, end, second, end],
            "special_tokens": {
                name: {"id": name, "ids": [number], "tokens": [name]}
                for name, number in (("<bos>", 2), ("<eos>", 1))
            },
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }
    content["added_tokens"][4]["lstrip"] = True
    content["added_tokens"][-1]["special"] = True
    tokenizer_json(folder / "tokenizer.json", **content | changes)
    settings = {f"{role}_token": f"<{role}>" for role in ("bos", "eos", "unk", "pad", "mask")}
    settings |= {"cls_token": "<bos>", "sep_token": "<eos>", "extra_special_tokens": ["<start_of_turn>"]}
    settings |= {"model_input_names": ["input_ids", "attention_mask"], "model_max_length": 8192}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
