"""Cells as texts, numbers and labels, and what is said of those that are none."""

import math
from typing import Any

import numpy as np
import pandas
import pytest

from bertsmith.errors import InputError
from bertsmith.text.files.values import as_label, as_labels, as_number, as_text


@pytest.mark.parametrize(
    ("convert", "value", "expected"),
    [
        (as_text, " a ", " a "),
        (as_text, None, ""),
        (as_number, " 4.25 ", 4.25),
        (as_number, 3, 3.0),
        (as_number, "-1e-3", -0.001),
        (as_label, " spam ", "spam"),
        (as_label, 0, "0"),
        (as_label, 1.0, "1"),
        (as_label, True, "True"),
        (as_labels, "a, b,,a", ("a", "b")),
        (as_labels, ["a", 2], ("a", "2")),
        (as_labels, [], ()),
        (as_labels, None, ()),
    ],
)
def test_values_are_understood(convert: Any, value: Any, expected: Any) -> None:
    assert convert(value, "f, line 1") == expected


@pytest.mark.parametrize(
    ("convert", "value"),
    [
        *((as_text, value) for value in (1, ["a"], True, pandas.NA, np.zeros(2))),
        *(
            (as_number, value)
            for value in ("abc", "", None, "nan", "inf", math.nan, math.inf, "1_000", "1,5")
        ),
        *((as_number, value) for value in (True, [1], 10**400)),
        *((as_label, value) for value in ("", " ", None, 1.5, math.nan, [1])),
        *((as_labels, value) for value in (1, ["a", ""], [None])),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(convert: Any, value: Any) -> None:
    with pytest.raises(InputError, match=r"^f\.csv, line 7: expected .*, found "):
        convert(value, "f.csv, line 7")


@pytest.mark.parametrize("cell", ["['a', 'b']", '["a"]', "['a' 'b']", "[]", "[1, 2]", "[3]", " ['a'] "])
def test_a_list_that_was_printed_into_a_cell_is_refused(cell: str) -> None:
    """As pandas and NumPy print one."""
    with pytest.raises(InputError, match=r"^f\.csv, line 7: expected labels with ',' between them, found a"):
        as_labels(cell, "f.csv, line 7")


@pytest.mark.parametrize("cell", ["[urgent]", "[urgent],[spam]", "[1] a,b [2]", "it's [x],b"])
def test_brackets_in_labels_are_no_list(cell: str) -> None:
    assert as_labels(cell, "f") == tuple(cell.split(","))


def test_another_separator_of_labels() -> None:
    assert as_labels("a,b|c", "f", "|") == ("a,b", "c")
