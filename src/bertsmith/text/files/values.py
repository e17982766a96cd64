"""What a table's cell means as a text, a number, a label or several labels; errors name file and line.

`where` is the place a reader gave with the row: 'train.tsv, line 12'.
"""

import math
import re
from decimal import Decimal
from typing import Any

from bertsmith.errors import InputError

LARGEST = 1e18
ID = "id"  # the column that is carried over to the predictions
_PRINTED_LIST = re.compile(
    r"""\s*\[\s*(['"].*|-?\d[-\d,\s]*)?\]\s*""", re.DOTALL
)  # as pandas, NumPy, JSON do
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")  # an integer in a column that pandas took for fractions


def as_text(value: Any, where: str) -> str:
    """A string as it is. A null is the empty text, which a model sees as its special tokens alone.

    Raises InputError for numbers and lists: they come of naming the wrong column.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a text, found {shown(value)}. Is it the right column?")
    return value


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
    """A label's name: a string without the blanks around it; 1 and 1.0 are '1', True is 'True'.

    Raises InputError for an empty cell, and for a number with a fraction, which is a score and no label.
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int):  # True among them: str gives what a table written by pandas has
        return str(value)
    if isinstance(value, float) and value.is_integer():  # pandas makes these of integers beside a null
        return str(int(value))
    raise InputError(f"{where}: expected a label, found {shown(value)}. Mend or remove the row.")


def as_category(value: Any) -> str:
    """A category's name, the same however a table's writer spells it: 1, 1.0, "1" and "1.0" are '1', True and
    "true" are 'True'. Other numbers with a fraction are as they are written.
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    spelled = str(value).strip()
    if spelled.lower() in ("true", "false"):
        return spelled.capitalize()
    whole = _WHOLE.fullmatch(spelled)
    return spelled if whole is None else whole[1]


def as_labels(value: Any, where: str, separator: str = ",") -> tuple[str, ...]:
    """Any number of labels, in order and each once: a list of them, or a string cut at `separator`.

    A null, an empty string and an empty list are no labels at all: a valid row where there may be several.
    Raises InputError for anything else, and for a list that was printed into a cell: "['a', 'b']".
    """
    if value is None:
        return ()
    if isinstance(value, str):
        if _PRINTED_LIST.fullmatch(value):
            raise InputError(
                f"{where}: expected labels with {separator!r} between them, found a printed list, "
                f"{shown(value)}. Save the table as JSON lines or Parquet, which hold lists."
            )
        value = [part for part in value.split(separator) if part.strip()]
    if not isinstance(value, list | tuple):
        raise InputError(
            f"{where}: expected a list of labels, or a string with {separator!r} between them, "
            f"found {shown(value)}."
        )
    return tuple(dict.fromkeys(as_label(label, where) for label in value))


def shown(value: Any) -> str:
    """A value and its type for messages, cut to what can be read."""
    if value is None or (isinstance(value, str) and not value):  # others may not say what equals them
        return "nothing"
    shown = repr(value)
    return (shown if len(shown) <= 60 else shown[:57] + "...") + f" ({type(value).__name__})"
