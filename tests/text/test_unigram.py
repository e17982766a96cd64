"""Unigram tokenizers: long texts in parts, words, hostile files, and fewer pieces."""

import base64
import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_samples import (
    TABLE,
    UNIGRAM_SHAPES,
    added,
    unigram_json,
)
from tokenizers import normalizers

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.errors import TokenizerError
from bertsmith.text.tokens import long_texts, unigram
from bertsmith.text.tokens.extension import add_pieces
from bertsmith.text.tokens.pieces import count_piece_characters, describe_tokens
from bertsmith.text.tokens.pruning import count_pieces, prune
from bertsmith.text.tokens.tokenizer import Tokenizer

HAN, THAI = "\u4e2d\u6587\u5b57\u7684\u4e0d", "\u0e01\u0e32\u0e23\u0e14\u0e35"
# Some in no piece, joined to their neighbours, replaced by nothing, by blanks or by several.
ODD = [
    *(
        "\u0301",
        "\u0308",
        "\u200d",
        "\u200b",
        "\u00a0",
        "\u3000",
        "\t",
        "\n",
        "\r\n",
        "  ",
        "   ",
        "\u2581",
        "\u0600",
    ),
    *(
        "\U0001f468\u200d\U0001f469",
        "\U0001f1eb\U0001f1f7",
        "\ufb01",
        "\u2026",
        "\u00ad",
        "\ufeff",
        "``",
        "''",
        "``a",
    ),
    *(
        "\u0e33",
        "\uff76\uff9e",
        "\uff9e",
        "e\u0301",
        "\u1112\u1161\u11ab",
        "\u00b4",
        "\u0130",
        "\uff1cx\uff1e",
        "\U00013000",
    ),
]


def random_text(draw: random.Random, length: int, *, blanks: float, odd: float) -> str:
    """Letters of three scripts in runs, with blanks and odd characters."""
    parts = list[str]()
    while sum(map(len, parts)) < length:
        parts.append(
            "".join(
                draw.choices(draw.choice(["abcdeAB12", HAN, THAI, "a", "\u30ab\u30ac"]), k=draw.randint(1, 9))
            )
        )
        if draw.random() < blanks:
            parts.append(draw.choice([" ", " ", " ", ", "]))
        if draw.random() < odd:
            parts.append(draw.choice(ODD))
        if draw.random() < odd / 8:
            parts.append("<x>")
    return "".join(parts)


def pieces_of(draw: random.Random, count: int) -> list[tuple[str, float]]:
    """Letters, and runs of two to five, with scores whose sums have no rounding."""
    letters = [
        "a",
        "b",
        "c",
        "d",
        "e",
        "1",
        ",",
        "<",
        ">",
        "x",
        *HAN,
        *THAI,
        "\u30ab",
        "\u2581",
        ".",
        "f",
        "i",
    ]
    runs = [
        "".join(draw.choices(draw.choice(["abcde1", HAN, THAI]), k=draw.randint(2, 5))) for _ in range(count)
    ]
    marked = ["\u2581" + run for run in runs[::2]]
    return [
        (piece, -draw.randint(8, 90) / 8 - 2)
        for piece in dict.fromkeys([*letters, *runs, *marked])
        if piece != "\u2581"
    ]


@pytest.mark.parametrize("shape", UNIGRAM_SHAPES)
@pytest.mark.parametrize("is_dense", [False, True])
def test_parts_of_a_long_text_have_the_pieces_and_offsets_of_the_whole(
    shape: str, is_dense: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(7)
    normalizer, pre_tokenizer = UNIGRAM_SHAPES[shape]
    pieces = pieces_of(draw, 60 if is_dense else 12)
    unigram_json(tmp_path, pieces, normalizer=normalizer, pre_tokenizer=pre_tokenizer)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"].append(added("<x>", len(content["model"]["vocab"])))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    monkeypatch.setattr(long_texts, "PART", 60)
    cut = 0
    for number in range(300):
        text = random_text(draw, 400, blanks=number % 3 / 6, odd=number % 4 / 8)
        whole = tokenizer.encode(text)
        parts = list(tokenizer._encoder.split(text, 60))  # type: ignore[union-attr]
        cut += len(parts)
        pieces_found = tokenizer.encode_pieces([text])[0]
        tokens = [tokenizer.id_to_token(token) for token in pieces_found.ids]
        assert "".join(part for _, part, _ in parts) == text
        assert max(len(part) for _, part, _ in parts) <= 60
        assert tokens == whole.tokens, (text, parts)
        assert list(tokenizer.encode_batch([text])[0]) == whole.ids
        assert list(map(tuple, np.asarray(pieces_found.offsets).tolist())) == whole.offsets, (text, parts)
    assert cut > 1500


def test_a_million_equal_letters_and_unknown_ones_are_cut_too(tmp_path: Path) -> None:
    """Nothing says where the pieces of "aaa…" begin, so a cut may divide one. Unknown characters stay one."""
    tokenizer = Tokenizer.load(unigram_json(tmp_path, [("aaaa", -4.0), ("a", -2.0)]))
    parts = list(tokenizer._encoder.split("a" * 1_000_000))  # type: ignore[union-attr]
    assert max(len(part) for _, part, _ in parts) == long_texts.PART
    ids = tokenizer.encode_batch(["a" * 1_000_000])[0]
    assert {tokenizer.id_to_token(token) for token in ids[1:]} == {"aaaa"}
    unknown = "\u4e2d" * 100_000
    assert len(tokenizer.encode_batch([unknown])[0]) == 2
    encoding = tokenizer.encode_pieces([unknown])[0]
    assert np.asarray(encoding.offsets).tolist() == [[0, 0], [0, len(unknown)]]


def test_a_word_behind_a_blank_is_marked_where_a_text_is_cut_for_want_of_a_sure_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blank is read together with the accent behind it, so nothing is sure there."""
    tokenizer = Tokenizer.load(unigram_json(tmp_path, [("aaaa", -4.0), ("a", -2.0), ("\u2581a", -2.0)]))
    monkeypatch.setattr(long_texts, "PART", 60)
    for before in range(50, 70):
        text = "a" * before + " \u0301" + "a" * 100
        ids = tokenizer.encode_batch([text])[0]
        marked = [token for token in map(tokenizer.id_to_token, ids) if token.startswith("\u2581")]
        assert len(marked) == 2, before


def test_enough_of_a_long_text_is_enough(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(unigram_json(tmp_path, [("a", -2.0), ("b", -3.0)]))
    whole = tokenizer.encode_batch(["ab" * 50_000])[0]
    some = tokenizer.encode_batch(["ab" * 50_000], enough=20)[0]
    assert 20 <= len(some) < 1_000
    assert list(whole[: len(some)]) == list(some)


def words_in(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text's words, of the pieces that `begins_words` puts together."""
    encoding = tokenizer.encode(text)
    begins = tokenizer.begins_words(encoding.ids)
    spans = list[tuple[int, int]]()
    for begin, (start, end) in zip(begins.tolist(), encoding.offsets, strict=True):
        spans = [*spans, (start, end)] if begin or not spans else [*spans[:-1], (spans[-1][0], end)]
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize("shape", ["XLM-R", "DeBERTa", "never"])
def test_words_are_cut_at_blanks_and_in_scripts_without_at_pieces(shape: str, tmp_path: Path) -> None:
    normalizer, pre_tokenizer = UNIGRAM_SHAPES[shape]
    pieces = [("un", -2.0), ("able", -3.0), (HAN[:2], -2.5), (HAN[2], -2.0), (THAI[:3], -2.0), ("x", -3.0)]
    pieces += [("\u2581un", -2.0), (".", -3.0), ("\u2581", -3.0)]
    path = unigram_json(tmp_path, pieces, normalizer=normalizer, pre_tokenizer=pre_tokenizer)
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"].pop(4)  # the mark that is there without being named
    tokenizer = Tokenizer.load(write_vocab(path, content["model"]["vocab"]))
    text = f"unable xun {HAN[:3]}un. {THAI[:3]}x x"
    words = words_in(tokenizer, text)
    assert words == ["unable", "xun", HAN[:2], HAN[2], "un.", THAI[:3], "x", "x"]
    special = np.array(tokenizer.special_ids)
    assert not tokenizer.continues_word[special].any() and not tokenizer.next_in_word[special].any()


def write_vocab(folder: Path, vocab: Sequence[Any], **model: Any) -> Path:
    """Writes other pieces into the folder's tokenizer.json, and the ids of its special tokens."""
    content = json.loads((folder / "tokenizer.json").read_text())
    ids = {piece: number for number, (piece, _) in enumerate(vocab)}
    content["added_tokens"] = [token | {"id": ids[token["content"]]} for token in content["added_tokens"]]
    content["model"] |= {"vocab": list(vocab)} | model
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def table_of(content: bytes) -> dict[str, Any]:
    return TABLE | {"precompiled_charsmap": base64.b64encode(content).decode()}


CONTENT = base64.b64decode(str(TABLE["precompiled_charsmap"]))
TRIE = int.from_bytes(CONTENT[:4], "little")
TEXT_REPLACED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaa"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab": [["<unk>", 0.0], ["a", float("nan")]]}, "expected a finite number"),
        ({"vocab": [["<unk>", 0.0], ["a", float("inf")]]}, "expected a finite number"),
        ({"vocab": [["<unk>", 0.0], ["a", -1e300]]}, "greater than or equal to -1000000"),
        ({"vocab": [["<unk>", 0.0], ["", -1.0]]}, "at least 1 character"),
        ({"vocab": [["<unk>", 0.0], ["a" * 1_000_000, -1.0]]}, "at most 512 characters"),
        (
            {"vocab": [["a", 0.0], ["b", -1.0], ["a", -2.0]], "unk_id": 1},
            "the piece 'a' stands twice: which id is meant?",
        ),
        ({"vocab": [["<unk>", 0.0], ["a"]]}, "model.Unigram.vocab.1.1"),
        ({"vocab": []}, "at least 1 item"),
        ({"unk_id": 900}, "unk_id is 900, but ids run from 0 to"),
        ({"unk_id": None}, "model.Unigram.unk_id: expected a whole number, found None"),
        ({"byte_fallback": True}, "lacks '<0x00>'"),
    ],
)
def test_a_hostile_vocabulary_is_refused_with_a_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    content = json.loads((unigram_json(tmp_path) / "tokenizer.json").read_text())
    unigram_json(tmp_path, model=content["model"] | changes)
    with pytest.raises(TokenizerError) as error:
        Tokenizer.load(tmp_path)
    assert sentence in str(error.value)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize(
    ("normalizer", "sentence"),
    [
        (table_of(b""), "says that its trie has 0 of 0 bytes"),
        (table_of(b"\xff\xff\xff\x7f" + CONTENT[4:]), "says that its trie has 2,147,483,647 of 2,265 bytes"),
        (table_of(CONTENT[: TRIE // 2]), "says that its trie has 2,048 of"),
        (table_of(CONTENT[:4] + b"\xff" * TRIE + CONTENT[4 + TRIE :]), "leads out of its trie"),
        (table_of(CONTENT[: 4 + TRIE]), "leads to no replacement"),
        (
            table_of(CONTENT[: 4 + TRIE] + b"\xff" + CONTENT[4 + TRIE :]),
            "has replacements that are not UTF-8",
        ),
        (table_of(CONTENT + b"\0" * unigram.MAX_TABLE), "and at most 4,194,304 are read"),
        (TABLE | {"precompiled_charsmap": "?"}, "is no base64"),
        ({"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": " "}, "expected ' {2,}'"),
        ({"type": "Replace", "pattern": {"String": ""}, "content": ""}, "at least 1 character"),
        (TEXT_REPLACED, "a text may not be replaced by a longer one"),
    ],
)
def test_a_hostile_normalizer_is_refused_with_a_sentence(
    normalizer: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    unigram_json(tmp_path, normalizer=normalizer)
    with pytest.raises(TokenizerError) as error:
        Tokenizer.load(tmp_path)
    assert sentence in str(error.value)
    assert len(str(error.value)) < 700


def test_no_damaged_table_of_characters_stops_the_library(tmp_path: Path) -> None:
    """Whatever passes our check can be followed to its end: the library would stop with its own error."""
    draw = random.Random(1)
    texts = [
        "".join(chr(code) for code in range(low, low + 256)) for low in (0, 0x2000, 0x2400, 0xFB00, 0xFF00)
    ]
    accepted = 0
    for _ in range(300):
        content = bytearray(CONTENT)
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(4, 4 + TRIE)] = draw.randrange(256)
        encoded = base64.b64encode(bytes(content)).decode()
        if unigram.find_charsmap_fault(encoded) is None:
            accepted += 1
            normalizer = normalizers.Precompiled(base64.b64decode(encoded))
            for character in "".join(texts):
                normalizer.normalize_str(character)
    assert 50 < accepted < 250


def test_blanks_that_stay_blanks_are_refused(tmp_path: Path) -> None:
    unigram_json(tmp_path, pre_tokenizer=None)
    with pytest.raises(TokenizerError, match="it reads blanks as pieces"):
        Tokenizer.load(tmp_path)


def test_special_tokens_have_no_name_that_a_text_can_spell(tmp_path: Path) -> None:
    """Also where the vocabulary has the name with a blank already."""
    tokenizer = Tokenizer.load(unigram_json(tmp_path, [("a", -2.0), (" <mask>", 0.0), ("  <mask>", 0.0)]))
    names = [tokenizer.text_backend.id_to_token(number) for number in tokenizer.special_ids]
    assert all(name is not None and " " in name for name in names)
    for text in ("a <mask>", " <mask>", "  <mask>", "<mask>", "\uff1cmask\uff1e", "<unk>", "<s>"):
        assert not {*tokenizer.encode(text).ids} & {*tokenizer.special_ids} - {tokenizer.unk_id}


CONTROL_PIECES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@pytest.mark.parametrize("falls_back", [False, True])
@pytest.mark.parametrize("shape", UNIGRAM_SHAPES)
def test_one_model_gives_the_pieces_of_one_without_control_pieces(
    shape: str, falls_back: bool, tmp_path: Path
) -> None:
    """With control pieces in the texts, whole, in parts and full width, among unknown characters."""
    normalizer, pre_tokenizer = UNIGRAM_SHAPES[shape]
    single = [(letter, -5.0) for letter in "<>/sunkmap"]
    of_bytes = [(piece, -9.0) for piece in unigram.BYTE_PIECES] if falls_back else []
    folder = unigram_json(
        tmp_path, ["able", "mask", *single, *of_bytes], normalizer=normalizer, pre_tokenizer=pre_tokenizer
    )
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["byte_fallback"] = falls_back
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    other = Tokenizer.load(folder)
    other.__dict__["_text_encoder"] = unigram.PlainTextEncoder(other.text_backend)  # which finds none itself
    wide = [name.replace("<", "\uff1c").replace(">", "\uff1e") for name in CONTROL_PIECES]
    parts = [*CONTROL_PIECES, *wide, *"<>/sunkmap", "able", "mask", " ", "\U0001f600", "\u4e2d", *ODD]
    draw = random.Random(f"{shape} {falls_back}")
    texts = ["".join(draw.choices(parts, k=draw.randint(0, 9))) for _ in range(1500)]
    texts += ["".join(draw.choices(parts, k=9000)) for _ in range(2)]  # read in parts
    for text, mine, theirs in zip(
        texts, tokenizer.encode_pieces(texts), other.encode_pieces(texts), strict=True
    ):
        assert list(mine.ids) == list(theirs.ids), text[:90]
        assert np.array_equal(mine.offsets, theirs.offsets), text[:90]
    assert tokenizer.encode_batch(texts) == other.encode_batch(texts)
    assert tokenizer.encode(texts[0]) == other.encode(texts[0])
    control_ids = {*tokenizer.special_ids} - {tokenizer.unk_id}
    shared = tokenizer._text_encoder.backend.encode_batch(texts, add_special_tokens=False)
    assert any(control_ids.intersection(encoding.ids) for encoding in shared)  # there was something to mend
    assert any("<unk>" in token for encoding in shared for token in encoding.tokens)


def test_a_second_model_is_built_for_texts_with_control_pieces_alone(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(unigram_json(tmp_path))
    tokenizer.encode_batch(["able \u4e2d", "unk"])  # unknown characters are none
    assert "text_backend" not in vars(tokenizer)
    tokenizer.encode_pieces(["able</s>"])
    assert "text_backend" in vars(tokenizer)


COUNTED = ["able unable", "a hello!", "bb", "\u4e2d"]


@pytest.mark.parametrize("shape", ["XLM-R", "DeBERTa", "T5", "Llama"])
def test_fewer_pieces_spell_the_counted_texts_alike(shape: str, tmp_path: Path) -> None:
    normalizer, pre_tokenizer = UNIGRAM_SHAPES[shape]
    more = [("\u2581zzz", -40.0), ("yy", -3.0), ("\u2581unusual", -3.0), ("z", -4.0), ("\u4e2e", -4.0)]
    pieces = ["un", "able", "hello", "a", "b", "!", *more]
    tokenizer = Tokenizer.load(
        unigram_json(tmp_path, pieces, normalizer=normalizer, pre_tokenizer=pre_tokenizer)
    )
    small, kept = prune(tokenizer, count_pieces(tokenizer, COUNTED))
    assert {"\u2581zzz", "z", "<mask>", "!"} <= {*small.pieces}  # the lowest score, a letter, special, ASCII
    assert not {"yy", "\u2581unusual", "\u4e2e"} & {*small.pieces}
    assert [tokenizer.pieces[old] for old in kept.tolist()] == list(small.pieces)
    for text in [*COUNTED, "\u4e2dable!", "abba <mask>"]:
        before, after = tokenizer.encode(text), small.encode(text)
        assert (after.tokens, after.offsets) == (before.tokens, before.offsets)
        assert kept[after.ids].tolist() == before.ids
    assert (small.unk_id, small.template) == (
        small.token_to_id("<unk>"),
        tokenizer.template,
    )
    small.save(tmp_path / "small")
    assert Tokenizer.load(tmp_path / "small").encode(
        "unable <mask>", read_special_tokens=True
    ) == small.encode("unable <mask>", read_special_tokens=True)


def test_pieces_are_shown_and_counted_without_their_mark(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(unigram_json(tmp_path, [("\u2581un", -2.0), ("able", -2.0), (HAN[:2], -3.0)]))
    ids = [tokenizer.cls_id, *tokenizer.encode(f"unable {HAN[:2]}").ids]
    shown = [(piece["text"], piece["joined"], piece["special"]) for piece in describe_tokens(tokenizer, ids)]
    assert shown == [
        *(("<s>", False, True), ("un", False, False), ("able", True, False)),
        *(("\u2581", False, False), (HAN[:2], True, False)),
    ]
    assert count_piece_characters(tokenizer)[ids].tolist() == [0, 2, 4, 0, 2]


def test_words_can_not_be_added(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(unigram_json(tmp_path))
    with pytest.raises(TokenizerError, match="A Unigram vocabulary can't be extended by words"):
        add_pieces(tokenizer, ["word"])


def test_small_letters_come_first(tmp_path: Path) -> None:
    for normalizer, _ in (UNIGRAM_SHAPES["XLM-R"], UNIGRAM_SHAPES["DeBERTa"]):
        tokenizer = Tokenizer.load(unigram_json(tmp_path, normalizer=normalizer)).in_small_letters()
        assert tokenizer.encode("HELLO").tokens == ["\u2581hello"]


def test_whole_words_are_masked_whole(tmp_path: Path) -> None:
    """A lone mark with the word behind it, and no word across a change of script."""
    pieces = [("\u2581un", -2.0), ("able", -2.0), (HAN[:2], -3.0), (HAN[2:4], -3.0), ("x", -3.0)]
    tokenizer = Tokenizer.load(unigram_json(tmp_path, pieces))
    ids = tokenizer.encode(f"unable {HAN[:2]}{HAN[2:4]}x unable").ids * 8
    text = [tokenizer.cls_id, *ids, tokenizer.sep_id]
    rates = MaskingRates(mask_rate=0.4, masked=1.0, random=0.0, whole_words=True)
    masker, begins = Masker(tokenizer, rates), tokenizer.begins_words(ids)
    words = np.cumsum(begins)
    for key in range(40):
        numbers = np.array(text)
        sequences = Sequences(
            numbers, numbers * 0, np.array([len(text)]), np.array([key], np.uint64), np.array([0])
        )
        chosen = masker.draw(sequences, PackedBatch.of(sequences))
        masked = chosen.token_ids.numpy()[1:-1] == tokenizer.mask_id
        assert 0 < masked.sum() < len(ids)
        assert all(len(set(masked[words == word].tolist())) == 1 for word in words.tolist())


def number(value: int) -> bytes:
    """A number as protobuf writes it."""
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(high) if high else bytes([low])


def field(place: int, value: bytes | int | float) -> bytes:
    if isinstance(value, int):
        return number(place << 3) + number(value)
    if isinstance(value, float):
        return number(place << 3 | 5) + struct.pack("<f", value)
    return number(place << 3 | 2) + number(len(value)) + value


NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5
STORED = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
STORED += [("\u2581", -2.0, NORMAL), ("\u2581a", -2.5, NORMAL), ("b", -3.0, NORMAL), ("ab", -4.5, NORMAL)]
STORED += [
    ("abb", 0.0, UNUSED),
    ("\u30ac", -5.0, NORMAL),
    ("2,", -1.0, NORMAL),
    ("2", -3.0, NORMAL),
    (",", -3.0, NORMAL),
]


def sentencepiece_model(
    folder: Path, name: str, trainer: bytes = b"", normalizer: bytes = b"", **settings: Any
) -> Path:
    """A folder with a `.model` of STORED, and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [
        field(1, field(1, piece.encode()) + field(2, score) + (b"" if kind == 1 else field(3, kind)))
        for piece, score, kind in STORED
    ]
    content = [*pieces, field(2, field(3, 1) + field(4, len(STORED)) + field(43, 2**64 - 1) + trainer)]
    content.append(field(3, field(1, b"own") + field(2, CONTENT) + normalizer))
    (folder / name).write_bytes(b"".join(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("layout", "name", "first"),
    [
        ("XLMRobertaTokenizer", "sentencepiece.bpe.model", ["<s>", "<pad>", "</s>", "<unk>", "\u2581"]),
        (
            "CamembertTokenizer",
            "sentencepiece.bpe.model",
            ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "\u2581"],
        ),
        ("XLNetTokenizer", "spiece.model", ["<unk>", "<s>", "</s>", "\u2581"]),
    ],
)
def test_a_model_of_sentencepiece_has_the_ids_of_its_class(
    layout: str, name: str, first: list[str], tmp_path: Path
) -> None:
    more = {"pad_token": "<s>"} if layout == "XLNetTokenizer" else {}
    tokenizer = Tokenizer.load(sentencepiece_model(tmp_path, name, tokenizer_class=layout, **more))
    last = [" " * (kind == UNUSED) + piece for piece, _, kind in STORED[3:]]
    assert list(tokenizer.pieces) == [*first[: first.index("\u2581")], *last, "<mask>"]
    assert tokenizer.encode("  abb  \uff41").tokens == ["\u2581a", "b", "b", "\u2581a"]
    assert tokenizer.encode("</s>?").tokens == ["\u2581", "<unk>"]
    assert tokenizer.template.segments == (0, 0) and len(tokenizer.template.between) == 2
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.sha256 == tokenizer.sha256 and again.template == tokenizer.template


def test_albert_s_has_small_letters_and_divides_numbers_before_a_comma(tmp_path: Path) -> None:
    settings = {
        "tokenizer_class": "AlbertTokenizer",
        "pad_token": "<s>",
        "cls_token": "<s>",
        "sep_token": "</s>",
    }
    tokenizer = Tokenizer.load(sentencepiece_model(tmp_path, "spiece.model", **settings))
    assert tokenizer.encode("AB \u00c02,").tokens == ["\u2581a", "b", "\u2581a", "2", ","]
    cased = Tokenizer.load(
        sentencepiece_model(tmp_path, "spiece.model", do_lower_case=False, keep_accents=True, **settings)
    )
    assert cased.encode("Ab \u00e0").tokens == ["\u2581", "<unk>", "b", "\u2581", "<unk>"]


def test_what_the_normalizer_s_settings_leave_out_is_left_out(tmp_path: Path) -> None:
    normalizer = field(3, 0) + field(4, 0)  # no blank in front, and blanks stay
    tokenizer = Tokenizer.load(sentencepiece_model(tmp_path, "spm.model", b"", normalizer, pad_token="<s>"))
    assert tokenizer.encode("b  ab").tokens == ["b", "\u2581", "\u2581a", "b"]


@pytest.mark.parametrize(
    ("trainer", "normalizer", "sentence"),
    [
        (field(3, 2), b"", "is of SentencePiece's kind BPE: only unigram is read"),
        (field(24, 1), b"", "marks blanks in another way"),
        (b"", field(5, 0), "marks blanks in another way"),
        (field(35, 1), b"", "lacks '<0x00>'"),
        (b"", field(2, CONTENT[:100]), "says that its trie has"),
    ],
)
def test_a_model_of_another_kind_is_refused(
    trainer: bytes, normalizer: bytes, sentence: str, tmp_path: Path
) -> None:
    sentencepiece_model(tmp_path, "spm.model", trainer, normalizer, pad_token="<s>")
    with pytest.raises(TokenizerError) as error:
        Tokenizer.load(tmp_path)
    assert sentence in str(error.value)


def test_a_damaged_model_has_a_sentence_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = sentencepiece_model(tmp_path, "spm.model", pad_token="<s>") / "spm.model"
    content, draw, sentences = path.read_bytes(), random.Random(2), set[str]()
    damaged = [content[:end] for end in range(400)] + [bytes([value]) * 50 for value in range(256)]
    for _ in range(300):
        changed = bytearray(content)
        changed[draw.randrange(len(content))] = draw.randrange(256)
        damaged.append(bytes(changed))
    for model in damaged:
        path.write_bytes(model)
        try:
            Tokenizer.load(tmp_path).encode("abb \uff41 ab")
        except TokenizerError as error:
            sentences.add(str(error).removeprefix(str(path)).strip()[:24])
    assert len(sentences) > 8
    assert any("it was cut" in sentence or "ends within" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("spiece.model", b"\x0a\x03\x0a\x01a" * 700_000, "has more than 600,016 pieces, settings or parts"),
        ("spiece.model", b"\x20\x01" * 700_000, "has more than 600,016 pieces, settings or parts"),
        ("spiece.model", b"\x0a\x28" + b"\x20\x01" * 20, "has more than 16 pieces, settings or parts of one"),
        ("tokenizer.json", b"[" + b"1," * 5_000_001 + b"1]", "has 5,000,001 values; .* at most 5,000,000"),
    ],
)
def test_files_of_more_pieces_than_any_model_has_are_refused_before_they_are_read(
    file: str, content: bytes, sentence: str, tmp_path: Path
) -> None:
    """Ten million pieces took 46 seconds and six gigabytes."""
    (tmp_path / file).write_bytes(content)
    with pytest.raises(TokenizerError, match=sentence):
        Tokenizer.load(tmp_path / file)
