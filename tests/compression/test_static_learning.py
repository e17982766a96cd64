"""A table learned from texts: against a table that is known, and what it must not do."""

import numpy as np
import pytest
from scipy import sparse
from static_samples import PIECES

from bertsmith.compression.static_learning import (
    count_tokens,
    learn_table,
    mean_cosine,
    principal_directions,
    sif_weights,
)
from bertsmith.text.tokens.tokenizer import Tokenizer


def made_up(texts: int, pieces: int, width: int) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """Counts, the directions that a hidden table gives them, and a noisy copy of it."""
    random = np.random.default_rng(1)
    counts = sparse.csr_matrix(random.poisson(0.2, (texts, pieces)).astype(np.float32))
    table = random.normal(size=(pieces, width)).astype(np.float32)
    found = counts @ table
    unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    return counts, unit.astype(np.float32), table + random.normal(0, 1.5, table.shape).astype(np.float32)


def test_the_directions_of_a_hidden_table_are_found_again() -> None:
    counts, vectors, start = made_up(texts=3000, pieces=60, width=8)
    learned = learn_table(start, counts, vectors, heldout=300)
    assert learned.before < 0.75
    assert learned.after > 0.99
    assert mean_cosine(counts[:300] @ learned.table, vectors[:300]) == pytest.approx(learned.after, abs=1e-6)


def test_a_piece_that_no_text_has_keeps_its_row() -> None:
    counts, vectors, start = made_up(texts=500, pieces=40, width=8)
    counts = counts.tolil()
    counts[:, 7] = 0
    learned = learn_table(start, counts.tocsr(), vectors, heldout=50)
    assert learned.rounds > 0
    np.testing.assert_array_equal(learned.table[7], start[7])
    assert not np.allclose(learned.table[8], start[8], atol=0.01)


def test_a_table_that_learning_makes_worse_is_kept_as_it_was() -> None:
    """Vectors of pure noise: what is learned of some says nothing of others."""
    random = np.random.default_rng(2)
    counts, vectors, _ = made_up(texts=200, pieces=300, width=8)
    heldout = 100
    truth = vectors[:heldout].copy()
    noise = random.normal(size=vectors.shape).astype(np.float32)
    noise[:heldout] = truth
    start = np.linalg.lstsq(counts[:heldout].toarray(), truth, rcond=None)[0].astype(np.float32)
    learned = learn_table(start, counts, noise, heldout)
    assert learned.rounds == 0
    np.testing.assert_array_equal(learned.table, start)


def test_counts_are_of_the_texts_pieces_without_special_ones() -> None:
    tokenizer = Tokenizer.from_pieces(PIECES, lowercase=True)
    counts = count_tokens(["cats cat ☃", "", "[CLS] dog"], tokenizer).toarray()
    cat, s, dog = (tokenizer.token_to_id(piece) for piece in ("cat", "##s", "dog"))
    assert counts[0, cat] == 2 and counts[0, s] == 1 and counts[0].sum() == 3
    assert counts[1].sum() == 0
    assert counts[2, dog] == 1
    assert not counts[:, list(tokenizer.special_ids)].any()


def test_principal_directions_keep_most_of_the_squares() -> None:
    vectors = np.random.default_rng(3).normal(size=(400, 10)).astype(np.float32) * np.arange(1, 11)
    onto = principal_directions(vectors.astype(np.float32), 4)
    np.testing.assert_allclose(onto.T @ onto, np.eye(4), atol=1e-5)
    best = np.linalg.svd(vectors, compute_uv=False)[:4]
    assert np.linalg.norm(vectors @ onto) ** 2 == pytest.approx((best**2).sum(), rel=1e-4)


def test_frequent_pieces_weigh_less() -> None:
    np.testing.assert_allclose(
        sif_weights(np.array([0.0, 1e-3, 0.1]), 1e-3), [1, 0.5, 1e-3 / 0.101], rtol=1e-6
    )
