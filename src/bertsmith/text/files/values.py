"""What a table's cell means as a text, a number, a label or several labels; errors name file and line.

`where` is the place a reader gave with the row: 'train.tsv, line 12'. A cell means the same in every format,
though CSV and TSV hold nothing but text, and pandas writes whole numbers beside a null as fractions:
`as_category` has the rule, for labels too.
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
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?")  # "1.0": an integer that pandas took for a fraction
_LARGE = re.compile(r"-?\d(?:\.\d+)?e\+\d+")  # "1e+16": such a one that is large
_NUMBER = r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[Tt]rue|[Ff]alse|None|null|nan|NaN)"
_NUMBERS = rf"{_NUMBER}(?:[\s,]+{_NUMBER})*"
# As Python, pandas, NumPy, JSON and PostgreSQL print a list, a tuple, a set or an array.
_PRINTED = re.compile(
    rf"""\[\s*(?:['"].*|{_NUMBERS}[\s,]*)?\] | \(\s*(?:['"].*|{_NUMBERS},[\s,]*)?\) | \(\s*{_NUMBER},.*\)
    | \{{.*\}} | (?:array|tensor|set|frozenset)\(.*\)""",
    re.DOTALL | re.VERBOSE,
)
_BRACKETS = (("[", "]"), ("(", ")"))
_MULTI_HOT = {
    word: holds for holds, words in enumerate(("0 false f no n", "1 true t yes y")) for word in words.split()
}
# Lines of pandas that make text of other types, by the beginning of a type's name; of any other the last.
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
    """Whether a cell is empty: null, NaN, or white space alone, which in CSV is all that a null can be. Other
    characters that can't be seen are as white space: U+200B, a BOM, U+0000.
    """
    if isinstance(value, str):
        return all(mark.isspace() or unicodedata.category(mark) in ("Cc", "Cf") for mark in value)
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_text(value: Any, where: str) -> str:
    """A string as it is; a null and NaN are the empty text, which `is_blank` tells beforehand.

    Raises InputError for numbers, lists and the like, which come of naming the wrong column, with their type
    and a line that makes texts of such a column.
    """
    if isinstance(value, str):
        return value
    if is_blank(value):
        return ""
    kind = _type_name(value)
    line = next(line for start, line in _CONVERSIONS.items() if kind.startswith(start))
    raise InputError(
        f"{where}: expected a text, found {_shorten(value)} of type {kind}. Is it the right column? If it "
        f"is, make it text, for instance in pandas: {line}"
    )


def as_id(value: Any) -> str | int | None:
    """What a file calls a row, to be known again among the predictions; None where it has no name."""
    return value if value is None or isinstance(value, str | int) else str(value)


def as_number(value: Any, where: str) -> float:
    """A finite number, or a string that spells one with a point: '4.25', '1e-3', blanks around allowed.

    Raises InputError for anything else, NaN, infinity and an empty cell among it, and for one beyond
    `LARGEST`: models compute in float32, whose squares end at 1e38.
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
    """A label's name, by the rule of `as_category`.

    Raises InputError for an empty cell, and for a list, even one that was printed into a cell.
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
    """A category's or a label's name, the same however a table's writer spells it: 1, 1.0, "1" and "1.0" are
    '1', 1e16 and "1e+16" '10000000000000000', True and "true" 'True'. Any other text is as it is but for
    blanks around it: "007", "1e5", "3.10", "NA". Other numbers are spelled as Python does.
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    spelled = format(value, "f") if isinstance(value, Decimal) else str(value).strip()
    if spelled.lower() in ("true", "false"):
        return spelled.capitalize()
    if whole := _WHOLE.fullmatch(spelled):
        return "0" if whole[1] == "-0" else whole[1]
    if _LARGE.fullmatch(spelled) and float(spelled).is_integer():
        return str(int(float(spelled)))
    return spelled


def as_labels(value: Any, where: str, separator: str = ",", names: Sequence[str] = ()) -> tuple[str, ...]:
    """Any number of labels, in order and each once: a list of them, or a string cut at `separator`; or, given
    the `names` of all labels, a multi-hot list: 0 or 1 for each of them.

    A null, an empty string and an empty list are no labels at all: a valid row where there may be several.
    Raises InputError for anything else: a list that was printed into a cell ("['a', 'b']"), probabilities,
    and a multi-hot list without names.
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
    once = tuple(dict.fromkeys(labels))
    if len(once) < len(labels) and is_multi_hot(value):
        raise InputError(
            f"{where}: expected names of labels, found {' and '.join(sorted(once))} for each of "
            f"{len(value)}: {shown(value)}. Name them in this order (labels=NAME,NAME,…), or write the names "
            "of those that hold."
        )
    if any(isinstance(label, float) and not label.is_integer() for label in value):
        raise InputError(
            f"{where}: expected names of labels, found numbers with fractions: {shown(value)}. Write the "
            "names of those that hold."
        )
    return once


def is_multi_hot(values: Iterable[Any]) -> bool:
    """Whether each says that something holds or doesn't: 0 and 1, false and true, no and yes."""
    return all(as_category(value).lower() in _MULTI_HOT for value in values)


def _split_labels(value: str, where: str, separator: str) -> list[str]:
    """A cell's labels. Raises InputError for a printed list, of which the separator would tear brackets."""
    parts = [part for part in value.split(separator) if part.strip()]
    torn = any(part.count(opening) != part.count(closing) for part in parts for opening, closing in _BRACKETS)
    stripped = value.strip()
    around = any(stripped[0] == opening and stripped[-1] == closing for opening, closing in _BRACKETS)
    if is_printed(value) or (torn and around):
        raise InputError(
            f"{where}: expected labels with {separator!r} between them, found a printed list, "
            f"{shown(value)}. Save the table as JSON lines or Parquet, which hold lists; or, of 0 and 1, "
            "name the labels (labels=NAME,NAME,…)."
        )
    return parts


def is_printed(cell: str) -> bool:
    """Whether a list, a set or an array was printed into a cell: "['a', 'b']", '[0 1 0]', '{a,b}'."""
    return _PRINTED.fullmatch(cell.strip()) is not None


def shown(value: Any) -> str:
    """A value and its type for messages, cut to what can be read."""
    if value is None or (isinstance(value, str) and not value):  # others may not say what equals them
        return "nothing"
    return f"{_shorten(value)} ({type(value).__name__})"


def _shorten(value: Any) -> str:
    printed = repr(value)
    return printed if len(printed) <= 60 else printed[:57] + "..."


def _type_name(value: Any) -> str:
    """As Parquet calls it, or Python where it has none."""
    import pyarrow as pa  # here, for cells are read where it isn't imported

    try:
        return str(pa.scalar(value).type)
    except (pa.ArrowException, OverflowError):
        return type(value).__name__
