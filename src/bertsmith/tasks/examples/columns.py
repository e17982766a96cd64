"""Columns of a table beside the text: numbers and categories, as one vector an example.

A number is standardised by the training rows; a blank one is the mean, and where training showed blanks an
indicator says so. A category is one-hot over the values that training showed, a blank among them; a value
that training never showed is all zeros.

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
_FURTHEST = 10.0  # standard deviations from the mean: what lies beyond is taken for that
_FEW = 10  # values that are not too many, however few the rows


@dataclass(frozen=True)
class ColumnChoice:
    """A column by name, and its kind where somebody told it."""

    name: str
    kind: Kind | None

    @classmethod
    def of(cls, spelled: str) -> "ColumnChoice":
        """'age', 'age:number' or 'plan:category'."""
        name, colon, kind = spelled.rpartition(":")
        for known in KINDS:
            if colon and kind == known:
                return cls(name, known)
        return cls(spelled, None)


@dataclass(frozen=True)
class NumberColumn:
    """`deviation` is 1 where all training rows have one number; `blanks`: whether some had none."""

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
        """Writes the features (width,) of a cell. Raises InputError for what is no number."""
        if value is None:
            into[-1] = float(self.blanks)  # the number itself stays 0, the mean
            return
        number = _number(value, self.name, where)
        into[0] = np.clip((number - self.mean) / self.deviation, -_FURTHEST, _FURTHEST)

    def in_words(self) -> str:
        """What training showed."""
        return f"mean {self.mean:.4g} ± {self.deviation:.4g}" + (", blanks" if self.blanks else "")


@dataclass(frozen=True)
class CategoryColumn:
    """`values` are those of the training rows, '' a blank one."""

    name: str
    values: tuple[str, ...]
    guessed: bool = False
    kind: ClassVar[Kind] = "category"

    @property
    def width(self) -> int:
        return len(self.values)

    def put(self, value: Cell, into: Float32s, where: str) -> None:
        """Writes the features (width,) of a cell."""
        known = _category(value)
        if known in self.values:
            into[self.values.index(known)] = 1.0

    def in_words(self) -> str:
        """What training showed."""
        return f"{len(self.values)} values: {listed([value or 'blank' for value in self.values[:8]])}" + (
            f" and {len(self.values) - 8} more" if len(self.values) > 8 else ""
        )


@dataclass(frozen=True)
class FittedColumns:
    """What the training rows showed of each column."""

    each: tuple[NumberColumn | CategoryColumn, ...]

    @classmethod
    def fit(
        cls, wanted: Sequence[ColumnChoice], rows: Sequence[Sequence[Cell]], where: Sequence[str]
    ) -> "FittedColumns":
        """From the training rows' cells, in the order of `wanted`, and their places for messages. Raises
        InputError for a column that nothing can be learned from.
        """
        cells = zip(*rows, strict=True)
        return cls(tuple(_fit(each, values, where) for each, values in zip(wanted, cells, strict=True)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.each)

    @property
    def width(self) -> int:
        """F."""
        return sum(each.width for each in self.each)

    @property
    def slices(self) -> list[slice]:
        """Which features each column has."""
        ends = np.cumsum([each.width for each in self.each]).tolist()
        return [slice(end - each.width, end) for end, each in zip(ends, self.each, strict=True)]

    def vector(self, cells: Sequence[Cell], where: str) -> Float32s:
        """(F,) of one example. Raises InputError naming `where` for a cell that is no number where it should
        be.
        """
        found = np.zeros(self.width, np.float32)
        for column, cell, place in zip(self.each, cells, self.slices, strict=True):
            column.put(cell, found[place], where)
        return found

    def to_json(self) -> list[dict[str, Any]]:
        """As a model's folder keeps it."""
        return [{"kind": each.kind, **asdict(each)} for each in self.each]

    @classmethod
    def from_json(cls, record: Any, names: Sequence[str], where: str) -> "FittedColumns":
        """The inverse. Raises ModelError where the file `where` was altered."""
        if not isinstance(record, list) or not all(isinstance(each, dict) for each in record):
            raise _altered(where, "expected a list of columns")
        found = cls(tuple(_read(each, where) for each in record))
        if found.names != tuple(names):
            raise _altered(where, f"has {listed(found.names)}, but the settings name {listed(names)}")
        return found


def as_cell(value: Any, where: str, name: str) -> Cell:
    """A cell as a reader or a caller gives it; a blank string, NaN and pandas' NA and NaT are None. Raises
    InputError for lists and other things that are neither number nor text.
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


def cells_of(given: Mapping[str, Any], names: Sequence[str], where: str) -> tuple[Cell, ...]:
    """The cells of an example that is given by names. Raises InputError for a column that is missing, which
    is no blank, and for one that there isn't.
    """
    for name in names:
        if name not in given:
            raise InputError(
                f"{where}: no column {name!r}, found {listed(list(map(str, given)))}. Give it, or null "
                "if it is unknown."
            )
    for name in given:
        if name not in names:
            known = list(names)
            raise InputError(
                f"{where}: the model reads no column {str(name)!r}, but {listed(known)}."
                + did_you_mean(str(name), known)
            )
    return tuple(as_cell(given[name], where, name) for name in names)


def require_apart(asked: Sequence[tuple[str | int, str]], names: Sequence[str], where: str) -> None:
    """`asked` are columns, and what each is to be. Raises InputError where one is to be two things, spelled
    alike or once by its name and once by its number among `names`.
    """
    known = dict[int | str, tuple[str | int, str]]()
    for column, role in asked:
        index = column_index(column, names)
        other, too = known.setdefault(str(column) if index is None else index, (column, role))
        if (other, too) != (column, role):
            same = "" if str(other) == str(column) else f" {other!r} is the same column."
            raise InputError(f"{where}: the column {column!r} is {role}: it can't be {too} too.{same}")


def _fit(wanted: ColumnChoice, cells: Sequence[Cell], where: Sequence[str]) -> NumberColumn | CategoryColumn:
    known = [cell for cell in cells if cell is not None]
    if not known:
        raise InputError(
            f"column {wanted.name!r} is blank in all {len(cells):,} training rows, from {where[0]} on: "
            "there is nothing to learn from it. Leave it out of features."
        )
    kind = wanted.kind or ("number" if all(map(_is_number, known)) else "category")
    guessed = wanted.kind is None
    if kind == "number":
        places = zip(cells, where, strict=True)
        found = np.array([_number(cell, wanted.name, place) for cell, place in places if cell is not None])
        deviation = float(found.std()) if found.min() < found.max() else 1.0
        return NumberColumn(wanted.name, float(found.mean()), deviation, len(known) < len(cells), guessed)
    counts = Counter(map(_category, cells))
    if len(counts) > MOST_CATEGORIES or (len(counts) > _FEW and 2 * len(counts) > len(cells)):
        raise InputError(
            f"column {wanted.name!r} has {len(counts):,} different values in {len(cells):,} training rows, "
            f"such as {known[0]!r}: too many to learn what each means (at most {MOST_CATEGORIES}, and most "
            f"of them more than once). Leave it out, group its values, or give {wanted.name}:number if it is "
            "one."
        )
    return CategoryColumn(wanted.name, tuple(sorted(counts)), guessed)


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


def _read(record: Mapping[str, Any], where: str) -> NumberColumn | CategoryColumn:
    match dict(record):
        case {"kind": "number", "name": str(name), "blanks": bool(blanks), "guessed": bool(guessed)}:
            mean, deviation = (require_number(record.get(key), key, where) for key in ("mean", "deviation"))
            if deviation > 0:
                return NumberColumn(name, mean, deviation, blanks, guessed)
        case {"kind": "category", "name": str(name), "values": [*values], "guessed": bool(guessed)}:
            if values and all(isinstance(value, str) for value in values) and len({*values}) == len(values):
                return CategoryColumn(name, tuple(values), guessed)
    raise _altered(where, f"{shown(dict(record))} is no column")


def _altered(where: str, what: str) -> ModelError:
    return ModelError(f"{where}: columns: {what}. The file was altered: take it from a copy, or train again.")
