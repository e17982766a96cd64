"""Gemma's BPE with byte fallback, as mmBERT has it, compared with `tokenizers` reading the same file."""

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizer_samples import GEMMA_SPECIAL, GEMMA_SPLIT, GEMMA_WRITTEN, METASPACE, gemma_json
from transformers import AutoTokenizer

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.errors import TokenizerError
from bertsmith.text.tokens import long_texts
from bertsmith.text.tokens.extension import add_pieces
from bertsmith.text.tokens.pieces import count_piece_characters
from bertsmith.text.tokens.pruning import count_pieces, prune
from bertsmith.text.tokens.tokenizer import Tokenizer

TEXTS = [
    "The tokenizer reads a text without a blank as one long word, and merges its characters.",
    "Unable to read <mask> or <eos>? They are words in a text like any other; the merges lead to them.",
    "Der Müller mahlt das Mehl, und Wörter wie Straßenbahn oder Übermut haben Umlaute.",
    "\u4e2d\u6587\u6ca1\u6709\u7a7a\u683c\uff0c\u4e00\u4e2a\u53e5\u5b50\u5c31\u662f\u4e00\u4e2a\u957f\u8bcd\u3002",
    "\u65e5\u672c\u8a9e\u306e\u6587\u306b\u306f\u7a7a\u767d\u304c\u3042\u308a\u307e\u305b\u3093\u3002",
] * 3
ODD = [
    *(
        "\U0001f600",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "e\u0301",
        "\u0301",
        "\u00a0",
        "\u3000",
        "\t",
        "\r\n",
    ),
    *(
        "\n",
        "\n\n",
        "\n\n\n\n\n",
        "  ",
        "   ",
        "      ",
        "\u2581",
        "\u2581\u2581",
        "\u2581a",
        "\x00",
        "\x07",
        "\u200b",
        "\ufffd",
    ),
    *(
        "<mask>",
        "<eos>",
        "<bos>",
        "<unk>",
        "<pad>",
        "<unused0>",
        "<table>",
        "</table>",
        "<start_of_turn>",
        "<0x41>",
        "<0xE4>",
    ),
    *(
        "\u0e01\u0e32",
        "\u0633\u0644\u0627\u0645",
        "\ud83d",
        "\U00020000",
        "\uff76\uff9e",
        "\u2028",
        "\x85",
        "\ue000",
    ),
]
SHAPES: dict[str, dict[str, Any]] = {
    "Gemma": {},
    "none": {"pre_tokenizer": None},
    "mmBERT": {"pre_tokenizer": METASPACE},
    "first": {"pre_tokenizer": METASPACE | {"prepend_scheme": "first", "split": False}},
}


def random_text(draw: random.Random, length: int, odd: float) -> str:
    parts = list[str]()
    while sum(map(len, parts)) < length:
        source = draw.choice(TEXTS)
        start = draw.randrange(len(source))
        parts.append(source[start : start + draw.randint(1, 12)])
        if draw.random() < odd:
            parts.append(draw.choice(ODD))
    return "".join(parts)


def reference(folder: Path, special_as_text: bool) -> tokenizers.Tokenizer:
    """The library's own reading of the file, with special tokens as text if asked for."""
    content = json.loads((folder / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in GEMMA_SPECIAL
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    backend.encode_special_tokens = special_as_text
    return backend


def expected_offsets(text: str, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
    """The library's offsets without white space in front; blanks alone are empty where a word begins."""
    spans = []
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        start = next((place for place in range(start, end) if not text[place].isspace()), end)
        if not token.strip("\u2581") and not text[start:end].startswith("\u2581"):
            start = next((place for place in range(start, len(text)) if not text[place].isspace()), len(text))
            end = start
        spans.append((start, end))
    return spans


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [text.replace("<", "(").replace(">", ")") for text in TEXTS]  # no merge leads to a special token
    return gemma_json(tmp_path_factory.mktemp(request.param), texts, **SHAPES[request.param])


def test_pieces_and_offsets_are_those_of_the_library(folder: Path) -> None:
    tokenizer, draw = Tokenizer.load(folder), random.Random(5)
    as_text, as_special = reference(folder, True), reference(folder, False)
    by_file = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = ["", " ", "\n", *ODD, *(random_text(draw, draw.randint(1, 60), 0.4) for _ in range(2000))]
    assert tokenizer.family == "bpe"
    for text in texts:
        clean = text.replace("\ud83d", "\ufffd")
        theirs = as_text.encode(clean, add_special_tokens=False)
        ours = tokenizer.encode(text)
        assert ours.ids == theirs.ids, text
        assert ours.tokens == theirs.tokens, text
        assert ours.offsets == expected_offsets(clean, theirs), text
        assert not {0, 1, 2, 3, 4} & set(ours.ids), text
        read = tokenizer.encode(text, read_special_tokens=True)
        assert read.ids == as_special.encode(clean, add_special_tokens=False).ids, text
        assert tokenizer.decode(ours.ids) == by_file.decode(theirs.ids), text
    assert [list(ids) for ids in tokenizer.encode_batch(texts)] == [
        tokenizer.encode(text).ids for text in texts
    ]


def test_the_bytes_of_a_character_all_cover_it_and_decode_to_it(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    encoding = tokenizer.encode("x\U0001f600\x00y")
    face = [token for token in encoding.tokens if token.startswith("<0x")]
    assert face == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x00>"]
    start = encoding.tokens.index("<0xF0>")
    assert encoding.offsets[start : start + 5] == [(1, 2)] * 4 + [(2, 3)]
    assert tokenizer.decode(encoding.ids).lstrip(" ") == "x\U0001f600\x00y"


def test_parts_of_a_long_text_have_the_pieces_and_offsets_of_the_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, draw, cut = Tokenizer.load(folder), random.Random(7), 0
    monkeypatch.setattr(long_texts, "PART", 90)
    for number in range(300):
        text = random_text(draw, 500, number % 4 / 8).replace("\ud83d", "?")
        whole = tokenizer.encode(text)
        parts = list(tokenizer._encoder.split(text, 90))  # type: ignore[union-attr]
        encoding = tokenizer.encode_pieces([text])[0]
        assert "".join(part for _, part, _ in parts) == text
        assert list(encoding.ids) == whole.ids, (text, parts)
        assert list(map(tuple, np.asarray(encoding.offsets).tolist())) == whole.offsets, (text, parts)
        cut += len(parts)
    assert cut > 1500


def test_a_text_without_a_blank_takes_time_in_proportion_to_its_length(tmp_path: Path) -> None:
    tokenizer, draw = Tokenizer.load(gemma_json(tmp_path, TEXTS)), random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
    seconds = []
    for length in (250_000, 2_000_000):
        text = "".join(draw.choices(letters, k=length))
        start = time.perf_counter()
        ids = tokenizer.encode_batch([text])[0]
        seconds.append(time.perf_counter() - start)
        assert len(ids) > length / 3
    assert seconds[1] < 24 * seconds[0]  # eight times the length; its square would be 64
    assert list(ids) == tokenizer.encode(text).ids


def test_special_tokens_stay_text_where_merges_lead_to_them(tmp_path: Path) -> None:
    """A corpus that has "<mask>" in it teaches the merges to spell it."""
    folder = gemma_json(tmp_path, ["write<mask><mask> or<eos><eos>or"] * 9)
    content = json.loads((folder / "tokenizer.json").read_text())
    products = {"".join(merge) for merge in content["model"]["merges"]}
    assert {"<mask>", "<eos>"} & products
    tokenizer = Tokenizer.load(folder)
    encoding = tokenizer.encode("write<mask>or <eos>")
    assert "<mask>" not in encoding.tokens and "<eos>" not in encoding.tokens
    assert tokenizer.decode(encoding.ids) == "write<mask>or <eos>"
    read = tokenizer.encode("write<mask>or <eos>", read_special_tokens=True)
    assert [token for token in read.ids if token < 5] == [4, 1]


def test_words_begin_at_blanks_lines_and_in_scripts_without_at_pieces(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    text = "Unable to   read\nlines\n\n\u4e2d\u6587x \u00a0\U0001f600"
    encoding = tokenizer.encode(text)
    begins, words = tokenizer.begins_words(encoding.ids).tolist(), list[str]()
    for begin, (start, end) in zip(begins, encoding.offsets, strict=True):
        words = (
            [*words, text[start:end]] if begin or not words else [*words[:-1], words[-1] + text[start:end]]
        )
    joined = "|".join(words).replace("\U0001f600" * 4, "\U0001f600")
    assert joined in (
        f"Unable|to|read||lines||{han}|x|\U0001f600" for han in ("\u4e2d|\u6587", "\u4e2d\u6587")
    ), joined


def test_whole_words_are_masked_whole(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(gemma_json(tmp_path, TEXTS, 400))
    ids = tokenizer.encode("The tokenizer merges unseen characters\nand words \U0001f600 " * 3).ids
    numbers = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id])
    masker = Masker(tokenizer, MaskingRates(mask_rate=0.4, masked=1.0, random=0.0, whole_words=True))
    words = np.cumsum(tokenizer.begins_words(ids))
    assert len(ids) > 1.5 * words[-1]
    for key in range(40):
        sequences = Sequences(
            numbers, numbers * 0, np.array([len(numbers)]), np.array([key], np.uint64), np.array([0])
        )
        masked = (
            masker.draw(sequences, PackedBatch.of(sequences)).token_ids.numpy()[1:-1] == tokenizer.mask_id
        )
        assert 0 < masked.sum() < len(ids)
        assert all(len(set(masked[words == word].tolist())) == 1 for word in words.tolist())


def test_fewer_pieces_spell_the_counted_texts_alike(folder: Path) -> None:
    tokenizer, draw = Tokenizer.load(folder), random.Random(11)
    texts = [random_text(draw, 60, 0.3) for _ in range(40)]
    pruned = prune(tokenizer, count_pieces(tokenizer, texts))
    assert len(pruned.kept) < tokenizer.vocab_size
    for text in texts:
        assert pruned.tokenizer.encode(text).tokens == tokenizer.encode(text).tokens


def test_characters_are_counted_without_marks_and_bytes(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    counts = count_piece_characters(tokenizer)
    assert counts[tokenizer.encode("the mill").ids].sum() == 7


def test_a_saved_tokenizer_is_opened_by_transformers_with_the_same_ids(folder: Path, tmp_path: Path) -> None:
    tokenizer, draw = Tokenizer.load(folder), random.Random(2)
    tokenizer.save(tmp_path, segments=False)
    again, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    original = AutoTokenizer.from_pretrained(folder)
    assert (theirs.cls_token, theirs.sep_token, theirs.mask_token) == ("<bos>", "<eos>", "<mask>")
    for _ in range(300):
        text = random_text(draw, 40, 0.3).replace("\ud83d", "?")
        assert again.encode(text) == tokenizer.encode(text)
        assert theirs(text)["input_ids"] == original(text)["input_ids"]
        if not any(name in text for name in GEMMA_SPECIAL):
            assert theirs(text)["input_ids"] == [2, *tokenizer.encode(text).ids, 1]


def test_names_of_special_tokens_are_gemma_s_where_no_settings_name_them(tmp_path: Path) -> None:
    folder = gemma_json(tmp_path, TEXTS)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.pad_id, tokenizer.sep_id, tokenizer.cls_id, tokenizer.unk_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert (tokenizer.template.before, tokenizer.template.between, tokenizer.template.behind) == (
        (2,),
        (1,),
        (1,),
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda content: content["model"]["vocab"].pop("<0x7F>"), "lacks '<0x7F>'"),
        (lambda content: content["model"].update(ignore_merges=True), "would read a special token"),
        (
            lambda content: content["model"]["merges"].append(["<0xE4>", "<0xB8>"]),
            "reads or makes the piece of a byte",
        ),
        (lambda content: content["model"].update(byte_fallback=False), "Split, which is read only where"),
        (lambda content: content.update(normalizer=None), "it reads blanks as pieces"),
        (lambda content: content["pre_tokenizer"].update(pattern={"Regex": "(a+)+$"}), "pattern"),
        (lambda content: content["pre_tokenizer"].update(behavior="Removed"), "MergedWithPrevious"),
        (lambda content: content["model"].update(dropout=0.1), "dropout"),
    ],
)
def test_a_file_of_another_shape_is_refused_with_a_sentence(
    change: Any, complaint: str, tmp_path: Path
) -> None:
    path = gemma_json(tmp_path, TEXTS) / "tokenizer.json"
    content = json.loads(path.read_text())
    assert content["pre_tokenizer"] == GEMMA_SPLIT and len(GEMMA_WRITTEN) == 9
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=complaint.replace("(", r"\(")):
        Tokenizer.load(tmp_path)


def test_words_can_not_be_added(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="A Gemma vocabulary can't be extended by words"):
        add_pieces(Tokenizer.load(gemma_json(tmp_path, TEXTS)), ["word"])
