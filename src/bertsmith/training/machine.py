"""Where a run computes, and in what precision: what the recipe says, or else what the hardware has."""

import math
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from bertsmith.data.batch import usual_batch_tokens
from bertsmith.errors import RecipeError
from bertsmith.machine import Hardware, matmul_flops
from bertsmith.reporting.formatting import counted
from bertsmith.training.distributed import Ranks, join
from bertsmith.training.settings import HardwareSettings

_ALONE = Ranks()


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


def usual_threads(hardware: Hardware, ranks: Ranks = _ALONE) -> int:
    """What OMP_NUM_THREADS says, for a process alone: torchrun sets it to 1 unasked."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
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
