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

    Raises TokenizerError for a piece that is there already, and where an added token would be read elsewhere.
    """
    content, vocabulary = _content(tokenizer), set(tokenizer.pieces)
    _keep_ids_of_added_tokens(content, tokenizer)
    for number, piece in enumerate(pieces, start=tokenizer.vocab_size):
        if piece in vocabulary:
            raise TokenizerError(f"The piece {piece!r} is in the vocabulary already. Each may stand once.")
        vocabulary.add(piece)
        content["model"]["vocab"][piece] = number
    if tokenizer.family == "byte-level":
        content["model"]["merges"] += [list(merge) for merge in merges]
    return _tokenizer(content, tokenizer)


def without_pieces(tokenizer: Tokenizer, count: int, merges: int = 0, outside: int = 0) -> Tokenizer:
    """Without the last `count` pieces and the last `merges` merges: what `with_pieces` added to a tokenizer
    with so many pieces `outside` its model.

    Raises TokenizerError when one of these is not the model's own, as a special token that was added later.
    """
    content, base = _content(tokenizer), tokenizer.vocab_size - count
    # id_to_token has small letters for an added token that an uncased tokenizer compares in them
    for number, piece in enumerate(tokenizer.pieces[base:], start=base):
        if content["model"]["vocab"].pop(piece, None) != number:
            raise TokenizerError(
                f"The piece {piece!r} was added to the tokenizer by other means, after the words that are "
                "to be removed. Remove it first."
            )
    for piece in tokenizer.pieces[base - outside : base]:
        content["model"]["vocab"].pop(piece, None)
    if merges:
        del content["model"]["merges"][-merges:]
    return _tokenizer(content, tokenizer)


def outside_model(tokenizer: Tokenizer) -> int:
    """How many pieces, the last ones, are added tokens that the model's own vocabulary doesn't have."""
    return tokenizer.vocab_size - tokenizer.backend.get_vocab_size(with_added_tokens=False)


def merges_of(tokenizer: Tokenizer) -> list[Merge]:
    """Those of a byte-level vocabulary, the first that is done in front."""
    found = _content(tokenizer)["model"]["merges"]
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in found)
    return [(left, right) for left, right in pairs]


def _keep_ids_of_added_tokens(content: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Those outside the model's vocabulary join it: the library numbers them behind whatever is in it."""
    vocabulary = content["model"]["vocab"]
    for token in content["added_tokens"]:
        if token["content"] not in vocabulary and _would_be_read(token, tokenizer):
            raise TokenizerError(
                f"The added token {token['content']!r} is read only where a text spells it in these letters, "
                "or where it stands alone. As a piece of the vocabulary it would be read elsewhere too. The "
                "vocabulary can't be extended."
            )
        vocabulary.setdefault(token["content"], token["id"])


def _would_be_read(token: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """True where the vocabulary would find the token in a text that spells it otherwise, in capitals say, or
    within a word.
    """
    spelling, model = token["content"], tokenizer.backend.model
    if tokenizer.family == "byte-level" and not model.ignore_merges:
        return False  # no merge leads to it
    splitter = tokenizer.backend.pre_tokenizer
    whole = splitter is None or len(splitter.pre_tokenize_str(spelling)) == 1
    within = tokenizer.family == "wordpiece" and spelling.startswith(model.continuing_subword_prefix)
    found = (whole or within) and tokenizer.normalise(spelling) == spelling
    return found and (not token["normalized"] or token["single_word"])


def _content(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tokenizer.json holds."""
    content: dict[str, Any] = json.loads(tokenizer.backend.to_str())
    return content


def _tokenizer(content: dict[str, Any], like: Tokenizer) -> Tokenizer:
    roles = {"pad": like.pad_id, "unk": like.unk_id, "cls": like.cls_id, "sep": like.sep_id}
    special = {role: like.pieces[number] for role, number in (roles | {"mask": like.mask_id}).items()}
    backend = Backend.from_str(json.dumps(content, ensure_ascii=False))
    return Tokenizer(backend, special, like.truncation, like.one_segment)
