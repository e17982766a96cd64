"""Sides of a comparison, timed in turn on the same work: medians, memory, and what became of those that fail.

A GPU works on its own time: a measurement begins and ends by waiting for it, and nothing waits in between.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from harness import ratio
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
    operations: float


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
        for number in range(_WARM_STEPS):
            self.seconds = timed(self.side, self.prepared[number % len(works)], scale)
        self.held = _allocated(scale) - others
        self.memory = _most_allocated(scale) - others


def timed(side: Side, prepared: Any, scale: Scale, steps: int = 1) -> float:
    """Seconds of so many steps on the same work."""
    wait(scale)
    started = time.perf_counter()
    for _ in range(steps):
        side.step(prepared)
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
    """Tokens per second of each round."""
    speeds: dict[str, list[float]] = {each.name: [] for each in ready}
    for number in range(scale.rounds):
        if number and time.monotonic() > end:
            break
        for each in ready:
            assert each.side is not None
            steps = max(round(scale.seconds / each.seconds), 1)
            tokens, taken = 0, 0.0
            for place, work in enumerate(works):
                share = steps // len(works) + (place < steps % len(works))
                if share:
                    taken += timed(each.side, each.prepared[place], scale, share)
                    tokens += work.tokens * share
            speeds[each.name].append(tokens / taken)
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
    operations = sum(work.operations for work in works) / sum(work.tokens for work in works)
    row = {
        "side": each.name,
        "real tokens/s": f"{speed:,.0f}",
        "share of peak": f"{speed * operations / peak:.1%}" if math.isfinite(peak) else "not measured",
        "memory, GB": f"{each.memory / 1e9:.1f}",
        "ms a step": f"{1000 * works[0].tokens / speed:.1f}",
        "rounds": len(speeds),
    }
    return row | {"ours / this": _spread(first, speeds)} if first else row


def _spread(ours: Sequence[float], theirs: Sequence[float]) -> str:
    count = min(len(ours), len(theirs))
    found: Mapping[str, float] = ratio(ours[:count], theirs[:count])
    return f"{found['median']:.2f} ({found['lowest']:.2f} – {found['highest']:.2f})"


def wait(scale: Scale) -> None:
    """Until the device has done what it was given."""
    if scale.device.type == "cuda":
        torch.cuda.synchronize()


def _allocated(scale: Scale) -> int:
    return torch.cuda.memory_allocated() if scale.device.type == "cuda" else 0


def _most_allocated(scale: Scale) -> int:
    return torch.cuda.max_memory_allocated() if scale.device.type == "cuda" else 0
