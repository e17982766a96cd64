"""Turns a table's cell into a text, a number, a label or several labels; errors name file and line.

`where` is the row's file and line, as its reader gave it: 'train.tsv, line 12'. A cell means the same in
every format, although CSV and TSV have only text, and pandas writes integers as floats in a column with a
null: see `as_category`.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from bertsmith.errors import InputError

LARGEST = 1e18
ID = "id"  # the column that is carried over to the predictions
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?")  # "1.0": an integer that pandas wrote as a float
_LARGE = re.compile(r"-?\d(?:\.\d+)?e\+\d+")  # "1e+16": a large integer that pandas wrote as a float
_NUMBER = r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[Tt]rue|[Ff]alse|None|null|nan|NaN)"
_NUMBERS = rf"{_NUMBER}(?:[\s,]+{_NUMBER})*"
# A list, a tuple, a set or an array as Python, pandas, NumPy, JSON and PostgreSQL print it.
_PRINTED = re.compile(
    rf"""\[\s*(?:['"].*|{_NUMBERS}[\s,]*)?\] | \(\s*(?:['"].*|{_NUMBERS},[\s,]*)?\) | \(\s*{_NUMBER},.*\)
    | \{{.*\}} | (?:array|tensor|set|frozenset)\(.*\)""",
    re.DOTALL | re.VERBOSE,
)
_BRACKETS = (("[", "]"), ("(", ")"))
_MULTI_HOT = {
    word: flag for flag, words in enumerate(("0 false f no n", "1 true t yes y")) for word in words.split()
}
# How a type's name begins → a line of pandas that turns such a column into text; "" fits every type.
_CONVERSIONS = {
    "list<item: struct": 'table["COLUMN"] = [" ".join(x["KEY"] for x in row) for row in table["COLUMN"]]',
    "list<item: list": 'table["COLUMN"] = [dict(row)["KEY"] for row in table["COLUMN"]]',  # of a map
    "list<item: string": 'table["COLUMN"] = table["COLUMN"].str.join(" ")',
    "list": 'table["COLUMN"] = [" ".join(map(str, row)) for row in table["COLUMN"]]',
    "struct": 'table["COLUMN"] = table["COLUMN"].str["KEY"]',
    "binary": 'table["COLUMN"] = table["COLUMN"].str.decode("utf-8")',
    "": 'table["COLUMN"] = table["COLUMN"].astype(str)',
}


def is_blank(value: Any) -> bool:
    """Whether a cell is empty: null, NaN, or only white space, which is how CSV spells a null.

    Invisible characters count as white space: U+200B, a byte-order mark, U+0000.
    """
    if isinstance(value, str):
        return all(mark.isspace() or unicodedata.category(mark) in ("Cc", "Cf") for mark in value)
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_text(value: Any, where: str) -> str:
    """The cell as a text: a string as it is, null and NaN as "" (`is_blank` tells them apart).

    Raises InputError for numbers, lists and the like, which mostly mean that the wrong column was named. The
    message names the type and gives a line of pandas that turns such a column into text.
    """
    if isinstance(value, str):
        return value
    if is_blank(value):
        return ""
    type_name = _type_name(value)
    conversion = next(conversion for start, conversion in _CONVERSIONS.items() if type_name.startswith(start))
    raise InputError(
        f"{where}: expected a text, found {_shorten(value)} of type {type_name}. Is it the right column? If "
        f"it is, make it text, for instance in pandas: {conversion}"
    )


def as_id(value: Any) -> str | int | None:
    """The id of a row, which is carried over to its prediction: a string, an integer, or None."""
    return value if value is None or isinstance(value, str | int) else str(value)


def as_number(value: Any, where: str) -> float:
    """The cell as a finite number; a string may spell it with a decimal point: '4.25', ' 1e-3 '.

    Raises InputError for anything else, including NaN, infinity and an empty cell, and for a number beyond
    ±`LARGEST`: models compute in float32, in which a larger square overflows.
    """
    spelled = isinstance(value, str) and "_" not in value  # float() takes 1_000 for a thousand
    if spelled or (isinstance(value, int | float | Decimal) and not isinstance(value, bool)):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if LARGEST < abs(number) < math.inf:
            raise InputError(
                f"{where}: expected a number within ±{LARGEST:g}, found {number:g}. Scale the column down."
            )
        if math.isfinite(number):
            return number
    raise InputError(
        f"{where}: expected a finite number such as 4.25, found {shown(value)}. Mend or remove the row."
    )


def as_label(value: Any, where: str) -> str:
    """The cell as a label's name, by the rule of `as_category`.

    Raises InputError for an empty cell and for a list, also for one that was printed into a cell as text.
    """
    if isinstance(value, list | tuple | dict) or (isinstance(value, str) and is_printed(value)):
        raise InputError(
            f"{where}: expected a label, found a list: {shown(value)}. For several labels a text take "
            "multi-label; of a one-hot list write the label's name."
        )
    infinite = isinstance(value, float) and math.isinf(value)
    if is_blank(value) or infinite or isinstance(value, bytes):
        raise InputError(f"{where}: expected a label, found {shown(value)}. Mend or remove the row.")
    return as_category(value)


def as_category(value: Any) -> str:
    """The name of a category or label, however the program that wrote the table spelled it.

    1, 1.0, "1" and "1.0" are '1'; 1e16 and "1e+16" are '10000000000000000'; True and "true" are 'True'. Any
    other text is stripped and otherwise stays as it is: "007", "1e5", "3.10", "NA". Other numbers are spelled
    as Python spells them.
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    spelled = format(value, "f") if isinstance(value, Decimal) else str(value).strip()
    if spelled.lower() in ("true", "false"):
        return spelled.capitalize()
    if integer := _WHOLE.fullmatch(spelled):
        return "0" if integer[1] == "-0" else integer[1]
    if _LARGE.fullmatch(spelled) and float(spelled).is_integer():
        return str(int(float(spelled)))
    return spelled


def as_labels(value: Any, where: str, separator: str = ",", names: Sequence[str] = ()) -> tuple[str, ...]:
    """The labels of a cell, in order and without repeats.

    The cell is a list of labels, or a string with `separator` between them. Given the `names` of all labels,
    it may also be a multi-hot list with a 0 or 1 for each of them. A null, an empty string and an empty list
    hold no labels, which is valid in multi-label data. Raises InputError for anything else: a list that was
    printed into a cell ("['a', 'b']"), probabilities, and a multi-hot list without names.
    """
    if is_blank(value):
        return ()
    if isinstance(value, str):
        digits = re.sub(r"[\s,\[\]]+|\.(?!\d)", " ", value).split() if names else []
        is_digits = len(digits) == len(names) > 0 and is_multi_hot(digits)
        value = digits if is_digits else _split_labels(value, where, separator)
    if not isinstance(value, list | tuple):
        raise InputError(
            f"{where}: expected a list of labels, or a string with {separator!r} between them, "
            f"found {shown(value)}."
        )
    if names and len(value) == len(names) and is_multi_hot(value):
        if is_multi_hot(names):
            raise InputError(
                f"{where}: labels of the names {' and '.join(names)} can't be told from a 0 or 1 for each of "
                f"them: found {shown(value)}. Give them other names, in the file and in labels=."
            )
        return tuple(
            name for name, hot in zip(names, value, strict=True) if _MULTI_HOT[as_category(hot).lower()]
        )
    labels = tuple(as_label(label, where) for label in value)
    distinct = tuple(dict.fromkeys(labels))
    if len(distinct) < len(labels) and is_multi_hot(value):
        raise InputError(
            f"{where}: expected names of labels, found {' and '.join(sorted(distinct))} for each of "
            f"{len(value)}: {shown(value)}. Name them in this order (labels=NAME,NAME,…), or write the names "
            "of those that hold."
        )
    if any(isinstance(label, float) and not label.is_integer() for label in value):
        raise InputError(
            f"{where}: expected names of labels, found numbers with fractions: {shown(value)}. Write the "
            "names of those that hold."
        )
    return distinct


def is_multi_hot(values: Iterable[Any]) -> bool:
    """Whether every value is one of a pair such as 0 and 1, false and true, no and yes."""
    return all(as_category(value).lower() in _MULTI_HOT for value in values)


def _split_labels(value: str, where: str, separator: str) -> list[str]:
    """Splits a cell at the separator. Raises InputError for a list that was printed into the cell."""
    parts = [part for part in value.split(separator) if part.strip()]
    has_open_brackets = any(
        part.count(opening) != part.count(closing) for part in parts for opening, closing in _BRACKETS
    )
    stripped = value.strip()
    is_bracketed = any(stripped[0] == opening and stripped[-1] == closing for opening, closing in _BRACKETS)
    if is_printed(value) or (has_open_brackets and is_bracketed):
        raise InputError(
            f"{where}: expected labels with {separator!r} between them, found a printed list, "
            f"{shown(value)}. Save the table as JSON lines or Parquet, which hold lists; or, of 0 and 1, "
            "name the labels (labels=NAME,NAME,…)."
        )
    return parts


def is_printed(cell: str) -> bool:
    """Whether a cell is a printed list, set or array: "['a', 'b']", '[0 1 0]', '{a,b}'."""
    return _PRINTED.fullmatch(cell.strip()) is not None


def shown(value: Any) -> str:
    """A value and its type for messages, shortened to 60 characters; "nothing" for None and ""."""
    if value is None or (isinstance(value, str) and not value):  # `not value` of an array may raise
        return "nothing"
    return f"{_shorten(value)} ({type(value).__name__})"


def _shorten(value: Any) -> str:
    printed = repr(value)
    return printed if len(printed) <= 60 else printed[:57] + "..."


def _type_name(value: Any) -> str:
    """The name of a value's type in Parquet, or in Python where Parquet has no such type."""
    import pyarrow as pa  # here, because light commands read cells without pyarrow

    try:
        return str(pa.scalar(value).type)
    except (pa.ArrowException, OverflowError):
        return type(value).__name__
