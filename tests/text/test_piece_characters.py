"""The pieces of a text have as many characters as the text, blanks apart, whatever they are cut into."""

from pathlib import Path

import numpy as np
import pytest
from tokenizer_samples import SPECIAL, byte_level_files

from bertsmith.text.tokens.pieces import count_piece_characters
from bertsmith.text.tokens.tokenizer import Tokenizer

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
