"""Typed columns of a table as symbols: a number is the bin it falls into, a category itself.

    age = 41, city = Oslo    →    age:3  city=Oslo          an empty cell is age=?
                                  age:41 city=Oslo          where numbers are read as they are

Bins are quantiles (Gorishniy et al. 2022, section 3.2), so that each holds about as many cells. The position
of a cell in its row is its column.
"""

import math
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

SAMPLE = 100_000  # cells of a column that are looked at
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
    sample: Iterable[Row], names: Sequence[str], bins: int | None, categories: Collection[str] = ()
) -> tuple[TableColumn, ...]:
    """What each column holds, told from a sample of rows: a number where every cell that isn't empty is one
    and more than a dozen differ, unless it is among the `categories`. `bins` None: numbers stay. Raises
    InputError naming the cell of a column of numbers that is none, such as NA: it would make a category of
    each number.
    """
    seen = {name: _Seen() for name in names}
    for row in sample:
        for name in names:
            if not _is_empty(value := row.values.get(name)):
                seen[name].add(value, row.where)
    return tuple(
        TableColumn(name=name, kind="category") if name in categories else found.column(name, bins)
        for name, found in seen.items()
    )


class _Seen:
    """A column's cells: its numbers, how many cells there are, and the first that is no number."""

    def __init__(self) -> None:
        self.numbers, self.cells = array("d"), 0
        self.other: tuple[Any, str] | None = None

    def add(self, value: Any, where: str) -> None:
        self.cells += 1
        if (number := _number(value)) is not None:
            self.numbers.append(number)
        elif self.other is None:
            self.other = value, where

    def column(self, name: str, bins: int | None) -> TableColumn:
        numbers = np.array(self.numbers)
        if len(numbers) < _MOST * self.cells or len(np.unique(numbers)) <= _FEW:
            return TableColumn(name=name, kind="category")
        if self.other is not None:
            value, where = self.other
            raise InputError(
                f"{where}: the column {name} holds numbers in {len(numbers):,} of {self.cells:,} cells, here "
                f"{shown(value)}. Leave such cells empty, or say that each number is a category of its own: "
                f"--categories {name}."
            )
        if bins is None:
            return TableColumn(
                name=name, kind="number", scale=(float(numbers.mean()), float(numbers.std()) or 1.0)
            )
        inner = np.linspace(0, 1, bins + 1)[1:-1]
        edges = sorted(set(np.quantile(numbers, inner).tolist()))
        return TableColumn(name=name, kind="number", edges=tuple(edges))


def _number(value: Any) -> float | None:
    try:
        return as_number(value, "")
    except InputError:
        return None


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
