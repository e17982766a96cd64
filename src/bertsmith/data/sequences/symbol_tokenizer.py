"""A vocabulary of whole symbols as a tokenizer: a symbol is one token, or [UNK].

It is WordPiece without continuations, between blanks, so that whatever reads BERT's tokenizers reads it too.
"""

import re
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from bertsmith.errors import InputError
from bertsmith.text.files.values import shown
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.tokenizer_json import MAX_PIECES

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_SYMBOL = 1000  # characters
_BLANK = re.compile(r"\s+")
_HALF_OF_A_PAIR = re.compile(r"[\ud800-\udfff]")
_NEVER = " "  # what a continued piece begins with: no symbol holds a blank, so there is none


def as_symbol(value: object, where: str) -> str:
    """One item of a sequence as a symbol: integers and strings, white space in a string as "_".

    Raises InputError for anything else: numbers with a fraction have no vocabulary, and nulls no meaning.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        if isinstance(value, float) and value.is_integer():  # pandas makes these of integers beside a null
            return str(int(value))
        raise InputError(
            f"{where}: expected integers or strings as the items of a sequence, found {shown(value)}. "
            "Measured numbers are read with --kind table, one a column."
        )
    symbol = _BLANK.sub("_", value.strip()) if isinstance(value, str) else str(value)
    if not symbol or symbol in SPECIAL or len(symbol) > LONGEST_SYMBOL:
        raise InputError(
            f"{where}: {shown(value)} can't be an item of a sequence: it is empty, longer than "
            f"{LONGEST_SYMBOL:,} characters, or a special token. Rename it."
        )
    if _HALF_OF_A_PAIR.search(symbol):
        raise InputError(
            f"{where}: {shown(value)} can't be an item of a sequence: it has half of a character, which was "
            "cut within a UTF-16 pair. Mend the text."
        )
    return symbol


def spelled(number: float) -> str:
    """With every digit that it takes to read the same number again: 3 for 3.0."""
    return repr(number).removesuffix(".0")


def choose_symbols(counts: Counter[str], min_count: int, vocab_size: int) -> list[str]:
    """The most frequent symbols that occur at least `min_count` times, at most `vocab_size` tokens with the
    special ones; of equally frequent ones those first in the alphabet. Raises InputError when none is left.
    """
    frequent = ((symbol, count) for symbol, count in counts.items() if count >= min_count)
    ranked = sorted(frequent, key=lambda each: (-each[1], each[0]))
    kept = [symbol for symbol, _ in ranked[: min(vocab_size, MAX_PIECES) - len(SPECIAL)]]
    if not kept:
        raise InputError(
            f"None of {len(counts):,} different symbols occurs {min_count} times or more. Lower --min-count."
        )
    return kept


def symbol_tokenizer(symbols: Iterable[str]) -> Tokenizer:
    """A tokenizer whose ids are the five special tokens', then the symbols' in their order."""
    vocabulary = {piece: number for number, piece in enumerate((*SPECIAL, *symbols))}
    model = models.WordPiece(
        vocabulary,
        unk_token="[UNK]",
        max_input_chars_per_word=LONGEST_SYMBOL,
        continuing_subword_prefix=_NEVER,
    )
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix=_NEVER, cleanup=False)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    backend.add_special_tokens(list(SPECIAL))
    roles = ("pad", "unk", "cls", "sep", "mask")
    return Tokenizer(backend, dict(zip(roles, SPECIAL, strict=True)))
