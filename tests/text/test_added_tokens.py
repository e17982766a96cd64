"""A text that spells an added token is that token, whatever its flags; one of the five roles stays text."""

import json
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_samples import SPECIAL, WORDS, added, byte_level_files, tokenizer_json, vocab_txt
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from bertsmith.errors import InputError, TokenizerError
from bertsmith.text.tokens.extension import add_pieces, remove_pieces
from bertsmith.text.tokens.pruning import count_pieces, prune
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache

COUNT = len(SPECIAL) + len(WORDS)
FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")
EVERY_FLAG = [dict(zip(FLAGS, values, strict=True)) for values in product([True, False], repeat=len(FLAGS))]
TEXTS = [
    "hello [WORLD] a",
    "hello[WORLD]a",
    "Hello [world]  !",
    "  [WORLD]\n[WORLD] un[WORLD]",
    "a\u00a0[WORLD]\u2028[WORLD]\u00e9",
    "[WORLD",
    "[[WORLD]]",
    "\u4e2d[WORLD]\u6587",
]
ROLES = [*SPECIAL, "[mask]", "a [SEP] b", "[CLS][WORLD][SEP]", "[MASK] [WORLD]"]


def wordpiece_folder(folder: Path, **flags: bool) -> Path:
    """A tokenizer.json whose first token behind the vocabulary is [WORLD]."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [
        *(added(token, number) for number, token in enumerate(SPECIAL)),
        added("[WORLD]", COUNT) | flags,
    ]
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    tokenizer_json(folder / "tokenizer.json", added_tokens=tokens, post_processor=bert)
    return folder


def byte_level_folder(folder: Path, **flags: bool) -> Path:
    """The same of a byte-level vocabulary."""
    Tokenizer.load(byte_level_files(folder)).save(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append(added("[WORLD]", len(content["model"]["vocab"])) | flags)
    path.write_text(json.dumps(content))
    return folder


FOLDERS = {"wordpiece": wordpiece_folder, "byte-level": byte_level_folder}


@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize(
    "flags", EVERY_FLAG, ids=lambda flags: ",".join(flag for flag in FLAGS if flags[flag])
)
def test_an_added_token_is_read_with_any_flags_as_the_library_reads_the_file(
    tmp_path: Path, make: Any, flags: dict[str, bool]
) -> None:
    folder = make(tmp_path / "foreign", **flags)
    tokenizer, library = Tokenizer.load(folder), Backend.from_file(str(folder / "tokenizer.json"))
    tokenizer.save(tmp_path / "ours")
    again = Tokenizer.load(tmp_path / "ours")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in TEXTS:
        expected = library.encode(text, add_special_tokens=False)
        for ours in (tokenizer, again, pickle.loads(pickle.dumps(tokenizer))):
            found = ours.encode(text)
            assert found[:2] == (expected.ids, expected.offsets)
            assert list(ours.encode_batch([text])[0]) == expected.ids
        assert theirs(text, add_special_tokens=False)["input_ids"] == expected.ids
        assert WordCache(tokenizer).encode([text])[0].tolist() == expected.ids
        assert list(tokenizer.encode_words([text])[0].ids) == expected.ids
        assert tokenizer.encode(text, read_special_tokens=True).ids == expected.ids
        assert tokenizer.decode(expected.ids) == library.decode(expected.ids)
    assert again.sha256 == tokenizer.sha256


@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("special", [True, False])
def test_the_five_roles_in_a_text_are_text_whatever_the_file_calls_them(
    tmp_path: Path, make: Any, special: bool
) -> None:
    """The library with none of the five among its added tokens is the oracle."""
    path = make(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    for token in content["added_tokens"][:-1]:
        token |= {"special": special, "lstrip": False, "rstrip": False, "normalized": not special}
    path.write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
    without = content | {"added_tokens": content["added_tokens"][-1:]}
    library, tokenizer = Backend.from_str(json.dumps(without)), Tokenizer.load(path)
    roles = [tokenizer.id_to_token(number) for number in tokenizer.special_ids]
    for text in [*ROLES, *roles, *(f"he {role}[WORLD]{role}" for role in roles)]:
        expected = library.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text)[:2] == (expected.ids, expected.offsets)
        assert not set(tokenizer.encode(text).ids) & (set(tokenizer.special_ids) - {tokenizer.unk_id})
    mask = tokenizer.id_to_token(tokenizer.mask_id)
    assert tokenizer.mask_id in tokenizer.encode(f"a {mask} b", read_special_tokens=True).ids


def token(**flags: bool) -> dict[str, Any]:
    """[WORLD] as the settings list it."""
    listed = added("[WORLD]", COUNT) | flags
    del listed["id"]
    return listed


LAYOUTS: dict[str, dict[str, Any]] = {
    "added_tokens.json": {"added_tokens.json": {"[WORLD]": COUNT}},
    "named special": {"tokenizer_config.json": {"additional_special_tokens": ["[WORLD]"]}},
    "named special and numbered": {
        "tokenizer_config.json": {"additional_special_tokens": ["[WORLD]"]},
        "added_tokens.json": {"[WORLD]": COUNT},
    },
    "transformers 5": {"tokenizer_config.json": {"extra_special_tokens": ["[WORLD]", "hello"]}},
    "by a name": {"tokenizer_config.json": {"extra_special_tokens": {"world_token": "[WORLD]"}}},
    "a piece named special": {"tokenizer_config.json": {"additional_special_tokens": ["hello"]}},
    "a piece with a role": {"tokenizer_config.json": {"bos_token": "hello", "image_token": "un"}},
    "older settings": {
        "special_tokens_map.json": {"additional_special_tokens": ["[WORLD]"], "cls_token": "[CLS]"},
        "added_tokens.json": {"[WORLD]": COUNT},
    },
    "older settings without a number": {"special_tokens_map.json": {"additional_special_tokens": ["hello"]}},
    "listed": {"tokenizer_config.json": {"added_tokens_decoder": {str(COUNT): token()}}},
    "listed as plain": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {str(COUNT): token(special=False, normalized=True, lstrip=True)}
        }
    },
    "listed, and the older files are passed over": {
        "tokenizer_config.json": {"added_tokens_decoder": {str(COUNT): token()}},
        "special_tokens_map.json": {"additional_special_tokens": ["hello"]},
        "added_tokens.json": {"hello": COUNT + 1},
    },
}


@pytest.mark.parametrize("vocabulary", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_added_tokens_are_found_wherever_transformers_looks_for_them(
    tmp_path: Path, vocabulary: str, layout: dict[str, Any], name: str
) -> None:
    if vocabulary == "vocab.txt":
        if name != "BertTokenizer":
            pytest.skip("transformers reads a vocab.txt by BERT's class alone")
        vocab_txt(tmp_path / vocabulary)
    else:
        bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
        tokenizer_json(tmp_path / vocabulary, post_processor=bert)
    for file, content in ({"tokenizer_config.json": {}} | layout).items():
        named = {"tokenizer_class": name} if file == "tokenizer_config.json" else {}
        (tmp_path / file).write_text(json.dumps(named | content))
    tokenizer, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "unaffable hello", "xhellox"]:
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert tokenizer.encode(text).ids == expected["input_ids"], text
        assert tokenizer.encode(text).offsets == expected["offset_mapping"], text


def test_the_settings_flags_of_an_added_token_win_over_tokenizer_json(tmp_path: Path) -> None:
    wordpiece_folder(tmp_path, normalized=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(COUNT): token(special=False, normalized=True)},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = AutoTokenizer.from_pretrained(tmp_path)("[world]", add_special_tokens=False)
    assert Tokenizer.load(tmp_path).encode("[world]").ids == theirs["input_ids"] == [COUNT]


@pytest.mark.parametrize("extra", ["[WORLD]", [3], [{"content": 3}], [{"lstrip": 1}]])
def test_extra_special_tokens_that_are_none(tmp_path: Path, extra: Any) -> None:
    vocab_txt(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": extra}))
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json: .*extra_special_tokens"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("flags", [{}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}], ids=str)
def test_a_long_text_in_parts_has_the_added_tokens_of_the_whole(
    tmp_path: Path, make: Any, flags: dict[str, bool]
) -> None:
    tokenizer = Tokenizer.load(make(tmp_path, **flags))
    text = "hello [WORLD] a[WORLD]b \u4e2d[WORLD]\u6587 he [WORLD]  un " * 2_000
    whole = Backend.from_file(str(tmp_path / "tokenizer.json")).encode(text, add_special_tokens=False)
    (pieces,) = tokenizer.encode_pieces([text])
    assert list(pieces.ids) == whole.ids == list(tokenizer.encode_batch([text])[0])
    np.testing.assert_array_equal(np.array(pieces.offsets), np.array(whole.offsets))


@pytest.mark.parametrize("lstrip", [True, False])
def test_a_pair_in_a_batch_of_texts_is_refused(tmp_path: Path, lstrip: bool) -> None:
    """The library would join the two."""
    tokenizer = Tokenizer.load(wordpiece_folder(tmp_path, lstrip=lstrip))
    with pytest.raises(InputError, match="Expected a text, found"):
        tokenizer.encode_batch([("hello", "a")])  # type: ignore[list-item]


@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_stay_what_they_are_when_pieces_join_and_leave(tmp_path: Path, special: bool) -> None:
    tokenizer = Tokenizer.load(wordpiece_folder(tmp_path, special=special))
    extended = add_pieces(tokenizer, ["unaffable"])
    assert [extended.encode(text).tokens for text in TEXTS] == [
        tokenizer.encode(text).tokens for text in TEXTS
    ]
    assert remove_pieces(extended, 1, outside=1).sha256 == tokenizer.sha256
    small, kept = prune(tokenizer, count_pieces(tokenizer, ["hello [WORLD]"]))
    assert (
        kept[small.encode("hello [WORLD]").ids].tolist()
        == tokenizer.encode("hello [WORLD]").ids
        == [8, COUNT]
    )
