"""Typed columns of a table as symbols: a number is the bin it falls into, a category itself.

    age = 41, city = Oslo    →    age:3  city=Oslo          an empty cell is age=?

Bins are quantiles (Gorishniy et al. 2022, section 3.2), so that each holds about as many cells. The position
of a cell in its row is its column.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from bertsmith.data.sequences.symbol_tokenizer import as_symbol
from bertsmith.errors import InputError
from bertsmith.text.files.values import as_number
from bertsmith.validation import Strict

SAMPLE = 100_000  # cells of a column that are looked at
_FEW = 12  # a column of so many different integers or fewer is a category


class TableColumn(Strict):
    """A column as it was found. `edges` between the bins of a number, ascending; none for a category."""

    name: str
    kind: Literal["number", "category"]
    edges: tuple[float, ...] = Field(())

    def symbol(self, value: Any, where: str) -> str:
        """A cell as its symbol. Raises InputError for a number that is none."""
        if _is_empty(value):
            return as_symbol(f"{self.name}=?", where)
        if self.kind == "number":
            number = as_number(value, f"{where}, column {self.name}")
            return as_symbol(f"{self.name}:{bisect_right(self.edges, number)}", where)
        return as_symbol(f"{self.name}={_category(value)}", where)


def find_columns(
    sample: Iterable[Mapping[str, Any]], names: Sequence[str], bins: int
) -> tuple[TableColumn, ...]:
    """What each column holds, told from a sample of rows: a number where every cell that isn't empty is one
    and more than a dozen differ.
    """
    cells: dict[str, list[Any]] = {name: [] for name in names}
    for row in sample:
        for name in names:
            if not _is_empty(row.get(name)):
                cells[name].append(row[name])
    return tuple(_column(name, values, bins) for name, values in cells.items())


def _column(name: str, values: Sequence[Any], bins: int) -> TableColumn:
    numbers = _numbers(values)
    if numbers is None or len(set(numbers)) <= _FEW:
        return TableColumn(name=name, kind="category")
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    edges = sorted(set(np.quantile(np.array(numbers), inner).tolist()))
    return TableColumn(name=name, kind="number", edges=tuple(edges))


def _numbers(values: Sequence[Any]) -> list[float] | None:
    """All of them, or None where one is no number."""
    try:
        return [as_number(value, "") for value in values]
    except InputError:
        return None


def _is_empty(value: Any) -> bool:
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return isinstance(value, float) and math.isnan(value)


def _category(value: Any) -> str:
    """1, 1.0 and "1" are the same category."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
