"""Prunes a vocabulary to the tokens that some texts use; these texts are tokenized as before.

WordPiece takes the longest token that fits: if all tokens of a text are kept, it takes the same ones again.
Byte pairs are merged in the order of the merges: if all merges that led to a text's tokens are kept, it is
merged in the same way, Gemma's pieces too. Unigram takes the most likely tokens: if they are kept, none is
likelier.

V tokens, K of them kept.
"""

import itertools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Bools, Ints
from bertsmith.text.tokens.tokenizer import Tokenizer, rebuild
from bertsmith.text.tokens.unigram import BYTE_PIECE
from bertsmith.text.tokens.word_cache import WordCache

_AT_A_TIME = 4096  # texts


class PrunedTokenizer(NamedTuple):
    """The new tokenizer, and the old ids of its tokens (K,), ascending: the embeddings' rows to keep."""

    tokenizer: Tokenizer
    kept: Ints


def count_pieces(tokenizer: Tokenizer, texts: Iterable[str]) -> Ints:
    """(V,) how often each token occurs in the texts."""
    cache, counts = WordCache(tokenizer), np.zeros(tokenizer.vocab_size, np.int64)
    batch = list[str]()
    for text in texts:
        batch.append(text)
        if len(batch) == _AT_A_TIME:
            counts += np.bincount(cache.encode(batch)[0], minlength=len(counts))
            batch = []
    if batch:
        counts += np.bincount(cache.encode(batch)[0], minlength=len(counts))
    return counts


def prune(tokenizer: Tokenizer, counts: Ints) -> PrunedTokenizer:
    """The tokenizer with the tokens whose count (V,) isn't 0, the special tokens, and single characters.

    The latter are those of the counted tokens and of ASCII, so that a new word is spelled rather than
    unknown. A byte-level vocabulary keeps all 256 bytes, and the tokens and merges that lead to the kept
    tokens. A Unigram vocabulary keeps its scores, and the token with the lowest one, by which unknown
    characters are rated.
    """
    is_kept = counts > 0
    is_kept[list(tokenizer.special_ids)] = True
    content = json.loads(tokenizer.backend.to_str())
    for added in content["added_tokens"]:
        is_kept[added["id"]] |= added["special"]
    if tokenizer.family == "wordpiece":
        prefix = tokenizer.backend.model.continuing_subword_prefix
        plain = [piece.removeprefix(prefix) or piece for piece in tokenizer.pieces]
        letters = {letter for piece in itertools.compress(plain, is_kept) for letter in piece}
        # Both the forms at a word's beginning and those within a word.
        is_kept |= [len(text) == 1 and (text in letters or text.isascii()) for text in plain]
    elif tokenizer.is_sentencepiece:
        letters = {letter for piece in itertools.compress(tokenizer.pieces, is_kept) for letter in piece}
        is_kept |= [
            (len(piece) == 1 and (piece in letters or piece.isascii())) or bool(BYTE_PIECE.fullmatch(piece))
            for piece in tokenizer.pieces
        ]
        is_kept[: tokenizer.pad_id] = True  # RoBERTa's kind counts positions from the padding's id
        if tokenizer.family == "unigram":
            is_kept[min(enumerate(content["model"]["vocab"]), key=lambda entry: entry[1][1])[0]] = True
        else:
            _keep_parts(content["model"], is_kept)
    else:
        is_kept |= [len(piece) == 1 for piece in tokenizer.pieces]
        _keep_parts(content["model"], is_kept)
    kept = np.flatnonzero(is_kept)
    return PrunedTokenizer(rebuild(tokenizer, _renumber(content, kept)), kept)


def _keep_parts(model: dict[str, Any], is_kept: Bools) -> None:
    """Marks in `is_kept` (V,) the tokens that kept ones are merged from, directly or indirectly."""
    parts: dict[int, list[int]] = {}
    ids = model["vocab"]
    for pair in model["merges"]:
        left, right = _as_pair(pair)
        parts.setdefault(ids[left + right], []).extend((ids[left], ids[right]))
    pending = np.flatnonzero(is_kept).tolist()
    while pending:
        for part in parts.get(pending.pop(), ()):
            if not is_kept[part]:
                is_kept[part] = True
                pending.append(part)


def _renumber(content: dict[str, Any], kept: Ints) -> dict[str, Any]:
    """The content of tokenizer.json with only the tokens `kept` (K,); a token's id is its index there."""
    new_ids = {int(old): new for new, old in enumerate(kept)}
    model = content["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [entry for old, entry in enumerate(model["vocab"]) if old in new_ids]
        model["unk_id"] = new_ids[model["unk_id"]]
    else:
        model["vocab"] = {piece: new_ids[old] for piece, old in model["vocab"].items() if old in new_ids}
    if "merges" in model:
        vocabulary = model["vocab"]
        pairs = map(_as_pair, model["merges"])
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if left in vocabulary and right in vocabulary and left + right in vocabulary
        ]
    content["added_tokens"] = [
        added | {"id": new_ids[added["id"]]} for added in content["added_tokens"] if added["id"] in new_ids
    ]
    _renumber_processor(content.get("post_processor"), new_ids)
    return content


def _renumber_processor(processor: dict[str, Any] | None, new_ids: dict[int, int]) -> None:
    """Replaces the ids of the special tokens that a post-processor puts around texts."""
    if processor is None:
        return
    for inner in processor.get("processors", ()):
        _renumber_processor(inner, new_ids)
    for end in ("sep", "cls"):
        if end in processor:
            token, old = processor[end]
            processor[end] = [token, new_ids[old]]
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [new_ids[old] for old in token["ids"]]


def _as_pair(merge: str | list[str]) -> tuple[str, str]:
    """The two sides of a merge, which older files write as 'a b' rather than ['a', 'b']."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right
