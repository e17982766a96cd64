"""Curves of any length in bounded memory, for the live view and the report."""

import math
from collections.abc import Sequence

Point = tuple[float, float]


class Curve:
    """Keeps at most `capacity` points of a curve: when full, each two neighbours become their mean.

    A run may have a million steps, a screen has two hundred columns. Adding costs O(1), and the mean of
    all points is kept, so that nothing is drawn that was not there.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = max(2, capacity)
        self._points: list[Point] = []
        self._bucket = 1  # how many values each point stands for
        self._sum_x = self._sum_y = 0.0
        self._waiting = 0

    def add(self, x: float | None, y: float | None) -> None:
        """Adds a point; a value that is missing or not finite is passed over, as nobody can draw it."""
        if x is None or y is None or not math.isfinite(x) or not math.isfinite(y):
            return
        self._sum_x += x
        self._sum_y += y
        self._waiting += 1
        if self._waiting == self._bucket:
            self._points.append((self._sum_x / self._bucket, self._sum_y / self._bucket))
            self._sum_x, self._sum_y, self._waiting = 0.0, 0.0, 0
            if len(self._points) >= self.capacity:
                self._halve()

    def cut_after(self, x: float) -> None:
        """Forgets what lies beyond `x`."""
        self._sum_x, self._sum_y, self._waiting = 0.0, 0.0, 0
        self._points = [point for point in self._points if point[0] <= x]

    def points(self) -> list[Point]:
        """The curve so far, its unfinished last point included."""
        if not self._waiting:
            return list(self._points)
        return [*self._points, (self._sum_x / self._waiting, self._sum_y / self._waiting)]

    def _halve(self) -> None:
        if len(self._points) % 2:  # an odd one out waits for its neighbour
            x, y = self._points.pop()
            self._sum_x, self._sum_y, self._waiting = x * self._bucket, y * self._bucket, self._bucket
        pairs = zip(self._points[::2], self._points[1::2], strict=True)
        self._points = [((ax + bx) / 2, (ay + by) / 2) for (ax, ay), (bx, by) in pairs]
        self._bucket *= 2


def smooth(points: Sequence[Point], weight: float = 0.9) -> list[Point]:
    """The mean of each point's neighbourhood, a neighbour counting `weight` times the one before it.

    It looks both ways, so that it doesn't lag behind the curve as a running mean does.
    """
    values = [y for _, y in points]
    past, future = _discounted_sums(values, weight), _discounted_sums(values[::-1], weight)[::-1]
    return [
        (x, (past_sum + future_sum - y) / (past_count + future_count - 1))
        for (x, y), (past_sum, past_count), (future_sum, future_count) in zip(
            points, past, future, strict=True
        )
    ]


def _discounted_sums(values: Sequence[float], weight: float) -> list[tuple[float, float]]:
    """For each value, the sum of all up to it, discounted by distance, and the sum of the discounts."""
    total = count = 0.0
    sums = []
    for value in values:
        total, count = weight * total + value, weight * count + 1
        sums.append((total, count))
    return sums
