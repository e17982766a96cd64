"""A tokenizer with pieces behind those it has, and again without them.

Old pieces keep their ids, and the file without the added ones is the old file to the byte.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens.tokenizer import Tokenizer

Merge = tuple[str, str]


def with_pieces(tokenizer: Tokenizer, pieces: Sequence[str], merges: Iterable[Merge] = ()) -> Tokenizer:
    """`pieces` get the ids from V on; `merges` of a byte-level vocabulary come behind all others.

    Raises TokenizerError for a piece that is there already.
    """
    content, vocabulary = _content(tokenizer), set(tokenizer.pieces)
    for number, piece in enumerate(pieces, start=tokenizer.vocab_size):
        if piece in vocabulary:
            raise TokenizerError(f"The piece {piece!r} is in the vocabulary already. Each may stand once.")
        vocabulary.add(piece)
        content["model"]["vocab"][piece] = number
    if tokenizer.family == "byte-level":
        content["model"]["merges"] += [list(merge) for merge in merges]
    return _tokenizer(content, tokenizer)


def without_pieces(tokenizer: Tokenizer, count: int, merges: int = 0) -> Tokenizer:
    """Without the last `count` pieces and the last `merges` merges: what `with_pieces` added.

    Raises TokenizerError when one of these is not the model's own, as a special token that was added later.
    """
    content = _content(tokenizer)
    for number in range(tokenizer.vocab_size - count, tokenizer.vocab_size):
        piece = tokenizer.id_to_token(number)
        if content["model"]["vocab"].pop(piece, None) != number:
            raise TokenizerError(
                f"The piece {piece!r} was added to the tokenizer by other means, after the words that are "
                "to be removed. Remove it first."
            )
    if merges:
        del content["model"]["merges"][-merges:]
    return _tokenizer(content, tokenizer)


def merges_of(tokenizer: Tokenizer) -> list[Merge]:
    """Those of a byte-level vocabulary, the first that is done in front."""
    found = _content(tokenizer)["model"]["merges"]
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in found)
    return [(left, right) for left, right in pairs]


def _content(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tokenizer.json holds."""
    content: dict[str, Any] = json.loads(tokenizer.backend.to_str())
    return content


def _tokenizer(content: dict[str, Any], like: Tokenizer) -> Tokenizer:
    roles = {"pad": like.pad_id, "unk": like.unk_id, "cls": like.cls_id, "sep": like.sep_id}
    special = {role: like.id_to_token(number) for role, number in (roles | {"mask": like.mask_id}).items()}
    return Tokenizer(Backend.from_str(json.dumps(content, ensure_ascii=False)), special)
