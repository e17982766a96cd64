"""Several processes of torchrun on one benchmark: each takes tasks of its own, on a device of its own."""

import os
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch

from bertsmith.errors import RecipeError
from bertsmith.reporting.formatting import counted
from bertsmith.training.machine import join, leave, wait

T = TypeVar("T")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Share(NamedTuple):
    """This process's number among `ranks`."""

    rank: int = 0
    ranks: int = 1

    def of(self, tasks: Sequence[T]) -> list[T]:
        """Every `ranks`th."""
        return list(tasks[self.rank :: self.ranks])


def own_share() -> Share:
    """This process's share, on a device of its own: a benchmark's trainings are small, and one a device is
    faster than all devices on one. To be called before CUDA is asked for anything. Raises RecipeError where
    this machine has fewer GPUs than processes.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or ranks == 1:
        return Share()
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    gpus, visible = _gpus(), os.environ.get(_VISIBLE)
    if gpus == 0 or visible == "":  # empty hides them all
        return Share(rank, ranks)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    devices = visible.split(",") if visible else [str(number) for number in range(processes)]
    there = len(devices) if gpus is None else min(gpus, len(devices))
    if processes > there:
        raise RecipeError(
            f"{processes} processes were started on this machine, which has {counted(there, 'GPU')} for "
            f"them. Start as many: torchrun --nproc-per-node {there}. To train on the processor alone, hide "
            f"the GPUs by {_VISIBLE}= before the command."
        )
    os.environ[_VISIBLE] = devices[local]
    return Share(rank, ranks)


def _gpus() -> int | None:
    """How many CUDA will see, as NVML says without beginning CUDA; None where it doesn't say."""
    if not torch.backends.cuda.is_built():
        return 0
    count: int = getattr(torch.cuda, "_device_count_nvml", lambda: -1)()
    return None if count < 0 else count


def part_after(share: Share) -> None:
    """Waits until every process is here; from then on each trains as if it were alone."""
    if share.ranks > 1 and "RANK" in os.environ:
        join("cpu")
        wait()
        leave()
        del os.environ["RANK"]
