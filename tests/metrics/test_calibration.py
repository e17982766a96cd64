"""Temperature scaling finds the temperature that was put in and never changes an answer; the calibration
error goes to zero where confidence is true, and equals a plain loop.
"""

from itertools import pairwise

import numpy as np
import pytest

from bertsmith.metrics.calibration import (
    expected_calibration_error,
    fit_temperature,
    probabilities_of,
    reliability,
)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(17)


def drawn(generator: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    """A class for each row, with the probabilities that softmax(logits) gives."""
    probabilities = probabilities_of(logits).cumsum(axis=1)
    return (generator.random((len(logits), 1)) > probabilities).sum(axis=1).clip(max=logits.shape[1] - 1)


def likelihood(logits: np.ndarray, gold: np.ndarray, temperature: float) -> float:
    """Mean log-likelihood, written out."""
    scaled = logits / temperature
    if gold.ndim == 2:
        return float(-np.logaddexp(0, np.where(gold, -scaled, scaled)).mean())
    total = np.logaddexp.reduce(scaled, axis=1)
    return float((scaled[np.arange(len(gold)), gold] - total).mean())


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 12.0])
def test_the_temperature_put_in_is_recovered(generator: np.random.Generator, temperature: float) -> None:
    logits = generator.normal(0, 2, (20_000, 4))
    assert fit_temperature(logits * temperature, drawn(generator, logits)) == pytest.approx(
        temperature, rel=0.04
    )
    labels = generator.random(logits.shape) < probabilities_of(logits, multi_label=True)
    assert fit_temperature(logits * temperature, labels) == pytest.approx(temperature, rel=0.04)


def test_no_temperature_of_a_grid_is_likelier(generator: np.random.Generator) -> None:
    for _ in range(30):
        logits = generator.normal(0, generator.uniform(0.1, 20), (40, 3))
        gold = generator.integers(3, size=40)
        labels = generator.random((40, 3)) < 0.4
        for truth in (gold, labels):
            best = likelihood(logits, truth, fit_temperature(logits, truth))
            grid = [likelihood(logits, truth, t) for t in np.geomspace(0.01, 100, 200)]
            assert best >= max(grid) - 1e-9


def test_scaling_never_changes_an_answer(generator: np.random.Generator) -> None:
    logits = generator.normal(0, 3, (500, 5))
    for temperature in (0.05, fit_temperature(logits, generator.integers(5, size=500)), 50.0):
        probabilities = probabilities_of(logits, temperature)
        assert np.array_equal(probabilities.argmax(axis=1), logits.argmax(axis=1))
        assert np.allclose(probabilities.sum(axis=1), 1)
        assert np.array_equal(probabilities_of(logits, temperature, multi_label=True) > 0.5, logits > 0)


def test_where_every_answer_is_right_the_temperature_stays() -> None:
    """Likelihood grows without end there: the fit would make a model certain after 20 texts of dev."""
    logits = np.array([[2.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(logits, [0, 1]) == 1.0
    assert fit_temperature(logits - 0.5, np.array([[True, False], [False, True]])) == 1.0


def test_answers_worse_than_chance_are_flattened_as_far_as_it_goes() -> None:
    logits = np.array([[5.0, 0.0], [0.0, 5.0]])
    assert fit_temperature(logits, [1, 0]) == 100.0


def test_extreme_logits_overflow_nowhere() -> None:
    logits = np.array([[1e4, -1e4], [-1e4, 1e4], [1e4, -1e4]])
    assert np.isfinite(probabilities_of(logits)).all()
    assert np.isfinite(probabilities_of(logits, 0.01, multi_label=True)).all()
    assert 0.01 <= fit_temperature(logits, [0, 1, 1]) <= 100


def test_the_calibration_error_equals_a_plain_loop(generator: np.random.Generator) -> None:
    for _ in range(100):
        size, bins = int(generator.integers(1, 80)), int(generator.integers(1, 20))
        confidence = generator.random(size).round(int(generator.integers(1, 4)))
        correct = generator.random(size) < 0.6
        edges = np.linspace(0, 1, bins + 1)
        expected = 0.0
        for low, high in pairwise(edges):
            inside = ((confidence > low) | (low == 0)) & (confidence <= high)
            if inside.any():
                expected += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
        assert expected_calibration_error(confidence, correct, bins) == pytest.approx(expected, abs=1e-12)
        bars = reliability(confidence, correct, bins)
        assert sum(bar.count for bar in bars) == size
        assert all(bar.low <= bar.confidence <= bar.high + 1e-12 and bar.count for bar in bars)


def test_true_confidence_has_no_error_and_overconfidence_its_size(generator: np.random.Generator) -> None:
    confidence = generator.uniform(0.2, 1, 200_000)
    correct = generator.random(200_000) < confidence
    assert expected_calibration_error(confidence, correct) < 0.006
    assert expected_calibration_error(np.full(1000, 0.9), np.arange(1000) < 600) == pytest.approx(0.3)
    assert expected_calibration_error([1.0, 1.0], [True, True]) == 0.0


def test_scaling_lowers_the_error_of_an_overconfident_model(generator: np.random.Generator) -> None:
    logits = generator.normal(0, 2, (20_000, 4))
    gold, loud = drawn(generator, logits), logits * 4
    errors = []
    for temperature in (1.0, fit_temperature(loud, gold)):
        probabilities = probabilities_of(loud, temperature)
        right = probabilities.argmax(axis=1) == gold
        errors.append(expected_calibration_error(probabilities.max(axis=1), right))
    assert errors[0] > 0.15
    assert errors[1] < 0.015


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="expected logits"):
        fit_temperature(np.zeros((3, 2)), [0, 1])
    with pytest.raises(ValueError, match="finite"):
        fit_temperature([[np.nan, 0.0]], [0])
    with pytest.raises(ValueError, match="from 0 to 1"):
        reliability([1.5], [True])
    with pytest.raises(ValueError, match="from 0 to 1"):
        reliability([np.nan], [True])
    with pytest.raises(ValueError, match="at least one answer"):
        expected_calibration_error([], [])
