"""Makes pre-training sequences as spans of the token store: next-sentence pairs, sentence-order pairs, or
single segments.

The sentences of a document are adjacent in the store, so a segment is two numbers: its first token, and one
past its last. I instances, S sentences of a document.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.data.store import TokenStore


@dataclass(frozen=True)
class Instances:
    """Spans of the store: the first segment is [first_start, first_end), the second likewise, or empty.

    All (I,) int64. is_random is the label of a pair: 1 if the second segment is from another document, or if
    the two are swapped.
    """

    first_start: Ints
    first_end: Ints
    second_start: Ints
    second_end: Ints
    is_random: Ints

    def __len__(self) -> int:
        return len(self.first_start)

    def __getitem__(self, rows: "Ints | slice") -> "Instances":
        return Instances(*(getattr(self, field.name)[rows] for field in fields(self)))


def make_next_sentence_pairs(
    store: TokenStore,
    documents: Ints,
    max_tokens: int,
    short_seq_prob: float,
    generator: np.random.Generator,
) -> Instances:
    """Pairs of segments from `documents`, before truncation, by the algorithm of google-research/bert.

    Sentences are gathered up to a target length (usually `max_tokens`, sometimes shorter, so that the model
    sees short texts too); a random cut divides them into two segments. Half of the second segments, and that
    of every lone sentence, are text of another document; the sentences after the cut are then used again. So
    every sentence of `documents` is used once. `max_tokens` counts tokens without [CLS] and [SEP].
    """
    draw = _draw_uniforms(generator)
    rows: list[tuple[int, int, int, int, int]] = []
    for document in documents.tolist():
        starts = _read_sentence_starts(store, document)
        target = _draw_target_length(max_tokens, short_seq_prob, draw)
        first, last = 0, len(starts) - 1
        while first < last:
            # the chunk: sentences until the target length is reached or the document ends
            end = min(bisect_left(starts, starts[first] + target, first + 1), last)
            cut = first + 1 + int(next(draw) * (end - first - 1)) if end - first > 1 else end
            if cut == end or next(draw) < 0.5:
                rest_length = target - (starts[cut] - starts[first])
                rows.append(
                    (starts[first], starts[cut], *_draw_other_document(store, document, rest_length, draw), 1)
                )
                first = cut  # the sentences after the cut are used again
            else:
                rows.append((starts[first], starts[cut], starts[cut], starts[end], 0))
                first = end
    return _as_instances(rows)


def make_sentence_order_pairs(
    store: TokenStore,
    documents: Ints,
    max_tokens: int,
    short_seq_prob: float,
    generator: np.random.Generator,
) -> Instances:
    """Pairs of consecutive segments of one document, half of them swapped (Lan et al. 2020, section 3.1),
    before truncation.

    Sentences are gathered and cut as in `make_next_sentence_pairs`. A lone sentence is cut between two of its
    tokens, where google-research/albert pairs it with a random one; a lone sentence of one token is left out.
    Every other token is used once.
    """
    draw = _draw_uniforms(generator)
    rows: list[tuple[int, int, int, int, int]] = []
    for document in documents.tolist():
        starts = _read_sentence_starts(store, document)
        target = _draw_target_length(max_tokens, short_seq_prob, draw)
        first, last = 0, len(starts) - 1
        while first < last:
            end = min(bisect_left(starts, starts[first] + target, first + 1), last)
            bounds = starts[first : end + 1] if end - first > 1 else range(starts[first], starts[end] + 1)
            first = end
            if len(bounds) < 3:
                continue
            cut = bounds[1 + int(next(draw) * (len(bounds) - 2))]
            halves = ((bounds[0], cut), (cut, bounds[-1]))
            swapped = next(draw) < 0.5
            left, right = halves[::-1] if swapped else halves
            rows.append((*left, *right, int(swapped)))
    return _as_instances(rows)


def make_full_segments(store: TokenStore, documents: Ints, max_tokens: int) -> Instances:
    """Whole sentences up to `max_tokens` from one document at a time (RoBERTa's DOC-SENTENCES, section 4.2).

    A sentence longer than `max_tokens` is divided; every token is used once. Sequences don't continue with
    the next document: in a packed batch a short sequence costs nothing.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    for document in documents.tolist():
        starts = _read_sentence_starts(store, document)
        start, last = starts[0], starts[-1]
        while start < last:
            fitting = bisect_left(starts, start + max_tokens + 1) - 1
            end = starts[fitting] if starts[fitting] > start else min(start + max_tokens, last)
            rows.append((start, end, end, end, 0))
            start = end
    return _as_instances(rows)


def truncate_pairs(instances: Instances, max_tokens: int, generator: np.random.Generator) -> Instances:
    """Shortens pairs to `max_tokens`: always the longer segment, each token from a random end.

    The same distribution as removing token by token (google-research/bert, truncate_seq_pair).
    """
    first = instances.first_end - instances.first_start
    second = instances.second_end - instances.second_start
    excess = np.maximum(first + second - max_tokens, 0)
    until_equal = np.minimum(np.abs(first - second), excess)
    alternating = excess - until_equal  # on a tie the second segment gives the next token
    from_first = np.where(first > second, until_equal, 0) + alternating // 2
    from_second = np.where(first > second, 0, until_equal) + alternating - alternating // 2
    first_front = generator.binomial(from_first, 0.5)
    second_front = generator.binomial(from_second, 0.5)
    return Instances(
        instances.first_start + first_front,
        instances.first_end - (from_first - first_front),
        instances.second_start + second_front,
        instances.second_end - (from_second - second_front),
        instances.is_random,
    )


def _draw_target_length(max_tokens: int, short_seq_prob: float, draw: Iterator[float]) -> int:
    """`max_tokens`, or with a probability of `short_seq_prob` a random length from 2 on."""
    if next(draw) >= short_seq_prob or max_tokens < 3:
        return max_tokens
    return 2 + int(next(draw) * (max_tokens - 1))


def _draw_other_document(
    store: TokenStore, document: int, length: int, draw: Iterator[float]
) -> tuple[int, int]:
    """The span of sentences from a random position of another document on: at least one, until they have
    `length` tokens or the document ends.
    """
    other = int(next(draw) * (len(store) - 1))
    other += other >= document
    first, last = store.document_starts[other : other + 2].tolist()
    first += int(next(draw) * (last - first))
    # No sentence is empty, so `length` of them are enough: not all thousands of a book need be read.
    starts: list[int] = store.sentence_starts[first : min(first + max(length, 1), last) + 1].tolist()
    end = min(bisect_left(starts, starts[0] + length, 1), len(starts) - 1)
    return starts[0], starts[end]


def _read_sentence_starts(store: TokenStore, document: int) -> list[int]:
    """The S + 1 token offsets of a document's sentences; the last is its end."""
    first, last = store.document_starts[document : document + 2].tolist()
    starts: list[int] = store.sentence_starts[first : last + 1].tolist()
    return starts


def _draw_uniforms(generator: np.random.Generator) -> Iterator[float]:
    """Uniforms in [0, 1), drawn in blocks: a single draw takes a microsecond."""
    while True:
        yield from generator.random(4096).tolist()


def _as_instances(rows: Sequence[tuple[int, int, int, int, int]]) -> Instances:
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Instances(*columns)
