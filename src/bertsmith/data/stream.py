"""The order of pre-training data: a pure function of (seed, position).

Each epoch shuffles the documents, makes sequences from a block of them at a time, shuffles the block, and
cuts the stream into batches of a token budget. A cursor of four numbers names a place in it: to resume, a
block is made again (milliseconds), nothing is skipped through. The order knows nothing of ranks.

`MixedStream` has text of two kinds in every batch, each end to end, to go on training on one and keep the
other; its cursor names the place in both. `prefetch` makes batches beside the training.
"""

import queue
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bertsmith.data.batch import Sequences, concatenate, ragged_range
from bertsmith.data.pairs import (
    Instances,
    make_full_segments,
    make_next_sentence_pairs,
    make_sentence_order_pairs,
    truncate_pairs,
)
from bertsmith.data.store import TokenStore
from bertsmith.errors import RecipeError, StoreError
from bertsmith.text.tokens.tokenizer import Tokenizer

_BLOCK_DOCUMENTS = 4096  # shuffled together: 0.1 s to make again where they are Wikipedia's
_PATIENCE = 1.0  # seconds: a thread that reads a quiet pipe may never come back, and must not stop Ctrl-C
_BLOCK_TOKENS = 2**22  # of long documents fewer: 4,096 books would take 20 s and a gigabyte
T = TypeVar("T")


@dataclass(frozen=True)
class Cursor:
    """A place in the stream: the next sequence is number `offset` of `block` in `epoch` of `phase`. Where
    other text is mixed in, `mixed_in` is the place in that.
    """

    phase: int = 0
    epoch: int = 0
    block: int = 0
    offset: int = 0
    mixed_in: "Cursor | None" = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Cursor":
        """From what `dataclasses.asdict` made of one; of an older one, which had no text mixed in."""
        mixed_in = values.get("mixed_in")
        return cls(**{**values, "mixed_in": None if mixed_in is None else cls.of(mixed_in)})


@dataclass(frozen=True)
class GlobalBatch:
    """One optimiser step's sequences over all ranks, where it began and where the next one begins."""

    sequences: Sequences
    start: Cursor
    end: Cursor


@dataclass(frozen=True)
class PretrainingStream:
    """Batches of sequences from a token store.

    `max_length` counts tokens with [CLS] and [SEP]; `batch_tokens` is the most a global batch holds. With
    `sentence_order` the pairs of `next_sentence` are consecutive segments, half of them swapped.
    """

    store: TokenStore
    tokenizer: Tokenizer
    seed: int
    next_sentence: bool
    max_length: int
    batch_tokens: int
    short_seq_prob: float = 0.1
    sentence_order: bool = False

    def __post_init__(self) -> None:
        if self.max_length < self._special + 1 + self.next_sentence:
            raise RecipeError(
                f"A sequence length of {self.max_length} leaves no room for text beside {self._special} "
                "special tokens; give at least 8."
            )
        if self.batch_tokens < self.max_length:
            raise RecipeError(
                f"A batch of {self.batch_tokens:,} tokens can't hold a sequence of {self.max_length:,}; "
                "give room for at least one."
            )
        if self.next_sentence:
            require_documents(self.store, self.sentence_order)
        elif len(self.store) == 0:
            raise StoreError(f"{self.store.path} has no text to train on.")

    @property
    def _special(self) -> int:
        """Special tokens of a sequence: [CLS] and one [SEP] a segment."""
        return 2 + self.next_sentence

    @property
    def _block_documents(self) -> int:
        """How many documents a block has: a function of the store alone, as the order must be."""
        mean_tokens = max(len(self.store.tokens) // len(self.store), 1)
        return min(_BLOCK_DOCUMENTS, max(_BLOCK_TOKENS // mean_tokens, 1))

    def batches(self, cursor: Cursor, last_epoch: int | None = None) -> Iterator[GlobalBatch]:
        """From `cursor` on: endless, or to the end of `last_epoch` with what is left as its last batch.

        A batch may span blocks and epochs.
        """
        place, held, tokens = cursor, [], 0
        start = cursor
        while True:
            instances, lengths = self._block(place.phase, place.epoch, place.block)
            keys = _draw_keys(self.seed, place, len(instances))
            first = place.offset
            for row in range(place.offset, len(instances)):
                if tokens + lengths[row] > self.batch_tokens:
                    here = Cursor(place.phase, place.epoch, place.block, row)
                    held.append(self._sequences(instances[first:row], keys[first:row]))
                    yield GlobalBatch(concatenate(held), start, here)
                    held, tokens, first, start = [], 0, row, here
                tokens += lengths[row]
            held.append(self._sequences(instances[first:], keys[first:]))
            if place.block + 1 < -(-len(self.store) // self._block_documents):
                place = Cursor(place.phase, place.epoch, place.block + 1)
            else:
                place = Cursor(place.phase, place.epoch + 1)
            if last_epoch is not None and place.epoch > last_epoch:
                if tokens:
                    yield GlobalBatch(concatenate(held), start, place)
                return

    def _block(self, phase: int, epoch: int, block: int) -> tuple[Instances, list[int]]:
        """A block's shuffled instances and their lengths with special tokens."""
        order = _shuffle_documents(len(self.store), self.seed, phase, epoch)
        size = self._block_documents
        documents = order[block * size : (block + 1) * size]
        generator = _make_generator(self.seed, phase, epoch, block)
        instances = self.instances_of(documents, generator)
        instances = instances[generator.permutation(len(instances))]
        lengths = instances.first_end - instances.first_start + instances.second_end - instances.second_start
        return instances, (lengths + self._special).tolist()

    def instances_of(self, documents: npt.NDArray[np.int64], generator: np.random.Generator) -> Instances:
        """Sequences of some documents, not yet shuffled, none longer than `max_length`."""
        room = self.max_length - self._special
        if self.next_sentence:
            make = make_sentence_order_pairs if self.sentence_order else make_next_sentence_pairs
            pairs = make(self.store, documents, room, self.short_seq_prob, generator)
            return truncate_pairs(pairs, room, generator)
        return make_full_segments(self.store, documents, room)

    def _sequences(self, instances: Instances, keys: npt.NDArray[np.uint64]) -> Sequences:
        """[CLS] first [SEP], or [CLS] first [SEP] second [SEP] with the second part as segment 1."""
        first = instances.first_end - instances.first_start
        second = instances.second_end - instances.second_start
        lengths = first + second + self._special
        starts = np.cumsum(lengths) - lengths
        token_ids = np.empty(int(lengths.sum()), np.int64)
        segment_ids = np.zeros_like(token_ids)
        token_ids[starts] = self.tokenizer.cls_id
        token_ids[starts + 1 + first] = self.tokenizer.sep_id
        places, found = ragged_range(starts + 1, first), ragged_range(instances.first_start, first)
        token_ids[places] = self.store.tokens[found]
        values = None
        if self.store.values is not None:
            values = np.zeros((len(token_ids), self.store.values.shape[1]), np.float32)
            values[places] = self.store.values[found]
        if self.next_sentence:
            places = ragged_range(starts + 2 + first, second)
            token_ids[places] = self.store.tokens[ragged_range(instances.second_start, second)]
            token_ids[starts + lengths - 1] = self.tokenizer.sep_id
            segment_ids[ragged_range(starts + 2 + first, second + 1)] = 1
        return Sequences(token_ids, segment_ids, lengths, keys, instances.is_random, values)


def require_documents(store: TokenStore, sentence_order: bool = False) -> None:
    """Raises StoreError where next-sentence or sentence-order prediction has nothing to learn from."""
    sentences = np.diff(store.document_starts[:1_000_001])
    with_next = int((sentences > 1).sum())
    if len(store) < 2 or with_next < 0.05 * len(sentences):
        name, without = "Next-sentence", "data.next_sentence=false"
        if sentence_order:
            name, without = "Sentence-order", "objective=masked-language data.next_sentence=false"
        raise StoreError(
            f"{name} prediction needs at least two documents, and documents of several sentences in "
            f"order; {store.path} has {len(store):,} document(s), {with_next:,} of the first "
            f"{len(sentences):,} with more than one sentence. Give the corpus document structure (one "
            "document per file, or blank lines between documents), or pre-train without it: "
            f"{without}."
        )


@lru_cache(maxsize=2)
def _shuffle_documents(documents: int, seed: int, phase: int, epoch: int) -> npt.NDArray[np.int64]:
    """An epoch's shuffle of all documents: 8 bytes each."""
    return _make_generator(seed, phase, epoch, -1).permutation(documents)


def _make_generator(seed: int, phase: int, epoch: int, block: int) -> np.random.Generator:
    """PCG64DXSM: torch's sampler is biased at 10^9 samples (ModernBERT, appendix C.1)."""
    return np.random.Generator(np.random.PCG64DXSM([seed, phase, epoch, block + 1]))


def _draw_keys(seed: int, place: Cursor, count: int) -> npt.NDArray[np.uint64]:
    """A random name for each sequence of a block, the same on every rank: masks are drawn from it."""
    sequence = np.random.SeedSequence([seed, place.phase, place.epoch, place.block, 0x6D61736B])
    return np.random.Generator(np.random.PCG64DXSM(sequence)).integers(0, 2**64, count, np.uint64)


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


def divide_batch_size(batch_size: int, share: float) -> tuple[int, int]:
    """How many sequences of a batch, of at least two, are of the main text and how many are mixed in: at
    least one of each.
    """
    mixed_in = min(max(round(share * batch_size), 1), batch_size - 1)
    return batch_size - mixed_in, mixed_in


def prefetch(items: Iterator[T], ahead: int = 2) -> Generator[T, None, None]:
    """The same items in the same order, made by a thread up to `ahead` early. Closing it ends the thread, at
    once or as soon as the item is made that it is at.

    An error in the thread is raised here, where its item would have come.
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
    closed = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not closed.is_set():
            try:
                made.put((item, error), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if closed.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # handed on to the consumer, whatever it is
            put(None, error)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join(_PATIENCE)
