"""Several processes of torchrun on one benchmark: each takes tasks of its own, on a device of its own."""

import os
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from bertsmith.training.distributed import join, leave, wait

T = TypeVar("T")


class Share(NamedTuple):
    """This process's number among `ranks`."""

    rank: int = 0
    ranks: int = 1

    def of(self, tasks: Sequence[T]) -> list[T]:
        """Every `ranks`th."""
        return list(tasks[self.rank :: self.ranks])


def own_share() -> Share:
    """This process's share, on a device of its own: a benchmark's trainings are small, and one a device is
    faster than all devices on one. To be called before CUDA is asked for anything.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or ranks == 1:
        return Share()
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(local + 1)]
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[local % len(devices)]
    return Share(rank, ranks)


def part_after(share: Share) -> None:
    """Waits until every process is here; from then on each trains as if it were alone."""
    if share.ranks > 1 and "RANK" in os.environ:
        join("cpu")
        wait()
        leave()
        del os.environ["RANK"]
