"""How rows become symbols: found once on the training rows, kept beside the store, used on every later file.

sequences.json    kind, columns, and the bins of a table's numbers
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from bertsmith.data.sequences.records import SEQUENCE, Row
from bertsmith.data.sequences.symbol_tokenizer import as_symbol
from bertsmith.data.sequences.table_columns import TableColumn
from bertsmith.errors import InputError, StoreError
from bertsmith.files import read_json
from bertsmith.text.files.columns import listed, unknown_column
from bertsmith.text.files.values import shown
from bertsmith.validation import Strict, first_problem

FILE = "sequences.json"
NAMES = (SEQUENCE, "sequences", "events", "symbols", "tokens", "ids", "input_ids", "text")

Kind = Literal["symbols", "table"]


class Codec(Strict):
    """symbols: `column` holds the sequence, a list or a string, whose items stand between blanks or are its
    `characters`. table: a row is the sequence of its `columns`' cells.
    """

    format_version: Literal[1] = 1
    kind: Kind
    column: str | None = None
    characters: bool = False
    columns: tuple[TableColumn, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that become symbols."""
        if self.kind == "table":
            return tuple(column.name for column in self.columns)
        return () if self.column is None else (self.column,)

    def symbols(self, row: Row) -> list[str]:
        """A row's symbols, perhaps none. Raises InputError naming file and row."""
        lacking = next((name for name in self.reads if name not in row.values), None)
        if lacking is not None:
            raise unknown_column(lacking, list(row.values), row.where)
        if self.kind == "table":
            return [column.symbol(row.values[column.name], row.where) for column in self.columns]
        return [as_symbol(item, row.where) for item in self._items(row)]

    def _items(self, row: Row) -> Sequence[Any]:
        value = row.values[str(self.column)]
        if value is None:
            return []
        if isinstance(value, str):
            return list("".join(value.split())) if self.characters else value.split()
        if isinstance(value, list | tuple):
            return value
        raise InputError(
            f"{row.where}: expected a sequence in the column {self.column}: a list, or a string of items "
            f"with blanks between them; found {shown(value)}. Name another with --column."
        )


def guess_column(names: Sequence[str], where: str) -> str:
    """The column that holds the sequences: by its name, or since there is no other. Raises InputError."""
    found = [name for name in names if name.lower() in NAMES]
    if len(names) == 1:
        return names[0]
    if len(found) != 1:
        which = "more than one column has" if found else "no column has"
        raise InputError(
            f"{where}: {which} a name that says it holds the sequences ({', '.join(NAMES)}). There are: "
            f"{listed(names)}. Name one with --column."
        )
    return found[0]


def read_codec(store: Path | str) -> Codec:
    """The one of a store. Raises StoreError when it is missing or was altered."""
    path = Path(store) / FILE
    if not path.is_file():
        raise StoreError(
            f"{store} holds no {FILE}. Make one: `bertsmith sequences build FILE --out {store}`."
        )
    try:
        return Codec.model_validate(read_json(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} was altered: {first_problem(error, Codec)} Build the store again."
        ) from error
