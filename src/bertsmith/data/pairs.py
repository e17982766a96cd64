"""Sequences for pre-training as spans of the token store: next-sentence pairs, pairs in or out of their
order, or full segments without them.

A document's sentences lie side by side in the store, so a segment is two numbers: first token, and one past
the last. I instances, S sentences of a document.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.data.store import TokenStore


@dataclass(frozen=True)
class Instances:
    """Spans of the store: first segment [first_start, first_end), second likewise, empty where there is none.

    All (I,) int64; is_random is 1 where the second segment comes from another document, or where the two are
    swapped: the answer that a pair's head has to give.
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

    Sentences are gathered until the target length (usually `max_tokens`, sometimes shorter, so that the model
    meets short texts too); a random cut divides them into two segments; half of the second segments, and
    those of lone sentences, are replaced by text of another document, and what they would have been is put
    back. Every sentence of `documents` is used once. `max_tokens` counts tokens without [CLS] and [SEP].
    """
    draw = _draw_uniforms(generator)
    rows: list[tuple[int, int, int, int, int]] = []
    for document in documents.tolist():
        starts = _sentence_starts(store, document)  # S + 1 token offsets
        target = _draw_target_length(max_tokens, short_seq_prob, draw)
        first, last = 0, len(starts) - 1
        while first < last:
            # the chunk: sentences until the target is reached, or the document ends
            end = min(bisect_left(starts, starts[first] + target, first + 1), last)
            cut = first + 1 + int(next(draw) * (end - first - 1)) if end - first > 1 else end
            if cut == end or next(draw) < 0.5:
                wanted = target - (starts[cut] - starts[first])
                rows.append(
                    (starts[first], starts[cut], *_draw_other_document(store, document, wanted, draw), 1)
                )
                first = cut  # what came after the cut is used again
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
    tokens, where google-research/albert takes a random partner; a lone sentence of one token is left out.
    Every other token is used once.
    """
    draw = _draw_uniforms(generator)
    rows: list[tuple[int, int, int, int, int]] = []
    for document in documents.tolist():
        starts = _sentence_starts(store, document)
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
            before, behind = halves[::-1] if swapped else halves
            rows.append((*before, *behind, int(swapped)))
    return _as_instances(rows)


def make_full_segments(store: TokenStore, documents: Ints, max_tokens: int) -> Instances:
    """Whole sentences up to `max_tokens` from one document at a time (RoBERTa's DOC-SENTENCES, section 4.2).

    A sentence longer than `max_tokens` is divided; every token is used once. Nothing is filled up across
    documents: in a packed batch a short sequence costs nothing.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    for document in documents.tolist():
        starts = _sentence_starts(store, document)
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
    if next(draw) >= short_seq_prob or max_tokens < 3:
        return max_tokens
    return 2 + int(next(draw) * (max_tokens - 1))


def _draw_other_document(
    store: TokenStore, document: int, wanted: int, draw: Iterator[float]
) -> tuple[int, int]:
    """Sentences from a random place of any other document: at least one, until `wanted` tokens or its end."""
    other = int(next(draw) * (len(store) - 1))
    other += other >= document
    first, last = store.document_starts[other : other + 2].tolist()
    first += int(next(draw) * (last - first))
    # no sentence is empty, so `wanted` of them are enough: a book's thousands need not be read
    starts: list[int] = store.sentence_starts[first : min(first + max(wanted, 1), last) + 1].tolist()
    end = min(bisect_left(starts, starts[0] + wanted, 1), len(starts) - 1)
    return starts[0], starts[end]


def _sentence_starts(store: TokenStore, document: int) -> list[int]:
    first, last = store.document_starts[document : document + 2].tolist()
    starts: list[int] = store.sentence_starts[first : last + 1].tolist()
    return starts


def _draw_uniforms(generator: np.random.Generator) -> Iterator[float]:
    """Uniforms in [0, 1), drawn many at a time: a single draw costs a microsecond."""
    while True:
        yield from generator.random(4096).tolist()


def _as_instances(rows: Sequence[tuple[int, int, int, int, int]]) -> Instances:
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Instances(*columns)
