"""The steps by which a static table of token vectors is learned from an embedding model.

The start is model2vec's: each token goes through the model by itself, then principal directions and weights
by frequency. With texts, least squares then fit the rows so that their sum over a sentence points where the
teacher's vector of it does. The sentences are sampled in bounded memory, every paragraph with equal chance.

V tokens in the vocabulary, E sentences, H the teacher's vector width, D the table's.
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

_LONGEST = 400  # characters of a sentence: longer ones are mostly lists and tables
_SHORTEST_WORDS = 3
# The a of SIF's weights a / (a + p(token)) (Arora et al. 2017, "A simple but tough-to-beat baseline for
# sentence embeddings"): the smaller for guessed frequencies, as in model2vec, the larger for counted ones
# (see LOG.md).
GUESSED_COEFFICIENT = 1e-4
COUNTED_COEFFICIENT = 1e-3
ROUNDS = 12
_STEPS = 15  # conjugate-gradient steps a round: with more, the table overfits its texts
_GAIN = 1e-3  # smallest gain of the held-out cosine that another round is worth
_SHORTEST = 1e-3  # lower bound of a sum's length, which is divided by


def sample_sentences(
    sources: Sequence[str],
    count: int,
    seed: int = 0,
    settings: CorpusSettings | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """At most `count` distinct sentences in random order, one a paragraph. The same sources and seed give the
    same sentences.

    Sources are read, cleaned and split as `corpus build` does. They are read once, and only `count` sentences
    are held in memory (reservoir sampling: Vitter 1985, algorithm R). Raises InputError for a source that
    can't be read, and where there is no sentence.
    """
    settings = settings or CorpusSettings()
    random = Random(seed)
    reservoir, seen = list[str](), 0
    source_files = find_sources(sources, settings)
    reader = SourceReader(source_files.sources, settings)
    for batch in reader:
        for document in batch.documents():
            for paragraph in _drop_short_texts(clean_paragraphs(document)):
                index = seen if seen < count else random.randrange(seen + 1)
                seen += 1
                if index < count:  # only then is it split into sentences, which takes most of the time
                    sentence = _choose_sentence(paragraph, document, settings.language, random)
                    reservoir[index : index + 1] = [sentence]
        if progress is not None:
            progress(reader.position, source_files.size, "bytes")
    sentences = list(dict.fromkeys(filter(None, reservoir)))
    if not sentences:
        raise InputError(
            f"{', '.join(sources)}: found no sentence of {_SHORTEST_WORDS} words or more. Name files of "
            "running text."
        )
    random.shuffle(sentences)  # otherwise the first ones would all be from the first source
    return sentences


def _choose_sentence(paragraph: str, document: RawDocument, language: str, random: Random) -> str:
    """A random sentence of a paragraph; empty where all are too short or too long."""
    sentences = split_paragraph(paragraph, document.layout, language)
    good = [sentence for sentence in _drop_short_texts(sentences) if len(sentence) <= _LONGEST]
    return random.choice(good) if good else ""


def _drop_short_texts(texts: Iterable[str]) -> Iterator[str]:
    return (text for text in texts if len(split_at_blanks(text)) >= _SHORTEST_WORDS)


def compute_token_vectors(teacher: Embedder, progress: Progress | None = None) -> Vectors:
    """(V, H): the teacher's pooled vector of each token by itself, between its special tokens. The rows of
    special tokens are zeros.
    """
    tokenizer, encoder = teacher.tokenizer, teacher.encoder
    assert isinstance(encoder, Bert)
    vectors = np.zeros((tokenizer.vocab_size, teacher.width), np.float32)
    sequences = [teacher.windows.sequence([token_id]) for token_id in range(tokenizer.vocab_size)]
    settings = teacher.pooling, teacher.device, teacher.compute_dtype, teacher.batch_tokens
    done = 0
    for token_ids, pooled in pooled_in_batches(encoder, sequences, *settings):
        vectors[token_ids] = projected(pooled, teacher.projection)[:, : teacher.width]
        done += len(token_ids)
        if progress is not None:
            progress(done, len(sequences), "pieces")
    vectors[list(tokenizer.special_ids)] = 0
    return vectors


def guess_frequencies(pieces: int) -> Floats:
    """(V,) frequencies by Zipf's law, for vocabularies that are sorted by frequency."""
    shares: Floats = 1 / np.arange(2, pieces + 2)
    return np.asarray(shares / shares.sum())


def sif_weights(frequencies: Floats, coefficient: float) -> Vectors:
    """SIF's weights (V,) of tokens by their relative frequencies (V,): a / (a + p), with
    `coefficient` as a.
    """
    return np.asarray(coefficient / (coefficient + frequencies), np.float32)


def principal_directions(vectors: Vectors, dimensions: int) -> Vectors:
    """(H, D): the directions by which the vectors (E, H) are projected to D dimensions with the least loss of
    their dot products. The vectors are not centred, since cosines are measured from the origin.
    """
    squares = vectors.astype(np.float64).T @ vectors / len(vectors)
    _, directions = np.linalg.eigh(squares)  # ascending
    return np.asarray(directions[:, ::-1][:, :dimensions], np.float32)


def center(vectors: Vectors) -> Vectors:
    """The vectors (V, H) less the mean of the non-zero ones; zero vectors stay zeros."""
    is_filled = np.abs(vectors).sum(1) > 0
    shifted = vectors - vectors[is_filled].mean(0)
    shifted[~is_filled] = 0
    return np.asarray(shifted, np.float32)


class LearnedTable(NamedTuple):
    """The table (V, D), the mean cosine to the teacher's vectors on held-out texts before and after learning,
    and the number of the best round.
    """

    table: Vectors
    before: float
    after: float
    rounds: int


def count_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> sparse.csr_matrix:
    """(E, V) float32: how often each token occurs in each text. Special tokens and [UNK] are left out."""
    token_ids, lengths = WordCache(tokenizer).encode(texts)
    rows = np.repeat(np.arange(len(texts)), lengths)
    is_usual = ~np.isin(token_ids, tokenizer.special_ids)
    ones = np.ones(int(is_usual.sum()), np.float32)
    shape = len(texts), tokenizer.vocab_size
    return sparse.coo_matrix((ones, (rows[is_usual], token_ids[is_usual])), shape).tocsr()


def measure_unknown_share(texts: Sequence[str], tokenizer: Tokenizer) -> float:
    """The share of the texts' tokens that are [UNK], words which the vocabulary can't spell."""
    token_ids, _ = WordCache(tokenizer).encode(texts)
    return float((token_ids == tokenizer.unk_id).mean())


def learn_table(
    table: Vectors,
    counts: sparse.csr_matrix,
    vectors: Vectors,
    heldout: int,
    progress: Progress | None = None,
) -> LearnedTable:
    """Fits a table, from its first values (V, D), to the teacher's `vectors` (E, D) of texts whose tokens are
    `counts` (E, V).

    The first `heldout` texts are not learned from: the rounds end when the cosine on them no longer grows.
    """
    heldout_counts, train_counts = counts[:heldout], counts[heldout:]
    before = mean_cosine(heldout_counts @ table, vectors[:heldout])
    best_table, best_cosine, best_round = table, before, 0
    for number in range(1, ROUNDS + 1):
        table = _fit_once(table, train_counts, normalised(vectors[heldout:]))
        after = mean_cosine(heldout_counts @ table, vectors[:heldout])
        if progress is not None:
            progress(number, ROUNDS, "rounds")
        if after > best_cosine:
            best_table, best_round = table, number
        if after < best_cosine + _GAIN:
            break
        best_cosine = after
    final = mean_cosine(heldout_counts @ best_table, vectors[:heldout])
    return LearnedTable(best_table, before, final, best_round)


def mean_cosine(vectors: Vectors, targets: Vectors) -> float:
    """The mean cosine between the rows of (E, D) and (E, D)."""
    return float(np.einsum("ed,ed->e", normalised(vectors), normalised(targets)).mean())


def _fit_once(table: Vectors, counts: sparse.csr_matrix, vectors: Vectors) -> Vectors:
    """One round: conjugate gradients on min_W ‖S C W − Y‖², begun at the given table. C are the counts, Y the
    unit vectors of the teacher, S the inverse lengths of the sums by the given table.
    """
    lengths = np.linalg.norm(counts @ table, axis=1)
    scaled = (sparse.diags(1 / np.maximum(lengths, _SHORTEST), dtype=np.float32) @ counts).tocsr()
    transposed = scaled.T.tocsr()
    change = np.zeros_like(table)
    residual = transposed @ (vectors - scaled @ table)
    direction, size = residual.copy(), float(np.vdot(residual, residual))
    for _ in range(_STEPS):
        if size <= 0:
            break
        image = transposed @ (scaled @ direction)
        step = size / float(np.vdot(direction, image))
        change += step * direction
        residual -= step * image
        size, last = float(np.vdot(residual, residual)), size
        direction = residual + (size / last) * direction
    return np.asarray(table + change, np.float32)
