"""A task's training as the loop sees it: shuffled batches of examples, one loss, metrics on dev.

The order is a pure function of (seed, epoch), so that a cursor of two numbers names a place in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.stream import Cursor, GlobalBatch
from bertsmith.model.operations import encoder_operations
from bertsmith.tasks.encoding import Encoded, lay_out, pack_examples
from bertsmith.tasks.objective import Add
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokenizer import Tokenizer

_TEXTS_AT_A_TIME = 1024


@dataclass(frozen=True)
class Split:
    """Labelled examples, and the same as sequences."""

    examples: Sequence[Any]
    encoded: Sequence[Encoded]

    def __len__(self) -> int:
        return len(self.examples)


def encode_examples(task: Task[Any], examples: Sequence[Any], tokenizer: Tokenizer) -> Split:
    """Tokenises many examples at a time."""
    encoded: list[Encoded] = []
    for start in range(0, len(examples), _TEXTS_AT_A_TIME):
        some = examples[start : start + _TEXTS_AT_A_TIME]
        texts = [task.texts(example) for example in some]
        blank = " " if task.word_by_word and tokenizer.family == "byte-level" else ""  # Ġ begins a word
        pieces = iter(tokenizer.encode_pieces([blank + text for each in texts for text in each]))
        for example, each in zip(some, texts, strict=True):
            encoded.append(task.encode(example, [next(pieces) for _ in each], tokenizer))
    return Split(examples, encoded)


@dataclass
class Finetuning:
    """Fulfils `Objective` for a task and its model."""

    task: Task[Any]
    model: TaskModel
    train: Split
    dev: Split | None
    batch_size: int
    seed: int
    device: torch.device
    dev_outputs: list[Outputs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task.bind(self.model.head)

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        """Endless; the last batch of an epoch holds what is left."""
        epoch, start = cursor.epoch, cursor.offset
        while True:
            order = _order(len(self.train), self.seed, epoch)
            while start < len(order):
                numbers = order[start : start + self.batch_size].tolist()
                here = Cursor(0, epoch, 0, start)
                start += len(numbers)
                end = Cursor(0, epoch, 0, start) if start < len(order) else Cursor(0, epoch + 1, 0, 0)
                yield GlobalBatch(
                    pack_examples([self.train.encoded[number] for number in numbers], numbers), here, end
                )
            epoch, start = epoch + 1, 0

    def counts(self, sequences: Sequences) -> dict[str, float]:
        """What the task divides its summed loss by."""
        return {"task": self.task.count([each.target for each in self._examples(sequences)])}

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """The task's summed loss of one micro-batch."""
        encoded = self._examples(sequences)
        outputs = self.model(PackedBatch.of(sequences, self.device), lay_out(encoded, self.device))
        return {"task": self.task.loss(outputs, [each.target for each in encoded])}

    def operations(self, sequences: Sequences) -> float:
        """The encoder's, backward counted as twice forward; frozen parts need no backward pass."""
        rows = sum(len(window.rows) for each in self._examples(sequences) for window in each.windows)
        trained = any(parameter.requires_grad for parameter in self.model.encoder.parameters())
        return (3 if trained else 1) * encoder_operations(self.model.config, sequences.lengths, rows)

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        """The task's metrics on dev, thresholds as they are; every rank measures the same."""
        if self.dev is None:
            return {}
        self.dev_outputs = outputs_of(self.model, self.dev.encoded, self.device)
        predictions = self.task.decode(self.dev_outputs, self.dev.examples, self.dev.encoded)
        return self.task.metrics(predictions, self.dev.examples)

    def _examples(self, sequences: Sequences) -> list[Encoded]:
        """The examples of a batch in its order: windows of one are neighbours and have one key."""
        keys = sequences.keys.astype(np.int64)
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return [self.train.encoded[number] for number in keys[firsts].tolist()]


def _order(examples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64DXSM([seed, epoch])).permutation(examples)
