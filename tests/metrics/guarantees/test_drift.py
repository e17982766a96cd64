"""Drift is found soon after it begins, and seldom where there is none, over ten thousand calls."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from simulated import generator, within

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees import audit as drift
from bertsmith.metrics.guarantees.audit import Drift

DELTA, REFERENCE = 0.05, 2000
Source = Callable[[np.random.Generator, int], np.ndarray]

CONFIDENT: Source = lambda draws, size: draws.beta(8, 1.2, size)  # noqa: E731
CONSTANT: Source = lambda draws, size: np.full(size, 1.0)  # noqa: E731
COARSE: Source = lambda draws, size: draws.beta(8, 1.2, size).round(1)  # noqa: E731


def alarms(source: Source, later: Source, change: int, steps: int, runs: int, seed: int) -> np.ndarray:
    """(R,) the step of each run's first alarm, infinite where there is none; all runs side by side."""
    draws = generator(seed)
    references = [source(draws, REFERENCE) for _ in range(runs)]
    edges = [drift.edges_of(values[::2]) for values in references]
    bins = 256
    counts = np.zeros((runs, bins), np.int64)
    padded = np.full((runs, bins - 1), np.inf)
    for run, values in enumerate(references):
        padded[run, : len(edges[run])] = edges[run]
        counts[run] = np.bincount(np.searchsorted(edges[run], values[1::2]), minlength=bins)
    stakes = np.full((runs, drift.BETS), -np.inf)
    first = np.full(runs, np.inf)
    for step in range(1, steps + 1):
        values = (source if step <= change else later)(draws, runs)
        places = (padded < values[:, None]).sum(axis=1)
        p_values = drift.conformal_p_value(counts, places, draws.random(runs))
        counts[np.arange(runs), places] += 1
        stakes = drift.after_bet(stakes, p_values, step)
        alarm = drift.log_capital(stakes, step) >= -math.log(DELTA)
        first = np.where(alarm, np.minimum(first, step), first)
    return first


@pytest.mark.parametrize("source", [CONFIDENT, CONSTANT, COARSE], ids=["confident", "constant", "coarse"])
@pytest.mark.parametrize(("runs", "steps"), [(150, 3000), pytest.param(1000, 10_000, marks=pytest.mark.slow)])
def test_false_alarms_are_no_more_than_delta(source: Source, runs: int, steps: int) -> None:
    first = alarms(source, source, steps, steps, runs, 28)
    assert within(int(np.isfinite(first).sum()), runs, DELTA)


@pytest.mark.parametrize(
    ("later", "within_calls"),
    [
        (lambda draws, size: draws.beta(6, 1.5, size), 300),  # mean confidence 0.87 -> 0.80
        (lambda draws, size: draws.beta(4, 2, size), 80),  # 0.87 -> 0.67
        (lambda draws, size: draws.beta(30, 1, size), 150),  # 0.87 -> 0.97: it may be over-sure
        (lambda draws, size: draws.beta(80, 12, size), 150),  # the same mean, less spread
    ],
)
def test_a_planted_change_is_found_within_so_many_calls(later: Source, within_calls: int) -> None:
    """In 95 of 100 runs, after 2,000 calls without a change."""
    first = alarms(CONFIDENT, later, 2000, 2000 + within_calls, 100, 29)
    assert ((first > 2000) & np.isfinite(first)).sum() >= 95 - (first <= 2000).sum()
    assert (first <= 2000).sum() <= 5


def test_a_reference_and_a_stream_of_another_kind_are_told_apart() -> None:
    first = alarms(CONFIDENT, lambda draws, size: draws.beta(4, 2, size), 0, 80, 100, 30)
    assert np.isfinite(first).sum() >= 95


def test_bets_are_fair_on_uniform_p_values() -> None:
    p_values = (np.arange(100_000) + 0.5) / 100_000
    np.testing.assert_allclose(drift.gains(p_values).mean(axis=0), 1.0, atol=1e-9)
    assert drift.gains([0.0, 0.5, 1.0]).min() > 0


def test_capital_is_neither_made_nor_lost_by_a_fair_step() -> None:
    """Averaged over uniform p-values, stakes and reserve keep their sum."""
    stakes, p_values = np.full(drift.BETS, -np.inf), (np.arange(20_000) + 0.5) / 20_000
    for step in range(1, 6):
        after = np.exp(drift.log_capital(drift.after_bet(stakes, p_values, step), step)).mean()
        before = np.exp(drift.log_capital(stakes, step - 1))
        assert after == pytest.approx(float(before), abs=1e-8)
        stakes = drift.after_bet(stakes, 0.1 * step, step)


def test_p_values_are_ranks_among_all_before() -> None:
    counts = np.array([2, 3, 5])
    assert drift.conformal_p_value(counts, 2, 0.0) == 0.0
    assert drift.conformal_p_value(counts, 1, 0.0) == pytest.approx(5 / 11)
    assert drift.conformal_p_value(counts, 0, 0.5) == pytest.approx((8 + 0.5 * 3) / 11)
    side_by_side = drift.conformal_p_value(np.stack([counts, counts]), [2, 1], [0.0, 0.0])
    np.testing.assert_allclose(side_by_side, [0.0, 5 / 11])


def test_the_class_does_what_the_streams_side_by_side_do() -> None:
    draws = generator(31)
    reference, stream = draws.random(400), draws.beta(2, 1, 150)
    test = Drift(reference, DELTA, seed=5)
    edges = drift.edges_of(reference[::2])
    counts = np.bincount(np.searchsorted(edges, reference[1::2]), minlength=len(edges) + 1)
    stakes, most, alarmed = np.full(drift.BETS, -np.inf), 0.0, False
    for step, value in enumerate(stream, 1):
        place = int((edges < value).sum())
        chance = np.random.default_rng((5, step)).random()
        stakes = drift.after_bet(stakes, drift.conformal_p_value(counts, place, chance), step)
        counts[place] += 1
        most = max(most, float(drift.log_capital(stakes, step)))
        alarmed = alarmed or most >= math.log(20)
        assert test.record(value) == alarmed
    assert test.evidence == pytest.approx(most)
    assert alarmed


def test_a_test_resumed_from_json_goes_on_to_the_bit() -> None:
    draws = generator(32)
    reference, stream = draws.random(100), draws.random(60)
    straight, stopped = Drift(reference, DELTA), Drift(reference, DELTA)
    for value in stream:
        straight.record(value)
        stopped = Drift.from_json(json.loads(json.dumps(stopped.as_json(), allow_nan=False)))
        stopped.record(value)
    assert stopped.as_json() == straight.as_json()


def test_the_state_does_not_grow() -> None:
    draws = generator(33)
    test = Drift(draws.random(1000), DELTA)
    test.record(0.5)
    sizes = {key: np.size(value) for key, value in test.as_json().items()}
    for value in draws.normal(size=500):
        test.record(value)
    assert {key: np.size(value) for key, value in test.as_json().items()} == sizes


@pytest.mark.parametrize(
    "fault", [{"format": 0}, {"counts": [1, 2]}, {"delta": 0}, {"edges": "x"}, {"seed": None}]
)
def test_a_state_that_is_none_is_refused(fault: dict[str, object]) -> None:
    test = Drift(np.linspace(0, 1, 50), DELTA)
    with pytest.raises(InputError):
        Drift.from_json({**test.as_json(), **fault})


def test_what_cannot_be_watched_is_refused() -> None:
    with pytest.raises(InputError, match="a reference of at least 20 numbers, found 3"):
        Drift([0.1, 0.2, 0.3], DELTA)
    test = Drift(np.linspace(0, 1, 50), DELTA)
    before = test.as_json()
    with pytest.raises(InputError, match="a finite number to watch, found nan"):
        test.record(math.nan)
    assert test.as_json() == before
