"""A vocabulary's pieces as people read them, and how many characters of text each stands for.

V pieces.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.text.tokens.byte_level import BYTE_SYMBOLS
from bertsmith.text.tokens.tokenizer import Tokenizer

_CONTINUES = range(0x80, 0xC0)  # a byte of UTF-8 that is not a character's first


def describe_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """`text` of each, without the vocabulary's marks; whether it continues the word before it (`joined`), and
    whether it is [CLS] or its like (`special`).
    """
    found = []
    for number in ids:
        special = number in tokenizer.special_ids
        joined = bool(tokenizer.continues_word[number])
        text = tokenizer.id_to_token(number)
        if not special and tokenizer.family == "wordpiece":
            text = text.removeprefix("##") if joined else text
        elif not special:
            text = tokenizer.decode([number], skip_special_tokens=False).strip() or text
        found.append({"text": text, "joined": joined, "special": special})
    return found


def _bytes_of_symbols() -> dict[str, int]:
    """The byte that each symbol stands for: printable ones for themselves, the others in order from 256 on
    (Radford et al. 2019, bytes_to_unicode).
    """
    own = {ord(symbol): symbol for symbol in BYTE_SYMBOLS if ord(symbol) < 256}
    others = iter(sorted(symbol for symbol in BYTE_SYMBOLS if ord(symbol) >= 256))
    return {own[byte] if byte in own else next(others): byte for byte in range(256)}


_BYTES = _bytes_of_symbols()


def count_piece_characters(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """(V,) characters of each piece, as the vocabulary spells it; blanks and special tokens have none.

    Of a byte-level piece the bytes that begin a character are counted: pieces of one word add up to it.
    """
    special = set(tokenizer.special_ids)
    if tokenizer.family == "byte-level":
        bytes_of = ([_BYTES.get(symbol, 0) for symbol in piece] for piece in tokenizer.pieces)
        lengths = [
            sum(byte not in _CONTINUES and not bytes([byte]).isspace() for byte in of_piece)
            for of_piece in bytes_of
        ]
    else:
        prefix = tokenizer.backend.model.continuing_subword_prefix
        lengths = [len(piece.removeprefix(prefix) or piece) for piece in tokenizer.pieces]
    return np.array([0 if at in special else length for at, length in enumerate(lengths)], np.int64)
