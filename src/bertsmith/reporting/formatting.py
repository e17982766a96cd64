"""Formats numbers for the screen and for reports. An unknown number (None or not finite) is a dash."""

import math
from collections.abc import Callable
from functools import wraps

UNKNOWN = "–"


def _dash_when_unknown(
    format_known: Callable[[float], str],
) -> Callable[[float | None], str]:
    @wraps(format_known)
    def format_any(value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return UNKNOWN
        return format_known(value)

    return format_any


@_dash_when_unknown
def score(value: float) -> str:
    """Formats a metric of a run with four decimals: 0.9187."""
    return f"{value:.4f}"


@_dash_when_unknown
def count(value: float) -> str:
    """Formats a whole number with thousands separators: 17,512."""
    return f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """Formats a number of things: 1 core, 17,512 documents. `noun` gets an s unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@_dash_when_unknown
def large(value: float) -> str:
    """Formats a number with three digits and a unit: 512, 17.5 k, 4.2 M, 3.3 G, 2.1 T."""
    for unit in ("", " k", " M", " G"):
        if abs(value) < 999.5:
            return f"{value:.0f}" if not unit else f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:,.3g} T"


@_dash_when_unknown
def percent(value: float) -> str:
    """Formats a share of 1 as a percentage: 21.6 %."""
    return f"{100 * value:.1f} %"


def format_percent(share: float) -> str:
    """'95 %', '92.3 %', '0.03 %', '99.97 %': with as many digits as tell it from 0 and 100 %."""
    digits = 1
    while 0 < share < 1 and float(f"{100 * share:.{digits}f}") in (0.0, 100.0) and digits < 12:
        digits += 1
    return f"{100 * share:.{digits}f}".removesuffix(".0") + " %"


def format_whole_percent(share: float) -> str:
    """'63 %', '0.4 %', '99.7 %': to a percent, where that tells it from 0 and 100 %."""
    rounded = round(share, 2)
    return format_percent(rounded if 0 < rounded < 1 else share)


def format_confidence(delta: float) -> str:
    """The confidence 1 - delta, never rounded up: '95 %', '99.875 %'."""
    return f"{100 - float(format_upper_percent(delta).removesuffix(' %')):.12g} %"


def format_upper_percent(share: float) -> str:
    """A claimed share, rounded up to four significant digits: '1.25 %', '0.2143 %'."""
    digits = max(0, 1 - math.floor(math.log10(share)))
    rounded = math.ceil(round(share * 10 ** (digits + 2), 6)) / 10**digits
    return f"{rounded:.10g} %"


@_dash_when_unknown
def loss(value: float) -> str:
    """Formats a loss in nats a token with three decimals: 5.213."""
    return f"{value:.3f}"


@_dash_when_unknown
def mean(value: float) -> str:
    """Formats a mean, such as of pieces per word, with three decimals: 1.138."""
    return f"{value:.3f}"


@_dash_when_unknown
def perplexity(value: float) -> str:
    """Formats a perplexity with one decimal, from 1,000 on without: 66.4, 22,026."""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


@_dash_when_unknown
def small(value: float) -> str:
    """Formats a learning rate in scientific notation: 1.00e-04."""
    return f"{value:.2e}"


@_dash_when_unknown
def bytes(value: float) -> str:
    """Formats a number of bytes in decimal units, as disks and networks are sold: 999 bytes, 1.2 MB, 3.4
    PB.
    """
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} PB"


@_dash_when_unknown
def flops(value: float) -> str:
    """Formats a number of operations a second: 105 GFLOP/s, 1,979.0 TFLOP/s."""
    return f"{value / 1e12:,.1f} TFLOP/s" if value >= 1e12 else f"{value / 1e9:,.0f} GFLOP/s"


@_dash_when_unknown
def hours(value: float) -> str:
    """Formats the planned duration of a run, in hours: 12.5 minutes, 3.4 hours, 120 hours."""
    if value < 1:
        return f"{60 * value:.1f} minutes"
    return f"{value:,.1f} hours" if value < 72 else f"{value:,.0f} hours"


@_dash_when_unknown
def duration(seconds: float) -> str:
    """Formats a duration: 7 s, 12:30 min, 3:05 h, 2 d 03:15 h."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02} h"
    if hours:
        return f"{hours}:{minute:02} h"
    return f"{minute}:{second:02} min" if minute else f"{second} s"
