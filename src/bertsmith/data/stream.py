"""The stream of pre-training batches, whose order is a pure function of (seed, position).

Each epoch shuffles the documents, makes sequences from a block of them at a time, shuffles these, and cuts
the stream into batches of a token budget. A cursor of four numbers marks a position in it: to resume, one
block is made again (milliseconds) and no batch is skipped through. The order doesn't depend on the number of
ranks.

`MixedStream` has text of two stores in every batch, to train on new text without forgetting the old; its
cursor marks the position in both. `prefetch` makes batches in a thread while the model trains.
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

_BLOCK_DOCUMENTS = 4096  # whose sequences are shuffled together: 0.1 s to make again for Wikipedia
_JOIN_SECONDS = 1.0  # a thread that reads a quiet pipe may never return, and must not block Ctrl-C
_BLOCK_TOKENS = 2**22  # limits blocks of long documents: 4,096 books would take 20 s and a gigabyte
T = TypeVar("T")


@dataclass(frozen=True)
class Cursor:
    """A position in the stream: the next sequence has the index `offset` in `block` of `epoch` of `phase`.

    In a MixedStream `mixed_in` is the position in the other text.
    """

    phase: int = 0
    epoch: int = 0
    block: int = 0
    offset: int = 0
    mixed_in: "Cursor | None" = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Cursor":
        """The cursor that `dataclasses.asdict` turned into `values`; older ones have no key `mixed_in`."""
        mixed_in = values.get("mixed_in")
        return cls(**{**values, "mixed_in": None if mixed_in is None else cls.of(mixed_in)})


@dataclass(frozen=True)
class GlobalBatch:
    """The sequences of one optimiser step over all ranks, and where this and the next batch begin."""

    sequences: Sequences
    start: Cursor
    end: Cursor


@dataclass(frozen=True)
class PretrainingStream:
    """Batches of sequences from a token store.

    `max_length` counts tokens with [CLS] and [SEP]; a global batch has at most `batch_tokens`. With
    `sentence_order` the pairs of `next_sentence` are consecutive segments, half of them swapped. Raises
    RecipeError for budgets without room for a sequence, StoreError for a store without text.
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
        if self.max_length < self._extra_tokens + 1 + self.next_sentence:
            raise RecipeError(
                f"A sequence length of {self.max_length} leaves no room for text beside {self._extra_tokens} "
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
    def _extra_tokens(self) -> int:
        """How many special tokens a sequence has: [CLS] and one [SEP] per segment."""
        return 2 + self.next_sentence

    @property
    def _block_documents(self) -> int:
        """How many documents a block has. It depends on the store alone, since the order depends on it."""
        mean_tokens = max(len(self.store.tokens) // len(self.store), 1)
        return min(_BLOCK_DOCUMENTS, max(_BLOCK_TOKENS // mean_tokens, 1))

    def batches(self, cursor: Cursor, last_epoch: int | None = None) -> Iterator[GlobalBatch]:
        """The batches from `cursor` on: endless, or to the end of `last_epoch`.

        A batch may span blocks and epochs; the last one may be smaller.
        """
        position, parts, tokens = cursor, list[Sequences](), 0
        start = cursor
        while True:
            instances, lengths = self._make_block(position.phase, position.epoch, position.block)
            keys = _draw_keys(self.seed, position, len(instances))
            first_row = position.offset
            for row in range(position.offset, len(instances)):
                if tokens + lengths[row] > self.batch_tokens:
                    end = Cursor(position.phase, position.epoch, position.block, row)
                    parts.append(self._build_sequences(instances[first_row:row], keys[first_row:row]))
                    yield GlobalBatch(concatenate(parts), start, end)
                    parts, tokens, first_row, start = [], 0, row, end
                tokens += lengths[row]
            parts.append(self._build_sequences(instances[first_row:], keys[first_row:]))
            if position.block + 1 < -(-len(self.store) // self._block_documents):
                position = Cursor(position.phase, position.epoch, position.block + 1)
            else:
                position = Cursor(position.phase, position.epoch + 1)
            if last_epoch is not None and position.epoch > last_epoch:
                if tokens:
                    yield GlobalBatch(concatenate(parts), start, position)
                return

    def _make_block(self, phase: int, epoch: int, block: int) -> tuple[Instances, list[int]]:
        """The shuffled instances of a block, and their lengths with special tokens."""
        order = _shuffle_documents(len(self.store), self.seed, phase, epoch)
        size = self._block_documents
        documents = order[block * size : (block + 1) * size]
        generator = _make_generator(self.seed, phase, epoch, block)
        instances = self.make_instances(documents, generator)
        instances = instances[generator.permutation(len(instances))]
        lengths = instances.first_end - instances.first_start + instances.second_end - instances.second_start
        return instances, (lengths + self._extra_tokens).tolist()

    def make_instances(self, documents: npt.NDArray[np.int64], generator: np.random.Generator) -> Instances:
        """The sequences of some documents, in their order; with special tokens at most `max_length` long."""
        room = self.max_length - self._extra_tokens
        if self.next_sentence:
            make = make_sentence_order_pairs if self.sentence_order else make_next_sentence_pairs
            pairs = make(self.store, documents, room, self.short_seq_prob, generator)
            return truncate_pairs(pairs, room, generator)
        return make_full_segments(self.store, documents, room)

    def _build_sequences(self, instances: Instances, keys: npt.NDArray[np.uint64]) -> Sequences:
        """[CLS] first [SEP], or [CLS] first [SEP] second [SEP] with the second part as segment 1."""
        first = instances.first_end - instances.first_start
        second = instances.second_end - instances.second_start
        lengths = first + second + self._extra_tokens
        starts = np.cumsum(lengths) - lengths
        token_ids = np.empty(int(lengths.sum()), np.int64)
        segment_ids = np.zeros_like(token_ids)
        token_ids[starts] = self.tokenizer.cls_id
        token_ids[starts + 1 + first] = self.tokenizer.sep_id
        target, source = ragged_range(starts + 1, first), ragged_range(instances.first_start, first)
        token_ids[target] = self.store.tokens[source]
        values = None
        if self.store.values is not None:
            values = np.zeros((len(token_ids), self.store.values.shape[1]), np.float32)
            values[target] = self.store.values[source]
        if self.next_sentence:
            target = ragged_range(starts + 2 + first, second)
            token_ids[target] = self.store.tokens[ragged_range(instances.second_start, second)]
            token_ids[starts + lengths - 1] = self.tokenizer.sep_id
            segment_ids[ragged_range(starts + 2 + first, second + 1)] = 1
        return Sequences(token_ids, segment_ids, lengths, keys, instances.is_random, values)


def require_documents(store: TokenStore, sentence_order: bool = False) -> None:
    """Raises StoreError if a store has too few documents of several sentences for next-sentence prediction,
    or for sentence-order prediction with `sentence_order`.
    """
    sentences = np.diff(store.document_starts[:1_000_001])
    with_next = int((sentences > 1).sum())
    if len(store) < 2 or with_next < 0.05 * len(sentences):
        objective, advice = "Next-sentence", "data.next_sentence=false"
        if sentence_order:
            objective, advice = "Sentence-order", "objective=masked-language data.next_sentence=false"
        raise StoreError(
            f"{objective} prediction needs at least two documents, and documents of several sentences in "
            f"order; {store.path} has {len(store):,} document(s), {with_next:,} of the first "
            f"{len(sentences):,} with more than one sentence. Give the corpus document structure (one "
            "document per file, or blank lines between documents), or pre-train without it: "
            f"{advice}."
        )


@lru_cache(maxsize=2)
def _shuffle_documents(documents: int, seed: int, phase: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of all documents in an epoch, in 8 bytes each."""
    return _make_generator(seed, phase, epoch, -1).permutation(documents)


def _make_generator(seed: int, phase: int, epoch: int, block: int) -> np.random.Generator:
    """A generator for a block (-1: for the epoch). PCG64DXSM, because torch's sampler is biased at 10^9
    samples (ModernBERT, appendix C.1).
    """
    return np.random.Generator(np.random.PCG64DXSM([seed, phase, epoch, block + 1]))


def _draw_keys(seed: int, position: Cursor, count: int) -> npt.NDArray[np.uint64]:
    """A random key for each sequence of a block, the same on every rank: masks are drawn from it."""
    entropy = [seed, position.phase, position.epoch, position.block, 0x6D61736B]
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(entropy))).integers(
        0, 2**64, count, np.uint64
    )


@dataclass(frozen=True)
class MixedStream:
    """Batches of `main` joined with batches of `mixed_in`; their token budgets give the share of each."""

    main: PretrainingStream
    mixed_in: PretrainingStream

    @property
    def store(self) -> TokenStore:
        """The store of the main text, from which token frequencies are counted."""
        return self.main.store

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which both streams share."""
        return self.main.tokenizer

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """The batches from `cursor` on, endless: each text begins again when it is used up."""
        of_main = self.main.batches(replace(cursor, mixed_in=None))
        of_mixed_in = self.mixed_in.batches(cursor.mixed_in or Cursor(cursor.phase))
        for first, second in zip(of_main, of_mixed_in, strict=False):
            yield GlobalBatch(
                concatenate([first.sequences, second.sequences]),
                replace(first.start, mixed_in=second.start),
                replace(first.end, mixed_in=second.end),
            )


def divide_batch_size(batch_size: int, share: float) -> tuple[int, int]:
    """How many sequences of a batch are of the main text, and how many are mixed in, a share of `share`.

    A batch has at least two sequences, of which each text gets at least one.
    """
    mixed_in = min(max(round(share * batch_size), 1), batch_size - 1)
    return batch_size - mixed_in, mixed_in


def prefetch(items: Iterator[T], ahead: int = 2) -> Generator[T, None, None]:
    """The same items in the same order, made by a thread that is at most `ahead` items early.

    Closing the generator ends the thread, as soon as the item is made that it is working on. An error in the
    thread is raised here, in the place of its item.
    """
    results: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
    closed = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not closed.is_set():
            try:
                results.put((item, error), timeout=0.1)
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
            item, error = results.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join(_JOIN_SECONDS)
