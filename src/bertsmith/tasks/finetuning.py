"""A task's training as the loop sees it: shuffled batches of examples, one loss, metrics on dev.

The order is a pure function of (seed, epoch), so that a cursor of two numbers names a place in it.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.stream import Cursor, GlobalBatch
from bertsmith.model.flops import encoder_flops
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, pack_examples
from bertsmith.tasks.losses.gradient_cache import GradientCache
from bertsmith.tasks.objective import Add, Gather
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.long_texts import Pieces, SharedPieces
from bertsmith.text.tokens.tokenizer import Tokenizer

_TEXTS_AT_A_TIME, _CHARACTERS_AT_A_TIME = 1024, 1 << 20


@dataclass(frozen=True)
class EncodedExamples:
    """Labelled examples, and the same as sequences."""

    examples: Sequence[Any]
    encoded: Sequence[EncodedExample]

    def __len__(self) -> int:
        return len(self.examples)

    def some(self, rows: Ints) -> "EncodedExamples":
        """Those of these numbers, in their order."""
        numbers = rows.tolist()
        return EncodedExamples(
            [self.examples[row] for row in numbers], [self.encoded[row] for row in numbers]
        )

    def of_batch(self, sequences: Sequences) -> list[EncodedExample]:
        """Those of a batch in its order: windows of one are neighbours and have one key."""
        keys = sequences.keys.astype(np.int64)
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return [self.encoded[number] for number in keys[firsts].tolist()]

    def piece_counts(self, vocabulary: int) -> Ints:
        """(V,): how often each piece of a vocabulary is read."""
        counts = np.zeros(vocabulary, np.int64)
        for each in self.encoded:
            for window in each.windows:
                counts += np.bincount(window.token_ids, minlength=vocabulary)
        return counts


def encode_examples(task: Task[Any], examples: Sequence[Any], tokenizer: Tokenizer) -> EncodedExamples:
    """Tokenises many examples at a time; of a text that is cut, little more than is read."""
    encoded: list[EncodedExample] = []
    for some in few_at_a_time(task, examples, _TEXTS_AT_A_TIME, _CHARACTERS_AT_A_TIME):
        pieces = pieces_of(task, some, tokenizer)
        encoded += [task.encode(*each, tokenizer) for each in zip(some, pieces, strict=True)]
    return EncodedExamples(examples, encoded)


def pieces_of(
    task: Task[Any], examples: Sequence[Any], tokenizer: Tokenizer, most: int | None = None
) -> list[Sequence[Pieces]]:
    """What `task.encode` reads of each example: the pieces of its texts; of one that is cut, at least one
    more than is read, and of two that both are, all, for the longer one keeps more; of one that is read in
    windows, one more than `most`.
    """
    cut = task.settings.stride is None and not task.is_pretokenized
    enough = task.settings.max_length if cut else None if most is None else most + 1
    texts = [task.texts(example) for example in examples]
    blank = " " if task.is_pretokenized and tokenizer.family == "byte-level" else ""  # Ġ begins a word
    every = [blank + text for each in texts for text in each]
    ends = accumulate(len(text) for text in texts)
    if task.is_pretokenized:
        words = tokenizer.encode_words(every)
        return [words[end - len(each) : end] for each, end in zip(texts, ends, strict=True)]
    distinct = list(dict.fromkeys(every))
    found = tokenizer.encode_pieces(distinct, enough)
    if len(distinct) == len(every):
        pieces = list(found)
    else:  # as where a query stands before each of many documents
        shared = dict(zip(distinct, map(SharedPieces, found), strict=True))
        pieces = [shared[text] for text in every]
    of_examples: list[Sequence[Pieces]] = [
        pieces[end - len(each) : end] for each, end in zip(texts, ends, strict=True)
    ]
    if not cut:
        return of_examples
    return [
        tokenizer.encode_pieces(each) if _both_are_cut(each, found, task.settings.max_length) else found
        for each, found in zip(texts, of_examples, strict=True)
    ]


def _both_are_cut(texts: Sequence[str], pieces: Sequence[Pieces], max_length: int) -> bool:
    """Whether each of two texts has more tokens than are read, one of them perhaps more than are known."""
    if len(texts) != 2 or max(map(len, texts)) <= max_length:
        return False
    return all(len(found.ids) >= max_length for found in pieces)


def few_at_a_time(
    task: Task[Any], examples: Sequence[Any], most: int, characters: int
) -> Iterator[Sequence[Any]]:
    """In order, at most so many, which together have at most so many characters; at least one."""
    start = size = 0
    for end, example in enumerate(examples):
        length = sum(map(len, task.texts(example)))
        if end > start and (end - start == most or size + length > characters):
            yield examples[start:end]
            start, size = end, 0
        size += length
    if start < len(examples):
        yield examples[start:]


def steps_of_epoch(task: Task[Any], train: EncodedExamples, batch_size: int) -> int:
    """How many batches the task makes of an epoch; where texts must not meet, another order may make a few
    more or less.
    """
    targets = [each.target for each in train.encoded]
    return len(task.make_batches(targets, _order(len(train), 0, 0), batch_size))


@dataclass
class FinetuningObjective:
    """Fulfils `Objective` for a task and its model."""

    task: Task[Any]
    model: TaskModel
    train: EncodedExamples
    dev: EncodedExamples | None
    batch_size: int
    seed: int
    device: torch.device
    progress: Progress | None = None  # of one evaluation

    def __post_init__(self) -> None:
        self.task.bind(self.model.head)
        # Bound to what it needs, and not to this object: held by each other, they would outlive their run.
        self._outputs = partial(_outputs, self.model, self.train, self.device)
        self._cache = GradientCache(self._outputs, self.device)

    @property
    def needs_global_batch(self) -> bool:
        """As the task says."""
        return self.task.needs_global_batch

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Endless, as the task divides each epoch; a cursor's offset counts the epoch's examples so far."""
        epoch, done = cursor.epoch, cursor.offset
        targets = [each.target for each in self.train.encoded]
        while True:
            order = _order(len(self.train), self.seed, epoch)
            parts = self.task.make_batches(targets, order, self.batch_size)
            ends = np.cumsum([len(part) for part in parts]).tolist()
            for part, end in zip(parts, ends, strict=True):
                if end <= done:
                    continue
                here = Cursor(0, epoch, 0, end - len(part))
                after = Cursor(0, epoch, 0, end) if end < ends[-1] else Cursor(0, epoch + 1, 0, 0)
                numbers = part.tolist()
                packed = pack_examples([self.train.encoded[number] for number in numbers], numbers)
                yield GlobalBatch(packed, here, after)
            epoch, done = epoch + 1, 0

    def follow(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        """Nothing changes with the schedule."""
        return {}

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """What the task divides its summed loss by."""
        return {"task": self.task.count([each.target for each in self.train.of_batch(sequences)])}

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """Where the loss compares a batch's examples and these are divided, a first pass over all of them."""
        if not self.task.needs_global_batch or sum(len(batch) for batch in micro_batches) == 1:
            return
        every = chain.from_iterable(micro_batches)
        targets = [each.target for micro_batch in every for each in self.train.of_batch(micro_batch)]
        self._cache.fill(micro_batches, rank, gather, lambda outputs: self.task.losses(outputs, targets))

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The task's summed loss of one micro-batch."""
        loss = self._cache.loss(sequences) if self.task.needs_global_batch else None
        if loss is None:
            targets = [each.target for each in self.train.of_batch(sequences)]
            loss = self.task.loss(self._outputs(sequences), targets)
        return {"task": loss}

    def flops(self, sequences: Sequences) -> float:
        """The encoder's, backward counted as twice forward; frozen parts need no backward pass."""
        rows = sum(len(window.rows) for each in self.train.of_batch(sequences) for window in each.windows)
        trained = any(parameter.requires_grad for parameter in self.model.encoder.parameters())
        return (3 if trained else 1) * encoder_flops(self.model.config, sequences.lengths, rows)

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """The task's metrics on dev, calibrated there as the finished model will be, for thresholds may
        decide which weights are best; every rank measures the same.
        """
        if self.dev is None:
            return {}
        outputs = outputs_of(self.model, self.dev.encoded, progress=self.progress)
        task = copy(self.task)
        task.calibrate(outputs, self.dev.examples, self.dev.encoded)
        return task.metrics(task.decode(outputs, self.dev.examples, self.dev.encoded), self.dev.examples)


def _outputs(model: TaskModel, train: EncodedExamples, device: torch.device, sequences: Sequences) -> Tensor:
    outputs: Tensor = model(PackedBatch.of(sequences, device), Layout(train.of_batch(sequences), device))
    return outputs


def _order(examples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64DXSM([seed, epoch])).permutation(examples)
