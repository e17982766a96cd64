"""Sides of a comparison, timed in turn on the same work: medians, memory, and what became of those that fail.

A GPU works on its own time: a measurement begins and ends by waiting for it, and nothing waits in between.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from harness import ratio, spread
from on_gpu.clock import OutOfTime, at_most
from on_gpu.scale import Scale

_WARM_STEPS = 3


class Side(Protocol):
    """Whoever does the work: `prepare` is outside the time, `step` inside."""

    def prepare(self, work: Any, /) -> Any: ...

    def step(self, prepared: Any, /) -> Any: ...


@dataclass(frozen=True)
class Work:
    """One step's work, the real tokens in it and the operations that no implementation can avoid."""

    given: Any
    tokens: int
    flops: float


@dataclass
class Contestant:
    """A side that is made when it is first needed, and remembered if it can't be."""

    name: str
    make: Callable[[], Side]
    side: Side | None = None
    problem: str = ""
    held: int = 0  # bytes of its weights and optimiser
    memory: int = 0  # bytes at most while it last worked, others' left out
    seconds: float = 0.0  # of a step, when it last warmed up
    prepared: list[Any] = field(default_factory=list)

    def warm_up(self, works: Sequence[Work], scale: Scale, seconds: float) -> bool:
        """Makes it, runs its first steps (which is when it is compiled), and measures its memory."""
        self.problem, self.prepared = "", []
        try:
            with at_most(seconds):
                self._warm_up(works, scale)
        except OutOfTime:
            self.problem = "no time"
        except torch.OutOfMemoryError:
            self.problem = "out of memory"
        except Exception as error:  # whatever a compiler or a missing package comes up with
            self.problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:100]
        return not self.problem

    def _warm_up(self, works: Sequence[Work], scale: Scale) -> None:
        others = _allocated(scale) - self.held
        if scale.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.side = self.side or self.make()
        self.prepared = [self.side.prepare(work.given) for work in works]
        for number in range(max(_WARM_STEPS, len(works))):
            self.seconds = timed(self.side, [self.prepared[number % len(works)]], scale)
        self.held = _allocated(scale) - others
        self.memory = _most_allocated(scale) - others


def timed(side: Side, prepared: Sequence[Any], scale: Scale, times: int = 1) -> float:
    """Seconds of a step on each work, so many times."""
    wait(scale)
    started = time.perf_counter()
    for _ in range(times):
        for each in prepared:
            side.step(each)
    wait(scale)
    return time.perf_counter() - started


def compare(
    contestants: Sequence[Contestant], works: Sequence[Work], scale: Scale, peak: float, seconds: float
) -> list[dict[str, Any]]:
    """A row for each contestant; the first one is what the others are divided by.

    Two thirds of the time at most go into warming up; rounds end when the rest of it does.
    """
    end = time.monotonic() + seconds
    ready = []
    for each in contestants:
        if each.warm_up(works, scale, end - time.monotonic() - seconds / 3):
            ready.append(each)
    speeds = _rounds(ready, works, scale, end)
    first = speeds.get(contestants[0].name)
    return [_row(each, speeds.get(each.name), first, works, peak) for each in contestants]


def _rounds(
    ready: Sequence[Contestant], works: Sequence[Work], scale: Scale, end: float
) -> dict[str, list[float]]:
    """Tokens per second of each round, in which a side does every work equally often. One at least."""
    speeds: dict[str, list[float]] = {each.name: [] for each in ready}
    tokens = sum(work.tokens for work in works)
    for _ in range(scale.rounds):
        started = time.monotonic()
        for each in ready:
            assert each.side is not None
            times = max(round(scale.seconds / each.seconds / len(works)), 1)
            taken = timed(each.side, each.prepared, scale, times)
            speeds[each.name].append(times * tokens / taken)
        now = time.monotonic()
        if now + (now - started) > end:
            break
    return speeds


def _row(
    each: Contestant,
    speeds: Sequence[float] | None,
    first: Sequence[float] | None,
    works: Sequence[Work],
    peak: float,
) -> dict[str, Any]:
    if not speeds:
        return {"side": each.name, "real tokens/s": each.problem or "no time"}
    speed = statistics.median(speeds)
    flops = sum(work.flops for work in works) / sum(work.tokens for work in works)
    row = {
        "side": each.name,
        "real tokens/s": f"{speed:,.0f}",
        "share of peak": f"{speed * flops / peak:.1%}" if math.isfinite(peak) else "not measured",
        "memory, GB": f"{each.memory / 1e9:.1f}",
        "ms a step": f"{1000 * works[0].tokens / speed:.1f}",
        "rounds": len(speeds),
    }
    if not first:
        return row
    count = min(len(first), len(speeds))
    return row | {"ours / this": spread(ratio(first[:count], speeds[:count]))}


def wait(scale: Scale) -> None:
    """Until the device has done what it was given."""
    if scale.device.type == "cuda":
        torch.cuda.synchronize()


def _allocated(scale: Scale) -> int:
    return torch.cuda.memory_allocated() if scale.device.type == "cuda" else 0


def _most_allocated(scale: Scale) -> int:
    return torch.cuda.max_memory_allocated() if scale.device.type == "cuda" else 0
