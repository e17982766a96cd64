"""A training whose step has a given shape, alone or as one of several ranks: what growth.py times.

N   tokens of a step, over all ranks
"""

import os
import time
from itertools import count
from typing import Any, NamedTuple

import torch

from bertsmith.data.stream import Cursor, GlobalBatch
from bertsmith.machine import Hardware
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.process import keep_freed_memory
from bertsmith.training.machine import leave_ranks, set_up_machine
from bertsmith.training.settings import HardwareSettings
from harness import resident
from on_gpu.ours import make_loop, pretraining_task
from on_gpu.work import made_up_tokenizer, pairs

_LAYERS, _HEAD, _LONGEST = 4, 64, 512


class Shape(NamedTuple):
    """N tokens in pairs of `length`, a model of `width`, and a vocabulary."""

    tokens: int
    length: int
    width: int
    pieces: int


def shape(axis: str, size: int, *, small: bool = False) -> Shape:
    """The step of an axis at one of its sizes."""
    usual = Shape(64, 16, 64, 600) if small else Shape(4096, 128, 256, 30_522)
    if axis == "ranks":
        return usual
    if axis in ("length", "width") and not small:
        usual = usual._replace(tokens={"length": 8192, "width": 2048}[axis])
    return usual._replace(**{axis: size})


class Steps:
    """The real loop, its batches made up and made beforehand."""

    def __init__(self, wanted: Shape, rank: int, ranks: int, port: int) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
        keep_freed_memory()
        machine = set_up_machine(HardwareSettings(device="cpu"), None, Hardware.detect())
        self._before = resident("VmRSS")  # what libraries take
        self._wanted, self._numbers = wanted, count()
        self._tokenizer = made_up_tokenizer(wanted.pieces)
        config = BertConfig.model_validate(
            {
                "num_hidden_layers": _LAYERS,
                "hidden_size": wanted.width,
                "num_attention_heads": wanted.width // _HEAD,
                "intermediate_size": 4 * wanted.width,
                "vocab_size": wanted.pieces,
                "max_position_embeddings": _LONGEST,
            }
        )
        task = pretraining_task(config, self._tokenizer, torch.device("cpu"))
        task.model.train()
        self._loop = make_loop(task, machine)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of so many steps, and the peak of memory so far beyond the libraries'."""
        made = [self._batch(number) for number, _ in zip(self._numbers, range(request["steps"]))]
        started = time.perf_counter()
        for batch in made:
            self._loop.advance(batch)
        return {"seconds": time.perf_counter() - started, "memory": resident("VmHWM") - self._before}

    def close(self) -> None:
        """Leaves the group of ranks."""
        leave_ranks()

    def _batch(self, number: int) -> GlobalBatch:
        wanted = self._wanted
        sequences = pairs(str(wanted.length), wanted.tokens, number, self._tokenizer, _LONGEST)
        return GlobalBatch(sequences, Cursor(), Cursor())
