"""Typed columns of a table as symbols: a number is the bin it falls into, a category itself.

    age = 41, city = Oslo    →    age:3  city=Oslo          an empty cell is age=?
                                  age:41 city=Oslo          where numbers are read as they are

Bins are quantiles (Gorishniy et al. 2022, section 3.2), so that each holds about as many cells. The position
of a cell in its row is its column.
"""

import math
import random
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from bertsmith.data.sequences.records import Row
from bertsmith.data.sequences.symbol_tokenizer import as_symbol, spelled
from bertsmith.errors import InputError
from bertsmith.text.files.values import as_category, as_number, shown
from bertsmith.validation import Strict

SAMPLE = 100_000  # rows that are looked at: 8 bytes for each of their cells
_FEW = 12  # a column of so many different numbers or fewer is a category
_MOST = 0.5  # the share of numbers from which a column is one of numbers


class TableColumn(Strict):
    """A column as it was found. A number has `edges` between its bins, ascending, or where it is read as it
    is `scale`: the mean and the deviation of its numbers. A category has neither.
    """

    name: str
    kind: Literal["number", "category"]
    edges: tuple[float, ...] = Field(())
    scale: tuple[float, float] | None = None

    def symbol(self, value: Any, where: str) -> str:
        """A cell as its symbol. Raises InputError for a number that is none."""
        if _is_empty(value):
            return as_symbol(f"{self.name}=?", where)
        if self.kind == "number":
            number = as_number(value, f"{where}, column {self.name}")
            bin_or_number = bisect_right(self.edges, number) if self.scale is None else spelled(number)
            return as_symbol(f"{self.name}:{bin_or_number}", where)
        return as_symbol(f"{self.name}={_category(value, f'{where}, column {self.name}')}", where)


def find_columns(
    rows: Iterable[Row], names: Sequence[str], bins: int | None, categories: Collection[str] = ()
) -> tuple[TableColumn, ...]:
    """What each column holds: a number where every cell that isn't empty is one and more than a dozen differ,
    unless it is among the `categories`. `bins` None: numbers stay.

    Told from a sample of all `rows`, the same at every call, for a file may be sorted (Vitter 1985, algorithm
    R): each row is as likely to be in it as any other. Raises InputError naming the cell of a column of
    numbers that is none, such as NA: it would make a category of each number.
    """
    seen, chance = {name: _Seen() for name in names}, random.Random(0)
    for number, row in enumerate(rows):
        place = number if number < SAMPLE else int(chance.random() * (number + 1))
        if place < SAMPLE:
            for name, found in seen.items():
                found.put(place, row.values.get(name), row.where)
    return tuple(
        TableColumn(name=name, kind="category") if name in categories else found.column(name, bins)
        for name, found in seen.items()
    )


class _Seen:
    """A column's cells in the sample: its numbers, NaN for an empty cell and infinity for any other; and the
    first that was neither, perhaps no longer in the sample.
    """

    def __init__(self) -> None:
        self.cells = array("d")
        self.other: tuple[Any, str] | None = None

    def put(self, place: int, value: Any, where: str) -> None:
        """In the place of the cell that was there, or behind the last one."""
        self.cells[place : place + 1] = array("d", [self._number(value, where)])

    def _number(self, value: Any, where: str) -> float:
        if _is_empty(value):
            return math.nan
        try:
            return as_number(value, "")
        except InputError:
            self.other = self.other or (value, where)
            return math.inf

    def column(self, name: str, bins: int | None) -> TableColumn:
        cells = np.array(self.cells)
        cells = cells[~np.isnan(cells)]
        numbers = cells[np.isfinite(cells)]
        if len(numbers) < _MOST * len(cells) or len(np.unique(numbers)) <= _FEW:
            return TableColumn(name=name, kind="category")
        if self.other is not None:
            value, where = self.other
            others = max(len(cells) - len(numbers), 1)  # this one, where another row took its place
            raise InputError(
                f"{where}: the column {name} holds numbers in {len(numbers):,} of {len(numbers) + others:,} "
                f"cells, here {shown(value)}. Leave such cells empty, or say that each number is a category "
                f"of its own: --categories {name}."
            )
        if bins is None:
            return TableColumn(
                name=name, kind="number", scale=(float(numbers.mean()), float(numbers.std()) or 1.0)
            )
        inner = np.linspace(0, 1, bins + 1)[1:-1]
        edges = sorted(set(np.quantile(numbers, inner).tolist()))
        return TableColumn(name=name, kind="number", edges=tuple(edges))


def _is_empty(value: Any) -> bool:
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, float) and math.isnan(value)


def _category(value: Any, where: str) -> str:
    """One value's spelling."""
    if isinstance(value, list | tuple | dict):
        raise InputError(
            f"{where}: expected one value a cell, found {shown(value)}. Leave the column out (--leave-out), "
            "or make columns of its parts."
        )
    return as_category(value)
