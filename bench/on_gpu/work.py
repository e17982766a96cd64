"""Made-up batches of real lengths: what a step costs hangs on lengths, not on what the words are.

W   sequences     N   tokens in the packed batch     V   vocabulary
"""

import string
from collections.abc import Sequence
from itertools import islice, product

import numpy as np
import numpy.typing as npt

from bertsmith.data.batch import Sequences
from bertsmith.tasks.examples.encoding import EncodedExample, Window, join_segments
from bertsmith.text.tokens.tokenizer import Tokenizer

Integers = npt.NDArray[np.int64]
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CONTINUING = 4  # every fourth piece goes on with a word, for masks of whole words

# Lengths in tokens under BERT's uncased vocabulary, special ones included, at these shares of the sequences.
_SHARES = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
_QUANTILES = {
    # 20,000 of SST-2's training sentences (mean 13.3)
    "sst2": (3, 3, 4, 4, 6, 7, 8, 10, 12, 16, 20, 27, 33, 44, 63),
    # a third each of SQuAD's paragraphs, SST-2's sentences and ReQA-SQuAD's, cut at 256 (mean 67.5)
    "texts": (3, 4, 5, 7, 12, 19, 25, 33, 45, 100, 135, 179, 216, 256, 256),
    # 4,793 pairs that the loader makes of Wikipedia's articles at a maximum of 512 (mean 213)
    "pairs": (5, 19, 33, 43, 60, 79, 107, 150, 208, 283, 413, 512, 512, 512, 512),
}


def made_up_tokenizer(pieces: int) -> Tokenizer:
    """V pieces: special tokens, then words of letters."""
    letters = ("".join(each) for size in (3, 4) for each in product(string.ascii_lowercase, repeat=size))
    words = islice(letters, pieces - len(_SPECIAL))
    spelled = [word if number % _CONTINUING else f"##{word}" for number, word in enumerate(words)]
    return Tokenizer.from_pieces([*_SPECIAL, *spelled], lowercase=True)


def draw_lengths(kind: str, count: int, draw: np.random.Generator, longest: int) -> Integers:
    """(W,) by the quantiles of a kind, straight lines between them; `longest` cuts them."""
    found = np.interp(draw.random(count), _SHARES, _QUANTILES[kind])
    return np.minimum(found.round().astype(np.int64), longest)


def pairs(kind: str, tokens: int, number: int, tokenizer: Tokenizer, longest: int = 512) -> Sequences:
    """About N = `tokens` of next-sentence pairs: `kind` is a length all have, or "mixed"."""
    draw = np.random.default_rng([number, tokens])
    if kind == "mixed":
        drawn = draw_lengths("pairs", tokens // 4, draw, longest)
        lengths = drawn[: max(int((drawn.cumsum() <= tokens).sum()), 1)]
    else:
        lengths = np.full(max(tokens // int(kind), 1), int(kind), np.int64)
    ends = lengths.cumsum()
    token_ids = draw.integers(len(_SPECIAL), tokenizer.vocab_size, int(ends[-1]))
    middles = ends - lengths + lengths // 2
    token_ids[ends - lengths] = tokenizer.cls_id
    token_ids[middles] = token_ids[ends - 1] = tokenizer.sep_id
    places = np.arange(len(token_ids))
    second = places > np.repeat(middles, lengths)
    keys = draw.integers(0, 2**63, len(lengths), np.uint64)
    return Sequences(token_ids, second.astype(np.int64), lengths, keys, draw.integers(0, 2, len(lengths)))


def encoded_texts(
    kind: str, count: int, tokenizer: Tokenizer, longest: int, *, every_row: bool
) -> list[EncodedExample]:
    """Texts as sequences for an encoder; the target is one of two classes."""
    draw = np.random.default_rng(count)
    found = []
    for length in draw_lengths(kind, count, draw, longest).tolist():
        ids = draw.integers(len(_SPECIAL), tokenizer.vocab_size, max(length - 2, 1)).tolist()
        token_ids, segment_ids = join_segments(tokenizer, ids)
        rows = np.arange(len(token_ids)) if every_row else np.zeros(1, np.int64)
        found.append(EncodedExample((Window(token_ids, segment_ids, rows),), int(draw.integers(2))))
    return found


def written_texts(kind: str, count: int, tokenizer: Tokenizer, longest: int) -> list[str]:
    """Texts of the same lengths as `encoded_texts`, of words that are one piece each."""
    draw = np.random.default_rng(count)
    words = [piece for piece in tokenizer.pieces[len(_SPECIAL) :] if not piece.startswith("##")]
    lengths = draw_lengths(kind, count, draw, longest)
    return [" ".join(draw.choice(words, max(int(length) - 2, 1))) for length in lengths]


def count_tokens(encoded: Sequence[EncodedExample]) -> int:
    """Real ones, over all windows."""
    return sum(len(window.token_ids) for each in encoded for window in each.windows)
