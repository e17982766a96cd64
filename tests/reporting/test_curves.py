"""A curve is bounded and shows nothing that was not there."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.reporting.charts import Curve, smooth


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(2, 50))
def test_it_keeps_few_points_in_order_and_within_the_values(values: list[float], capacity: int) -> None:
    curve = Curve(capacity)
    for x, y in enumerate(values):
        curve.add(x, y)
    points = curve.points()
    assert len(points) <= capacity
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert all(min(values) - 1e-6 <= y <= max(values) + 1e-6 for _, y in points)
    assert bool(points) == bool(values)


@pytest.mark.parametrize("capacity", [3, 8, 64, 100])
def test_each_value_counts_once(capacity: int) -> None:
    curve = Curve(capacity)
    for x in range(1024):
        curve.add(x, math.sin(x))
    points = curve.points()
    assert len(points) > capacity / 3
    ends = [-0.5]  # a point at x stands for the values from the end of the one before it to as far beyond x
    for x, _ in points:
        ends.append(2 * x - ends[-1])
    sizes = [end - start for start, end in pairwise(ends)]
    assert sum(sizes) == pytest.approx(1024)
    total = sum(size * y for size, (_, y) in zip(sizes, points, strict=True))
    assert total == pytest.approx(sum(math.sin(x) for x in range(1024)), abs=1e-6)


def test_a_short_curve_is_kept_as_it_is() -> None:
    curve = Curve(10)
    for x in range(9):
        curve.add(x, x * x)
    curve.add(9, math.nan)
    curve.add(9, None)
    assert curve.points() == [(float(x), float(x * x)) for x in range(9)]


def test_smoothing_leaves_a_constant_alone_and_has_no_lag() -> None:
    assert [y for _, y in smooth([(0, 5.0), (1, 5.0), (2, 5.0)])] == pytest.approx([5.0] * 3)
    slope = smooth([(x, 3.0 * x) for x in range(201)], weight=0.8)
    assert slope[100] == (100, pytest.approx(300.0, abs=1e-6))
    assert smooth([]) == []


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.floats(0, 0.95))
def test_smoothing_is_the_weighted_mean_of_its_definition(values: list[float], weight: float) -> None:
    points = list(enumerate(values))
    for i, smoothed in smooth(points, weight):
        weights = [weight ** abs(i - j) for j, _ in points]
        mean = sum(w * y for w, y in zip(weights, values, strict=True)) / sum(weights)
        assert smoothed == pytest.approx(mean, abs=1e-6)
