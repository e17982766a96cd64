"""Numbers are written as people read them."""

import math
from collections.abc import Callable

import pytest

from bertsmith.reporting import formatting


@pytest.mark.parametrize(
    ("written", "value", "expected"),
    [
        (formatting.large, 512, "512"),
        (formatting.large, 17_512, "17.5 k"),
        (formatting.large, 999_400, "999 k"),
        (formatting.large, 999_600, "1 M"),
        (formatting.large, 4_200_000, "4.2 M"),
        (formatting.large, 3.3e12, "3.3 T"),
        (formatting.duration, 7.4, "7 s"),
        (formatting.duration, 3599.6, "1:00 h"),
        (formatting.duration, 97_500, "1 d 03:05 h"),
        (formatting.perplexity, 66.686, "66.7"),
        (formatting.perplexity, 22026.4, "22,026"),
        (formatting.bytes, 0, "0 bytes"),
        (formatting.bytes, 999, "999 bytes"),
        (formatting.bytes, 1000, "1.0 kB"),
        (formatting.bytes, 1_234_567, "1.2 MB"),
        (formatting.bytes, 5e12, "5.0 TB"),
        (formatting.bytes, 2.5e15, "2.5 PB"),
        (formatting.flops, 105.4e9, "105 GFLOP/s"),
        (formatting.flops, 1.979e15, "1,979.0 TFLOP/s"),
        (formatting.hours, 0.2, "12.0 minutes"),
        (formatting.hours, 3.44, "3.4 hours"),
        (formatting.hours, 1234.5, "1,234 hours"),
        (formatting.hours, None, "–"),
        (formatting.percent, 0.2164, "21.6 %"),
        (formatting.percent, None, "–"),
        (formatting.count, math.nan, "–"),
        (formatting.loss, math.inf, "–"),
        (formatting.score, 0.91866, "0.9187"),
        (formatting.score, 1, "1.0000"),
        (formatting.score, math.nan, "–"),
    ],
)
def test_numbers_are_written_as_people_read_them(
    written: Callable[[float | None], str], value: float | None, expected: str
) -> None:
    assert written(value) == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 cores"), (1, "1 core"), (2, "2 cores"), (17_512, "17,512 cores")]
)
def test_things_are_counted_in_the_right_number(number: int, expected: str) -> None:
    assert formatting.counted(number, "core") == expected
