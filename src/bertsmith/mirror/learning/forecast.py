"""What a proof can be expected to give, before any of the calls that are kept for it is used.

The forecast comes from development calls alone, by which the student was chosen. So it may be looked at as
often as one likes, and it is no proof. Read `forecast_risks` first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith.metrics.guarantees.learn_then_test import CallGroup
from bertsmith.metrics.guarantees.sample_size import StartForecast, forecast_starts
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.learning.proving import (
    FAR,
    FIRST_SHARE,
    LIKELY_TO_FAIL,
    calibration_delta,
    candidate_thresholds,
    count_agreeing,
    estimate_calls_needed,
    is_too_few_to_judge,
    read_prices,
    target_epsilon,
)
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import TeacherComparison
from bertsmith.reporting.formatting import format_upper_percent, format_whole_percent

_GROWTH = (2, 4, 8, 16)  # times the calls that are there, for which the calls needed are looked for
_LEAST = 1e-6  # of delta, for which a forecast is made
_FORESEEN = 2000  # calls


@dataclass(frozen=True)
class RiskForecast:
    """With at most `epsilon` of its answers differing, the student can be expected to answer the share
    `coverage` of the calls, in `interval` with a probability of 90 %, by the calls that are kept to prove it.
    `unproven`: the probability that nothing is proven; `needed`: the calls with which something is, with a
    probability of one half, infinite where no number of them is enough. `agreeing`: of the development calls
    so many come, the surest first, before the first that differs.
    """

    epsilon: float
    coverage: float
    interval: Interval
    unproven: float
    needed: float
    is_wanted: bool
    agreeing: int = 0

    @property
    def has_chance(self) -> bool:
        """Whether something will rather be proven than not."""
        return self.unproven < LIKELY_TO_FAIL

    def describe_needed(self, calls: int) -> str:
        """The calls that a proof needs, of which `calls` are there, or what it needs instead."""
        if self.needed <= FAR * calls:
            return f"about {_round(self.needed):,}"
        return (
            "more calls to judge" if is_too_few_to_judge(self.agreeing, self.epsilon) else "a better student"
        )

    def describe_coverage(self) -> str:
        """'about 63 % (51 % to 72 %)', 'most likely nothing (0 % to 12 %)', or 'nothing'."""
        if not self.coverage:
            return "nothing"
        low, high = self.interval
        # A mean of mostly everything and rarely nothing lies outside of nine cases in ten.
        coverage = format_whole_percent(min(max(self.coverage, low), high))
        middle = f"about {coverage}" if self.has_chance else "most likely nothing"
        return f"{middle} ({format_whole_percent(low)} to {format_whole_percent(high)})"


def forecast_risks(
    devs: Sequence[TeacherComparison], calls: int, settings: LearnSettings
) -> tuple[RiskForecast, ...]:
    """A forecast for each risk at which the whole answer is proven, ascending, for so many `calls` to prove
    it by. `devs` are the candidates' comparisons on development calls; of each risk the one that can be
    expected to answer most counts. Empty where each class has a claim of its own.
    """
    if settings.by_class is not None:
        return ()
    prices = read_prices(settings)
    wanted = target_epsilon(settings)
    risks = settings.risks if prices is None else tuple(sorted({*prices.risks, wanted}))
    shared = FIRST_SHARE if len(devs) > 1 else 1.0
    first = FIRST_SHARE if len(risks) > 1 or len(devs[0].fields) > 1 else 1.0
    agreeing = max(count_agreeing(dev.confidence, dev.differs) for dev in devs)
    forecasts = []
    for risk in risks:
        part = first if risk == wanted else max((1 - first) / max(len(risks) - 1, 1), _LEAST)
        level = calibration_delta(settings) * shared * part
        groups = [
            CallGroup(dev.confidence, dev.differs, candidate_thresholds(dev.confidence), risk) for dev in devs
        ]
        best: StartForecast = max(
            (forecast_starts(group, calls, level, settings.seed) for group in groups),
            key=lambda forecast: forecast.coverage,
        )
        needed = min(
            estimate_calls_needed(dev.confidence, dev.differs, len(dev.confidence), risk, level)
            for dev in devs
        )
        if best.unproven >= LIKELY_TO_FAIL:  # the estimate reckons without what so few dev calls leave open
            likely = (
                factor * calls
                for factor in _GROWTH
                if any(
                    forecast_starts(group, factor * calls, level, settings.seed).unproven < LIKELY_TO_FAIL
                    for group in groups
                )
            )
            needed = max(needed, next(likely, math.inf))
        forecasts.append(
            RiskForecast(risk, best.coverage, best.interval, best.unproven, needed, risk == wanted, agreeing)
        )
    return tuple(forecasts)


def foreseen_calls(kept: int) -> int:
    """The calls to prove by that a forecast reckons with: those that are kept, or many where none are."""
    return kept or _FORESEEN


def format_forecast_rows(forecasts: Sequence[RiskForecast], calls: int) -> list[list[str]]:
    """Table rows: the allowed difference, the share of calls answered, and the calls that a proof needs, of
    which `calls` are there.
    """
    return [
        [
            format_upper_percent(forecast.epsilon) + (" (wanted)" if forecast.is_wanted else ""),
            forecast.describe_coverage(),
            forecast.describe_needed(calls),
        ]
        for forecast in forecasts
    ]


def describe_forecast(forecasts: Sequence[RiskForecast]) -> str:
    """The forecast for the risk that is wanted, in a sentence; empty without one."""
    wanted = next((forecast for forecast in forecasts if forecast.is_wanted), None)
    if wanted is None:
        return ""
    return (
        f"Forecast: where at most {format_upper_percent(wanted.epsilon)} may differ, the student answers "
        f"{wanted.describe_coverage()} of the calls"
    )


def advise_risk(forecasts: Sequence[RiskForecast], settings: LearnSettings) -> str:
    """Where the proof isn't begun: the smallest larger risk that can be proven now, in a sentence; empty
    without one.
    """
    if settings.call_price is not None:
        return ""
    wanted = next((forecast.epsilon for forecast in forecasts if forecast.is_wanted), math.inf)
    for forecast in forecasts:
        if forecast.epsilon > wanted and forecast.has_chance:
            return (
                f"By the forecast, at most {format_upper_percent(forecast.epsilon)} can be proven with the "
                f"calls that are there: the student would answer {forecast.describe_coverage()} of all. If "
                f"your application bears that: --epsilon {forecast.epsilon:g}"
            )
    return ""


def _round(count: float) -> int:
    """Rounded up to two digits: an estimate has no more."""
    step: int = 10 ** max(len(f"{math.ceil(count)}") - 2, 0)
    return math.ceil(count / step) * step
