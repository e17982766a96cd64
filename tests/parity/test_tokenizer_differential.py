"""Random texts and added tokens, every kind of tokenizer: ids and offsets as the library reads the same file,
and transformers a folder without one.

The five roles in a text are text with us, by intention: no text here spells one, which
tests/text/test_added_tokens.py is about.
"""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from bertsmith.errors import TokenizerError
from bertsmith.tasks.examples.encoding import join_segments
from bertsmith.text.tokens.added_tokens import require_searchable
from bertsmith.text.tokens.long_texts import PART
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache

ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
LETTERS = "abeszABÉéßñıİΣσ中字日한가ア不गि"
ODD = (
    "\x00\x01\t\n\r\x0b\x1c\x7f\x85\xa0\xad\u0301\u0323\u1680\u2003\u200b\u200c\u200d\u200e\u2028\u2029\u202e"
    "\u3000\ufe0f\ufeff\ufffd\U0001f600\U0001f468\U00020000\u05d0\u0627\u064e\u1100\u1161.,'!-_#<>[]|0189"
)
CONTENTS = ("[WORLD]", "<url>", "ab", "É", "x y", "中", "##ab", "a b", "Σ", "\u200b", "@", "été", "!a", "的 ")
CHARACTERS = st.one_of(
    st.sampled_from(LETTERS), st.sampled_from(ODD), st.just(" "), st.characters(codec="utf-8")
)
PIECES = st.one_of(CHARACTERS, st.sampled_from(CONTENTS), st.sampled_from(["aabb", "  ", "ABba", "a.b"]))
TEXTS = st.lists(PIECES, max_size=25).map("".join)
ADDED = st.lists(
    st.fixed_dictionaries(
        {"content": st.sampled_from(CONTENTS)}
        | {flag: st.booleans() for flag in ("special", "normalized", "lstrip", "rstrip", "single_word")}
    ),
    max_size=4,
    unique_by=lambda token: token["content"],
)
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
NORMALIZERS = [
    *(
        BERT | {"lowercase": lowercase, "strip_accents": strip, "handle_chinese_chars": chinese}
        for lowercase in (True, False)
        for strip in (None, True, False)
        for chinese in (True, False)
    ),
    BERT | {"lowercase": True, "strip_accents": None, "clean_text": False},
]
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTE_RULES = [
    (normalizer, BYTES | changes)
    for normalizer in (None, {"type": "NFC"}, {"type": "Lowercase"})
    for changes in ({}, {"add_prefix_space": True}, {"use_regex": False})
]


@cache
def byte_pairs() -> dict[str, Any]:
    """The model of a small byte-level vocabulary, the five roles in front."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(ROLES.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([LETTERS, " ab aabb ABba été 中字 a.b" * 3], trainer)
    model: dict[str, Any] = json.loads(backend.to_str())["model"]
    return model


def wordpiece() -> dict[str, Any]:
    letters = sorted({*LETTERS.replace(" ", ""), *"abcdeimnoσs0189.,'!-#[]<>@_"})
    pieces = [*ROLES.values(), *letters, *(f"##{letter}" for letter in letters), "ab", "##ab", "aabb"]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    rules = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "unk_token": "[UNK]"}
    return {"type": "WordPiece", "vocab": vocab} | rules


def content_of(
    model: dict[str, Any], normalizer: Any, pre_tokenizer: Any, added: list[dict[str, Any]]
) -> str:
    """tokenizer.json; an added token that is a piece of the vocabulary has its id."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [flags | {"id": model["vocab"][role], "content": role} for role in ROLES.values()]
    free = len(model["vocab"])
    for token in added:
        number = model["vocab"].get(token["content"])
        tokens.append(token | {"id": free if number is None else number})
        free += number is None
    ends = {end: [ROLES[end], model["vocab"][ROLES[end]]] for end in ("cls", "sep")}
    trimmed = {"trim_offsets": True, "add_prefix_space": bool((pre_tokenizer or {}).get("add_prefix_space"))}
    processor = (
        {"type": "RobertaProcessing"} | ends | trimmed
        if model["type"] == "BPE"
        else {"type": "BertProcessing"} | ends
    )
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": processor}
    tokens.sort(key=lambda token: token["id"])
    return json.dumps({"version": "1.0", "added_tokens": tokens, "model": model, "decoder": None} | parts)


def spells_a_role(text: str) -> bool:
    return any(role.lower() in text.lower() for role in ROLES.values())


def is_searchable(library: Backend) -> bool:
    """False of added tokens that `Tokenizer.load` refuses, since the library panics at some texts."""
    try:
        require_searchable(library, Path())
    except TokenizerError:
        return False
    return True


def same_as_the_library(content: str, texts: list[str]) -> None:
    library, tokenizer = Backend.from_str(content), Tokenizer(Backend.from_str(content), dict(ROLES))
    assume(is_searchable(library))
    texts = [text for text in texts if not spells_a_role(text)]
    # A text past a part's size is itself so often, with a blank between or none.
    blank = " " * (len("".join(texts)) % 2)
    texts += [blank.join([text] * (PART // max(len(text), 1) + 2)) for text in texts[:1] if len(text) > 8]
    wholes = library.encode_batch(texts, add_special_tokens=False)
    cache_ids, lengths = WordCache(tokenizer).encode(texts)
    assert lengths.tolist() == [len(whole.ids) for whole in wholes]
    assert cache_ids.tolist() == [number for whole in wholes for number in whole.ids]
    parts = tokenizer.encode_pieces(texts)
    for text, whole, pieces, ids in zip(texts, wholes, parts, tokenizer.encode_batch(texts), strict=True):
        found = tokenizer.encode(text)
        assert (found.ids, found.offsets) == (whole.ids, whole.offsets), text
        assert list(pieces.ids) == list(ids) == whole.ids, text
        np.testing.assert_array_equal(
            np.array(pieces.offsets).reshape(-1, 2), np.array(whole.offsets).reshape(-1, 2)
        )
    for first, second in pairwise(texts):
        both = library.encode(first, second)
        pair = tokenizer.encode(first).ids, tokenizer.encode(second).ids
        token_ids, segment_ids = join_segments(tokenizer, *pair)
        assert (token_ids.tolist(), segment_ids.tolist()) == (both.ids, both.type_ids)
        assert join_segments(tokenizer, pair[0])[0].tolist() == library.encode(first).ids


def wordpiece_case(normalizer: dict[str, Any], added: list[dict[str, Any]], texts: list[str]) -> None:
    same_as_the_library(content_of(wordpiece(), normalizer, {"type": "BertPreTokenizer"}, added), texts)


def byte_level_case(rules: tuple[Any, Any], added: list[dict[str, Any]], texts: list[str]) -> None:
    same_as_the_library(content_of(byte_pairs(), *rules, added), texts)


OF_SETTINGS = ("added_tokens_decoder", "extra_special_tokens", "additional_special_tokens")


def same_as_transformers(
    model: dict[str, Any], chosen: dict[str, Any], place: str, added: list[dict[str, Any]], texts: list[str]
) -> None:
    """Of a folder without tokenizer.json: vocabulary files, settings, and added tokens in this `place`."""
    vocab, ids = model["vocab"], dict[str, int]()
    for token in added:
        content = token["content"]
        ids[content] = vocab.get(content, len(vocab.keys() | ids.keys()))
    of_place = {str(ids[token["content"]]): token for token in added} if place == OF_SETTINGS[0] else [*ids]
    chosen = chosen | ({place: of_place} if place in OF_SETTINGS else {})
    with TemporaryDirectory() as name:
        folder = Path(name)
        if model["type"] == "WordPiece":
            chosen["tokenizer_class"] = "BertTokenizer"
            pieces = "".join(f"{piece}\n" for piece in vocab)
            (folder / "vocab.txt").write_text(pieces, encoding="utf-8", newline="")
        else:
            chosen |= {"tokenizer_class": "RobertaTokenizer", "bos_token": "[CLS]", "eos_token": "[SEP]"}
            chosen |= {f"{role}_token": token for role, token in ROLES.items()}
            (folder / "vocab.json").write_text(json.dumps(vocab))
            merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
            (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8", newline="")
        (folder / "tokenizer_config.json").write_text(json.dumps(chosen))
        if place not in OF_SETTINGS:
            (folder / place).write_text(json.dumps(ids))
        theirs = AutoTokenizer.from_pretrained(folder)
        assume(is_searchable(theirs.backend_tokenizer))
        tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == len(theirs)
    texts = [text for text in texts if not spells_a_role(text)]
    for text in texts:
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        found = tokenizer.encode(text)
        assert (found.ids, found.offsets) == (expected["input_ids"], expected["offset_mapping"]), text
    for first, second in pairwise(texts):
        both = theirs([first], [second], return_token_type_ids=True)
        pair = join_segments(tokenizer, tokenizer.encode(first).ids, tokenizer.encode(second).ids)
        assert [part.tolist() for part in pair] == [both["input_ids"][0], both["token_type_ids"][0]]


FEW = settings(derandomize=True, max_examples=30, deadline=None)
MANY = settings(derandomize=True, max_examples=10_000, deadline=None)
SEVERAL = st.lists(TEXTS, min_size=1, max_size=3)
wordpieces = given(st.sampled_from(NORMALIZERS), ADDED, SEVERAL)
byte_levels = given(st.sampled_from(BYTE_RULES), ADDED, SEVERAL)

test_wordpiece_reads_as_the_library = FEW(wordpieces(wordpiece_case))
test_byte_pairs_are_read_as_by_the_library = FEW(byte_levels(byte_level_case))
switches = {"do_lower_case": st.booleans(), "tokenize_chinese_chars": st.booleans()}
of_bert = st.fixed_dictionaries({}, optional=switches | {"strip_accents": st.none() | st.booleans()})
of_roberta = st.fixed_dictionaries({}, optional={"add_prefix_space": st.booleans()})
places = st.sampled_from([*OF_SETTINGS, "added_tokens.json"])
vocab_txts = given(st.builds(wordpiece), of_bert, places, ADDED, SEVERAL)
vocab_jsons = given(st.builds(byte_pairs), of_roberta, places, ADDED, SEVERAL)
FEWER = settings(FEW, max_examples=20)
test_a_folder_with_vocab_txt_is_read_as_by_transformers = FEWER(vocab_txts(same_as_transformers))
test_a_folder_with_vocab_json_is_read_as_by_transformers = FEWER(vocab_jsons(same_as_transformers))
hours = pytest.mark.timeout(3 * 3600)
test_wordpiece_reads_as_the_library_ten_thousand_times = pytest.mark.slow(
    hours(MANY(wordpieces(wordpiece_case)))
)
test_byte_pairs_are_read_as_by_the_library_ten_thousand_times = pytest.mark.slow(
    hours(MANY(byte_levels(byte_level_case)))
)
