"""Prices choose a risk: no dearer than asking with the probability said, and near the cheapest there is."""

import numpy as np
import pytest
from simulated import each_size, generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.learn_then_test import Prices, certify_by_prices

THRESHOLDS = np.append(np.linspace(0.98, 0.02, 49), -np.inf)
PRICES = Prices(call=0.01, error=0.1)  # break-even at a risk of 10 %


def test_the_break_even_risk_is_a_call_over_an_error() -> None:
    assert PRICES.break_even == pytest.approx(0.1)
    assert PRICES.saving(0.8, 0.1) == pytest.approx(0.0)
    assert PRICES.saving(0.8, 0.05) == pytest.approx(0.8 * 0.005)


@each_size
def test_a_chosen_claim_is_false_no_more_often_than_delta(runs: int) -> None:
    """Differing with probability 0.3 (1 - c), the risk of a threshold t is 0.15 (1 - t)."""
    draws, wrong = generator(14), 0
    for _ in range(runs):
        confidence = draws.random(2000)
        priced = certify_by_prices(
            confidence, draws.random(2000) < 0.3 * (1 - confidence), THRESHOLDS, PRICES, 0.05
        )
        if priced is not None:
            claim = priced.certificate
            wrong += 0.15 * (1 - max(claim.threshold, 0.0)) > claim.epsilon
    assert within(wrong, runs, 0.05)


def test_the_choice_saves_most_of_what_could_be_saved() -> None:
    """With a risk of 0.15 c at coverage c, c (0.01 - 0.015 c) is saved: 0.00167 at most, at a third."""
    draws, saved = generator(15), []
    for _ in range(50):
        confidence = draws.random(4000)
        priced = certify_by_prices(
            confidence, draws.random(4000) < 0.3 * (1 - confidence), THRESHOLDS, PRICES, 0.05
        )
        assert priced is not None
        coverage = 1 - max(priced.certificate.threshold, 0.0)
        saved.append(PRICES.saving(coverage, 0.15 * coverage))
        assert priced.least_saving <= priced.saving
    assert np.mean(saved) >= 0.85 * 0.01 / 6


def test_what_never_pays_is_not_certified() -> None:
    draws = generator(16)
    assert certify_by_prices(draws.random(2000), draws.random(2000) < 0.2, THRESHOLDS, PRICES, 0.05) is None


@pytest.mark.parametrize(("call", "error"), [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, float("inf"))])
def test_prices_that_need_no_claim_are_refused(call: float, error: float) -> None:
    with pytest.raises(InputError, match="price of a call above 0 and below that of an error"):
        Prices(call, error)
