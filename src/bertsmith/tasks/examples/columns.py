"""Columns of a table beside the text: numbers and categories, as one feature vector for each example.

A number is standardised by the training rows. A blank one becomes the mean, and if training had blanks, an
indicator says so. A category is one-hot over the values in training, blank being one of them; a new value is
all zeros.

F features: the width of all columns together.
"""

import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal

import numpy as np

from bertsmith.arrays import Float32s
from bertsmith.errors import InputError, ModelError, did_you_mean
from bertsmith.tasks.saved_state import require_number
from bertsmith.text.files.columns import column_index, listed
from bertsmith.text.files.values import as_category, as_number, shown

Kind = Literal["number", "category"]
Cell = str | int | float | None  # None: blank

KINDS: tuple[Kind, ...] = ("number", "category")
MOST_CATEGORIES = 100
_FURTHEST = 10.0  # standard deviations from the mean at which numbers are clipped
_FEW = 10  # so many categories are allowed, however few the rows


@dataclass(frozen=True)
class ColumnChoice:
    """A column by name, and its kind if the user gave one."""

    name: str
    kind: Kind | None

    @classmethod
    def of(cls, spelling: str) -> "ColumnChoice":
        """Parses a spelling such as 'age', 'age:number' or 'plan:category'."""
        name, colon, suffix = spelling.rpartition(":")
        for kind in KINDS:
            if colon and suffix == kind:
                return cls(name, kind)
        return cls(spelling, None)


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers. `deviation` is 1 if all training rows have the same number; `blanks`: some rows
    had none.
    """

    name: str
    mean: float
    deviation: float
    blanks: bool
    guessed: bool = False
    kind: ClassVar[Kind] = "number"

    @property
    def width(self) -> int:
        return 2 if self.blanks else 1

    def put(self, value: Cell, into: Float32s, where: str) -> None:
        """Writes the features (width,) of a cell. Raises InputError for a value that is no number."""
        if value is None:
            into[-1] = float(self.blanks)  # the number itself stays 0, the mean
            return
        number = _number(value, self.name, where)
        into[0] = np.clip((number - self.mean) / self.deviation, -_FURTHEST, _FURTHEST)

    def in_words(self) -> str:
        """Mean and deviation in the training rows, for the screen."""
        return f"mean {self.mean:.4g} ± {self.deviation:.4g}" + (", blanks" if self.blanks else "")


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories. `values` are those of the training rows, with '' for a blank."""

    name: str
    values: tuple[str, ...]
    guessed: bool = False
    kind: ClassVar[Kind] = "category"

    @property
    def width(self) -> int:
        return len(self.values)

    def put(self, value: Cell, into: Float32s, where: str) -> None:
        """Writes the features (width,) of a cell."""
        category = _category(value)
        if category in self.values:
            into[self.values.index(category)] = 1.0

    def in_words(self) -> str:
        """The categories in the training rows, for the screen."""
        return f"{len(self.values)} values: {listed([value or 'blank' for value in self.values[:8]])}" + (
            f" and {len(self.values) - 8} more" if len(self.values) > 8 else ""
        )


@dataclass(frozen=True)
class FittedColumns:
    """The columns beside the text, as fitted to the training rows."""

    columns: tuple[NumberColumn | CategoryColumn, ...]

    @classmethod
    def fit(
        cls, choices: Sequence[ColumnChoice], rows: Sequence[Sequence[Cell]], where: Sequence[str]
    ) -> "FittedColumns":
        """Fits columns to the training rows' cells, which are in the order of `choices`. `where` has each
        row's file and line for messages. Raises InputError for a column from which nothing can be learned.
        """
        cells = zip(*rows, strict=True)
        return cls(
            tuple(_fit_column(choice, values, where) for choice, values in zip(choices, cells, strict=True))
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def width(self) -> int:
        """F, the number of features of all columns."""
        return sum(column.width for column in self.columns)

    @property
    def slices(self) -> list[slice]:
        """The features of each column, as slices of the vector."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return [slice(end - column.width, end) for end, column in zip(ends, self.columns, strict=True)]

    def vector(self, cells: Sequence[Cell], where: str) -> Float32s:
        """The features (F,) of one example. Raises InputError, naming `where`, for a cell of a number column
        that is no number.
        """
        features = np.zeros(self.width, np.float32)
        for column, cell, column_slice in zip(self.columns, cells, self.slices, strict=True):
            column.put(cell, features[column_slice], where)
        return features

    def to_json(self) -> list[dict[str, Any]]:
        """The columns as stored in a model's folder."""
        return [{"kind": column.kind, **asdict(column)} for column in self.columns]

    @classmethod
    def from_json(cls, record: Any, names: Sequence[str], where: str) -> "FittedColumns":
        """The inverse of `to_json`. Raises ModelError if the file `where` was altered."""
        if not isinstance(record, list) or not all(isinstance(item, dict) for item in record):
            raise _altered_file(where, "expected a list of columns")
        columns = cls(tuple(_read_column(item, where) for item in record))
        if columns.names != tuple(names):
            raise _altered_file(where, f"has {listed(columns.names)}, but the settings name {listed(names)}")
        return columns


def comparable_cells(
    rows: Sequence[Sequence[Cell]], kinds: Sequence[Kind | None] = ()
) -> list[tuple[str | float | None, ...]]:
    """Each row's cells as values that are equal where a model reads the same, whatever the files: "36.0" in
    CSV and 36 in JSON are one number, but 3.10 and 3.1 are two categories. `kinds` are those of the columns;
    one that is missing or None is guessed from the rows, as in `fit`.
    """
    columns = list(zip(*rows, strict=True))
    if not columns:
        return [() for _ in rows]
    comparable = []
    for cells, kind in zip(columns, kinds or [None] * len(columns), strict=True):
        kind = kind or _guess_kind([cell for cell in cells if cell is not None])
        comparable.append([_as_comparable(cell, kind) for cell in cells])
    return list(zip(*comparable, strict=True))


def _as_comparable(cell: Cell, kind: Kind) -> str | float | None:
    if cell is None:
        return None
    return as_number(cell, "") if kind == "number" and _is_number(cell) else as_category(cell)


def as_cell(value: Any, where: str, name: str) -> Cell:
    """A cell from a reader or a caller. A blank string, NaN, and pandas' NA and NaT become None. Raises
    InputError for lists and other values that are neither number nor text.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, Decimal) and value.is_finite():
        return format(value, "f")  # as CSV has it: 1.50 is another category than 1.5
    try:
        number = float(value) if hasattr(value, "__float__") else None
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise InputError(
            f"{where}: column {name!r}: expected a number or a category, found {shown(value)}. Name only "
            "columns with one value a row in features."
        )
    return None if math.isnan(number) else number


def cells_of(values: Mapping[str, Any], names: Sequence[str], where: str) -> tuple[Cell, ...]:
    """The cells of an example given as a mapping from column names. Raises InputError for a missing column,
    which is not the same as a blank one, and for an unknown column.
    """
    for name in names:
        if name not in values:
            raise InputError(
                f"{where}: no column {name!r}, found {listed(list(map(str, values)))}. Give it, or null "
                "if it is unknown."
            )
    for name in values:
        if name not in names:
            known_names = list(names)
            raise InputError(
                f"{where}: the model reads no column {str(name)!r}, but {listed(known_names)}."
                + did_you_mean(str(name), known_names)
            )
    return tuple(as_cell(values[name], where, name) for name in names)


def require_apart(roles: Sequence[tuple[str | int, str]], names: Sequence[str], where: str) -> None:
    """Raises InputError if one column has two roles, spelled the same or once by its name and once by its
    number among `names`. `roles` are pairs of a column and its role.
    """
    first_roles = dict[int | str, tuple[str | int, str]]()
    for column, role in roles:
        index = column_index(column, names)
        other, other_role = first_roles.setdefault(str(column) if index is None else index, (column, role))
        if (other, other_role) != (column, role):
            same = "" if str(other) == str(column) else f" {other!r} is the same column."
            raise InputError(f"{where}: the column {column!r} is {role}: it can't be {other_role} too.{same}")


def _fit_column(
    choice: ColumnChoice, cells: Sequence[Cell], where: Sequence[str]
) -> NumberColumn | CategoryColumn:
    known = [cell for cell in cells if cell is not None]
    if not known:
        raise InputError(
            f"column {choice.name!r} is blank in all {len(cells):,} training rows, from {where[0]} on: "
            "there is nothing to learn from it. Leave it out of features."
        )
    kind = choice.kind or _guess_kind(known)
    guessed = choice.kind is None
    if kind == "number":
        values = np.array(
            [
                _number(cell, choice.name, row)
                for cell, row in zip(cells, where, strict=True)
                if cell is not None
            ]
        )
        deviation = float(values.std()) if values.min() < values.max() else 1.0
        return NumberColumn(choice.name, float(values.mean()), deviation, len(known) < len(cells), guessed)
    counts = Counter(map(_category, cells))
    if len(counts) > MOST_CATEGORIES or (len(counts) > _FEW and 2 * len(counts) > len(cells)):
        raise InputError(
            f"column {choice.name!r} has {len(counts):,} different values in {len(cells):,} training rows, "
            f"such as {known[0]!r}: too many to learn what each means (at most {MOST_CATEGORIES}, and most "
            f"of them more than once). Leave it out, group its values, or give {choice.name}:number if it is "
            "one."
        )
    return CategoryColumn(choice.name, tuple(sorted(counts)), guessed)


def _guess_kind(known: Sequence[str | int | float]) -> Kind:
    return "number" if all(map(_is_number, known)) else "category"


def _is_number(value: str | int | float) -> bool:
    try:
        as_number(value, "")
    except InputError:
        return False
    return True


def _number(value: str | int | float, name: str, where: str) -> float:
    return as_number(value, f"{where}, column {name!r}")


def _category(value: Cell) -> str:
    return "" if value is None else as_category(value)


def _read_column(record: Mapping[str, Any], where: str) -> NumberColumn | CategoryColumn:
    match dict(record):
        case {"kind": "number", "name": str(name), "blanks": bool(blanks), "guessed": bool(guessed)}:
            mean, deviation = (require_number(record.get(key), key, where) for key in ("mean", "deviation"))
            if deviation > 0:
                return NumberColumn(name, mean, deviation, blanks, guessed)
        case {"kind": "category", "name": str(name), "values": [*values], "guessed": bool(guessed)}:
            if values and all(isinstance(value, str) for value in values) and len({*values}) == len(values):
                return CategoryColumn(name, tuple(values), guessed)
    raise _altered_file(where, f"{shown(dict(record))} is no column")


def _altered_file(where: str, what: str) -> ModelError:
    return ModelError(f"{where}: columns: {what}. The file was altered: take it from a copy, or train again.")
