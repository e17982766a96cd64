"""A vocabulary's tokens as people read them, and how many characters of text each one stands for.

V tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.text.tokens.byte_level import BYTE_SYMBOLS
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.unigram import BYTE_PIECE, MARK

_CONTINUATION_BYTES = range(0x80, 0xC0)  # UTF-8 bytes that don't begin a character


def describe_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """For each token id, for a page to show: its `text` without the vocabulary's marks, whether it continues
    the word before it (`joined`), and whether it is a special token such as [CLS] (`special`).
    """
    descriptions = []
    for token_id, begins in zip(ids, tokenizer.begins_words(ids).tolist(), strict=True):
        special = token_id in tokenizer.special_ids
        joined = not begins and not special
        text = tokenizer.id_to_token(token_id)
        if not special and tokenizer.family == "wordpiece":
            text = text.removeprefix(tokenizer.backend.model.continuing_subword_prefix) if joined else text
        elif not special:
            text = tokenizer.decode([token_id], skip_special_tokens=False).strip() or text
        descriptions.append({"text": text, "joined": joined, "special": special})
    return descriptions


def _map_symbols_to_bytes() -> dict[str, int]:
    """Maps each symbol to its byte: printable bytes stand for themselves, and the characters from 256 on for
    the others in order (Radford et al. 2019, bytes_to_unicode).
    """
    printable = {ord(symbol): symbol for symbol in BYTE_SYMBOLS if ord(symbol) < 256}
    others = iter(sorted(symbol for symbol in BYTE_SYMBOLS if ord(symbol) >= 256))
    return {printable[byte] if byte in printable else next(others): byte for byte in range(256)}


_BYTES = _map_symbols_to_bytes()


def count_piece_characters(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """(V,) how many characters each token stands for; blanks and special tokens count none.

    Of a byte-level token the bytes that begin a character are counted, so that the tokens of a word add up to
    its characters.
    """
    special_ids = set(tokenizer.special_ids)
    if tokenizer.family == "byte-level":
        token_bytes = ([_BYTES.get(symbol, 0) for symbol in piece] for piece in tokenizer.pieces)
        lengths = [
            sum(byte not in _CONTINUATION_BYTES and not bytes([byte]).isspace() for byte in bytes_of_token)
            for bytes_of_token in token_bytes
        ]
    elif tokenizer.is_sentencepiece:
        lengths = [
            0 if BYTE_PIECE.fullmatch(piece) else len(piece.replace(MARK, "")) for piece in tokenizer.pieces
        ]
    else:
        prefix = tokenizer.backend.model.continuing_subword_prefix
        lengths = [len(piece.removeprefix(prefix) or piece) for piece in tokenizer.pieces]
    return np.array(
        [0 if token_id in special_ids else length for token_id, length in enumerate(lengths)], np.int64
    )
