"""Certificates are true as often as they say, at the border too; good models get them, bad ones don't."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom
from simulated import each_size, generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.learn_then_test import (
    Certificate,
    certify,
    fixed_sequence_test,
    threshold_sequence,
)

EPSILON, DELTA, CALLS = 0.05, 0.05, 2000
THRESHOLDS = np.append(np.linspace(0.98, 0.02, 49), -np.inf)

# The probability of differing, by confidence (uniform in 0 ... 1), and the selective risk by threshold.
BORDERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[float], float]]] = {
    "everywhere": (lambda c: np.full_like(c, EPSILON), lambda t: EPSILON),
    "from a half on": (lambda c: np.where(c >= 0.5, EPSILON, 0.052), lambda t: EPSILON if t >= 0.5 else 0.06),
    "falling": (lambda c: 0.2 * (1 - c), lambda t: 0.1 * (1 - max(t, 0.0))),
    "the surest are the worst": (
        lambda c: np.where(c >= 0.9, 0.2, 0.0),
        lambda t: 0.2 if t >= 0.9 else 0.02 / (1 - max(t, 0.0)),
    ),
}


def violated(border: str, runs: int, seed: int) -> int:
    """Runs that certify a threshold whose risk isn't below epsilon; one exactly at it counts, for the
    hypothesis that is tested, "at least epsilon", is true of it."""
    rate, risk = BORDERS[border]
    draws, found = generator(seed), 0
    for _ in range(runs):
        confidence = draws.random(CALLS)
        differs = draws.random(CALLS) < rate(confidence)
        claim = certify(confidence, differs, THRESHOLDS, EPSILON, DELTA)
        found += claim is not None and risk(claim.threshold) > EPSILON - 1e-9
    return found


@each_size
@pytest.mark.parametrize("border", BORDERS)
def test_violations_at_the_border_are_no_more_than_delta(border: str, runs: int) -> None:
    assert within(violated(border, runs, 3), runs, DELTA)


@each_size
def test_the_simulation_catches_a_threshold_chosen_without_the_test(runs: int) -> None:
    """The laxest threshold whose observed risk is at most epsilon, as is often done: wrong far too often."""
    draws, found = generator(4), 0
    for _ in range(runs):
        confidence = draws.random(CALLS)
        differs = draws.random(CALLS) < EPSILON
        answered = confidence >= THRESHOLDS[:, None]
        observed = (answered & differs).sum(axis=1) / answered.sum(axis=1)
        found += bool((observed <= EPSILON).any())
    assert not within(found, runs, DELTA)


@each_size
def test_graded_losses_at_the_border_are_certified_no_more_often_than_delta(runs: int) -> None:
    draws, found = generator(5), 0
    for _ in range(runs):
        losses = draws.integers(0, 4, 1000) / 3 * (draws.random(1000) < 0.1)  # mean 0.05
        found += certify(draws.random(1000), losses, THRESHOLDS, EPSILON, DELTA) is not None
    assert within(found, runs, DELTA)


@pytest.mark.parametrize("epsilon", [0.1, 0.05, 0.02])
def test_a_clearly_good_model_is_certified_for_nine_tenths_of_what_it_could_answer(epsilon: float) -> None:
    """A risk of epsilon / 3 at every confidence: all calls could be answered."""
    draws, coverages = generator(6), []
    for _ in range(300):
        confidence, differs = draws.random(CALLS), draws.random(CALLS) < epsilon / 3
        claim = certify(confidence, differs, threshold_sequence(draws.random(500)), epsilon, DELTA)
        coverages.append(claim.coverage if claim else 0.0)
    assert np.mean(np.array(coverages) >= 0.9) >= 0.95


def test_a_model_that_knows_when_it_is_sure_is_certified_nearly_as_far_as_is_true() -> None:
    """It differs with probability 0.4 (1 - c)³: at most 5 % of the answers up to a coverage of 79 %."""
    draws, coverages = generator(7), []
    for _ in range(100):
        confidence = draws.random(CALLS)
        differs = draws.random(CALLS) < 0.4 * (1 - confidence) ** 3
        claim = certify(confidence, differs, THRESHOLDS, EPSILON, DELTA)
        coverages.append(claim.coverage if claim else 0.0)
    assert np.mean(coverages) >= 0.9 * 0.5 ** (1 / 3)


@pytest.mark.parametrize("classes", [2, 77])
def test_noise_and_a_wrong_teacher_are_never_certified(classes: int) -> None:
    draws = generator(8)
    for _ in range(300):
        confidence, model = draws.beta(8, 1, CALLS), draws.integers(0, classes, CALLS)
        noise = draws.integers(0, classes, CALLS)
        wrong = (model + 1 + draws.integers(0, classes - 1, CALLS)) % classes
        for teacher in (noise, wrong):
            assert certify(confidence, model != teacher, THRESHOLDS, EPSILON, DELTA) is None


def test_fewer_calls_than_could_prove_anything_prove_nothing() -> None:
    # (1 - 0.05)^n <= 0.01 from n = 90 on.
    assert certify(np.linspace(0.5, 1, 89), np.zeros(89), [0.4], EPSILON, 0.01) is None
    assert certify(np.linspace(0.5, 1, 90), np.zeros(90), [0.4], EPSILON, 0.01) is not None


def test_a_certificate_counts_what_it_answers() -> None:
    confidence = np.repeat([0.9, 0.6, 0.3], [400, 300, 300])
    differs = np.concatenate([np.arange(400) < 4, np.arange(300) < 6, np.arange(300) < 200])
    claim = certify(confidence, differs, [0.95, 0.8, 0.5, 0.0], EPSILON, DELTA)
    assert isinstance(claim, Certificate)
    assert (claim.threshold, claim.calls, claim.answered) == (0.5, 1000, 700)
    assert (claim.coverage, claim.risk) == (0.7, 10 / 700)
    assert claim.coverage_interval.low < 0.7 < claim.coverage_interval.high


def test_calls_of_equal_confidence_are_answered_together() -> None:
    claim = certify(np.full(500, 0.7), np.zeros(500), [0.9, 0.7], EPSILON, DELTA)
    assert claim is not None
    assert (claim.threshold, claim.answered) == (0.7, 500)


@each_size
def test_the_coverage_lies_in_its_interval_whichever_threshold_was_chosen(runs: int) -> None:
    draws, missed = generator(9), 0
    for _ in range(runs):
        confidence = draws.random(400)
        differs = draws.random(400) < 0.1 * (1 - confidence)
        claim = certify(confidence, differs, THRESHOLDS, EPSILON, DELTA)
        if claim is not None:
            low, high = claim.coverage_interval
            missed += not low <= 1 - max(claim.threshold, 0.0) <= high
    assert within(missed, runs, DELTA)


def test_one_start_is_fixed_sequence_testing() -> None:
    p_values = [0.01, 0.05, 0.051, 0.0]
    assert fixed_sequence_test(p_values, 0.05, starts=1).tolist() == [True, True, False, False]


def test_several_starts_hand_on_what_is_left() -> None:
    # Starts at 0, 2 and 4 with 0.02 each: the first fails, and with it what comes before the second. That one
    # and its neighbour are refuted at 0.02, and the last at 0.02 + 0.02.
    refuted = fixed_sequence_test([0.5, 0.0, 0.015, 0.019, 0.039], 0.06, starts=3)
    assert refuted.tolist() == [False, False, True, True, True]
    assert not fixed_sequence_test([0.5, 0.0, 0.021, 0.0, 0.021], 0.06, starts=3).any()


@pytest.mark.parametrize("true_ones", [[0, 1, 2, 3, 4, 5], [1, 4], [3], [0, 5]])
def test_true_hypotheses_are_refuted_no_more_often_than_delta(true_ones: list[int]) -> None:
    """Independent p-values, the hardest case there is for such a sequence; those of false ones are 0."""
    p_values = np.zeros((3000, 6))
    p_values[:, true_ones] = generator(10).random((3000, len(true_ones)))
    wrong = sum(bool(fixed_sequence_test(row, 0.1)[true_ones].any()) for row in p_values)
    assert within(wrong, 3000, 0.1)


def test_thresholds_are_quantiles_from_strict_to_lax() -> None:
    sequence = threshold_sequence(np.arange(1, 101) / 100, 5)
    assert sequence.tolist() == pytest.approx([0.805, 0.605, 0.405, 0.205, -np.inf])
    assert threshold_sequence([0.5, 0.5, 0.5]).tolist() == [0.5, -np.inf]


def test_rounding_moves_no_call_across_a_threshold() -> None:
    """A confidence's last bits depend on the texts beside it, and on the machine (docs/how-it-works.md)."""
    confidence = generator(11).random(300).round(3) + 0.001
    for threshold in threshold_sequence(confidence)[:-1]:
        assert ((confidence - 1e-6 >= threshold) == (confidence + 1e-6 >= threshold)).all()


def test_the_p_value_is_the_binomial_s_of_the_answered_calls() -> None:
    """60 calls answered without an error, 1,000 not answered: 0.95^60 and nothing of the rest counts."""
    confidence = np.repeat([0.9, 0.1], [60, 1000])
    differs = np.repeat([False, True], [60, 1000])
    p_value = float(binom.cdf(0, 60, EPSILON))
    assert certify(confidence, differs, [0.5], EPSILON, p_value + 1e-9) is not None
    assert certify(confidence, differs, [0.5], EPSILON, p_value - 1e-9) is None


@pytest.mark.parametrize(
    ("confidence", "losses", "thresholds", "complaint"),
    [
        ([0.5, 0.6], [0], [0.5], "2 confidences and 1 losses"),
        ([0.5, np.nan], [0, 1], [0.5], "confidence must be finite, found nan at call 2"),
        ([0.5], [1.5], [0.5], "losses must lie from 0 to 1, found 1.5 at call 1"),
        ([], [], [0.5], "at least one, found the shape"),
        ([0.5], [1], [0.5, 0.6], "thresholds from strict to lax"),
        ([0.5], [1], [], "thresholds from strict to lax"),
    ],
)
def test_what_does_not_fit_is_refused(
    confidence: list[float], losses: list[float], thresholds: list[float], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        certify(confidence, losses, thresholds, EPSILON, DELTA)
