"""How often each piece occurs in a text: the baseline of every guess, and where a new vocabulary bias begins.

V vocabulary.
"""

import numpy as np
import numpy.typing as npt

from bertsmith.data.store import TokenStore
from bertsmith.text.tokens.tokenizer import Tokenizer

_COUNTED_TOKENS = 1_000_000  # enough to know the most frequent piece, the baseline of every evaluation


def piece_counts(store: TokenStore, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """(V,) in the first million tokens; special tokens 0."""
    counts = np.bincount(store.tokens[:_COUNTED_TOKENS], minlength=tokenizer.vocab_size)
    counts[list(tokenizer.special_ids)] = 0
    return counts


def most_frequent_piece(store: TokenStore, tokenizer: Tokenizer) -> int:
    """Its id. A special token such as [UNK] is never a label, so none counts."""
    return int(piece_counts(store, tokenizer).argmax())
