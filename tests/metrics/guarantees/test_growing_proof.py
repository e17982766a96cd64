"""A proof that goes on is wrong no more often than it says: at the border of what is claimed, looked at after
every call, for retrained students, audits, drift, calls that belong together, and repeated inputs.

R runs, N units in their order, K thresholds.
"""

from collections.abc import Callable

import numpy as np
import pytest
from simulated import generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.growing_proof import (
    BETS,
    GrowingProof,
    log_gains,
    proven_by,
    student_share,
)

EPSILON = DELTA = 0.05
THRESHOLDS = np.array([0.8, 0.6, 0.4, 0.2, 0.0])
STARTS = np.array([0.0, 0.75, 0.0, 0.25, 0.0])
BATCH = 50
each_size = pytest.mark.parametrize("runs", [150, pytest.param(2000, marks=pytest.mark.slow)])
Draw = np.random.Generator


def log_wealths(confidence: np.ndarray, values: np.ndarray, least: float = 1.0, unit: int = 1) -> np.ndarray:
    """(R, N, K) after each unit, whose calls all have one confidence (R, N) and one value of d (R, N)."""
    wealths = []
    for threshold in THRESHOLDS:
        excess = unit * (EPSILON - values) * (confidence >= threshold)
        gains = log_gains(excess, EPSILON, least, unit).cumsum(axis=1)
        wealths.append(np.logaddexp.reduce(gains - np.log(len(BETS)), axis=-1))
    return np.stack(wealths, axis=-1)


def ever_proven(log_wealth: np.ndarray, delta: float = DELTA) -> np.ndarray:
    """(R,) whether any threshold is named at any time."""
    return np.asarray(proven_by(log_wealth.max(axis=1), STARTS, delta).any(axis=-1))


def count(runs: int, simulate: Callable[[Draw], np.ndarray], seed: int) -> int:
    """In how many runs something wrong is named."""
    draws = generator(seed)
    return int(sum(simulate(draws).sum() for _ in range(runs // BATCH)))


def at_the_border(draws: Draw, units: int, risk: float = EPSILON) -> tuple[np.ndarray, np.ndarray]:
    """Confidences and differences, both (R, N): whatever the confidence, the risk is epsilon."""
    return draws.random((BATCH, units)), (draws.random((BATCH, units)) < risk).astype(float)


@each_size
def test_looks_after_every_call_are_seldom_wrong(runs: int) -> None:
    wrong = count(runs, lambda draws: ever_proven(log_wealths(*at_the_border(draws, 1500))), 21)
    assert within(wrong, runs, DELTA)


@each_size
def test_ten_students_are_seldom_wrong_together(runs: int) -> None:
    def simulate(draws: Draw) -> np.ndarray:
        students = [
            ever_proven(log_wealths(*at_the_border(draws, 400)), student_share(DELTA, number))
            for number in range(1, 11)
        ]
        return np.any(students, axis=0)

    assert within(count(runs, simulate, 22), runs, DELTA)


def audited(draws: Draw, predicted: np.ndarray | float, differs: np.ndarray) -> np.ndarray:
    """What is recorded of differences (R, N) of which 2 in 100 are seen."""
    asked = draws.random(differs.shape) < 0.02
    return np.asarray(predicted + np.where(asked, (differs - predicted) / 0.02, 0.0))


@each_size
def test_audits_of_two_in_a_hundred_are_seldom_wrong(runs: int) -> None:
    """The prediction knows something of what differs, so the sum of both must be right."""

    def simulate(draws: Draw) -> np.ndarray:
        confidence, differs = at_the_border(draws, 12_000)
        predicted = np.clip(0.03 + 0.3 * differs * draws.random(differs.shape), 0, 1)
        return ever_proven(log_wealths(confidence, audited(draws, predicted, differs), 0.02))

    assert within(count(runs, simulate, 23), runs, DELTA)


@each_size
def test_after_drift_a_claim_that_became_false_is_seldom_named(runs: int) -> None:
    """Nothing may be named that is false when it is: the traffic is good enough at first, by little. It turns
    bad, which is noticed 100 calls later: then a second proof begins.
    """

    def simulate(draws: Draw) -> np.ndarray:
        before, after = at_the_border(draws, 300, 0.04), at_the_border(draws, 700, 0.08)
        first = log_wealths(
            *(np.concatenate(pair, axis=1)[:, :400] for pair in zip(before, after, strict=True))
        )
        share = student_share(DELTA, 1)
        named = proven_by(first[:, :300].max(axis=1), STARTS, share)
        later = proven_by(first.max(axis=1), STARTS, share)
        second = log_wealths(*(values[:, 100:] for values in after))
        return np.asarray((later & ~named).any(axis=1)) | ever_proven(second, student_share(DELTA, 2))

    assert within(count(runs, simulate, 24), runs, DELTA)


@each_size
def test_traffic_that_changes_at_the_border_is_seldom_named(runs: int) -> None:
    """Sure calls become frequent; the risk of each threshold stays epsilon or grows."""

    def simulate(draws: Draw) -> np.ndarray:
        (early, one), (late, two) = at_the_border(draws, 500), at_the_border(draws, 500, 2 * EPSILON)
        confidence = np.concatenate([early, late ** (1 / 3)], axis=1)
        return ever_proven(log_wealths(confidence, np.concatenate([one, two], axis=1)))

    assert within(count(runs, simulate, 25), runs, DELTA)


@each_size
def test_a_user_who_asks_five_times_is_one_unit(runs: int) -> None:
    wrong = count(runs, lambda draws: ever_proven(log_wealths(*at_the_border(draws, 400), unit=5)), 26)
    assert within(wrong, runs, DELTA)


def test_calls_that_belong_together_are_wrong_too_often_where_each_counts_as_a_unit() -> None:
    def simulate(draws: Draw) -> np.ndarray:
        confidence, differs = at_the_border(draws, 400)
        return ever_proven(log_wealths(confidence.repeat(5, axis=1), differs.repeat(5, axis=1)))

    assert not within(count(150, simulate, 26), 150, DELTA)


@each_size
def test_inputs_that_come_again_are_seldom_wrong(runs: int) -> None:
    """Of 300 inputs some are frequent. Each is always answered alike, and one in twenty calls differs."""
    frequency = 1 / np.arange(1, 301)
    frequency /= frequency.sum()

    def simulate(draws: Draw) -> np.ndarray:
        order = draws.permutation(300)
        before = np.concatenate([[0.0], np.cumsum(frequency[order])[:-1]])
        differs = np.empty(300)  # the last that differs does so in a part
        differs[order] = np.clip((EPSILON - before) / frequency[order], 0, 1)
        inputs = draws.choice(300, (BATCH, 1500), p=frequency)
        return ever_proven(log_wealths(np.ones(inputs.shape), differs[inputs]))

    assert within(count(runs, simulate, 27), runs, DELTA)


def test_a_proof_bets_as_its_formula_says() -> None:
    draws = generator(28)
    proof = GrowingProof(THRESHOLDS, STARTS, EPSILON, DELTA)
    wealth = np.full((len(THRESHOLDS), len(BETS)), 1 / len(BETS))
    most = np.ones(len(THRESHOLDS))
    for _ in range(300):
        confidence, differs = draws.random(), float(draws.random() < 0.01)
        proof.record(confidence, differs)
        for place, threshold in enumerate(THRESHOLDS):
            if confidence >= threshold:
                wealth[place] *= 1 + BETS / (1 - EPSILON) * (EPSILON - differs)
        most = np.maximum(most, wealth.sum(axis=1))
        level, expected = 0.0, []
        for start, largest in zip(STARTS, most, strict=True):
            level += DELTA * start
            expected.append(bool(level > 0 and 1 / largest <= level))
            level = level if expected[-1] else 0.0
        assert proof.proven().tolist() == expected
    assert proof.threshold() == 0.0 and proof.calls == proof.answered[-1] == 300


def test_units_and_audits_bet_as_their_formulas_say() -> None:
    proof = GrowingProof([0.5], [1.0], EPSILON, DELTA, largest_unit=3)
    proof.record(
        [0.9, 0.6, 0.1], [1, 0, 1], [True, False, True], [0.5, 0.4, 1.0], least=0.4, predicted=[0.2, 0.1, 0.9]
    )
    values = np.array([0.2 + 0.8 / 0.5, 0.1])  # the third isn't answered
    factors = 1 + BETS / (3 * (1 / 0.4 - EPSILON)) * (2 * EPSILON - values.sum())
    state = proof.as_json()
    assert np.exp(state["log_wealth"][0]) == pytest.approx(factors / len(BETS))
    assert state["answered"] == [2] and state["calls"] == 3


def test_no_unit_costs_more_than_all_and_what_is_not_audited_changes_nothing() -> None:
    proof = GrowingProof([0.5], [1.0], EPSILON, DELTA, largest_unit=2)
    proof.record([0.9, 0.9], [1, 1], probability=0.02, least=0.02, predicted=0.0)
    assert np.isfinite(proof.as_json()["log_wealth"]).all()
    before = proof.as_json()["log_wealth"]
    proof.record(0.9, np.nan, asked=False, probability=0.02, least=0.02)
    assert proof.as_json()["log_wealth"] == before


def test_a_good_prediction_proves_sooner() -> None:
    """Three in a hundred differ, two in a hundred are seen."""
    draws = generator(29)
    confidence = np.ones((BATCH, 20_000))
    differs = (draws.random(confidence.shape) < 0.03).astype(float)
    shares = [
        ever_proven(log_wealths(confidence, audited(draws, predicted, differs), 0.02)).mean()
        for predicted in (EPSILON, 0.9 * differs)
    ]
    assert shares[1] > shares[0] + 0.2


def test_a_proof_goes_on_from_its_json_to_the_bit() -> None:
    draws = generator(30)
    one = GrowingProof([0.5, -np.inf], [0.8, 0.2], EPSILON, student_share(DELTA, 3))
    for number in range(200):
        one.record(draws.random(), draws.random() < 0.02)
        if number == 100:
            other = GrowingProof.from_json(one.as_json())
            draws, again = generator(31), generator(31)
    for _ in range(99):
        other.record(again.random(), again.random() < 0.02)
    assert other.as_json() == one.as_json()


def test_all_students_together_get_delta() -> None:
    assert sum(student_share(DELTA, number) for number in range(1, 10_001)) == pytest.approx(DELTA, rel=1e-3)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    proof = GrowingProof([0.5], [1.0], EPSILON, DELTA)
    before = proof.as_json()
    for wrong, message in (
        ({"confidence": [0.5, 0.6], "differs": 0}, "at most 1 calls in a unit, found 2"),
        ({"confidence": 0.5, "differs": 2}, "differs must lie from 0 to 1"),
        ({"confidence": np.nan, "differs": 0}, "confidence must be finite"),
        ({"confidence": 0.5, "differs": 0, "probability": 0.1, "least": 0.2}, "0 < least <= probability"),
        ({"confidence": 0.5, "differs": 0, "predicted": -1}, "predicted must lie from 0 to 1"),
        ({"confidence": 0.5, "differs": [0, 1]}, "differs for each of 1 calls"),
    ):
        with pytest.raises(InputError, match=message):
            proof.record(**wrong)  # type: ignore[arg-type]
    assert proof.as_json() == before
    with pytest.raises(InputError, match="a start for each of 1 thresholds"):
        GrowingProof([0.5], [0.7, 0.7], EPSILON, DELTA)
    with pytest.raises(InputError, match="state of a proof"):
        GrowingProof.from_json({**before, "most": [0.0, 0.0]})


def test_a_forecast_is_what_proofs_then_take() -> None:
    """By very many calls that were seen, so that only chance is left; then by few, which leaves more open."""
    draws = generator(30)
    counts = np.array([[190, 2], [185, 8], [180, 15], [170, 30], [150, 50], [0, 0]])
    rates = counts.ravel() / counts.sum()
    confidences = np.repeat([0.9, 0.7, 0.5, 0.3, 0.1, -1.0], 2)
    needed = []
    for _ in range(150):
        proof = GrowingProof(THRESHOLDS, STARTS, EPSILON, DELTA)
        while proof.threshold() is None:
            places = draws.choice(len(rates), 40, p=rates)
            for place in places:
                proof.record(confidences[place], place % 2)
        needed.append(proof.calls)
    low, middle, high = GrowingProof(THRESHOLDS, STARTS, EPSILON, DELTA).forecast(1000 * counts)
    assert np.quantile(needed, [0.1, 0.5, 0.9]) == pytest.approx([low, middle, high], rel=0.25)
    few = GrowingProof(THRESHOLDS, STARTS, EPSILON, DELTA).forecast(counts / 10)
    assert few[0] <= 1.1 * low and few[2] > 1.5 * high
    assert proof.forecast(counts) == (0, 0, 0)
    assert GrowingProof(THRESHOLDS, STARTS, EPSILON, DELTA).forecast(counts[:, ::-1])[0] == np.inf
    with pytest.raises(InputError, match=r"counts of agreeing and differing calls \(6, 2\), found \(5, 2\)"):
        proof.forecast(counts[1:])
