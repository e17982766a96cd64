"""A table learned from texts and their vectors: the rows whose sums point where the teacher's vectors do.

A text's vector is c W, its counts of pieces times the table. Least squares on ‖c W / ‖c W‖ − y‖ is not
linear in W, but with the length ‖c W‖ from the table of the round before it is: some rounds of conjugate
gradients, each begun from the last table and ended early, which keeps rows of pieces that hardly occur near
where they were. The round that is best on texts held out is kept. No learning rate, no seed, and seconds
instead of the minutes that gradient descent takes (model2vec's "tokenlearn").

E texts, V pieces, D width of the table.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from bertsmith.inference.embedding.vectors import Vectors, normalised
from bertsmith.progress import Progress
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache

ROUNDS = 12
_STEPS = 15  # of conjugate gradients a round: more fit the texts better and others worse
_GAIN = 1e-3  # of the cosine on held-out texts, below which the rounds end
_SHORTEST = 1e-3  # length of a sum, before it divides


class Learned(NamedTuple):
    """The table (V, D), and the mean cosine to the teacher's vectors on texts held out, before and after."""

    table: Vectors
    before: float
    after: float
    rounds: int


def piece_counts(texts: Sequence[str], tokenizer: Tokenizer) -> sparse.csr_matrix:
    """(E, V) float32: how often each text has each piece. Special ones, [UNK] among them, are left out."""
    ids, lengths = WordCache(tokenizer).encode(texts)
    rows = np.repeat(np.arange(len(texts)), lengths)
    usual = ~np.isin(ids, tokenizer.special_ids)
    ones = np.ones(int(usual.sum()), np.float32)
    shape = len(texts), tokenizer.vocab_size
    return sparse.coo_matrix((ones, (rows[usual], ids[usual])), shape).tocsr()


def unknown_share(texts: Sequence[str], tokenizer: Tokenizer) -> float:
    """Of the texts' pieces: those that stand for a word which the vocabulary can't spell."""
    ids, _ = WordCache(tokenizer).encode(texts)
    return float((ids == tokenizer.unk_id).mean())


def learn_table(
    table: Vectors,
    counts: sparse.csr_matrix,
    vectors: Vectors,
    heldout: int,
    progress: Progress | None = None,
) -> Learned:
    """From the table (V, D) to start with; the first `heldout` of the E texts are not learned from.

    `counts` (E, V) and `vectors` (E, D), the teacher's.
    """
    own, others = counts[:heldout], counts[heldout:]
    before = cosine(own @ table, vectors[:heldout])
    best, found, rounds = table, before, 0
    for number in range(1, ROUNDS + 1):
        table = _one_round(table, others, normalised(vectors[heldout:]))
        after = cosine(own @ table, vectors[:heldout])
        if progress is not None:
            progress(number, ROUNDS, "rounds")
        if after > found:
            best, rounds = table, number
        if after < found + _GAIN:
            break
        found = after
    return Learned(best, before, cosine(own @ best, vectors[:heldout]), rounds)


def cosine(found: Vectors, wanted: Vectors) -> float:
    """The mean over (E, D) and (E, D)."""
    return float(np.einsum("ed,ed->e", normalised(found), normalised(wanted)).mean())


def _one_round(table: Vectors, counts: sparse.csr_matrix, vectors: Vectors) -> Vectors:
    """Least squares over W of ‖S C W − y‖, S the inverse lengths by the table given, from that table."""
    lengths = np.linalg.norm(counts @ table, axis=1)
    scaled = (sparse.diags(1 / np.maximum(lengths, _SHORTEST), dtype=np.float32) @ counts).tocsr()
    across = scaled.T.tocsr()
    change = np.zeros_like(table)
    residual = across @ (vectors - scaled @ table)
    direction, size = residual.copy(), float(np.vdot(residual, residual))
    for _ in range(_STEPS):
        if size <= 0:
            break
        image = across @ (scaled @ direction)
        step = size / float(np.vdot(direction, image))
        change += step * direction
        residual -= step * image
        size, last = float(np.vdot(residual, residual)), size
        direction = residual + (size / last) * direction
    return np.asarray(table + change, np.float32)
