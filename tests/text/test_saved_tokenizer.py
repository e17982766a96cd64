"""What is saved has the same ids in transformers, whose classes of BERT and RoBERTa have their own rules."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizer_samples import SPECIAL, WORDS, byte_level_files, tokenizer_json, wordpiece_model
from transformers import AutoTokenizer

from bertsmith.tasks.examples.encoding import join_segments
from bertsmith.text.tokens.tokenizer import Tokenizer

TEXTS = ["hello unaffable a!b", "Hello HE he", "a\u0007b a12b", "x" * 150, "中a", "a  b\n\n a"]
BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT_NORMALIZER |= {"strip_accents": None, "lowercase": True}
VOCABULARY = {piece: number for number, piece in enumerate((*SPECIAL, *WORDS))}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def same_as_transformers(tokenizer: Tokenizer, folder: Path) -> str:
    """The class of transformers that reads what is saved."""
    tokenizer.save(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert (
            theirs("a", text)["input_ids"]
            == join_segments(tokenizer, tokenizer.encode("a").ids, ids)[0].tolist()
        )
    return type(theirs).__name__


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "BertTokenizer"),
        ({"normalizer": BERT_NORMALIZER | {"lowercase": False, "strip_accents": True}}, "BertTokenizer"),
        ({"normalizer": BERT_NORMALIZER | {"handle_chinese_chars": False}}, "BertTokenizer"),
        ({"normalizer": BERT_NORMALIZER | {"clean_text": False}}, "TokenizersBackend"),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, "TokenizersBackend"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}, DIGITS]}},
            "TokenizersBackend",
        ),
        ({"model": wordpiece_model(VOCABULARY, max_input_chars_per_word=200)}, "TokenizersBackend"),
        ({"model": wordpiece_model(VOCABULARY, continuing_subword_prefix="u")}, "TokenizersBackend"),
        (
            {
                "post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
                | {"trim_offsets": True, "add_prefix_space": False}
            },
            "TokenizersBackend",
        ),
    ],
)
def test_a_wordpiece_tokenizer_with_other_rules_than_berts_is_not_called_berts(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    path = tokenizer_json(tmp_path / "tokenizer.json", **({"post_processor": bert} | changes))
    assert same_as_transformers(Tokenizer.load(path), tmp_path / "saved") == name


def test_a_file_that_puts_nothing_around_texts_is_saved_as_berts_which_does(tmp_path: Path) -> None:
    path = tokenizer_json(tmp_path / "tokenizer.json", post_processor=None)
    assert same_as_transformers(Tokenizer.load(path), tmp_path / "saved") == "BertTokenizer"


def changed(content: dict[str, Any], part: str, value: Any) -> None:
    """`part` is a key of the file, or of its model after "model."."""
    inside = content["model"] if part.startswith("model.") else content
    inside[part.removeprefix("model.")] = value


@pytest.mark.parametrize(
    ("part", "value", "name"),
    [
        ("version", "1.0", "RobertaTokenizer"),
        ("pre_tokenizer", BYTES | {"add_prefix_space": True}, "TokenizersBackend"),  # other offsets
        ("model.continuing_subword_prefix", None, "RobertaTokenizer"),
        ("normalizer", {"type": "Lowercase"}, "TokenizersBackend"),
        ("pre_tokenizer", BYTES | {"use_regex": False}, "TokenizersBackend"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}, "TokenizersBackend"),
        (
            "post_processor",
            {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
            "TokenizersBackend",
        ),
        ("model.ignore_merges", True, "TokenizersBackend"),
    ],
)
def test_a_byte_level_tokenizer_with_other_rules_than_robertas_is_not_called_robertas(
    tmp_path: Path, part: str, value: Any, name: str
) -> None:
    Tokenizer.load(byte_level_files(tmp_path)).save(tmp_path / "first")
    path = tmp_path / "first" / "tokenizer.json"
    content = json.loads(path.read_text())
    changed(content, part, value)
    path.write_text(json.dumps(content))
    (tmp_path / "first" / "tokenizer_config.json").unlink()  # whose class would not follow the file
    assert same_as_transformers(Tokenizer.load(path.parent), tmp_path / "saved") == name
