"""A table of vectors learned: from an embedding model alone, as model2vec makes it (each piece through the
model, principal directions, weights by frequency), then from texts and their vectors, so that the rows' sums
point where the teacher's vectors do. The sentences are drawn out of any sources in bounded memory, each
paragraph as likely.

V pieces, E sentences, H the teacher's width, D that of the table.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from scipy import sparse

from bertsmith.arrays import Floats
from bertsmith.errors import InputError
from bertsmith.inference.embedding.embedder import Embedder, pooled_in_batches, projected
from bertsmith.inference.embedding.vectors import Vectors, normalised
from bertsmith.model.bert import Bert
from bertsmith.progress import Progress
from bertsmith.text.corpus.reading import SourceReader
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import find_sources
from bertsmith.text.prose.sentences import RawDocument, clean_paragraphs, split_paragraph
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache
from bertsmith.text.words import split_at_blanks

_LONGEST = 400  # characters of a sentence: what is longer is a list or a table more often than not
_SHORTEST_WORDS = 3
# Arora et al. 2017, "A simple but tough-to-beat baseline for sentence embeddings" (SIF): a / (a + p(piece)).
# Guessed frequencies take the smaller one, as in model2vec; counted ones the larger (see LOG.md).
GUESSED_COEFFICIENT = 1e-4
COUNTED_COEFFICIENT = 1e-3
ROUNDS = 12
_STEPS = 15  # of conjugate gradients a round: more fit the texts better and others worse
_GAIN = 1e-3  # of the cosine on held-out texts, below which the rounds end
_SHORTEST = 1e-3  # length of a sum, before it divides


def sample_sentences(
    sources: Sequence[str],
    count: int,
    seed: int = 0,
    settings: CorpusSettings | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """At most `count` sentences, one a paragraph, each once, in an order by chance; the same for the same
    sources and seed.

    Sources are read, cleaned and split as `corpus build` does it, and once, whatever their size; held are
    `count` sentences (Vitter 1985, algorithm R). Raises InputError for a source that can't be read, and when
    no sentence is found.
    """
    settings = settings or CorpusSettings()
    random = Random(seed)
    kept, seen = list[str](), 0
    found = find_sources(sources, settings)
    reader = SourceReader(found.sources, settings)
    for batch in reader:
        for document in batch.documents():
            for paragraph in _long_enough(clean_paragraphs(document)):
                place = seen if seen < count else random.randrange(seen + 1)
                seen += 1
                if place < count:  # only then is it split, which takes most of the time
                    kept[place : place + 1] = [_one_of(paragraph, document, settings.language, random)]
        if progress is not None:
            progress(reader.position, found.size, "bytes")
    drawn = list(dict.fromkeys(filter(None, kept)))
    if not drawn:
        raise InputError(
            f"{', '.join(sources)}: found no sentence of {_SHORTEST_WORDS} words or more. Name files of "
            "running text."
        )
    random.shuffle(drawn)  # or the first of them would be those of the first source
    return drawn


def _one_of(paragraph: str, document: RawDocument, language: str, random: Random) -> str:
    """One of its sentences; empty where none is neither too short nor too long."""
    sentences = split_paragraph(paragraph, document.layout, language)
    good = [sentence for sentence in _long_enough(sentences) if len(sentence) <= _LONGEST]
    return random.choice(good) if good else ""


def _long_enough(texts: Iterable[str]) -> Iterator[str]:
    return (text for text in texts if len(split_at_blanks(text)) >= _SHORTEST_WORDS)


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


class LearnedTable(NamedTuple):
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
) -> LearnedTable:
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
    return LearnedTable(best, before, cosine(own @ best, vectors[:heldout]), rounds)


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
