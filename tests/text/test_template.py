"""Special tokens stand where the tokenizer's file says, as transformers puts them."""

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from bertsmith.tasks.examples.encoding import join_segments, special_tokens
from bertsmith.text.tokens.template import Template
from bertsmith.text.tokens.tokenizer import Tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def modern_folder(folder: Path, template: str) -> Path:
    """A byte-level vocabulary with BERT's special tokens, as ModernBERT's and Ettin's."""
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *BYTES])}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    if template:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=template, special_tokens=ids
        )
    backend.add_special_tokens(SPECIAL)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "pair", ["[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "[CLS] $A [SEP] $B [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"]
)
def test_a_pair_is_joined_as_the_file_says(pair: str, tmp_path: Path) -> None:
    folder = modern_folder(tmp_path / "tokenizer", pair)
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    first, second = ours.encode("some words").ids, ours.encode("others").ids
    for texts, pieces in ((("some words",), (first,)), (("some words", "others"), (first, second))):
        expected = theirs(*texts, return_token_type_ids=True)
        token_ids, segment_ids = join_segments(ours, *pieces)
        assert token_ids.tolist() == expected["input_ids"]
        assert segment_ids.tolist() == expected["token_type_ids"]
        assert special_tokens(ours, len(texts)) == len(token_ids) - sum(map(len, pieces))


def test_a_file_without_a_template_has_berts_where_its_first_token_is_berts(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(modern_folder(tmp_path / "tokenizer", ""))
    assert tokenizer.template == Template((1,), (2,), (2,), (0, 1))


def test_roberta_has_two_separators_and_one_segment(tmp_path: Path) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *BYTES, "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = Tokenizer.load(tmp_path)
    token_ids, segment_ids = join_segments(tokenizer, [10, 11], [12])
    assert token_ids.tolist() == [0, 10, 11, 2, 2, 12, 2]
    assert not np.any(segment_ids)
    assert (special_tokens(tokenizer, 1), special_tokens(tokenizer, 2)) == (2, 4)
