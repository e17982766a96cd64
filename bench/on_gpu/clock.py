"""Eight minutes for all parts: each has its share, and one that overruns it is cut short rather than lost."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutOfTime(BaseException):
    """Not an Exception: compilers catch those, and would go on."""


class Clock:
    """What is left of `seconds`, and of the weights of the parts that are still to come."""

    def __init__(self, seconds: float, weights: dict[str, float]) -> None:
        self._end = time.monotonic() + seconds
        self._weights = dict(weights)

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def share(self, part: str) -> float:
        """Seconds for a part that begins now. What earlier parts left over is divided among the rest."""
        all_weights = sum(self._weights.values())
        return self.left * self._weights.pop(part) / all_weights


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the main thread after so many seconds; may stand within another of its kind.

    A running kernel or C function is waited for first.
    """

    def ring(*_: Any) -> None:
        raise OutOfTime

    if seconds <= 0:
        raise OutOfTime
    outer, _ = signal.getitimer(signal.ITIMER_REAL)
    handler = signal.signal(signal.SIGALRM, ring)
    started = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, min(seconds, outer) if outer else seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - started), 0.001))
