"""What a run computes on: device, precision, threads, and the processes (ranks) that torchrun started for it.
Chosen by the recipe, or else by what the hardware has.
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

# How long ranks wait for each other. NCCL's own ten minutes would end a run while its first rank makes the
# token store. A rank that dies is seen by torchrun at once: only a rank that hangs is waited for so long.
_PATIENCE = timedelta(hours=3)


@dataclass(frozen=True)
class Ranks:
    """This process's rank among `count`, and its `local_rank` among the `local_count` on its own machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def join_ranks(device: str) -> Ranks:
    """Joins the process group of a run that torchrun started (known by RANK and WORLD_SIZE) and returns this
    process's ranks. A single process joins nothing. `device` is "cpu", "cuda" or "mps". Raises RecipeError
    for several processes on Apple's GPU (MPS), which torch can't join.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks()
    if device == "mps":
        raise RecipeError("hardware.device = mps trains in one process. Start it without torchrun.")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=_PATIENCE)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_count = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    return Ranks(dist.get_rank(), dist.get_world_size(), local_rank, local_count)


def leave_ranks() -> None:
    """Leaves the process group, where there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def add_over_ranks(values: dict[str, float], device: torch.device) -> dict[str, float]:
    """Sums each value over all ranks."""
    if not dist.is_initialized():
        return values
    total = sum_over_ranks(torch.tensor(list(values.values()), dtype=torch.float64, device=device))
    return dict(zip(values, total.tolist(), strict=True))


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Sums a tensor over all ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def gather_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Returns every rank's tensor, in the order of the ranks. They may differ in size, but not in the number
    of dimensions.
    """
    if not dist.is_initialized():
        return [tensor]
    own_shape = torch.tensor(tensor.shape, device=tensor.device)
    shapes = [torch.empty_like(own_shape) for _ in range(dist.get_world_size())]
    dist.all_gather(shapes, own_shape, group)
    sizes = [int(shape.prod()) for shape in shapes]
    filled = F.pad(tensor.flatten(), (0, max(sizes) - tensor.numel()))
    gathered = [torch.empty_like(filled) for _ in shapes]
    dist.all_gather(gathered, filled, group)
    return [
        part[:size].view(*shape.tolist()) for part, size, shape in zip(gathered, sizes, shapes, strict=True)
    ]


def make_text_gatherer() -> Callable[[str], list[str]]:
    """Returns a function that takes this rank's text and returns every rank's, in the order of the ranks.

    It has a process group of its own, so that a thread can call it while the training exchanges gradients.
    """
    group = dist.new_group(backend="gloo")

    def gather(text: str) -> list[str]:
        characters = torch.tensor(list(text.encode()), dtype=torch.uint8)
        return [bytes(encoded.tolist()).decode() for encoded in gather_over_ranks(characters, group)]

    return gather


def broadcast_value(value: float, device: torch.device) -> float:
    """Returns the first rank's value on every rank."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)


def broadcast_text(text: str) -> str:
    """Returns the first rank's text on every rank."""
    return make_text_gatherer()(text)[0] if dist.is_initialized() else text


def wait_for_ranks() -> None:
    """Waits until every rank has called this; returns at once in a single process."""
    if dist.is_initialized():
        dist.barrier()


@dataclass
class Machine:
    """What one process of a run computes on.

    precision: that of matrix products. peak: the measured speed of matrix products in FLOP/s.
    micro_batch_tokens: how many tokens go through the model at once.
    sharded: whether each rank holds only its rows of every weight, and not the whole model.
    """

    device: torch.device
    precision: torch.dtype
    peak: float
    ranks: Ranks
    micro_batch_tokens: int
    sharded: bool = False

    def autocast(self) -> AbstractContextManager[Any]:
        """A context in which matrix products are computed in the machine's precision."""
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


def set_up_machine(settings: HardwareSettings, micro_batch_tokens: int | None, hardware: Hardware) -> Machine:
    """Joins the ranks that torchrun started, sets torch's threads and measures the matrix product.

    Raises RecipeError when the hardware doesn't have the device or the precision of `settings`, or fewer GPUs
    than processes were started.
    """
    device = _choose_device(settings, hardware)
    ranks = join_ranks(device.type)
    if device.type == "cuda":
        if ranks.local_rank >= len(hardware.gpus):
            count = len(hardware.gpus)
            raise RecipeError(
                f"{ranks.local_count} processes were started on this machine, which has "
                f"{counted(count, 'GPU')}. Start as many: torchrun --nproc-per-node {count}."
            )
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    torch.set_num_threads(settings.threads or default_threads(hardware, ranks))
    precision = _choose_precision(settings, device, hardware)
    peak = matmul_flops(precision, device=device)
    sharded = settings.shard == "full" and ranks.count > 1
    tokens = micro_batch_tokens or usual_batch_tokens(device.type)
    return Machine(device, precision, peak, ranks, tokens, sharded)


def make_plain_machine(
    settings: HardwareSettings, micro_batch_tokens: int | None, hardware: Hardware
) -> Machine:
    """A machine of one process that leaves torch's threads as they are, for a caller that may train several
    models at once. Its speed is not measured and stands as infinite, since nothing is reported of it.

    Raises RecipeError as `set_up_machine` does.
    """
    device = _choose_device(settings, hardware)
    precision = _choose_precision(settings, device, hardware)
    return Machine(
        device, precision, math.inf, Ranks(), micro_batch_tokens or usual_batch_tokens(device.type)
    )


def default_threads(hardware: Hardware, ranks: Ranks | None = None) -> int:
    """How many threads torch uses by default: OMP_NUM_THREADS for a single process, else this process's share
    of the hardware's. With several processes the variable is ignored, since torchrun sets it to 1 by itself.
    Of a list, as 4,2, the first number counts: the others are for nested levels.
    """
    ranks, variable = ranks or Ranks(), os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if ranks.count == 1 and variable.isdecimal() and int(variable) > 0:
        return int(variable)
    return max(1, hardware.threads // ranks.local_count)


def _choose_precision(settings: HardwareSettings, device: torch.device, hardware: Hardware) -> torch.dtype:
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": None}[settings.precision]
    if named == torch.bfloat16 and device.type == "cuda" and hardware.precision != named:
        raise RecipeError(
            f"hardware.precision = bfloat16, but {hardware.precision_reason}. Choose auto or float32."
        )
    return named or (hardware.precision if device.type == hardware.device.type else torch.float32)


def _choose_device(settings: HardwareSettings, hardware: Hardware) -> torch.device:
    if settings.device == "auto":
        return hardware.device
    if settings.device == "cuda" and not hardware.gpus:
        raise RecipeError("hardware.device = cuda, but this machine has no CUDA device. Use device=auto.")
    if settings.device == "mps" and not hardware.has_mps:
        raise RecipeError("hardware.device = mps, but torch finds no Apple GPU here. Use device=auto.")
    return torch.device(settings.device)
