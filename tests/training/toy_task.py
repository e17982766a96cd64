"""A task of a few numbers, to see the loop itself: each batch is known by its number, some are poisoned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import Sequences
from bertsmith.data.stream import Cursor, GlobalBatch
from bertsmith.tasks.objective import Add, Gather, Objective
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, Ranks
from bertsmith.training.recipe import check_recipe

Settings = dict[str, Any]
MICRO_BATCH_TOKENS = 10


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 8), nn.Dropout(0.1), nn.Linear(8, 1))


@dataclass
class ToyTask:
    """One and the squared distance from one, summed over tokens, times a factor for the batches in `poison`.

    The batches in `left_out` do not exist.
    """

    poison: dict[int, float] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    model: nn.Module = field(default_factory=new_model)

    def batches(self, cursor: Cursor) -> Iterator[GlobalBatch]:
        for number in count(cursor.offset):
            if number not in self.left_out:
                end = Cursor(cursor.phase, 0, 0, number + 1)
                yield GlobalBatch(sequences_of(number), Cursor(cursor.phase, 0, 0, number), end)

    def prepare_step(self, cursor: Cursor, decayed: float) -> dict[str, float]:
        return {}

    def counts(self, sequences: Sequences) -> dict[str, float]:
        return {"toy": len(sequences.token_ids)}

    needs_global_batch = False

    def begin_step(self, micro_batches: Sequence[Sequence[Sequences]], rank: int, gather: Gather) -> None:
        """Nothing to prepare."""

    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        outputs = self.model(torch.from_numpy(sequences.token_ids))
        factor = self.poison.get(int(sequences.labels[0]), 1.0)
        return {"toy": ((outputs - 1) ** 2 + 1).sum() * factor}

    def flops(self, sequences: Sequences) -> float:
        return float(len(sequences.token_ids))

    def evaluate(self, rank: int, ranks: int, add: Add) -> dict[str, float]:
        return {}


def sequences_of(number: int) -> Sequences:
    """Four sequences of random tokens, and the batch's number as their label."""
    draw = np.random.default_rng(number)
    lengths = draw.integers(2, 8, 4)
    total = int(lengths.sum())
    return Sequences(
        draw.integers(0, 64, total),
        np.zeros(total, np.int64),
        lengths,
        draw.integers(0, 2**64, 4, np.uint64),
        np.full(4, number),
    )


@dataclass
class LogOnly:
    """An observer that writes the log and shows nothing."""

    log: RunLog

    def record(self, kind: str, step: int, **values: Any) -> None:
        self.log.write(kind, step, **values)

    def rewind(self, step: int) -> None:
        self.log.rewind(step)


def loop_of(task: Objective, log: RunLog, settings: Settings) -> Loop:
    """64 steps with a checkpoint every eight unless `settings` say otherwise, in the folder of the log."""
    optimizer = {"learning_rate": 0.1, "warmup": 0}
    one_phase = {"sequence_lengths": [128], "sequence_shares": [1.0]}
    defaults = {"steps": 64, "checkpoint": {"every": 8}, "optimizer": optimizer, "data": one_phase}
    recipe = check_recipe(defaults | settings, "the test")
    machine = Machine(
        torch.device("cpu"), torch.float32, 1e9, Ranks(), recipe.data.micro_batch_tokens or MICRO_BATCH_TOKENS
    )
    return Loop(task, recipe, machine, log.path.parent, LogOnly(log))
