"""How many calls a claim needs, by counting through all numbers and by simulation."""

import numpy as np
import pytest
from scipy.stats import binom
from simulated import generator

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.bounds import binomial_p_value
from bertsmith.metrics.guarantees.sample_size import calls_to_prove, fewest_calls


@pytest.mark.parametrize(
    ("epsilon", "delta", "calls"), [(0.05, 0.05, 59), (0.01, 0.05, 299), (0.1, 0.01, 44)]
)
def test_the_fewest_calls_without_an_error(epsilon: float, delta: float, calls: int) -> None:
    assert fewest_calls(epsilon, delta) == calls
    assert (1 - epsilon) ** calls <= delta < (1 - epsilon) ** (calls - 1)


def by_counting(risk: float, epsilon: float, delta: float, power: float) -> int:
    calls = np.arange(1, 1000)[:, None]
    allowed = (binom.cdf(np.arange(60), calls, epsilon) <= delta).sum(axis=1) - 1
    chance = np.where(allowed >= 0, binom.cdf(allowed, calls[:, 0], risk), 0.0)
    return int(calls[np.argmax(chance >= power), 0])


@pytest.mark.parametrize(
    ("risk", "epsilon", "delta", "power"),
    [
        (0.0, 0.05, 0.05, 0.9),
        (0.0005, 0.01, 0.2, 0.8),
        (0.01, 0.05, 0.05, 0.9),
        (0.02, 0.1, 0.01, 0.5),
        (0.02, 0.05, 0.05, 0.9),
    ],
)
def test_numbers_are_those_found_by_counting(risk: float, epsilon: float, delta: float, power: float) -> None:
    assert calls_to_prove(risk, epsilon, delta, power) == by_counting(risk, epsilon, delta, power)


def test_so_many_calls_do_prove_it_that_often() -> None:
    calls = calls_to_prove(0.04, 0.05, 0.05, 0.9)
    assert calls is not None
    errors = generator(35).binomial(calls, 0.04, 20_000)
    assert (binomial_p_value(errors, calls, 0.05) <= 0.05).mean() == pytest.approx(0.9, abs=0.01)


def test_a_risk_near_the_limit_needs_many_calls_and_one_at_it_never_enough() -> None:
    # By the normal distribution about (1.645 + 1.282)² 0.0475 / 0.001².
    assert calls_to_prove(0.049, 0.05, 0.05) == pytest.approx(407_000, rel=0.02)
    assert calls_to_prove(0.05, 0.05, 0.05) is None
    assert calls_to_prove(0.0499, 0.05, 0.05) is None
    with pytest.raises(InputError, match="risk must lie from 0 to 1"):
        calls_to_prove(-0.1, 0.05, 0.05)
