"""Metadata of documents as typed columns: what a filter like `year > 2015` needs.

A column's kind is settled by all values of the first build that brings any. CSV doesn't state kinds: a column
whose every cell is spelled like a number is one ("007" is not). Kinds never change after that, because rows
stand.
"""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from bertsmith.errors import InputError
from bertsmith.inference.index.manifest import FOLDED_TEXT, ColumnKind
from bertsmith.text.retrieval.document_rows import Cell
from bertsmith.text.retrieval.documents import Document

OWN = (
    *("id", "document_id", "source", "start", "end", "line", "title", "text", FOLDED_TEXT),
    *("vector", "sha256", "added"),
)
_LANCE_OWN = re.compile("_row.*|_distance|_score|_relevance_score")
_ODD = re.compile(r"[^\w -]")
ARROW: dict[ColumnKind, pa.DataType] = {
    "text": pa.string(),
    "whole numbers": pa.int64(),
    "numbers": pa.float64(),
    "yes or no": pa.bool_(),
}
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?")


def column_name(name: str) -> str:
    """How an index calls a column: `.`, `*` and backticks mean something in SQL, and some names are taken."""
    name = _ODD.sub("_", name) or "column"
    return f"{name}_" if name in OWN or _LANCE_OWN.fullmatch(name) else name


class MetadataColumns:
    """The kind of every column. Those given are settled; others are learnt by `observe`."""

    def __init__(self, settled: Mapping[str, ColumnKind]) -> None:
        self._settled = dict(settled)
        self._learnt: dict[str, ColumnKind | None] = {}
        self._names: dict[str, str] = {}

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Without the columns that never held a value: a later build may settle those."""
        return self._settled | {name: kind for name, kind in self._learnt.items() if kind is not None}

    def observe(self, document: Document) -> None:
        """Raises InputError for a value that a settled column can't hold."""
        for original, value in document.columns.items():
            name = column_name(original)
            if self._names.setdefault(name, original) != original:
                raise InputError(
                    f"{document.where}: the columns {self._names[name]!r} and {original!r} would both be "
                    f"called {name!r} in the index. Rename one."
                )
            if name in self._settled:
                _convert(value, self._settled[name], name, document.where)
            else:
                self._learnt[name] = _wider(self._learnt.get(name), _kind(value))

    def values(self, document: Document) -> dict[str, Any]:
        """A document's metadata under the index's names, each value of its column's kind."""
        kinds = self.kinds
        named = {column_name(name): value for name, value in document.columns.items()}
        return {
            name: _convert(value, kinds[name], name, document.where)
            for name, value in named.items()
            if name in kinds
        }


def _kind(value: Any) -> ColumnKind | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes or no"
    if isinstance(value, int):
        return "whole numbers" if -(2**63) <= value < 2**63 else "text"
    if isinstance(value, float):
        return "numbers"
    if isinstance(value, Cell):
        if _WHOLE.fullmatch(value):
            return "whole numbers"
        return "numbers" if _NUMBER.fullmatch(value) else "text"
    return "text"


def _wider(kind: ColumnKind | None, other: ColumnKind | None) -> ColumnKind | None:
    if kind is None or other is None or kind == other:
        return kind or other
    return "numbers" if {kind, other} == {"whole numbers", "numbers"} else "text"


def _convert(value: Any, kind: ColumnKind, name: str, where: str) -> Any:
    if value is None:
        return None
    if kind == "text":
        return str(value)
    if _wider(kind, _kind(value)) != kind:
        raise InputError(
            f"{where}: the column {name!r} of this index holds {kind}, found {value!r}. "
            "Mend the value, or build another index."
        )
    return {"whole numbers": int, "numbers": float, "yes or no": bool}[kind](value)
