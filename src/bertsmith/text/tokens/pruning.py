"""A tokenizer with fewer pieces, which reads the texts that its pieces were counted on as before.

WordPiece takes the longest piece that fits: with all pieces that a text has, it takes the same ones again.
Byte pairs are merged in the order of the merges: with all those that led to a text's pieces, the same happen.

V pieces, K of them kept.
"""

import itertools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from bertsmith.arrays import Bools, Ints
from bertsmith.text.tokens.tokenizer import Tokenizer, rebuild
from bertsmith.text.tokens.word_cache import WordCache

_AT_A_TIME = 4096  # texts


class PrunedTokenizer(NamedTuple):
    """`kept` (K,) are the old ids of the new tokenizer's pieces, ascending: the rows that stay of a table."""

    tokenizer: Tokenizer
    kept: Ints


def count_pieces(tokenizer: Tokenizer, texts: Iterable[str]) -> Ints:
    """(V,) how often each piece stands in the texts."""
    words, counts = WordCache(tokenizer), np.zeros(tokenizer.vocab_size, np.int64)
    held = list[str]()
    for text in texts:
        held.append(text)
        if len(held) == _AT_A_TIME:
            counts += np.bincount(words.encode(held)[0], minlength=len(counts))
            held = []
    if held:
        counts += np.bincount(words.encode(held)[0], minlength=len(counts))
    return counts


def prune(tokenizer: Tokenizer, counts: Ints) -> PrunedTokenizer:
    """With the pieces whose count (V,) isn't 0, the special ones, and, so that a new word is spelled rather
    than unknown, each single character that a counted piece has or that is ASCII; of byte pairs all 256
    bytes.
    """
    wanted = counts > 0
    wanted[list(tokenizer.special_ids)] = True
    content = json.loads(tokenizer.backend.to_str())
    for added in content["added_tokens"]:
        wanted[added["id"]] |= added["special"]
    if tokenizer.family == "wordpiece":
        prefix = tokenizer.backend.model.continuing_subword_prefix
        plain = [piece.removeprefix(prefix) or piece for piece in tokenizer.pieces]
        known = {letter for piece in itertools.compress(plain, wanted) for letter in piece}
        # At a word's beginning, or within it.
        wanted |= [len(text) == 1 and (text in known or text.isascii()) for text in plain]
    else:
        wanted |= [len(piece) == 1 for piece in tokenizer.pieces]
        _close_merges(content["model"], wanted)
    kept = np.flatnonzero(wanted)
    return PrunedTokenizer(rebuild(tokenizer, _renumber(content, kept)), kept)


def _close_merges(model: dict[str, Any], wanted: Bools) -> None:
    """Also the pieces that wanted ones are merged from, and those from which these are."""
    parts: dict[int, list[int]] = {}
    ids = model["vocab"]
    for pair in model["merges"]:
        left, right = _as_pair(pair)
        parts.setdefault(ids[left + right], []).extend((ids[left], ids[right]))
    waiting = np.flatnonzero(wanted).tolist()
    while waiting:
        for part in parts.get(waiting.pop(), ()):
            if not wanted[part]:
                wanted[part] = True
                waiting.append(part)


def _renumber(content: dict[str, Any], kept: Ints) -> dict[str, Any]:
    """tokenizer.json with the kept pieces alone, each under its place among them."""
    new = {int(old): number for number, old in enumerate(kept)}
    model = content["model"]
    model["vocab"] = {piece: new[old] for piece, old in model["vocab"].items() if old in new}
    if "merges" in model:
        vocabulary = model["vocab"]
        pairs = map(_as_pair, model["merges"])
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if left in vocabulary and right in vocabulary and left + right in vocabulary
        ]
    content["added_tokens"] = [
        added | {"id": new[added["id"]]} for added in content["added_tokens"] if added["id"] in new
    ]
    _renumber_ends(content.get("post_processor"), new)
    return content


def _renumber_ends(processor: dict[str, Any] | None, new: dict[int, int]) -> None:
    """The ids of special tokens that stand around texts."""
    if processor is None:
        return
    for inner in processor.get("processors", ()):
        _renumber_ends(inner, new)
    for end in ("sep", "cls"):
        if end in processor:
            token, old = processor[end]
            processor[end] = [token, new[old]]
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [new[old] for old in token["ids"]]


def _as_pair(merge: str | list[str]) -> tuple[str, str]:
    """Older files have 'a b' for ['a', 'b']."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right
