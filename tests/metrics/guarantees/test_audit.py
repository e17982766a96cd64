"""The audits' confidence sequence at whatever time one looks, however it is chosen what is audited."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import betaln
from simulated import each_size, generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees import audit
from bertsmith.metrics.guarantees.audit import Audits

EPSILON, DELTA, CALLS = 0.05, 0.05, 4000
FAR = math.log(1 / DELTA)


def confident(draws: np.random.Generator, runs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answered calls whose unsure ones differ more: whether they differ, how unsure they are, and chance."""
    unsure = draws.random((runs, CALLS))
    return draws.random((runs, CALLS)) < 2 * EPSILON * unsure, unsure, draws.random((runs, CALLS))


# Each gives the probabilities of an audit (R, calls), or (calls,), and the least of any call at that moment.
SCHEDULES: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "every call": lambda unsure: (np.ones(CALLS), np.ones(CALLS)),
    "one in five": lambda unsure: (np.full(CALLS, 0.2), np.full(CALLS, 0.2)),
    "falling": lambda unsure: (p := np.maximum(0.05, 20 / (20 + np.arange(CALLS))), p),
    "the unsure ones more": lambda unsure: (0.1 + 0.9 * unsure, np.full(CALLS, 0.1)),
    "both": lambda unsure: (
        (scale := np.maximum(0.2, 50 / (50 + np.arange(CALLS)))) * (0.3 + 0.7 * unsure),
        0.3 * scale,
    ),
}


def largest_capitals(differs: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R,) the largest that either capital ever was at the true rate: the worst moment to look. An audit that
    didn't take place has the weight 0."""
    spread = math.log(len(audit.FRACTIONS))
    most = []
    for gains in (audit.log_gains_above, audit.log_gains_below):
        stakes = np.full((len(differs), len(audit.FRACTIONS)), -spread)
        largest = np.zeros(len(differs))
        for step in range(differs.shape[1]):
            stakes += gains(differs[:, step], weights[:, step], EPSILON)
            largest = np.maximum(largest, np.logaddexp.reduce(stakes, axis=1))
        most.append(largest)
    return most[0], most[1]


def misses(schedule: str, runs: int, seed: int, weighted: bool = True) -> int:
    """Runs whose interval at some moment does not hold the true rate, whichever end it misses by."""
    differs, unsure, chance = confident(generator(seed), runs)
    probability, least = SCHEDULES[schedule](unsure)
    weights = (chance < probability) * (least / probability if weighted else 1.0)
    above, below = largest_capitals(differs.astype(np.float64), weights)
    return int((np.maximum(above, below) >= math.log(2 / DELTA)).sum())


@each_size
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_ever_leaves_the_interval_no_more_often_than_delta(schedule: str, runs: int) -> None:
    assert within(misses(schedule, runs, 19), runs, DELTA)


@each_size
def test_audits_of_the_unsure_that_are_not_weighted_are_caught(runs: int) -> None:
    assert not within(misses("the unsure ones more", runs, 19, weighted=False), runs, DELTA)


@each_size
def test_an_audit_probability_that_depends_on_earlier_audits_is_sound(runs: int) -> None:
    """One in two until twenty audits agreed in a row, then one in twenty: known before each call."""
    draws = generator(20)
    differs, chance = draws.random((runs, CALLS)) < EPSILON, draws.random((runs, CALLS))
    agreed, weights = np.zeros(runs), np.zeros((runs, CALLS))
    for step in range(CALLS):
        taken = chance[:, step] < np.where(agreed < 20, 0.5, 0.05)
        weights[:, step] = taken
        agreed = np.where(taken, np.where(differs[:, step], 0, agreed + 1), agreed)
    above, below = largest_capitals(differs.astype(np.float64), weights)
    assert within(int((np.maximum(above, below) >= math.log(2 / DELTA)).sum()), runs, DELTA)


@each_size
@pytest.mark.parametrize("wandering", [False, True])
def test_a_model_at_its_limit_is_ever_demoted_no_more_often_than_delta(wandering: bool, runs: int) -> None:
    """With a rate that is always epsilon, and with one that stays at or below it, by a walk that looks at
    nothing but itself."""
    draws = generator(21)
    rates = EPSILON * (0.5 + 0.5 * np.sign(np.sin(np.arange(CALLS) / 300))) if wandering else EPSILON
    differs = (draws.random((runs, CALLS)) < rates).astype(np.float64)
    stakes = np.full((runs, len(audit.FRACTIONS)), -np.inf)
    largest = np.zeros(runs)
    for step in range(CALLS):
        stakes = audit.after_audit(stakes, differs[:, step], 1.0, EPSILON, step + 1)
        largest = np.maximum(largest, audit.log_capital(stakes, step + 1))
    assert within(int((largest >= FAR).sum()), runs, DELTA)


@pytest.mark.slow
def test_audits_of_a_model_at_its_limit_promote_or_demote_it_no_more_often_than_delta() -> None:
    """The class itself, stopped at the first decision it makes."""
    draws, demoted, promoted = generator(22), 0, 0
    for _ in range(300):
        audits = Audits(EPSILON, DELTA)
        for differs in draws.random(1000) < EPSILON:
            audits.record(float(differs), 0.1, 0.1)
        above, below = audits.evidence()
        demoted += above >= FAR
        promoted += below >= FAR
    assert within(demoted, 300, DELTA)
    assert within(promoted, 300, DELTA)


def recorded(differs: np.ndarray, weights: np.ndarray | float = 1.0, epsilon: float = EPSILON) -> Audits:
    audits = Audits(epsilon, DELTA)
    for value, weight in zip(differs, np.broadcast_to(weights, len(differs)), strict=True):
        audits.record(float(value), 0.1 / float(weight), 0.1)
    return audits


def test_what_is_decided_and_how_soon() -> None:
    """Means over 40 models; the audits needed are bounded at about twice what was found."""
    draws = generator(23)
    assert np.mean([until(0.01, "promote", draws) for _ in range(40)]) < 300
    assert np.mean([until(0.10, "demote", draws) for _ in range(40)]) < 500
    assert np.mean([until(0.25, "demote", draws) for _ in range(40)]) < 80


def until(rate: float, wanted: str, draws: np.random.Generator) -> int:
    audits = Audits(EPSILON, DELTA)
    while audits.decision() != wanted:
        audits.record(float(draws.random() < rate), 0.1, 0.1)
        assert audits.count < 5000
    return audits.count


def test_a_model_that_was_good_for_long_and_turns_bad_is_still_demoted() -> None:
    draws = generator(24)
    audits = recorded(draws.random(8000) < 0.02)
    assert audits.decision() == "promote"
    later = 0
    while audits.decision() != "demote":
        audits.record(float(draws.random() < 0.15), 0.1, 0.1)
        later += 1
        assert later <= 400
    # What all audits say on average is still fine, and a demotion stays.
    assert audits.interval().high < EPSILON
    for _ in range(50):
        audits.record(0.0, 0.1, 0.1)
    assert audits.decision() == "demote"


def test_without_audits_nothing_is_known() -> None:
    audits = Audits(EPSILON, DELTA)
    assert audits.interval() == (0.0, 1.0)
    assert math.isnan(audits.rate())
    assert audits.decision() == "keep"


def test_one_bet_is_what_its_formula_says() -> None:
    """A fraction of 0.3, a weight of a half, against 0.2: 1 + 0.3 · 0.5 (1 - 0.2) / 0.2, and so on."""
    fractions = np.array([0.3])
    assert audit.log_gains_above(1, 0.5, 0.2, fractions) == pytest.approx(math.log(1 + 0.15 * 4))
    assert audit.log_gains_above(0, 0.5, 0.2, fractions) == pytest.approx(math.log(1 - 0.15))
    assert audit.log_gains_below(1, 0.5, 0.2, fractions) == pytest.approx(math.log(1 - 0.15))
    assert audit.log_gains_below(0, 0.5, 0.2, fractions) == pytest.approx(math.log(1 + 0.15 * 0.2 / 0.8))


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.77])
def test_no_bet_grows_on_average_at_the_supposed_rate(rate: float) -> None:
    for gains in (audit.log_gains_above, audit.log_gains_below):
        mean = rate * np.exp(gains(1, 0.7, rate)) + (1 - rate) * np.exp(gains(0, 0.7, rate))
        np.testing.assert_allclose(mean, 1.0, rtol=1e-12)


@pytest.mark.parametrize(("errors", "count"), [(0, 200), (10, 200), (100, 200), (30, 3000)])
def test_the_interval_is_about_as_wide_as_the_mixture_s_in_closed_form(errors: int, count: int) -> None:
    """Robbins's mixture over all rates, Beta(1/2, 1/2), another confidence sequence for coins."""
    found = recorded(np.arange(count) < errors).interval()
    rates = np.linspace(1e-6, 1 - 1e-6, 200_001)
    chance = errors * np.log(rates) + (count - errors) * np.log1p(-rates)
    mixture = betaln(errors + 0.5, count - errors + 0.5) - betaln(0.5, 0.5) - chance
    kept = rates[mixture < FAR]
    assert found.low <= errors / count <= found.high
    assert found.high - found.low <= 1.15 * (kept[-1] - kept[0])


def test_the_interval_s_ends_are_where_the_capital_reaches_what_refutes() -> None:
    differs = np.arange(300) % 20 == 0
    found = recorded(differs).interval()
    for gains, end in ((audit.log_gains_above, found.low), (audit.log_gains_below, found.high)):
        capital = np.logaddexp.reduce(gains(differs.astype(float), 1.0, end).sum(axis=0)) - math.log(16)
        assert capital == pytest.approx(math.log(2 / DELTA), abs=1e-6)


def test_the_order_of_audits_does_not_change_the_interval() -> None:
    draws = generator(25)
    differs, weights = draws.random(200) < 0.2, draws.choice([0.1, 0.5, 1.0], 200)
    forwards, backwards = recorded(differs, weights), recorded(differs[::-1], weights[::-1])
    assert forwards.interval() == pytest.approx(backwards.interval(), abs=1e-9)
    assert forwards.rate() == pytest.approx((differs * weights).sum() / weights.sum())


def test_the_class_keeps_the_evidence_of_the_whole_way() -> None:
    differs = (generator(26).random(300) < 0.12).astype(np.float64)
    audits = recorded(differs)
    stakes, most = np.full(len(audit.FRACTIONS), -np.inf), 0.0
    for step, value in enumerate(differs, 1):
        stakes = audit.after_audit(stakes, value, 1.0, EPSILON, step)
        most = max(most, float(audit.log_capital(stakes, step)))
    assert audits.evidence()[0] == pytest.approx(most)
    below = np.cumsum(audit.log_gains_below(differs, 1.0, EPSILON), axis=0)
    capitals = np.logaddexp.reduce(below, axis=1) - math.log(len(audit.FRACTIONS))
    assert audits.evidence()[1] == pytest.approx(max(0.0, float(capitals.max())))


def test_audits_resumed_from_json_go_on_to_the_bit() -> None:
    draws = generator(27)
    differs, weights = (draws.random(120) < 0.1).astype(float), draws.choice([0.25, 1.0], 120)
    straight, stopped = Audits(EPSILON, DELTA), Audits(EPSILON, DELTA)
    for value, weight in zip(differs, weights, strict=True):
        straight.record(value, 0.1 / weight, 0.1)
        stopped = Audits.from_json(json.loads(json.dumps(stopped.as_json(), allow_nan=False)))
        stopped.record(value, 0.1 / weight, 0.1)
    assert stopped.as_json() == straight.as_json()
    assert stopped.interval() == straight.interval()
    assert stopped.count == 120


@pytest.mark.parametrize(
    "fault", [{"format": 2}, {"below": [0.0]}, {"seen": 3}, {"delta": 2.0}, {"above": None}]
)
def test_a_state_that_is_none_is_refused(fault: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Audits.from_json({**recorded(np.ones(3)).as_json(), **fault})


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ((1.5, 0.1, 0.1), "disagreement must lie from 0 to 1, found 1.5"),
        ((math.nan, 0.1, 0.1), "disagreement must lie"),
        ((1.0, 0.1, 0.2), "0 < least <= probability <= 1"),
        ((1.0, 1.1, 0.2), "0 < least <= probability <= 1"),
        ((1.0, 0.1, 0.0), "0 < least <= probability <= 1"),
    ],
)
def test_an_audit_that_cannot_be_is_refused_and_not_counted(
    values: tuple[float, ...], complaint: str
) -> None:
    audits = recorded(np.zeros(5))
    before = audits.as_json()
    with pytest.raises(InputError, match=complaint):
        audits.record(*values)
    assert audits.as_json() == before
