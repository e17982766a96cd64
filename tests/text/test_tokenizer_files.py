"""Tokenizers from files that are broken, hostile or merely unusual: one sentence each."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizer_samples import (
    SPECIAL,
    WORDS,
    added,
    byte_level_files,
    tokenizer_json,
    vocab_txt,
    wordpiece_model,
)
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers
from transformers import BertTokenizer

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens import tokenizer_json as rules
from bertsmith.text.tokens.tokenizer import Tokenizer


def refusal(path: Path, **options: Any) -> str:
    """The sentence with which `path` is refused; it names the place."""
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(path, **options)
    return str(caught.value)


def test_a_piece_twice_names_it_and_both_lines(tmp_path: Path) -> None:
    sentence = refusal(vocab_txt(tmp_path / "vocab.txt", [*SPECIAL, "a", "b", "a"]))
    assert "vocab.txt holds the piece 'a' twice, in lines 6 and 8." in sentence


def test_missing_special_tokens_are_all_named(tmp_path: Path) -> None:
    sentence = refusal(vocab_txt(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "a"]))
    assert "lacks special tokens: sep ([SEP] or </s>), mask ([MASK] or <mask>)." in sentence


def test_a_special_token_that_later_files_could_not_hold(tmp_path: Path) -> None:
    vocab_txt(tmp_path / "vocab.txt", [*SPECIAL, "$A:0"])
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": {"content": "$A:0"}}')
    assert "'$A:0' can't be a special token" in refusal(tmp_path)


def test_special_tokens_need_not_be_listed_as_added(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tokenizer_json(tmp_path / "tokenizer.json", added_tokens=[]))
    assert tokenizer.encode("a [MASK]", read_special_tokens=True).tokens == ["a", "[MASK]"]
    assert tokenizer.sha256 == Tokenizer.load(tokenizer_json(tmp_path / "listed.json")).sha256


def test_a_line_in_the_middle_must_not_be_empty(tmp_path: Path) -> None:
    assert "line 6 is empty" in refusal(vocab_txt(tmp_path / "vocab.txt", [*SPECIAL, "", "a"]))


def test_line_ends_of_windows_a_mark_at_the_start_and_blank_lines_at_the_end_do_no_harm(
    tmp_path: Path,
) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*SPECIAL, "a", "\u2028"]).encode() + b"\r\n\r\n")
    tokenizer = Tokenizer.load(path)
    assert tokenizer.pieces == (*SPECIAL, "a", "\u2028")


@pytest.mark.parametrize(
    "lines",
    [
        b"hello \na\n",
        b"hello\t \na\n",
        b" hello\na\n",
        b"hello\r\na\r\n",
        b"hello\r\r\na",
        "hello\u00a0\na\n".encode(),
        "hello\u2028\na\u3000\n".encode(),
        "hello\u2028a\na\n".encode(),
        "hello\x85\na\x0b\n".encode(),
        b"hello\x1c\na\x1f\n",
        "hello\u200b\na\ufeff\n".encode(),
        b"hello\x00\na\n",
        b"he\rllo\na\n",
        "\u2028\nhello\na\n".encode(),
        "hello\n\u00a0\na\n".encode(),
        b"hello\na",
        b"hello\na\n\n\n",
    ],
    ids=repr,
)
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"], ids=["", "mark"])
def test_a_line_of_a_vocab_txt_is_the_piece_that_transformers_makes_of_it(
    tmp_path: Path, lines: bytes, before: bytes
) -> None:
    (tmp_path / "vocab.txt").write_bytes(before + "\n".join([*SPECIAL, ""]).encode() + lines)
    theirs, ours = BertTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path, lowercase=True)
    for text in ("hello a", "hell\u00f6 a", "hello\u2028a he\rllo", " hello \u00a0 hello\x1c hello\u200b"):
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]
    same = {number: piece for piece, number in theirs.get_vocab().items() if piece.strip() and number > 4}
    assert all(ours.id_to_token(number) == piece for number, piece in same.items() if "[PAD]" not in piece)


def test_two_lines_that_differ_by_a_blank_at_the_end_are_one_piece_twice(tmp_path: Path) -> None:
    sentence = refusal(vocab_txt(tmp_path / "vocab.txt", [*SPECIAL, "a", "a "]))
    assert "holds the piece 'a' twice, in lines 6 and 7" in sentence


def test_an_empty_file_and_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").touch()
    assert "vocab.txt is empty: expected a vocabulary" in refusal(tmp_path)
    assert "nowhere does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "vocab.txt").unlink()
    assert "holds no tokenizer: expected tokenizer.json, vocab.txt" in refusal(tmp_path)


def test_another_encoding_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("[PAD]\ncafé\n".encode("latin-1"))
    assert "vocab.txt is not UTF-8: byte 9 is 0xe9" in refusal(tmp_path)


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(rules.MAX_BYTES + 1)
        assert "has 50,331,649 bytes" in refusal(path)


def test_a_cut_or_wrong_json(tmp_path: Path) -> None:
    path = tokenizer_json(tmp_path / "tokenizer.json")
    whole = path.read_text()
    path.write_text(whole[:-10])
    assert "is not valid JSON" in refusal(path)
    path.write_text("[" * 100_000)
    assert "is not valid JSON" in refusal(path)
    path.write_text('{"a": ' + "1" * 5000 + "}")
    assert "is not valid JSON" in refusal(path)
    path.write_text("[]")
    assert "holds a list: expected a tokenizer.json, a JSON object" in refusal(path)
    path.write_text(whole.replace('"un": 5', '"un": 5, "un": 6'))
    assert "holds the key 'un' twice in one object" in refusal(path)


SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"pre_tokenizer": SPLIT}, "pre_tokenizer"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT]}}, "pretokenizers.0"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}}, "normalizer"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled"}]}},
            "normalizers.0",
        ),
        ({"decoder": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}}, "decoder"),
        ({"post_processor": {"type": "Mystery"}}, "post_processor"),
        ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"}}, "model"),
        ({"model": wordpiece_model({"a": 0}, code="x")}, "model.WordPiece.code"),
        ({"model": wordpiece_model({"a": "0"})}, "model.WordPiece.vocab.a"),
        ({"model": wordpiece_model({"a": 0}, max_input_chars_per_word=10**9)}, "max_input_chars_per_word"),
        ({"auto_map": {"AutoTokenizer": "evil.py"}}, "auto_map"),
        ({"added_tokens": [{"id": 1, "content": "a", "regex": "a"}]}, "added_tokens.0"),
    ],
)
def test_what_is_not_on_the_list_is_refused_and_named(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    sentence = refusal(tokenizer_json(tmp_path / "tokenizer.json", **changes))
    assert re.search(rf"json: (unknown key '|the key ')?[\w.]*{re.escape(place)}[\w.]*[:']", sentence)


@pytest.mark.parametrize("kind", [{"type": "Unigram"}, {}], ids=["named", "of an older version"])
def test_a_unigram_tokenizer_of_any_version_is_read(tmp_path: Path, kind: dict[str, str]) -> None:
    vocab = [*([name, 0.0] for name in SPECIAL), ["\u2581a", -1.5], ["b", -2]]
    model = kind | {"vocab": vocab, "unk_id": 1}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}
    path = tokenizer_json(
        tmp_path / "tokenizer.json", model=model, pre_tokenizer=metaspace, decoder=metaspace, normalizer=None
    )
    assert Tokenizer.load(path).encode("ab a").tokens == ["\u2581a", "b", "\u2581a"]


def test_what_is_no_file_of_sentencepiece_s_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"?")
    assert "sentencepiece.bpe.model is no protobuf message: a field is of kind 7" in refusal(tmp_path)


def test_byte_pair_dropout_would_make_ids_random(tmp_path: Path) -> None:
    Tokenizer.load(byte_level_files(tmp_path)).save(tmp_path / "saved")
    path = tmp_path / "saved" / "tokenizer.json"
    path.write_text(path.read_text().replace('"dropout": null', '"dropout": 0.1'))
    assert "model.BPE.dropout: expected null" in refusal(path)


def test_ids_with_holes_and_ids_twice(tmp_path: Path) -> None:
    vocab = {piece: number for number, piece in enumerate(SPECIAL)}
    path = tokenizer_json(tmp_path / "tokenizer.json", model=wordpiece_model(vocab | {"a": 9}))
    assert "no piece has the id 5, though there are 6 pieces" in refusal(path)
    path = tokenizer_json(tmp_path / "tokenizer.json", model=wordpiece_model(vocab | {"a": 4}))
    assert "'[MASK]' and 'a' share the id 4" in refusal(path)
    # The library numbers an added token behind the vocabulary: it had the id of "a".
    model, filling = wordpiece_model(vocab | {"a": 6}), [added("<url>", 5)]
    path = tokenizer_json(tmp_path / "tokenizer.json", model=model, added_tokens=filling)
    assert Backend.from_file(str(path)).encode("<url> a").ids == [6, 6]
    assert "'<url>' has the id 5 among those of the model's vocabulary" in refusal(path)


def test_added_tokens_that_are_plain_are_kept(tmp_path: Path) -> None:
    count = len(SPECIAL) + len(WORDS)
    tokens = [added(token, number) for number, token in enumerate(SPECIAL)]
    path = tokenizer_json(
        tmp_path / "tokenizer.json", added_tokens=[*tokens, added("hello a", count, special=False)]
    )
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == count + 1
    assert tokenizer.encode("b Hello a b").ids == [10, count, 10]
    assert not tokenizer.splits_at_blanks  # the added token reaches over a blank


def test_tokens_added_beside_a_vocab_txt_are_read_in_texts_as_by_transformers(tmp_path: Path) -> None:
    vocab_txt(tmp_path / "vocab.txt")
    count = len(SPECIAL) + len(WORDS)
    later = {"[ENT]": count + 1, "@USER": count, "[SEP]": 3}
    (tmp_path / "added_tokens.json").write_text(json.dumps(later))
    tokenizer = Tokenizer.load(tmp_path, lowercase=True)
    assert tokenizer.pieces[count:] == ("@USER", "[ENT]")
    assert tokenizer.encode("a @USER b[ent] a").ids == [9, count, 10, count + 1, 9]
    assert tokenizer.encode("[SEP]").tokens == ["[", "[UNK]", "]"], "what stands around texts is text in them"
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").sha256 == tokenizer.sha256
    cased = Tokenizer.load(tmp_path, lowercase=False)
    assert cased.encode("@USER [ent]").tokens == ["@USER", "[", "[UNK]", "]"]


def test_tokens_added_beside_a_vocab_json_and_those_of_the_settings(tmp_path: Path) -> None:
    folder = byte_level_files(tmp_path)
    count = Tokenizer.load(folder).vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({"<user>": count}))
    assert Tokenizer.load(folder).encode("he<user>he").tokens == ["he", "<user>", "he"]
    listed = {"3": added("<unk>", 3), str(count): added("<url>", count, special=False) | {"lstrip": True}}
    for token in listed.values():
        del token["id"]
    settings = {"added_tokens_decoder": listed}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == count + 1, "where the settings list them, as transformers has it"
    assert tokenizer.encode("he <url>he").tokens == ["he", "<url>", "he"]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("added_tokens.json", {"@USER": 17}, "no piece has the id 16"),
        ("added_tokens.json", {"@USER": 3}, "'[SEP]' and '@USER' share the id 3"),
        ("added_tokens.json", {"a": 16}, "no piece has the id 9"),
        ("added_tokens.json", {"@USER": "16"}, "added_tokens.json: added_tokens.@USER: expected"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"16": {"content": "a"}}}, "is missing"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder.x"),
        ("tokenizer_config.json", {"added_tokens_decoder": ["a"]}, "added_tokens_decoder: expected"),
    ],
)
def test_added_tokens_that_are_none(tmp_path: Path, name: str, content: Any, complaint: str) -> None:
    vocab_txt(tmp_path / "vocab.txt")
    (tmp_path / name).write_text(json.dumps(content))
    assert complaint in refusal(tmp_path)


@pytest.mark.parametrize(
    ("tokens", "text", "complaint"),
    [
        ([{"content": "\u0301", "normalized": True}], "\u00e9\u4e2da", "leave nothing of the added token"),
        ([{"content": "\u200b", "normalized": True}], "\u4e2d", "leave nothing of the added token"),
        ([{"content": "\n", "lstrip": True}, {"content": "<url>", "rstrip": True}], "<url>\n\n", "lstrip"),
    ],
)
def test_added_tokens_at_which_the_library_panics_are_refused(
    tmp_path: Path, tokens: list[dict[str, Any]], text: str, complaint: str
) -> None:
    count = len(SPECIAL) + len(WORDS)
    flags = {"normalized": False, "special": False}
    listed = [added("", number) | flags | token for number, token in enumerate(tokens, count)]
    roles = [added(token, number) for number, token in enumerate(SPECIAL)]
    path = tokenizer_json(tmp_path / "tokenizer.json", added_tokens=[*roles, *listed])
    with pytest.raises(BaseException, match=r"bad split|not a char boundary") as panic:
        Backend.from_file(str(path)).encode(text)
    assert type(panic.value).__name__ == "PanicException"
    assert complaint in refusal(path)
    path.unlink()
    vocab_txt(tmp_path / "vocab.txt")
    settings = {str(token.pop("id")): token for token in listed}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": settings}))
    assert complaint in refusal(tmp_path)


@pytest.mark.parametrize("place", ["tokenizer_config.json", "config.json"])
def test_a_vocabulary_file_of_another_classs_rules_is_refused(tmp_path: Path, place: str) -> None:
    """As published: tohoku-nlp/bert-base-japanese names its class in config.json, KoBERT one of its own."""
    roberta = byte_level_files(tmp_path / "roberta")
    bert = vocab_txt(tmp_path / "vocab.txt").parent
    named = ("BertweetTokenizer", "KoBertTokenizer", "XLMRobertaTokenizerFast", "PreTrainedTokenizerFast")
    for folder, other in ((bert, "RobertaTokenizer"), (roberta, "GPT2Tokenizer")):
        for name in (*named, other):
            (folder / place).write_text(json.dumps({"tokenizer_class": name, "model_type": "bert"}))
            assert f"{place}: the tokenizer is a {name!r}, whose rules" in refusal(folder)
    for name in ("BertTokenizer", "BertTokenizerFast", "ElectraTokenizer", "DPRQuestionEncoderTokenizer"):
        (bert / place).write_text(json.dumps({"tokenizer_class": name, "model_type": "bert"}))
        assert Tokenizer.load(bert).encode("Hello a").ids == [8, 9]
    (roberta / place).write_text(json.dumps({"tokenizer_class": "RobertaTokenizerFast"}))
    assert Tokenizer.load(roberta).family == "byte-level"


def test_byte_level_files_that_do_not_fit(tmp_path: Path) -> None:
    (byte_level_files(tmp_path / "a") / "merges.txt").write_text("#version: 0.2\nx y z\n")
    assert "merges.txt, line 2: expected two symbols" in refusal(tmp_path / "a")
    (byte_level_files(tmp_path / "b") / "merges.txt").write_text("b l\n")
    assert "vocab.json and merges.txt do not fit each other" in refusal(tmp_path / "b")
    (byte_level_files(tmp_path / "c") / "merges.txt").unlink()
    assert "merges.txt does not exist" in refusal(tmp_path / "c")
    vocab = byte_level_files(tmp_path / "d") / "vocab.json"
    pieces = json.loads(vocab.read_text())
    pieces["zz"] = pieces.pop("!")
    vocab.write_text(json.dumps(pieces))
    assert "1 of the 243 symbols for the bytes of texts are missing, '!' among them" in refusal(
        tmp_path / "d"
    )


def test_bytes_that_no_text_has_need_no_symbol(tmp_path: Path) -> None:
    """Those of GPT-NeoX and ModernBERT have none: with the 243 others UTF-8 writes these characters."""
    text = "".join(
        map(chr, [*range(1 << 12), *range(1 << 12, 0xD800, 1 << 12), *range(0xE000, 0x110000, 1 << 12)])
    )
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    symbols = set(splitter.pre_tokenize_str(text)[0][0])
    vocab = byte_level_files(tmp_path) / "vocab.json"
    pieces = [piece for piece in json.loads(vocab.read_text()) if len(piece) > 1 or piece in symbols]
    vocab.write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == 243 + 7
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_cased_or_uncased_cannot_be_chosen_for_byte_level(tmp_path: Path) -> None:
    assert "can be chosen only for" in refusal(byte_level_files(tmp_path), lowercase=True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["[PAD]", "[CLS]", "[SEP]", "[MASK]", "a"], "is no piece of the model's vocabulary of 5. Name one"),
        ([], "is no piece of the model's vocabulary of 0. Name one"),
    ],
)
def test_unknown_words_need_a_piece_of_the_models_own(
    tmp_path: Path, words: list[str], complaint: str
) -> None:
    """One that is merely added to it isn't seen there: the first unknown word would fail."""
    vocabulary = {word: number for number, word in enumerate(words)}
    others = [token for token in SPECIAL if token not in vocabulary]
    tokens = [added(token, len(words) + number) for number, token in enumerate(others)]
    path = tokenizer_json(
        tmp_path / "tokenizer.json",
        model=wordpiece_model(vocabulary),
        added_tokens=tokens,
        post_processor=None,
    )
    assert f"tokenizer.json: unk_token is '[UNK]', which {complaint}" in refusal(path)


TOO_MANY = {f"p{number}": number for number in range(rules.MAX_PIECES + 1)}


@pytest.mark.parametrize(
    "name",
    [
        "vocab.txt",
        pytest.param("tokenizer.json", marks=pytest.mark.slow),
        pytest.param("vocab.json", marks=pytest.mark.slow),
    ],
)
def test_more_pieces_than_any_model_has_are_refused_before_a_tokenizer_is_made(
    tmp_path: Path, name: str
) -> None:
    if name == "tokenizer.json":
        path = tokenizer_json(tmp_path / name, model=wordpiece_model(TOO_MANY))
    else:
        path = tmp_path / name
        path.write_text(json.dumps(TOO_MANY) if name == "vocab.json" else "\n".join([*TOO_MANY, ""]))
    assert re.search("600,?000", refusal(path))


def test_added_tokens_and_parts_around_texts_are_limited(tmp_path: Path) -> None:
    tokens = [added(f"t{number}", number) for number in range(30_000)]
    path = tokenizer_json(tmp_path / "tokenizer.json", added_tokens=tokens)
    assert "added_tokens: list should have at most 20000" in refusal(path)
    assert "single: list should have at most 16" in refusal(with_template(path, 50_000))
    assert "puts 12 special tokens around two texts; expected at most 6" in refusal(with_template(path, 6))
    assert Tokenizer.load(with_template(path, 1)).template.count_special_tokens(2) == 2


def test_ids_around_texts_are_ids_of_pieces(tmp_path: Path) -> None:
    sentence = refusal(with_template(tmp_path / "tokenizer.json", 1, sep=99))
    assert "puts the id 99 around texts, but ids run from 0 to 15" in sentence


def with_template(path: Path, repeated: int, sep: int = 3) -> Path:
    """Special tokens as often as that before and behind two texts."""

    def part(kind: str, id: str) -> dict[str, Any]:
        return {kind: {"id": id, "type_id": 0}}

    before, behind = ([part("SpecialToken", id)] * repeated for id in ("[CLS]", "[SEP]"))
    named = {"[CLS]": 2, "[SEP]": sep}
    template = {
        "type": "TemplateProcessing",
        "single": [*before, part("Sequence", "A"), *behind],
        "pair": [*before, part("Sequence", "A"), part("Sequence", "B"), *behind],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in named.items()},
    }
    return tokenizer_json(path, post_processor=template)
