"""Cells as texts, numbers and labels, and what is said of those that are none."""

import math
from datetime import date
from decimal import Decimal
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
        (as_text, math.nan, ""),
        *((as_text, value, value) for value in ("\u200b", "NA", "null", "None", "007", "\ufeffa")),
        (as_number, " 4.25 ", 4.25),
        (as_number, 3, 3.0),
        (as_number, "-1e-3", -0.001),
        (as_label, " spam ", "spam"),
        (as_label, 0, "0"),
        (as_label, 1.0, "1"),
        *((as_label, value, "True") for value in (True, "true", "TRUE", "True")),
        *((as_label, value, "1") for value in ("1", "1.0", "1.00", Decimal("1"), Decimal("1.0"))),
        *((as_label, value, "0") for value in (0, -0.0, "-0.0", "-0", "0.0")),
        *((as_label, value, "10000000000000000") for value in (10**16, 1e16, "1e+16", str(10**16))),
        *((as_label, value, value) for value in ("1.5e+00", "2.25e+1", "1e+400")),
        *((as_label, value, value) for value in ("007", "1e5", "3.10", "+1", "NA", "None", "null", "nan")),
        *((as_label, value, "4.5") for value in (4.5, "4.5", Decimal("4.5"))),
        (as_label, date(2024, 1, 2), "2024-01-02"),
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
        *(
            (as_label, value)
            for value in ("", " ", "\u200b", "\ufeff", "\0", None, math.nan, math.inf, [1], b"a")
        ),
        *((as_label, value) for value in ("[3]", "['a']", "[0 1]", "{a,b}", "()", "array([0, 1])")),
        *((as_labels, value) for value in (1, ["a", ""], [None])),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(convert: Any, value: Any) -> None:
    with pytest.raises(InputError, match=r"^f\.csv, line 7: expected .*, found "):
        convert(value, "f.csv, line 7")


@pytest.mark.parametrize(
    "hot",
    [
        *([0, 1, 0], [1.0, 0.0, 0.0], [True, False, True], ["0", "1", "1"], "0,1,0", [0, 0], (1, 1)),
        *("yes,no,no", ["T", "F", "T"], "N, N, Y"),
    ],
)
def test_a_multi_hot_list_needs_the_names_of_its_labels(hot: Any) -> None:
    with pytest.raises(
        InputError, match=r"^f, line 7: expected names of labels, found .* for each of [23]: .*labels=NAME"
    ):
        as_labels(hot, "f, line 7")


@pytest.mark.parametrize(
    "hot",
    [
        *([0, 1, 1], (0, 1, 1), [0.0, 1.0, 1.0], [False, True, True], ["0", "1", "1"]),
        *(["no", "yes", "yes"], "F,T,T", "N Y Y"),
        *("[0, 1, 1]", "[0 1 1]", "[0. 1. 1.]", "0,1,1", "0 1 1", "[False  True  True]"),
    ],
)
def test_a_multi_hot_list_with_names_is_the_labels_that_hold(hot: Any) -> None:
    assert as_labels(hot, "f", names=("a", "b", "c")) == ("b", "c")


def test_numbers_of_labels_are_no_multi_hot_list() -> None:
    assert as_labels([1, 0], "f") == ("1", "0")
    assert as_labels([3, 1, 0], "f") == ("3", "1", "0")
    with pytest.raises(InputError, match="of the names 0 and 1 can't be told from a 0 or 1 for each"):
        as_labels([0, 1], "f", names=("0", "1"))
    assert as_labels(["b"], "f", names=("a", "b")) == ("b",)


def test_probabilities_are_no_labels() -> None:
    with pytest.raises(InputError, match="found numbers with fractions"):
        as_labels([0.25, 0.75], "f")


@pytest.mark.parametrize(
    ("value", "kind", "line"),
    [
        (["a"], "list<item: string>", '.str.join(" ")'),
        ([1, 2], "list<item: int64>", '" ".join(map(str, row)) for row in table["COLUMN"]]'),
        ([{"en": "a"}], "list<item: struct<en: string>>", 'for x in row) for row in table["COLUMN"]]'),
        ([("en", "a")], "list<item: list<item: string>>", '[dict(row)["KEY"] for row in table["COLUMN"]]'),
        ({"en": "a"}, "struct<en: string>", '.str["KEY"]'),
        (b"a", "binary", '.str.decode("utf-8")'),
        (date(2024, 1, 2), "date32[day]", ".astype(str)"),
        (4.5, "double", ".astype(str)"),
    ],
)
def test_what_is_no_text_is_refused_with_its_type_and_a_line_that_converts_it(
    value: Any, kind: str, line: str
) -> None:
    """The line is pandas' own: what it makes of a column of such values is text."""
    with pytest.raises(InputError) as refused:
        as_text(value, "f.parquet, row 1")
    assert f"of type {kind}." in str(refused.value)
    assert str(refused.value).endswith(line)
    table = pandas.DataFrame({"COLUMN": [value]})
    exec(str(refused.value).partition("in pandas: ")[2].replace("KEY", "en"), {"table": table})
    assert isinstance(as_text(table["COLUMN"][0], "f"), str)


@pytest.mark.parametrize(
    "cell",
    [
        "['a', 'b']",
        '["a"]',
        "['a' 'b']",
        "[]",
        "[1, 2]",
        "[3]",
        " ['a'] ",
        "[0 1 0]",
        "[0. 1.]",
        "{a,b}",
        "{'a'}",
        "('a',)",
        "array([0, 1])",
        "[ True False]",
        "[a, b]",
        "set()",
    ],
)
def test_a_list_that_was_printed_into_a_cell_is_refused(cell: str) -> None:
    """As pandas and NumPy print one."""
    with pytest.raises(InputError, match=r"^f\.csv, line 7: expected labels with ',' between them, found a"):
        as_labels(cell, "f.csv, line 7")


@pytest.mark.parametrize("cell", ["[urgent]", "[urgent],[spam]", "[1] a,b [2]", "it's [x],b"])
def test_brackets_in_labels_are_no_list(cell: str) -> None:
    assert as_labels(cell, "f") == tuple(cell.split(","))


def test_another_separator_of_labels() -> None:
    assert as_labels("a,b|c", "f", "|") == ("a,b", "c")
