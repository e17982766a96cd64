"""Texts as an embedding model meets them, from a token store: single sentences, and passages of several.

Where a text begins and ends is a function of the store alone, so that what a teacher says of it once is true
in every epoch; only the order of texts is drawn anew.

N tokens, B sequences, S sentences of the store.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertsmith.arrays import Ints
from bertsmith.data.batch import Sequences, ragged_range
from bertsmith.data.pairs import Instances
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, GlobalBatch, PretrainingStream

_SINGLE = 0.5  # of texts are one sentence: what is compared and searched for is mostly short
SHORTEST = 4  # tokens of a text, where the document goes on


@dataclass(frozen=True)
class TextStream(PretrainingStream):
    """Batches of texts in the order of `PretrainingStream`; `labels` of their sequences are the numbers of
    the texts' first sentences in the store, which name them.

    `prefixes` are token ids that stand before a text, by turns: those of queries, of documents, and of
    texts of which nothing is said. A text that is longer than `max_length` with them is cut.
    """

    prefixes: Sequence[Sequence[int]] = ((),)

    def batches(self, cursor: Cursor, last_epoch: int | None = None) -> Iterator[GlobalBatch]:
        """As `PretrainingStream.batches`; what `batch_tokens` counts is without prefixes."""
        for batch in super().batches(cursor, last_epoch):
            yield replace(batch, sequences=_prefixed(batch.sequences, self.prefixes))

    def instances_of(self, documents: Ints, generator: np.random.Generator) -> Instances:
        """The texts of some documents; `is_random` has the number of each one's first sentence."""
        room = self.max_length - 2 - max(map(len, self.prefixes))
        rows = [row for document in documents.tolist() for row in texts_of(self.store, document, room)]
        starts, ends, sentences = np.array(rows, np.int64).reshape(-1, 3).T
        return Instances(starts, ends, ends, ends, sentences)


def texts_of(store: TokenStore, document: int, room: int) -> list[tuple[int, int, int]]:
    """(first token, one past the last, first sentence) of each text of a document; every sentence is in one.

    Half of them are one sentence. The others have sentences until a length is reached that is drawn between
    a few tokens and `room`; very short sentences are never alone. A text ends at `room` tokens.
    """
    first, last = store.document_starts[document : document + 2].tolist()
    starts: list[int] = store.sentence_starts[first : last + 1].tolist()
    draws = np.random.Generator(np.random.PCG64DXSM([0x7E47, document])).random((len(starts), 2)).tolist()
    texts = []
    sentence = 0
    while sentence < last - first:
        single, share = draws[sentence]
        wanted = SHORTEST if single < _SINGLE else SHORTEST + int(share * (room - SHORTEST))
        end = sentence + 1
        while end < last - first and starts[end] - starts[sentence] < wanted:
            if starts[end + 1] - starts[sentence] > room:
                break
            end += 1
        texts.append((starts[sentence], min(starts[end], starts[sentence] + room), first + sentence))
        sentence = end
    return texts


def _prefixed(sequences: Sequences, prefixes: Sequence[Sequence[int]]) -> Sequences:
    """With a prefix behind each [CLS]: which one follows from the text's number."""
    if not any(prefixes):
        return sequences
    chosen = sequences.labels % len(prefixes)
    lengths = np.array([len(prefix) for prefix in prefixes], np.int64)[chosen]
    together = sequences.lengths + lengths
    starts = np.cumsum(together) - together
    token_ids = np.empty(int(together.sum()), np.int64)
    own_starts = np.cumsum(sequences.lengths) - sequences.lengths
    token_ids[starts] = sequences.token_ids[own_starts]
    token_ids[ragged_range(starts + 1, lengths)] = np.concatenate(
        [np.asarray(prefixes[number], np.int64) for number in chosen.tolist()]
    )
    rest = sequences.lengths - 1
    token_ids[ragged_range(starts + 1 + lengths, rest)] = sequences.token_ids[
        ragged_range(own_starts + 1, rest)
    ]
    return Sequences(token_ids, np.zeros_like(token_ids), together, sequences.keys, sequences.labels)
