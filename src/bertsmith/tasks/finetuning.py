"""A task's fine-tuning as the training loop sees it: shuffled batches of examples, one loss, metrics on dev.

The order is a pure function of (seed, epoch), so a cursor of two numbers identifies a position in it.
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
from bertsmith.text.tokens.long_texts import CachedEncoding, TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer

_TEXTS_AT_A_TIME, _CHARACTERS_AT_A_TIME = 1024, 1 << 20


@dataclass(frozen=True)
class EncodedExamples:
    """Labelled examples, each with its encoding."""

    examples: Sequence[Any]
    encoded: Sequence[EncodedExample]

    def __len__(self) -> int:
        return len(self.examples)

    def some(self, rows: Ints) -> "EncodedExamples":
        """The examples with these indices, in their order."""
        numbers = rows.tolist()
        return EncodedExamples(
            [self.examples[row] for row in numbers], [self.encoded[row] for row in numbers]
        )

    def of_batch(self, sequences: Sequences) -> list[EncodedExample]:
        """The encoded examples of a batch in its order. Windows of one example are neighbours with
        one key.
        """
        keys = sequences.keys.astype(np.int64)
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return [self.encoded[number] for number in keys[firsts].tolist()]

    def piece_counts(self, vocabulary: int) -> Ints:
        """How often each token of a vocabulary occurs: (V,)."""
        counts = np.zeros(vocabulary, np.int64)
        for example in self.encoded:
            for window in example.windows:
                counts += np.bincount(window.token_ids, minlength=vocabulary)
        return counts


def encode_examples(task: Task[Any], examples: Sequence[Any], tokenizer: Tokenizer) -> EncodedExamples:
    """Tokenises and encodes many examples at a time. Of a text that is cut, little more than the part that is
    read is tokenised.
    """
    encoded: list[EncodedExample] = []
    for chunk in few_at_a_time(task, examples, _TEXTS_AT_A_TIME, _CHARACTERS_AT_A_TIME):
        pieces = pieces_of(task, [task.texts(example) for example in chunk], tokenizer)
        encoded += [
            task.encode(example, of_texts, tokenizer) for example, of_texts in zip(chunk, pieces, strict=True)
        ]
    return EncodedExamples(examples, encoded)


def pieces_of(
    task: Task[Any], texts: Sequence[Sequence[str]], tokenizer: Tokenizer, most: int | None = None
) -> list[Sequence[TextEncoding]]:
    """The tokens of each example's `texts`, as `task.encode` takes them. A text that will be cut has at least
    one token more than is read; if both texts of a pair will be cut, they have all their tokens, because the
    cut depends on which is longer. A text that is read in windows has one token more than `most`.
    """
    cut = task.settings.stride is None and not task.is_pretokenized
    enough = task.settings.max_length if cut else None if most is None else most + 1
    blank = tokenizer.blank_before_words if task.is_pretokenized else ""  # Ġ begins a word
    all_texts = [blank + text for example_texts in texts for text in example_texts]
    ends = accumulate(len(example_texts) for example_texts in texts)
    if task.is_pretokenized:
        words = tokenizer.encode_words(all_texts)
        return [words[end - len(example_texts) : end] for example_texts, end in zip(texts, ends, strict=True)]
    distinct = list(dict.fromkeys(all_texts))
    distinct_pieces = tokenizer.encode_pieces(distinct, enough)
    if len(distinct) == len(all_texts):
        pieces = list(distinct_pieces)
    else:  # for instance one query with many documents
        shared = dict(zip(distinct, map(CachedEncoding, distinct_pieces), strict=True))
        pieces = [shared[text] for text in all_texts]
    by_example: list[Sequence[TextEncoding]] = [
        pieces[end - len(example_texts) : end] for example_texts, end in zip(texts, ends, strict=True)
    ]
    if not cut:
        return by_example
    return [
        tokenizer.encode_pieces(example_texts)
        if _both_are_cut(example_texts, example_pieces, task.settings.max_length)
        else example_pieces
        for example_texts, example_pieces in zip(texts, by_example, strict=True)
    ]


def _both_are_cut(texts: Sequence[str], pieces: Sequence[TextEncoding], max_length: int) -> bool:
    """Whether each of two texts has more tokens than are read. The tokens of one of them may be
    incomplete.
    """
    if len(texts) != 2 or max(map(len, texts)) <= max_length:
        return False
    return all(len(text_pieces.ids) >= max_length for text_pieces in pieces)


def few_at_a_time(
    task: Task[Any], examples: Sequence[Any], most: int, characters: int
) -> Iterator[Sequence[Any]]:
    """Divides examples, in order, into chunks of at most `most` examples and `characters` in total; at least
    one example each.
    """
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
    """How many batches the task makes of an epoch. If equal texts are kept out of one batch, another order
    may give a few more or less.
    """
    targets = [example.target for example in train.encoded]
    return len(task.make_batches(targets, _shuffle(len(train), 0, 0), batch_size))


@dataclass
class FinetuningObjective:
    """Implements `Objective` for a task and its model."""

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
        # Bound to its arguments and not to this object: a reference cycle would keep both after the run.
        self._outputs = partial(_outputs, self.model, self.train, self.device)
        self._cache = GradientCache(self._outputs, self.device)

    @property
    def needs_global_batch(self) -> bool:
        """Whether the task's loss compares the examples of a batch with each other."""
        return self.task.needs_global_batch

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Endless batches, as the task divides each epoch. A cursor's offset counts the examples of its epoch
        so far.
        """
        epoch, done = cursor.epoch, cursor.offset
        targets = [example.target for example in self.train.encoded]
        while True:
            order = _shuffle(len(self.train), self.seed, epoch)
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

    def prepare_step(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        """Returns nothing, because nothing changes with the schedule."""
        return {}

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """The number by which the task divides its summed loss."""
        return {"task": self.task.count([example.target for example in self.train.of_batch(sequences)])}

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """If the loss compares examples and they are divided into micro-batches, runs the first pass over all
        of them.
        """
        if not self.task.needs_global_batch or sum(len(batch) for batch in micro_batches) == 1:
            return
        targets = [
            example.target
            for micro_batch in chain.from_iterable(micro_batches)
            for example in self.train.of_batch(micro_batch)
        ]
        self._cache.fill(micro_batches, rank, gather, lambda outputs: self.task.losses(outputs, targets))

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The task's summed loss of one micro-batch."""
        loss = self._cache.loss(sequences) if self.task.needs_global_batch else None
        if loss is None:
            targets = [example.target for example in self.train.of_batch(sequences)]
            loss = self.task.loss(self._outputs(sequences), targets)
        return {"task": loss}

    def flops(self, sequences: Sequences) -> float:
        """The encoder's operations. The backward pass counts twice; a frozen encoder has none."""
        examples = self.train.of_batch(sequences)
        rows = sum(len(window.rows) for example in examples for window in example.windows)
        trained = any(parameter.requires_grad for parameter in self.model.encoder.parameters())
        return (3 if trained else 1) * encoder_flops(self.model.config, sequences.lengths, rows)

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """The task's metrics on dev, the same on every rank. A copy of the task is calibrated there like the
        finished model, because thresholds may decide which weights are best.
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


def _shuffle(examples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64DXSM([seed, epoch])).permutation(examples)
