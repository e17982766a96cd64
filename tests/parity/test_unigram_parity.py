"""Unigram tokenizers: the pieces, ids and offsets of the `tokenizers` library that reads the same file.

transformers' own classes are no oracle here: they build other rules around a tokenizer.json's vocabulary.
"""

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import trainers

from bertsmith.text.tokens.tokenizer import Tokenizer
from text.tokenizer_samples import UNIGRAM_SHAPES, added, tokenizer_json

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
# Of each script the letters that a vocabulary is trained on, and some more.
SCRIPTS = {
    "Latin": (0x61, 0x7A),
    "Latin accented": (0xE0, 0xFF),
    "Greek": (0x3B1, 0x3C9),
    "Cyrillic": (0x430, 0x44F),
    "Hebrew": (0x5D0, 0x5EA),
    "Arabic": (0x627, 0x64A),
    "Armenian": (0x561, 0x586),
    "Georgian": (0x10D0, 0x10F0),
    "Devanagari": (0x904, 0x94D),
    "Bengali": (0x985, 0x9B9),
    "Tamil": (0xB85, 0xBCD),
    "Telugu": (0xC05, 0xC4D),
    "Thai": (0xE01, 0xE4E),
    "Lao": (0xE81, 0xECD),
    "Tibetan": (0xF40, 0xF6C),
    "Burmese": (0x1000, 0x103F),
    "Khmer": (0x1780, 0x17D3),
    "Ethiopic": (0x1200, 0x1248),
    "Hangul": (0xAC00, 0xAC60),
    "jamo": (0x1100, 0x11C2),
    "hiragana": (0x3042, 0x3093),
    "katakana": (0x30A2, 0x30F3),
    "half-width": (0xFF66, 0xFF9F),
    "Han": (0x4E00, 0x4E80),
    "full-width": (0xFF01, 0xFF5E),
}
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
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f44b\U0001f3fd",
        "\U0001f1eb\U0001f1f7",
        "\ufb01",
        "\u2460",
    ),
    *(
        "``",
        "''",
        "...",
        "\u2026",
        "1,000.5",
        "\u00ad",
        "\ufeff",
        "\x00",
        "\x7f",
        "\u0e33",
        "\uff9e",
        "x\u0308\u0301",
    ),
    *("\U000e0001", "\ud55c", "\u1112\u1161\u11ab", "\u0130", "\u1e9e", "<0x41>", "\ufffd", "\u4e00\u3001"),
]


def words_of(draw: random.Random) -> list[str]:
    """A few hundred words, most of letters of one script."""
    return [
        "".join(chr(draw.randint(*bounds)) for _ in range(draw.randint(1, 7)))
        for bounds in SCRIPTS.values()
        for _ in range(24)
    ]


WORDS = words_of(random.Random(3))


def texts_of(count: int, seed: int) -> Iterator[str]:
    """Words in order, some with odd characters, and characters of any kind."""
    draw = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(0, 9)):
            kind = draw.random()
            if kind < 0.65:
                parts.append(draw.choice(WORDS))
            elif kind < 0.85:
                parts.append(draw.choice(ODD))
            else:
                low, high = draw.choice([*SCRIPTS.values(), (0x20, 0x7E), (0xA1, 0x2FF), (0x1F300, 0x1F64F)])
                parts.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 4))))
            parts.append(draw.choice([" ", " ", "", "", ". ", ", "]))
        yield "".join(parts)


@pytest.fixture(scope="module", params=list(UNIGRAM_SHAPES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of the library's own trainer under the rules of one shape."""
    normalizer, pre_tokenizer = UNIGRAM_SHAPES[request.param]
    path = tmp_path_factory.mktemp("unigram") / "tokenizer.json"
    tokenizer_json(
        path,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        decoder=None,
        added_tokens=[],
        model={"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]], "byte_fallback": False},
    )
    backend = Backend.from_file(str(path))
    trainer = trainers.UnigramTrainer(
        vocab_size=2_500, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
    )
    draw = random.Random(1)
    backend.train_from_iterator([" ".join(draw.choices(WORDS, k=9)) for _ in range(1_500)], trainer)
    content = json.loads(backend.to_str())
    if request.param == "Llama":
        pieces = [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
        content["model"] |= {"vocab": [*content["model"]["vocab"], *pieces], "byte_fallback": True}
    content["added_tokens"].append(added("<extra_id_0>", len(content["model"]["vocab"]), special=True))
    path.write_text(json.dumps(content))
    return path.parent


def trimmed(text: str, piece: str, start: int, end: int) -> tuple[int, int]:
    written = text[start:end]
    start += len(written) - len(written.lstrip())
    if set(piece) == {"\u2581"} and not text[start:end].startswith("\u2581"):
        start += len(text[start:]) - len(text[start:].lstrip())
        return start, start
    return start, end


def assert_parity(folder: Path, count: int, seed: int) -> None:
    ours, theirs = Tokenizer.load(folder), Backend.from_file(str(folder / "tokenizer.json"))
    theirs.encode_special_tokens = True
    texts = list(texts_of(count, seed))
    batch = ours.encode_batch(texts)
    for text, ids, pieces in zip(texts, batch, ours.encode_pieces(texts), strict=True):
        wanted = theirs.encode(text, add_special_tokens=False)
        encoding = ours.encode(text)
        offsets = [
            trimmed(text, token, *offset) for token, offset in zip(wanted.tokens, wanted.offsets, strict=True)
        ]
        assert list(ids) == list(pieces.ids) == encoding.ids == wanted.ids, text
        assert encoding.tokens == [theirs.id_to_token(number) for number in wanted.ids]
        assert list(map(tuple, pieces.offsets)) == encoding.offsets == offsets, text
        assert all(not text[start : start + 1].isspace() or start == end for start, end in offsets)


def test_pieces_ids_and_offsets_are_the_library_s(folder: Path) -> None:
    assert_parity(folder, 3_000, 2)


@pytest.mark.slow
def test_so_are_those_of_many_texts(folder: Path) -> None:
    assert_parity(folder, 20_000, 4)


def most_likely(word: str, scores: dict[str, float], lowest: float) -> list[str]:
    """The pieces that spell a word with the highest sum of scores, "" before a run of unknown characters."""
    best: list[tuple[float, int]] = [(0.0, 0), *([(float("-inf"), -1)] * len(word))]
    for start in range(len(word)):
        ends = [end for end in range(start + 1, len(word) + 1) if word[start:end] in scores]
        for end in [*ends, *([] if start + 1 in ends else [start + 1])]:
            score = best[start][0] + scores.get(word[start:end], lowest - 10)
            if score > best[end][0]:
                best[end] = (score, start)
    pieces, end = list[str](), len(word)
    while end:
        start = best[end][1]
        pieces.append(word[start:end])
        end = start
    return pieces[::-1]


def test_a_special_token_in_a_text_is_spelt_like_any_other_word(folder: Path) -> None:
    """The reference is a search of our own over the pieces that aren't special."""
    ours, theirs = Tokenizer.load(folder), Backend.from_file(str(folder / "tokenizer.json"))
    content = json.loads((folder / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    ids = {piece: number for number, (piece, _) in enumerate(vocab)}
    scores = {piece: score for piece, score in vocab if piece not in SPECIAL}
    marks_first = (content["pre_tokenizer"] or {}).get("prepend_scheme") == "first"
    lowest = min(score for _, score in vocab)
    draw = random.Random(5)
    names = [*SPECIAL, "\uff1cmask\uff1e", "\uff1c/s\uff1e", " <mask> ", "<unk><unk>"]
    for text in texts_of(1_000, 6):
        cut = draw.randint(0, len(text))
        text = text[:cut] + draw.choice(names) + text[cut:]
        normalised = theirs.normalizer.normalize_str(text)
        if marks_first and not theirs.normalizer.normalize_str(text[:1]).strip():
            continue  # what it marks is where the text itself begins
        words = (
            theirs.pre_tokenizer.pre_tokenize_str(normalised)
            if theirs.pre_tokenizer
            else [(normalised, None)]
        )
        wanted = list[int]()
        for word, _ in words:
            unknown = ""
            for piece in [*most_likely(word, scores, lowest), None]:
                if piece is not None and piece not in scores:
                    unknown += piece
                    continue
                if unknown:
                    falls_back = content["model"]["byte_fallback"]
                    wanted += (
                        [ids[f"<0x{byte:02X}>"] for byte in unknown.encode()]
                        if falls_back
                        else [ids["<unk>"]]
                    )
                unknown = ""
                wanted += [] if piece is None else [ids[piece]]
        encoding = ours.encode(text)
        assert encoding.ids == wanted, text
        assert list(ours.encode_batch([text])[0]) == wanted
        assert not {ids[name] for name in SPECIAL} - {ids["<unk>"]} & set(wanted)


def test_where_they_are_read_they_have_their_ids(folder: Path) -> None:
    ours = Tokenizer.load(folder)
    word = WORDS[0]
    alone = ours.encode(word).ids
    for name in SPECIAL:
        ids = ours.encode(f"{word}{name}", read_special_tokens=True).ids
        assert ids == [*alone, ours.token_to_id(name)]
    assert ours.encode(f"<extra_id_0>{word}").ids[0] == ours.token_to_id("<extra_id_0>")


def test_files_go_round_and_other_libraries_read_ours(folder: Path, tmp_path: Path) -> None:
    ours = Tokenizer.load(folder)
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.sha256 == ours.sha256
    assert pickle.loads(pickle.dumps(ours)).encode(WORDS[3]) == ours.encode(WORDS[3])
    for text in texts_of(100, 8):
        assert again.encode(text) == ours.encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text).ids
    pair = theirs(WORDS[1], WORDS[2])["input_ids"]
    template = ours.template
    first, second = (ours.encode(word).ids for word in WORDS[1:3])
    assert pair == [*template.before, *first, *template.between, *second, *template.behind]
