"""Numbers are written as people read them."""

import math
from collections.abc import Callable

import pytest

from bertsmith.training import units


@pytest.mark.parametrize(
    ("written", "value", "expected"),
    [
        (units.large, 512, "512"),
        (units.large, 17_512, "17.5 k"),
        (units.large, 999_400, "999 k"),
        (units.large, 999_600, "1 M"),
        (units.large, 4_200_000, "4.2 M"),
        (units.large, 3.3e12, "3.3 T"),
        (units.duration, 7.4, "0:07"),
        (units.duration, 3599.6, "1:00:00"),
        (units.duration, 97_500, "1 d 03:05"),
        (units.perplexity, 66.686, "66.7"),
        (units.perplexity, 22026.4, "22,026"),
        (units.bytes, 0, "0 bytes"),
        (units.bytes, 999, "999 bytes"),
        (units.bytes, 1000, "1.0 kB"),
        (units.bytes, 1_234_567, "1.2 MB"),
        (units.bytes, 5e12, "5.0 TB"),
        (units.bytes, 2.5e15, "2.5 PB"),
        (units.flops, 105.4e9, "105 GFLOP/s"),
        (units.flops, 1.979e15, "1,979.0 TFLOP/s"),
        (units.hours, 0.2, "12.0 minutes"),
        (units.hours, 3.44, "3.4 hours"),
        (units.hours, 1234.5, "1,234 hours"),
        (units.hours, None, "–"),
        (units.percent, 0.2164, "21.6 %"),
        (units.percent, None, "–"),
        (units.count, math.nan, "–"),
        (units.loss, math.inf, "–"),
        (units.score, 0.91866, "0.9187"),
        (units.score, 1, "1.0000"),
        (units.score, math.nan, "–"),
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
    assert units.counted(number, "core") == expected
