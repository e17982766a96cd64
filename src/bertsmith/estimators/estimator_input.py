"""What scikit-learn hands over (lists, arrays, columns of pandas or polars): X as texts or pairs, and y."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d

from bertsmith.errors import InputError

TextOrPair = str | tuple[str, str]


class RefusedInput(InputError, ValueError):
    """An InputError that is also the ValueError which scikit-learn's rules ask for."""


class TextEstimator(BaseEstimator):  # type: ignore[misc]
    """X is text: the checks that scikit-learn makes of tables of numbers don't apply."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


def as_texts(X: Any) -> list[TextOrPair]:  # noqa: N803 - scikit-learn's name
    """One text a row, or two: a list of texts or of pairs, a column or two of an array or a table.

    Raises RefusedInput naming the row: for what is no text, for rows of more than two, for singles among
    pairs, and for no rows at all.
    """
    if isinstance(X, str | Mapping) or not isinstance(X, Iterable):
        raise RefusedInput(f"X must be a list of texts or of pairs of texts, found {_shown(X)}.")
    rows = X.to_numpy() if hasattr(X, "to_numpy") else X
    texts = [_as_text(row, number) for number, row in enumerate(rows)]
    if not texts:
        raise RefusedInput("X has 0 texts. Expected at least one.")
    for number, text in enumerate(texts):
        if isinstance(text, str) != isinstance(texts[0], str):
            raise RefusedInput(f"X[{number}]: X[0] is a {_kind(texts[0])}, but this is a {_kind(text)}.")
    return texts


def as_mixed_rows(X: Any) -> list[Mapping[str, Any]]:  # noqa: N803
    """One mapping a row, {"text": …, "age": …}, for a model that reads columns beside the text. Raises
    RefusedInput naming the row.
    """
    if isinstance(X, str | Mapping) or not isinstance(X, Iterable):
        raise RefusedInput(f'X must be a list of rows such as {{"text": …, "age": …}}, found {_shown(X)}.')
    rows = list(X)
    if not rows:
        raise RefusedInput("X has 0 rows. Expected at least one.")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RefusedInput(
                f'X[{number}]: with features expected {{"text": …, "age": …}}, found {_shown(row)}. '
                'From a table, pass X.to_dict("records").'
            )
    return rows


def _as_text(row: Any, number: int) -> TextOrPair:
    if isinstance(row, str):
        return str(row)
    if isinstance(row, Mapping):
        raise RefusedInput(
            f"X[{number}]: expected a text or a pair of texts, found {_shown(row)}. Pass the texts alone, or "
            "name the columns beside them in settings={'features': […]}."
        )
    parts = tuple(row) if isinstance(row, Iterable) and not isinstance(row, bytes) else (row,)
    for part in parts:
        if not isinstance(part, str):
            raise RefusedInput(f"X[{number}]: expected a text, found {_shown(part)}.")
    if len(parts) == 1:
        return str(parts[0])
    if len(parts) != 2:
        raise RefusedInput(f"X[{number}]: expected a text or a pair of texts, found {len(parts)} values.")
    return str(parts[0]), str(parts[1])


def _kind(text: TextOrPair) -> str:
    return "text" if isinstance(text, str) else "pair of texts"


def _shown(value: Any) -> str:
    return f"{str(value)[:60]!r} ({type(value).__name__})"


def refuse_missing(gold: npt.NDArray[Any]) -> None:
    """Raises RefusedInput for None and NaN among strings, which can't be sorted, and for blanks, which no
    model's folder may have.
    """
    for number, each in enumerate(gold.tolist() if gold.dtype.kind in "OU" else ()):
        missing = each is None or type(each).__name__ == "NAType" or each != each  # pandas' NA equals nothing
        if missing or (isinstance(each, str) and not each.strip()):
            found = each if missing else "blank"
            raise RefusedInput(
                f"y[{number}] is {found}: expected a class. Give it one, or leave out the row."
            )


def targets_of(y: Any) -> npt.NDArray[Any]:
    """y as an array (E,). Raises RefusedInput where there is none, ValueError for another shape."""
    if y is None:
        raise RefusedInput("fit requires y to be passed, but the target y is None.")
    return np.asarray(column_or_1d(y, warn=True))
