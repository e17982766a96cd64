"""Bounds and p-values equal published values and scipy's; their probability of failing is what they say."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest
from simulated import generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees import bounds


def test_the_interval_of_r_s_own_example() -> None:
    # binom.test(682, 682 + 243), an experiment of Mendel's, in the manual of R's package stats.
    low, high = bounds.clopper_pearson(682, 925, 0.05)
    assert (low, high) == (pytest.approx(0.7076683, abs=1e-7), pytest.approx(0.7654066, abs=1e-7))


@pytest.mark.parametrize(("errors", "calls"), [(0, 10), (3, 10), (10, 10), (1, 5000), (4999, 5000)])
def test_intervals_are_scipy_s(errors: int, calls: int) -> None:
    expected = binomtest(errors, calls).proportion_ci(0.9, method="exact")
    assert bounds.clopper_pearson(errors, calls, 0.1) == pytest.approx((expected.low, expected.high))


def test_no_calls_say_nothing() -> None:
    assert bounds.clopper_pearson(0, 0, 0.05) == (0.0, 1.0)
    assert bounds.binomial_p_value(0, 0, 0.05) == 1.0
    assert bounds.hoeffding_bentkus_p_value(0.0, 0, 0.05) == 1.0


@pytest.mark.parametrize("calls", [1, 7, 40])
def test_the_interval_misses_the_rate_no_more_often_than_delta(calls: int) -> None:
    """Exactly: over all counts there can be, by their probabilities."""
    counts = np.arange(calls + 1)
    intervals = [bounds.clopper_pearson(count, calls, 0.1) for count in counts.tolist()]
    for rate in np.linspace(0.001, 0.999, 97):
        missed = [not low <= rate <= high for low, high in intervals]
        assert binom.pmf(counts, calls, rate)[missed].sum() <= 0.1 + 1e-12


@pytest.mark.parametrize(("errors", "calls"), [(0, 59), (1, 93), (2, 124), (3, 153), (4, 181), (5, 208)])
def test_wilks_s_sample_sizes_for_95_percent_at_95_percent(errors: int, calls: int) -> None:
    # Wilks 1941, as nuclear safety has it in its tables.
    assert bounds.binomial_p_value(errors, calls, 0.05) <= 0.05
    assert bounds.binomial_p_value(errors, calls - 1, 0.05) > 0.05


def test_p_values_are_the_binomial_s_distribution_function() -> None:
    errors, calls = np.array([0, 1, 3, 50, 200, 900]), np.array([1, 1, 60, 1000, 1000, 1000])
    expected = binom.cdf(errors, calls, 0.17)
    np.testing.assert_allclose(bounds.binomial_p_value(errors, calls, 0.17), expected, rtol=1e-10)


def test_a_p_value_and_its_bound_say_the_same() -> None:
    for errors, calls in [(0, 30), (4, 200), (30, 31)]:
        bound = float(bounds.upper_bound(errors, calls, 0.05))
        assert bounds.binomial_p_value(errors, calls, bound) == pytest.approx(0.05)
        assert bounds.lower_bound(calls - errors, calls, 0.05) == pytest.approx(1 - bound)


def test_hoeffding_and_bentkus_by_their_formulas() -> None:
    calls, mean, epsilon = 250, 0.031, 0.1
    entropy = mean * np.log(mean / epsilon) + (1 - mean) * np.log((1 - mean) / (1 - epsilon))
    bentkus = np.e * binom.cdf(np.ceil(calls * mean), calls, epsilon)
    found = bounds.hoeffding_bentkus_p_value(mean, calls, epsilon)
    assert found == pytest.approx(min(np.exp(-calls * entropy), bentkus), rel=1e-10)
    # Here Bentkus's is the smaller one, of few calls Hoeffding's, of many Bentkus's.
    assert bentkus < np.exp(-calls * entropy)
    few = bounds.hoeffding_bentkus_p_value(0.0, 60, 0.05)
    assert few == pytest.approx(0.95**60)
    near = bounds.hoeffding_bentkus_p_value(0.04, 10_000, 0.05)
    assert near == pytest.approx(np.e * binom.cdf(400, 10_000, 0.05))
    assert bounds.hoeffding_bentkus_p_value(0.5, 100, 0.05) == 1.0


def test_graded_losses_at_the_border_are_seldom_taken_for_less() -> None:
    losses = generator(1).beta(0.05, 0.95, (4000, 300))  # mean 0.05, nearly all of it at 0 and 1
    p_values = bounds.hoeffding_bentkus_p_value(losses.mean(axis=1), 300, 0.05)
    for delta in (0.05, 0.2, 0.5):
        assert within(int((p_values <= delta).sum()), 4000, delta)


@pytest.mark.parametrize(("errors", "calls"), [(5, 4), (-1, 4), (0.5, 4)])
def test_counts_that_cannot_be_are_refused(errors: float, calls: int) -> None:
    with pytest.raises(InputError, match="whole numbers, from 0"):
        bounds.binomial_p_value(errors, calls, 0.05)


def test_shares_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match=r"delta must lie above 0 and below 1 \(0.05 is 5 %\), found 5"):
        bounds.clopper_pearson(1, 10, 5)
    with pytest.raises(InputError, match="epsilon must lie"):
        bounds.binomial_p_value(1, 10, 0.0)
    with pytest.raises(InputError, match="mean loss must lie from 0 to 1"):
        bounds.hoeffding_bentkus_p_value(1.2, 10, 0.1)
