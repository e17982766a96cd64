"""A planted power law is found, and its interval holds what is true as often as it says."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest
from simulated import each_size, generator

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.power_law import RowsNeeded, fit_power_law
from bertsmith.metrics.scores import Interval

ROWS = np.array([250, 500, 1000, 2000])


@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_a_curve_without_noise_is_found_exactly(floor: float) -> None:
    """3 rows^-0.5 comes down to 5 % less the floor at (3 / (0.05 - floor))² rows."""
    calls = np.full(4, 10**9)
    wrong = np.round((floor + 3 * ROWS**-0.5) * calls)
    law = fit_power_law(ROWS, wrong, calls, floor)
    assert (math.exp(law.log_a), law.b) == (pytest.approx(3, rel=1e-3), pytest.approx(0.5, rel=1e-3))
    assert law.disagreement(3600) == pytest.approx(floor + 0.05, rel=1e-3)
    found = law.rows_for(0.95)
    assert found.rows == pytest.approx((3 / (0.05 - floor)) ** 2, rel=5e-3)
    assert found.interval.low <= found.rows <= found.interval.high


@each_size
def test_the_interval_holds_the_true_number_of_rows_in_nine_of_ten_curves(runs: int) -> None:
    draws, held = generator(34), 0
    for seed in range(runs):
        wrong = draws.binomial(1000, 2 * ROWS**-0.4)
        low, high = fit_power_law(ROWS, wrong, np.full(4, 1000), seed=seed).rows_for(0.95).interval
        held += low <= 40**2.5 <= high
    assert binomtest(held, runs, 0.9, alternative="less").pvalue > 0.05


def test_a_target_that_the_teacher_s_noise_forbids_is_never_reached() -> None:
    law = fit_power_law(ROWS, 0.06 * 1000 + 1000 * ROWS**-0.5 // 1, np.full(4, 1000), floor=0.06)
    assert law.rows_for(0.95).rows == math.inf
    assert (
        law.rows_for(0.95).as_sentence()
        == "More calls alone are not expected to reach 95 % agreement with the LLM."
    )


def test_a_curve_that_does_not_fall_reaches_nothing() -> None:
    assert fit_power_law(ROWS, [100, 100, 101, 102], np.full(4, 1000)).rows_for(0.95).rows == math.inf


@pytest.mark.parametrize(
    "wrong", [[0, 0, 0, 0], [3, 3, 3, 3], [20, 21, 20, 22], [10, 10, 11, 11]], ids=lambda wrong: f"{wrong[0]}"
)
def test_a_flat_curve_below_the_target_needs_no_more_calls(wrong: list[int]) -> None:
    found = fit_power_law(ROWS, wrong, np.full(4, 1000)).rows_for(0.95)
    assert (
        found.as_sentence()
        == "To reach 95 % agreement with the LLM, the calls recorded should be enough to learn from."
    )
    assert found.interval.high <= found.have == 2000


def test_a_target_beyond_a_hundred_times_the_rows_is_out_of_sight() -> None:
    law = fit_power_law(ROWS, np.round(1e9 * ROWS**-0.5), np.full(4, 10**9))
    assert law.rows_for(1 - 190_000**-0.5).rows == pytest.approx(190_000, rel=1e-3)
    assert law.rows_for(1 - 210_000**-0.5).rows == math.inf


def test_the_same_curve_and_seed_give_the_same_interval() -> None:
    first, second = (
        fit_power_law(ROWS, [200, 140, 90, 70], np.full(4, 1000)).rows_for(0.95) for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize(
    ("rows", "interval", "sentence"),
    [
        (
            3437,
            (2911, 4583),
            "About 1,400 more calls to reach 95 % agreement with the LLM (from 910 to 2,600).",
        ),
        (
            2050,
            (1500, math.inf),
            "About 50 more calls to reach 95 % agreement with the LLM (at least 0).",
        ),
        (
            2004,
            (2001, 2009),
            "About 4 more calls to reach 95 % agreement with the LLM (from 1 to 9).",
        ),
        (
            1900,
            (1500, 2500),
            "To reach 95 % agreement with the LLM, the calls recorded should be enough to learn from.",
        ),
    ],
)
def test_what_is_said(rows: float, interval: tuple[float, float], sentence: str) -> None:
    assert RowsNeeded(0.95, 2000, rows, Interval(*interval)).as_sentence() == sentence.replace(
        ").", ", with 90 % confidence)."
    )


@pytest.mark.parametrize(
    ("rows", "wrong", "calls", "complaint"),
    [
        ([100, 200], [5, 4], [50, 50], "at least three points"),
        ([100, 100, 100], [5, 4, 3], [50, 50, 50], "rows that differ"),
        ([0, 100, 200], [5, 4, 3], [50, 50, 50], "rows that were learned from"),
        ([50, 100, 200], [0, 0, 0], [0, 50, 50], "calls to test on"),
        ([50, 100, 200], [51, 4, 3], [50, 50, 50], "whole numbers, from 0"),
    ],
)
def test_points_that_are_none_are_refused(
    rows: list[int], wrong: list[int], calls: list[int], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        fit_power_law(rows, wrong, calls)
