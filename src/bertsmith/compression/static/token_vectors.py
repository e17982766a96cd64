"""A table from an embedding model alone, as model2vec makes it: each piece of the vocabulary through the
model, principal directions, and weights that take frequent pieces down (Tulkens and van Dongen 2024).

V pieces, H the teacher's width, D that of the table.
"""

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.inference.embedding.embedder import Embedder, pooled_in_batches, projected
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.model.bert import Bert
from bertsmith.progress import Progress

# Arora et al. 2017, "A simple but tough-to-beat baseline for sentence embeddings" (SIF): a / (a + p(piece)).
# Guessed frequencies take the smaller one, as in model2vec; counted ones the larger (see LOG.md).
GUESSED_COEFFICIENT = 1e-4
COUNTED_COEFFICIENT = 1e-3


def token_vectors(teacher: Embedder, progress: Progress | None = None) -> Vectors:
    """(V, H): each piece by itself, between special tokens, as the teacher pools it. Those of special pieces
    are zeros.
    """
    tokenizer, encoder = teacher.tokenizer, teacher.encoder
    assert isinstance(encoder, Bert)
    vectors = np.zeros((tokenizer.vocab_size, teacher.width), np.float32)
    sequences = [teacher.windows.sequence([number]) for number in range(tokenizer.vocab_size)]
    how = teacher.pooling, teacher.device, teacher.compute_dtype, teacher.batch_tokens
    done = 0
    for numbers, pooled in pooled_in_batches(encoder, sequences, *how):
        vectors[numbers] = projected(pooled, teacher.projection)[:, : teacher.width]
        done += len(numbers)
        if progress is not None:
            progress(done, len(sequences), "pieces")
    vectors[list(tokenizer.special_ids)] = 0
    return vectors


def guessed_frequencies(pieces: int) -> Floats:
    """(V,) by Zipf's law, for vocabularies whose frequent pieces come first."""
    shares: Floats = 1 / np.arange(2, pieces + 2)
    return np.asarray(shares / shares.sum())


def weights(frequencies: Floats, coefficient: float) -> Vectors:
    """(V,) of shares (V,)."""
    return np.asarray(coefficient / (coefficient + frequencies), np.float32)


def principal_directions(vectors: Vectors, dimensions: int) -> Vectors:
    """(H, D): onto these, vectors (E, H) lose least of their cosines: they are not centred first."""
    squares = vectors.astype(np.float64).T @ vectors / len(vectors)
    _, directions = np.linalg.eigh(squares)  # ascending
    return np.asarray(directions[:, ::-1][:, :dimensions], np.float32)


def centred(vectors: Vectors) -> Vectors:
    """(V, H) less the mean of those that are not zeros, which stay."""
    filled = np.abs(vectors).sum(1) > 0
    moved = vectors - vectors[filled].mean(0)
    moved[~filled] = 0
    return np.asarray(moved, np.float32)
