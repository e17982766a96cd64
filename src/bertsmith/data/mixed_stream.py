"""Text of two kinds in every batch, in a replayable order: to go on training on one and keep the other.

Each batch is one of either stream, end to end. A cursor names the place in both, so that the order is a pure
function of it and knows nothing of ranks, as that of one stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bertsmith.data.batch import concatenate
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, GlobalBatch, PretrainingStream
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class MixedStream:
    """Batches of `main` with text of `mixed_in`, whose token budgets say how much of each."""

    main: PretrainingStream
    mixed_in: PretrainingStream

    @property
    def store(self) -> TokenStore:
        """That of the main text, by which pieces are counted."""
        return self.main.store

    @property
    def tokenizer(self) -> Tokenizer:
        """That of both."""
        return self.main.tokenizer

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Endless, from `cursor` on; each text begins again when it is over."""
        of_main = self.main.batches(replace(cursor, mixed_in=None))
        of_mixed_in = self.mixed_in.batches(cursor.mixed_in or Cursor(cursor.phase))
        for first, second in zip(of_main, of_mixed_in, strict=False):
            yield GlobalBatch(
                concatenate([first.sequences, second.sequences]),
                replace(first.start, mixed_in=second.start),
                replace(first.end, mixed_in=second.end),
            )


def divided(batch_size: int, share: float) -> tuple[int, int]:
    """How many sequences of a batch, of at least two, are of the main text and how many are mixed in: at
    least one of each.
    """
    mixed_in = min(max(round(share * batch_size), 1), batch_size - 1)
    return batch_size - mixed_in, mixed_in
