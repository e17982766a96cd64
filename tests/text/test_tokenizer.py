"""The tokenizer: ids, offsets, special tokens in text, saving, and the paths that must agree."""

import hashlib
import json
import pickle
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import (
    SPECIAL,
    WORDS,
    byte_level_files,
    tokenizer_json,
    vocab_txt,
    wordpiece_model,
)
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from bertsmith.errors import InputError, TokenizerError
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache

LETTERS = "abcdefghijklmnopqrstuvwxyzäéßñıαβγσςабв0123456789_.,;!?'\"()[]-$^`|~「」日本語한가ア"
#: Letters alone and inside words, so that nothing becomes [UNK] for want of a piece.
EVERY_LETTER = Tokenizer.from_pieces(
    [*SPECIAL, *sorted({*LETTERS, *unicodedata.normalize("NFD", LETTERS)})]
    + [f"##{letter}" for letter in sorted({*LETTERS, *unicodedata.normalize("NFD", LETTERS)})]
    + ["the", "##ing", "mask", "sep"],
    lowercase=True,
)
CASED = Tokenizer.from_pieces([*EVERY_LETTER.pieces, *"ABC", "##A", "É", "##É"], lowercase=False)

#: Ordinary and hostile text: any code point, lone surrogates too, and a bias to what the vocabulary knows.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(LETTERS + LETTERS.upper() + " \t\n\r\x00\x1c\x85\xa0\u200b\u2028\ufffd\u0301"),
        st.characters(codec=None),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(vocab_txt(tmp_path_factory.mktemp("small") / "vocab.txt"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(byte_level_files(tmp_path_factory.mktemp("bytes")))


def test_wordpiece_takes_the_longest_piece_first_and_offsets_are_those_of_the_text(small: Tokenizer) -> None:
    ids, offsets, tokens = small.encode("  Unaffable,\tHÉLLO!")
    assert tokens == ["un", "##aff", "##able", "[UNK]", "hello", "!"]
    assert ids == [5, 6, 7, 1, 8, 12]
    assert offsets == [(2, 4), (4, 7), (7, 11), (11, 12), (13, 18), (18, 19)]


def test_roles_of_special_tokens(small: Tokenizer, byte_level: Tokenizer) -> None:
    assert (small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id) == (0, 1, 2, 3, 4)
    assert small.special_ids == (0, 1, 2, 3, 4)
    assert [byte_level.id_to_token(number) for number in byte_level.special_ids] == [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
    ]
    assert (small.family, byte_level.family) == ("wordpiece", "byte-level")


def test_a_special_token_in_text_is_text_unless_asked_for(small: Tokenizer) -> None:
    assert small.encode("a [MASK] b").tokens == ["a", "[", "mask", "]", "b"]
    assert small.encode_batch(["a [MASK] b"]) == [small.encode("a [MASK] b").ids]
    read = small.encode("a [MASK] b", read_special_tokens=True)
    assert read.tokens == ["a", "[MASK]", "b"]
    assert read.offsets == [(0, 1), (2, 8), (9, 10)]


def test_roberta_s_mask_takes_the_space_before_it(byte_level: Tokenizer) -> None:
    read = byte_level.encode("he <mask> he", read_special_tokens=True)
    assert read.tokens == ["he", "<mask>", "Ġhe"]


def test_pieces_that_continue_a_word(small: Tokenizer, byte_level: Tokenizer) -> None:
    continuing = [piece for piece, flag in zip(small.pieces, small.continues_word, strict=True) if flag]
    assert continuing == ["##aff", "##able", "##b"]
    flags = dict(zip(byte_level.pieces, byte_level.continues_word.tolist(), strict=True))
    assert flags["he"]
    assert not any(flags[piece] for piece in ("Ġhe", "Ġ", "Ċ", "<s>", "<mask>"))


@given(TEXTS)
@settings(max_examples=120, deadline=None)
def test_a_piece_is_its_span_of_the_text_normalised(text: str) -> None:
    for tokenizer in (EVERY_LETTER, CASED):
        _, offsets, tokens = tokenizer.encode(text)
        for (start, end), token in zip(offsets, tokens, strict=True):
            assert 0 <= start < end <= len(text)
            seen = "".join(tokenizer.normalise(text[start:end]).split())
            # One character may become several pieces (a Hangul syllable is two or three letters when
            # accents are stripped); then each has the span of the whole.
            assert token == "[UNK]" or token.removeprefix("##") in seen
            if end - start > 1 and token != "[UNK]":
                assert token.removeprefix("##") == seen


@given(TEXTS)
@settings(max_examples=80, deadline=None)
def test_spans_follow_the_text_and_leave_out_only_what_is_cleaned_away(text: str) -> None:
    offsets = EVERY_LETTER.encode(text).offsets
    assert offsets == sorted(offsets)
    covered = {place for start, end in offsets for place in range(start, end)}
    for place, character in enumerate(text):
        if character in LETTERS:
            assert place in covered


@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=80, deadline=None)
def test_one_by_one_in_batches_and_word_by_word_give_the_same_ids(texts: list[str]) -> None:
    for tokenizer in (EVERY_LETTER, CASED):
        one_by_one = [tokenizer.encode(text).ids for text in texts]
        assert tokenizer.encode_batch(texts) == one_by_one
        ids, lengths = WordCache(tokenizer).encode(texts)
        assert lengths.tolist() == list(map(len, one_by_one))
        assert ids.tolist() == [number for one in one_by_one for number in one]


@given(st.text(max_size=40))
@settings(max_examples=80, deadline=None)
def test_byte_level_loses_nothing(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text).ids
    assert byte_level.decode(ids, skip_special_tokens=False) == text
    assert byte_level.encode_batch([text]) == [ids]


def test_the_word_cache_starts_again_when_full(small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.text.tokens.word_cache.MAX_RUNS", 3)
    cache = WordCache(small)
    for text in ("a b", "hello hello a", "unaffable b! a", "a", "a hello"):
        assert cache.encode([text])[0].tolist() == small.encode(text).ids
        assert len(cache._cache or {}) <= 3


def test_the_word_cache_remembers_no_endless_words(small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as base64 or a page without a blank: hardly one comes twice, and its text would be kept."""
    monkeypatch.setattr("bertsmith.text.tokens.word_cache.MAX_RUNS", 3)
    cache = WordCache(small)
    memory = cache._cache
    assert memory is not None
    for text in ("a" * 101, "a!" * 60 + "b", "unaffable" * 50 + " a"):
        assert cache.encode([text])[0].tolist() == small.encode(text).ids
        assert set(memory) <= {"a"} and set(memory._ids_of_word) <= {"a", "!", "b"}
    distinct = "-".join(f"b{number}" for number in range(40))
    assert cache.encode([distinct])[0].tolist() == small.encode(distinct).ids
    assert not memory and not memory._ids_of_word


def test_half_of_a_surrogate_pair_is_no_letter_and_keeps_the_offsets(small: Tokenizer) -> None:
    assert small.encode("a \ud83d b").offsets == [(0, 1), (4, 5)]
    assert small.encode_batch(["a\ud83db", "\udfff", "b"]) == [small.encode("ab").ids, [], [10]]


def test_text_without_anything_to_read_is_empty(small: Tokenizer) -> None:
    for text in ("", " ", "\x00\ufffd\u200b", "\n\t"):
        assert small.encode(text) == ([], [], [])


def test_ids_and_tokens_that_do_not_exist(small: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="There is no piece 16: ids run from 0 to 15"):
        small.id_to_token(16)
    with pytest.raises(TokenizerError, match="no piece -1"):
        small.id_to_token(-1)
    with pytest.raises(TokenizerError, match="no piece 'xyz'"):
        small.token_to_id("xyz")


def test_decode_joins_words_and_leaves_out_special_tokens(small: Tokenizer) -> None:
    ids = [small.cls_id, *small.encode("Unaffable hello!").ids, small.sep_id]
    assert small.decode(ids) == "unaffable hello!"
    assert small.decode(ids, skip_special_tokens=False) == "[CLS] unaffable hello! [SEP]"
    for strange in (-100, small.vocab_size, 2**40):  # such as labels, and ids of another vocabulary
        with pytest.raises(TokenizerError, match=f"There is no piece {strange}"):
            small.decode([*ids, strange])


@pytest.mark.parametrize("number", [5.7, "5", float("inf"), float("nan")])
def test_what_is_no_id_is_not_decoded_as_the_one_below_it(small: Tokenizer, number: Any) -> None:
    assert small.decode(np.array([5.0])) == small.decode([5])
    with pytest.raises(InputError, match="Expected the ids of pieces, found"):
        small.decode([5, number])


@pytest.mark.parametrize("lowercase", [True, False])
def test_what_is_saved_loads_as_the_same_tokenizer(tmp_path: Path, lowercase: bool) -> None:
    tokenizer = Tokenizer.load(vocab_txt(tmp_path / "vocab.txt"), lowercase=lowercase)
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.sha256 == tokenizer.sha256
    assert again.lowercase is lowercase
    assert (tmp_path / "saved" / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()
    (tmp_path / "saved" / "tokenizer.json").unlink()  # vocab.txt and the settings are enough
    assert Tokenizer.load(tmp_path / "saved").sha256 == tokenizer.sha256


def test_the_hash_is_that_of_the_saved_file_and_differs_with_the_rules(tmp_path: Path) -> None:
    uncased = Tokenizer.load(vocab_txt(tmp_path / "vocab.txt"))
    uncased.save(tmp_path / "saved")
    content = (tmp_path / "saved" / "tokenizer.json").read_bytes()
    assert uncased.sha256 == hashlib.sha256(content).hexdigest()
    assert uncased.sha256 != Tokenizer.load(tmp_path / "vocab.txt", lowercase=False).sha256
    assert uncased.sha256 != Tokenizer.from_pieces([*SPECIAL, *reversed(WORDS)], lowercase=True).sha256


def test_byte_level_files_survive_saving(tmp_path: Path, byte_level: Tokenizer) -> None:
    byte_level.save(tmp_path)
    assert Tokenizer.load(tmp_path).sha256 == byte_level.sha256
    assert not (tmp_path / "vocab.txt").exists()


def test_another_process_gets_the_same_tokenizer(small: Tokenizer, byte_level: Tokenizer) -> None:
    for tokenizer in (small, byte_level):
        twin = pickle.loads(pickle.dumps(tokenizer))
        assert twin.sha256 == tokenizer.sha256
        assert twin.encode("[SEP] </s> hello") == tokenizer.encode("[SEP] </s> hello")


def test_a_vocabulary_without_capitals_is_uncased_unless_told_otherwise(tmp_path: Path) -> None:
    uncased = vocab_txt(tmp_path / "vocab.txt", [*SPECIAL, "[unused0]", "<S>", "a", "A".lower() * 2])
    assert Tokenizer.load(uncased).lowercase
    assert not Tokenizer.load(uncased, lowercase=False).lowercase
    cased = vocab_txt(tmp_path / "cased.txt", [*SPECIAL, "a", "##A"])
    assert not Tokenizer.load(cased).lowercase
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert Tokenizer.load(cased).lowercase


def test_settings_beside_the_vocabulary_are_followed(tmp_path: Path) -> None:
    vocab_txt(tmp_path / "vocab.txt", [*SPECIAL, "café", "cafe", "日本", "日", "本"])
    config = tmp_path / "tokenizer_config.json"
    assert Tokenizer.load(tmp_path).encode("Café 日本").tokens == ["cafe", "日", "本"]
    config.write_text('{"strip_accents": false, "tokenize_chinese_chars": false}')
    assert Tokenizer.load(tmp_path).encode("Café 日本").tokens == ["café", "日本"]
    config.write_text('{"do_lower_case": "yes"}')
    with pytest.raises(TokenizerError, match="`do_lower_case` is 'yes'; expected true, false or null"):
        Tokenizer.load(tmp_path)


FLAGS: list[dict[str, bool]] = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": True},
    {"strip_accents": True},
    {"tokenize_chinese_chars": False},
]
CASED_PIECES = [*SPECIAL, "hello", "Hello", "há", "ha", "a", "A", "日本", "日", "本"]


def settings_beside(
    folder: Path, name: str | None, flags: Mapping[str, bool | str], kind: str | None
) -> None:
    """The settings of a tokenizer and of a model, which name a class and a kind, or don't."""
    named = {} if name is None else {"tokenizer_class": name}
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, **flags}))
    if kind is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))


def same_ids_as_transformers(folder: Path) -> None:
    text, theirs = "hello Hello há A 日本 zq", AutoTokenizer.from_pretrained(folder)  # zq is unknown
    assert Tokenizer.load(folder).encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BertTokenizer", None),
        ("BertTokenizerFast", "bert"),
        ("DistilBertTokenizer", None),
        ("ElectraTokenizer", "electra"),
        ("MobileBertTokenizer", None),
        ("PreTrainedTokenizerFast", None),
        ("PreTrainedTokenizerFast", "bert"),
        ("TokenizersBackend", "bert"),
        ("OneThatNobodyHas", None),
        ("BertTokenizer", "modernbert"),
        ("BertTokenizer", "roberta"),
        (None, None),
        (None, "modernbert"),
    ],
)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("in_file", [{"lowercase": False}, {"strip_accents": False}, {}], ids=str)
def test_settings_and_tokenizer_json_are_weighed_as_by_the_class_of_transformers(
    tmp_path: Path, name: str | None, kind: str | None, flags: dict[str, bool], in_file: dict[str, bool]
) -> None:
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    normalizer |= {"strip_accents": None, "lowercase": True} | in_file
    model = wordpiece_model({piece: number for number, piece in enumerate(CASED_PIECES)})
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    tokenizer_json(tmp_path / "tokenizer.json", normalizer=normalizer, post_processor=bert, model=model)
    settings_beside(tmp_path, name, flags, kind)
    same_ids_as_transformers(tmp_path)


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("unknown", [{}, {"unk_token": "[UNK]"}, {"unk_token": "<unk>"}], ids=str)
@pytest.mark.parametrize("in_file", ["[UNK]", "<unk>"])
def test_unknown_words_are_the_token_that_the_class_of_transformers_has(
    tmp_path: Path, name: str | None, unknown: dict[str, str], in_file: str
) -> None:
    vocabulary = {piece: number for number, piece in enumerate([*CASED_PIECES, "<unk>"])}
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    model = wordpiece_model(vocabulary) | {"unk_token": in_file}
    tokenizer_json(tmp_path / "tokenizer.json", post_processor=bert, model=model)
    settings_beside(tmp_path, name, unknown, "bert")
    same_ids_as_transformers(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "electra", "nomic_bert"])
@pytest.mark.parametrize("cased", [True, False])
def test_where_the_models_kind_alone_says_what_reads_it_tokenizer_json_holds_unless_a_setting_contradicts(
    tmp_path: Path, kind: str, cased: bool
) -> None:
    """transformers 5 lower-cases there for want of a setting, whatever the file says; tokenizers doesn't."""
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    normalizer |= {"strip_accents": None, "lowercase": not cased}
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    path = tokenizer_json(tmp_path / "tokenizer.json", normalizer=normalizer, post_processor=bert)
    settings_beside(tmp_path, None, {}, kind)
    library = Backend.from_file(str(path)).encode("hello Hello", add_special_tokens=False)
    assert Tokenizer.load(tmp_path).encode("hello Hello").ids == library.ids
    for flag in (True, False):
        settings_beside(tmp_path, None, {"do_lower_case": flag}, kind)
        same_ids_as_transformers(tmp_path)
    assert Tokenizer.load(tmp_path, lowercase=True).lowercase


@pytest.mark.parametrize("name", ["RobertaTokenizer", "XLMRobertaTokenizer", "T5Tokenizer", "GPT2Tokenizer"])
def test_a_class_of_another_scheme_beside_tokenizer_json_changes_nothing(tmp_path: Path, name: str) -> None:
    path = tokenizer_json(tmp_path / "tokenizer.json")
    settings_beside(tmp_path, name, {"do_lower_case": False}, None)
    library = Backend.from_file(str(path)).encode("hello Hello", add_special_tokens=False)
    assert Tokenizer.load(tmp_path).encode("hello Hello").ids == library.ids


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BertTokenizer", None),
        ("DistilBertTokenizerFast", None),
        ("ElectraTokenizer", None),
        ("BertTokenizer", "roberta"),
        *((None, kind) for kind in ("bert", "distilbert", "electra", "nomic_bert")),
    ],
)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_vocab_txt_is_cased_or_not_as_transformers_reads_it(
    tmp_path: Path, name: str | None, kind: str | None, flags: dict[str, bool]
) -> None:
    vocab_txt(tmp_path / "vocab.txt", CASED_PIECES)
    settings_beside(tmp_path, name, flags, kind)
    same_ids_as_transformers(tmp_path)
    (tmp_path / "config.json").unlink(missing_ok=True)
    (tmp_path / "tokenizer_config.json").unlink()
    assert not Tokenizer.load(tmp_path).lowercase, "alone it is cased if a piece has a capital"


@pytest.mark.parametrize("name", ["RobertaTokenizer", "BartTokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("setting", [True, False, None])
@pytest.mark.parametrize("in_file", [True, False])
def test_the_blank_before_a_text_is_as_the_class_of_transformers_has_it(
    tmp_path: Path, name: str | None, setting: bool | None, in_file: bool
) -> None:
    """And the offsets, which that class makes itself, whatever the file's post-processor does."""
    Tokenizer.load(byte_level_files(tmp_path / "files")).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["pre_tokenizer"]["add_prefix_space"] = in_file
    flags = {} if setting is None else {"add_prefix_space": setting}
    for trims, blank, own in ((None, in_file, True), (False, not in_file, True), (True, in_file, False)):
        content["post_processor"] |= {"add_prefix_space": blank, "trim_offsets": own}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        settings_beside(tmp_path, name, flags if trims is None else flags | {"trim_offsets": trims}, None)
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        opened = Tokenizer.load(tmp_path)
        for text in ("he he", " he  he"):
            expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
            found = opened.encode(text)
            assert (found.ids, found.offsets) == (expected["input_ids"], expected["offset_mapping"])
        opened.save(tmp_path / "saved")
        assert Tokenizer.load(tmp_path / "saved").sha256 == opened.sha256


def test_padding_and_truncation_of_a_file_are_dropped(tmp_path: Path) -> None:
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path = tokenizer_json(tmp_path / "tokenizer.json", padding=padding, truncation=truncation)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("a").ids == [9]
    assert tokenizer.encode_batch(["a a a", "a"]) == [[9, 9, 9], [9]]
    assert tokenizer.sha256 == Tokenizer.load(tokenizer_json(tmp_path / "plain.json")).sha256


FORKING = """
import os, sys
from bertsmith.text.tokens.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
texts = ["hello a b"] * 100
expected = tokenizer.encode_batch(texts)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode_batch(texts) == expected else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert tokenizer.encode_batch(texts) == expected
sys.exit(status)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows doesn't fork")
def test_a_fork_after_parallel_work_neither_warns_nor_hangs(tmp_path: Path) -> None:
    path = vocab_txt(tmp_path / "vocab.txt")
    command = [sys.executable, "-c", FORKING, str(path)]
    environment = {"PYTHONWARNINGS": "ignore::DeprecationWarning", "PATH": ""}  # Python 3.12 warns of threads
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
