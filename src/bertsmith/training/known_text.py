"""Text of a language that the vocabulary wasn't made for: refused where all of it is unknown, else told of.

Of [UNK] nothing is learned: it is never masked, and every unknown word is the same to the model.
"""

from itertools import islice

import numpy as np

from bertsmith.data.masking import Masker
from bertsmith.data.mixed_stream import MixedStream
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import CorpusError
from bertsmith.text.tokens.tokenizer import Tokenizer

_READ_TOKENS = 1_000_000
_TRIED_BATCHES = 8
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


def require_masks(stream: PretrainingStream | MixedStream, masker: Masker) -> None:
    """Raises CorpusError where the first batches have no token that could be masked: such a run would show a
    loss of 0 and learn nothing.
    """
    batches = islice(stream.batches(Cursor()), _TRIED_BATCHES)
    if not any(masker.count(batch.sequences) for batch in batches):
        raise CorpusError(
            f"The first {_TRIED_BATCHES} batches have no token that could be masked, but only special tokens "
            "and unknown words. Take a tokenizer for text like it; `bertsmith tokenizer report` shows what "
            "is unknown."
        )
