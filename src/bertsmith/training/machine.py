"""Where a run computes, in what precision, and the processes (ranks) that torchrun started as one run of it:
what the recipe says, or else what the hardware has.
"""

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import usual_batch_tokens
from bertsmith.errors import RecipeError
from bertsmith.machine import Hardware, matmul_flops
from bertsmith.reporting.formatting import counted
from bertsmith.training.settings import HardwareSettings

# How long ranks wait for each other. NCCL's own ten minutes would end a run whose first rank makes the token
# store. A rank that dies is seen by torchrun at once: what waits so long is one that hangs.
_PATIENCE = timedelta(hours=3)


@dataclass(frozen=True)
class Ranks:
    """This process's number among `count`, and its number among the `local_count` on its own machine."""

    rank: int = 0
    count: int = 1
    local: int = 0
    local_count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def join(device: str) -> Ranks:
    """Joins the processes torchrun started (it says so by RANK and WORLD_SIZE); alone, joins nothing."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=_PATIENCE)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    local_count = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    return Ranks(dist.get_rank(), dist.get_world_size(), local, local_count)


def leave() -> None:
    """Ends the group, where there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def add_over_ranks(values: dict[str, float], device: torch.device) -> dict[str, float]:
    """Each value summed over all ranks."""
    if not dist.is_initialized():
        return values
    total = sum_over_ranks(torch.tensor(list(values.values()), dtype=torch.float64, device=device))
    return dict(zip(values, total.tolist(), strict=True))


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every rank's tensor, which takes the place of the one that is given."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def gather_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Every rank's tensor, in the order of the ranks. Their sizes may differ, their dimensions must not."""
    if not dist.is_initialized():
        return [tensor]
    shape = torch.tensor(tensor.shape, device=tensor.device)
    shapes = [torch.empty_like(shape) for _ in range(dist.get_world_size())]
    dist.all_gather(shapes, shape, group)
    sizes = [int(each.prod()) for each in shapes]
    filled = F.pad(tensor.flatten(), (0, max(sizes) - tensor.numel()))
    found = [torch.empty_like(filled) for _ in shapes]
    dist.all_gather(found, filled, group)
    return [part[:size].view(*each.tolist()) for part, size, each in zip(found, sizes, shapes, strict=True)]


def gathering_of_texts() -> Callable[[str], list[str]]:
    """A function that gives every rank's text, in the order of the ranks.

    The ranks talk in a group of their own, so that a thread may do so beside what the training exchanges.
    """
    group = dist.new_group(backend="gloo")

    def gather(text: str) -> list[str]:
        characters = torch.tensor(list(text.encode()), dtype=torch.uint8)
        return [bytes(found.tolist()).decode() for found in gather_over_ranks(characters, group)]

    return gather


def from_first(value: float, device: torch.device) -> float:
    """The first rank's value on every rank: for what must be agreed on."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)


def text_of_first(text: str) -> str:
    """The same of a text."""
    return gathering_of_texts()(text)[0] if dist.is_initialized() else text


def wait() -> None:
    """Until every rank is here."""
    if dist.is_initialized():
        dist.barrier()


@dataclass
class Machine:
    """Device, precision of products, measured matrix-product speed in FLOP/s, ranks.

    `sharded`: each rank holds a part of every tensor, not the whole model.
    """

    device: torch.device
    precision: torch.dtype
    peak: float
    ranks: Ranks
    micro_batch_tokens: int
    sharded: bool = False

    def autocast(self) -> AbstractContextManager[Any]:
        """Products in this precision, where it isn't float32."""
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


def set_up_machine(settings: HardwareSettings, micro_batch_tokens: int | None, hardware: Hardware) -> Machine:
    """Joins the ranks torchrun started, sets torch's threads and measures the matrix product."""
    device = _device(settings, hardware)
    ranks = join(device.type)
    if device.type == "cuda":
        if ranks.local >= len(hardware.gpus):
            there = len(hardware.gpus)
            raise RecipeError(
                f"{ranks.local_count} processes were started on this machine, which has "
                f"{counted(there, 'GPU')}. Start as many: torchrun --nproc-per-node {there}."
            )
        device = torch.device("cuda", ranks.local)
        torch.cuda.set_device(device)
    torch.set_num_threads(settings.threads or usual_threads(hardware, ranks))
    precision = _precision(settings, device, hardware)
    peak = matmul_flops(precision, device=device)
    sharded = settings.shard == "full" and ranks.count > 1
    tokens = micro_batch_tokens or usual_batch_tokens(device.type)
    return Machine(device, precision, peak, ranks, tokens, sharded)


def plain_machine(settings: HardwareSettings, micro_batch_tokens: int | None, hardware: Hardware) -> Machine:
    """One process with torch's threads as the caller set them, who may train several models at once.

    Its speed is not measured: infinite, for nothing is reported of it.
    """
    device = _device(settings, hardware)
    precision = _precision(settings, device, hardware)
    return Machine(
        device, precision, math.inf, Ranks(), micro_batch_tokens or usual_batch_tokens(device.type)
    )


def usual_threads(hardware: Hardware, ranks: Ranks | None = None) -> int:
    """What OMP_NUM_THREADS says, for a process alone: torchrun sets it to 1 unasked."""
    ranks, asked = ranks or Ranks(), os.environ.get("OMP_NUM_THREADS", "")
    if ranks.count == 1 and asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, hardware.threads // ranks.local_count)


def _precision(settings: HardwareSettings, device: torch.device, hardware: Hardware) -> torch.dtype:
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}[settings.precision]
    if named == torch.bfloat16 and device.type == "cuda" and hardware.precision != named:
        raise RecipeError(
            f"hardware.precision = bfloat16, but {hardware.precision_reason}. Choose auto or float32."
        )
    return named or (hardware.precision if device.type == hardware.device.type else torch.float32)


def _device(settings: HardwareSettings, hardware: Hardware) -> torch.device:
    if settings.device == "auto":
        return hardware.device
    if settings.device == "cuda" and not hardware.gpus:
        raise RecipeError("hardware.device = cuda, but this machine has no CUDA device. Use device=auto.")
    return torch.device(settings.device)
