"""The pieces of a text have as many characters as the text, blanks apart, whatever they are cut into."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizer_samples import SPECIAL, byte_level_files

from bertsmith.text.tokens.pieces import count_piece_characters, describe_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer, rebuild

TEXTS = ["he heard: café, 漢字 und 😀 №1", " \t\n he  he\u00a0he", "Ġ and Ċ are letters", "", "ñ" * 9]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_pieces_add_up_to_the_text(text: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_files(tmp_path))
    counted = count_piece_characters(tokenizer)[tokenizer.encode(text).ids].sum()
    # U+00A0 is two bytes, neither of which is a blank by itself
    assert counted == len("".join(text.replace("\u00a0", "x").split()))


def test_word_pieces_add_up_to_the_text_as_it_is_normalised() -> None:
    pieces = [*SPECIAL, "he", "##ar", "##d", ":", "cafe", "##", "#", "字"]
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    counts = count_piece_characters(tokenizer)
    assert counts[tokenizer.encode("Heard: Café 字 ##").ids].sum() == len("heard:cafe字##")
    assert counts[list(tokenizer.special_ids)].tolist() == [0] * 5
    assert counts.dtype == np.int64


def test_a_piece_is_shown_without_the_mark_of_its_own_vocabulary() -> None:
    """Which is ## in BERT's, and may be another in a tokenizer.json."""
    tokenizer = Tokenizer.from_pieces([*SPECIAL, "he", "@@ard"], lowercase=True)
    content = json.loads(tokenizer.backend.to_str())
    content["model"]["continuing_subword_prefix"] = "@@"
    tokenizer = rebuild(tokenizer, content)
    ids = tokenizer.encode("heard").ids
    assert [token["text"] for token in describe_tokens(tokenizer, ids)] == ["he", "ard"]
