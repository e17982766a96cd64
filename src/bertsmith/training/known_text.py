"""Text of a language that the vocabulary wasn't made for: refused where all of it is unknown, else told of.

Of [UNK] nothing is learned: it is never masked, and every unknown word is the same to the model.
"""

import numpy as np

from bertsmith.data.store import TokenStore
from bertsmith.errors import CorpusError
from bertsmith.text.tokens.tokenizer import Tokenizer

_READ_TOKENS = 1_000_000
_MUCH = 0.1  # of the tokens; BERT's vocabularies have far under 0.01 in their own languages


def note_on_unknown(store: TokenStore, tokenizer: Tokenizer) -> tuple[str, ...]:
    """A sentence where more than a tenth of the first million tokens is unknown. Raises CorpusError where all
    of them are.
    """
    unknown = store.tokens[:_READ_TOKENS] == tokenizer.unk_id
    share = float(np.mean(unknown)) if len(unknown) else 0.0
    piece = tokenizer.id_to_token(tokenizer.unk_id)
    if share == 1.0:
        raise CorpusError(
            f"{store.path} holds nothing that the vocabulary knows: every token is {piece}, and nothing can "
            "be learned. Take a tokenizer for text like it; `bertsmith tokenizer train` makes one."
        )
    if share <= _MUCH:
        return ()
    return (
        f"{share:.0%} of the tokens in {store.path} are {piece}, of which nothing is learned: "
        "`bertsmith tokenizer report` shows what is unknown, `bertsmith tokenizer train` makes a vocabulary "
        "for the text",
    )
