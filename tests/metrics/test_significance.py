"""p-values and intervals equal scipy's, cases done by hand, and cover what they promise in simulations."""

import numpy as np
import pytest
from scipy import stats

from bertsmith.errors import InputError
from bertsmith.metrics import scores as significance
from bertsmith.metrics.scores import Interval, intervals_of_means, p_value


def mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    return values.mean(axis=axis)


def interval_of_mean(values: np.ndarray, trials: int, seed: int = 0) -> Interval:
    return intervals_of_means(values[:, None], trials=trials, seed=seed)[0]


def test_signs_done_by_hand() -> None:
    """Of the eight choices of signs for 1, 2, 3, those with a sum of 6 or -6 are as extreme."""
    assert p_value([1, 2, 3]) == 2 / 8
    assert p_value([1, 2, -3]) == 1.0
    assert p_value([0.0]) == 1.0
    assert p_value([1.0] * 10) == 2 / 1024


def test_few_queries_have_scipys_exact_p_value() -> None:
    generator = np.random.default_rng(0)
    for queries in range(2, 9):
        differences = generator.normal(0.5, 1, queries).round(1)  # rounded: ties among the sums
        theirs = stats.permutation_test((differences,), mean, permutation_type="samples", n_resamples=np.inf)
        assert p_value(differences) == pytest.approx(theirs.pvalue, abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.15, 0.3])
def test_many_queries_have_scipys_p_value_but_for_chance(shift: float) -> None:
    differences = np.random.default_rng(1).normal(shift, 1, 100)
    theirs = stats.permutation_test(
        (differences,), mean, permutation_type="samples", n_resamples=5000, rng=np.random.default_rng(2)
    )
    assert p_value(differences, trials=5000) == pytest.approx(theirs.pvalue, abs=0.03)


def test_a_p_value_is_never_zero_and_has_two_sides() -> None:
    differences = np.random.default_rng(1).normal(2, 1, 50)
    assert p_value(differences, trials=99) == p_value(-differences, trials=99) == 1 / 100


def test_intervals_are_scipys_but_for_chance() -> None:
    values = np.random.default_rng(3).beta(0.5, 0.5, 80)
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=5000, rng=np.random.default_rng(4)
    ).confidence_interval
    assert interval_of_mean(values, trials=5000) == pytest.approx(tuple(theirs), abs=0.004)


def test_columns_share_their_resamples() -> None:
    values = np.random.default_rng(5).random((30, 2))
    several = intervals_of_means(np.stack([*values.T, values[:, 0] + 1], axis=1), trials=300)
    assert several[0] == pytest.approx(interval_of_mean(values[:, 0], trials=300))
    assert several[2] == pytest.approx(tuple(each + 1 for each in several[0]))


def test_one_seed_one_answer_however_it_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(6).normal(0.1, 1, 40)
    whole = interval_of_mean(values, trials=500), p_value(values, trials=500)
    monkeypatch.setattr(significance, "_AT_ONCE", 40 * 7)
    parts = interval_of_mean(values, trials=500), p_value(values, trials=500)
    assert parts[0] == pytest.approx(whole[0], abs=1e-12)
    assert parts[1] == whole[1]
    assert interval_of_mean(values, trials=500, seed=1) != whole[0]


def test_two_equal_systems_differ_significantly_as_often_as_they_may() -> None:
    """p < 0.05 in 5 % of the trials, and an interval of 95 % holds the truth in 95 %."""
    generator = np.random.default_rng(7)
    worlds = generator.standard_t(4, (200, 40))
    significant = np.mean([p_value(world, trials=200) < 0.05 for world in worlds])
    covered = np.mean([low <= 0 <= high for low, high in (interval_of_mean(w, trials=200) for w in worlds)])
    assert significant == pytest.approx(0.05, abs=0.04)
    assert covered == pytest.approx(0.94, abs=0.04)  # of 40 queries the percentile interval is a little short


def test_a_real_difference_is_found() -> None:
    worlds = np.random.default_rng(8).normal(0.5, 1, (50, 60))  # a t-test finds 97 % of these
    assert np.mean([p_value(world, trials=200) < 0.05 for world in worlds]) > 0.9


def test_no_queries_and_a_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match="no queries"):
        p_value([])
    with pytest.raises(InputError, match="no queries"):
        intervals_of_means(np.empty((0, 2)))
    with pytest.raises(ValueError, match=r"found the shape \(2, 2\)"):
        p_value(np.ones((2, 2)))
