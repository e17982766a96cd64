"""What cross-validation says of the final model: Wilson's interval, wider, moved by the learning curve."""

import pytest
from scipy.stats import binomtest

from bertsmith.training.finetuning import results as expectation
from bertsmith.training.finetuning.results import LearningCurve, estimate_score


def curve(*scores: float) -> LearningCurve:
    return LearningCurve((10, 20, 40), scores, 0.0, 0.0)


@pytest.mark.parametrize(("right", "rows"), [(30, 40), (40, 40), (0, 10), (1, 16)])
def test_without_a_widening_it_is_wilson_s_interval(
    right: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectation, "_SHARED", 1.0)
    share = right / rows
    error = (share * (1 - share) / rows) ** 0.5 or None
    found = estimate_score(share, error, rows, 5, None)
    wilson = binomtest(right, rows).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=1e-4)
    assert found.low <= found.score <= found.high


def test_where_rows_say_less_than_independent_ones_it_is_that_of_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A score whose error is twice that of so many answers is known as well as from a quarter of them."""
    monkeypatch.setattr(expectation, "_SHARED", 1.0)
    found = estimate_score(0.8, 0.04, 400, 5, None)
    wilson = binomtest(80, 100).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=1e-4)


def test_all_rows_leave_as_much_less_as_the_curve_falls() -> None:
    """From 40 % missing to 20 % by a doubling: five folds are 0.32 doublings short."""
    found = estimate_score(0.8, 0.02, 400, 5, curve(0.3, 0.6, 0.8))
    assert 1 - found.score == pytest.approx(0.2 * 0.5**0.3219, abs=1e-4)
    assert found.high - found.low > 2 * 1.5 * 1.9 * 0.02
    assert estimate_score(0.8, 0.02, 400, 5, curve(0.3, 0.8, 0.6)).score == pytest.approx(0.8)
    assert estimate_score(0.8, 0.02, 400, 10, curve(0.3, 0.6, 0.8)).score < found.score


def test_a_correlation_may_be_below_zero() -> None:
    found = estimate_score(-0.1, 0.1, 50, 5, None)
    assert (found.low, found.score, found.high) == pytest.approx((-0.394, -0.1, 0.194))
