"""How rows become symbols: found once on the training rows, kept beside the store, used on every later file.

sequences.json    kind, columns, and the bins of a table's numbers
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from bertsmith.data.sequences.records import SEQUENCE, Row
from bertsmith.data.sequences.symbol_tokenizer import as_symbol, spelled
from bertsmith.data.sequences.table_columns import TableColumn
from bertsmith.data.store_manifest import CODEC_FILE
from bertsmith.errors import InputError, StoreError
from bertsmith.files import read_json
from bertsmith.text.files.columns import listed, unknown_column
from bertsmith.text.files.values import LARGEST, is_printed, shown
from bertsmith.text.tokens.number_tokenizer import NumberScale, NumberScales
from bertsmith.validation import Strict, first_problem

NAMES = (SEQUENCE, "sequences", "events", "symbols", "tokens", "ids", "input_ids", "text")
NUMBERS = (SEQUENCE, "series", "values", "image", "images", "pixels")

_AROUND = 2  # special tokens of a sequence: [CLS] and [SEP]

Kind = Literal["symbols", "table", "series", "images"]


class Codec(Strict):
    """symbols: `column` holds the sequence, a list or a string, whose items stand between blanks or are its
    `characters`. table: a row is the sequence of its `columns`' cells. series, images: `column` holds lists
    of numbers, which the store's tokenizer cuts into patches.
    """

    format_version: Literal[1] = 1
    kind: Kind
    column: str | None = None
    characters: bool = False
    columns: tuple[TableColumn, ...] = ()

    @property
    def of_patches(self) -> bool:
        """Whether rows become patches of numbers rather than symbols."""
        return self.kind in ("series", "images")

    @property
    def has_fixed_places(self) -> bool:
        """Whether each place of a row means one thing: a column of a table, a square of an image."""
        return self.kind in ("table", "images")

    @property
    def scales(self) -> NumberScales:
        """Of a table's columns whose numbers are read as they are, perhaps none."""
        return NumberScales(
            columns=tuple(
                NumberScale(
                    piece=as_symbol(f"{column.name}:", ""), mean=column.scale[0], deviation=column.scale[1]
                )
                for column in self.columns
                if column.scale is not None
            )
        )

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

    def text(self, row: Row) -> str:
        """What the store's tokenizer reads of a row: symbols, or numbers, with blanks between them."""
        if not self.of_patches:
            return " ".join(self.symbols(row))
        return " ".join(map(spelled, self.numbers(row).reshape(-1).tolist()))

    def numbers(self, row: Row) -> npt.NDArray[np.float64]:
        """A row of a series or an image, as it is nested. Raises InputError naming file and row."""
        if self.column not in row.values:
            raise unknown_column(str(self.column), list(row.values), row.where)
        value = row.values[self.column]
        try:
            found = np.array(value.split() if isinstance(value, str) else value, np.float64)
        except (ValueError, TypeError):
            found = np.zeros(0)
        if not found.ndim or not found.size or not np.isfinite(found).all():
            raise InputError(
                f"{row.where}: expected a list of finite numbers in the column {self.column}, as many in "
                f"one part of it as in another; found {shown(value)}. Mend the row, or name another "
                "with --column."
            )
        if (largest := float(np.abs(found).max())) > LARGEST:
            raise InputError(
                f"{row.where}: expected numbers within ±{LARGEST:g} in the column {self.column}, found one "
                f"of {largest:g}. Divide all of them."
            )
        return found

    def _items(self, row: Row) -> Sequence[Any]:
        value = row.values[str(self.column)]
        if value is None:
            return []
        if isinstance(value, str):
            if _is_printed_list(value):
                raise InputError(
                    f"{row.where}: expected a sequence in the column {self.column}, found a printed list, "
                    f"{shown(value)}. Save the table as JSON lines or Parquet, which hold lists."
                )
            return list("".join(value.split())) if self.characters else value.split()
        if isinstance(value, list | tuple):
            return _without_padding(value)
        raise InputError(
            f"{row.where}: expected a sequence in the column {self.column}: a list, or a string of items "
            f"with blanks between them; found {shown(value)}. Name another with --column."
        )


def _is_printed_list(value: str) -> bool:
    """As pandas and NumPy print one. Brackets with blanks around them are items, braces perhaps code."""
    closed = value.strip()
    return closed.startswith(("[", "(")) and not closed[-2:-1].isspace() and is_printed(closed)


def _without_padding(items: Sequence[Any]) -> Sequence[Any]:
    """Without the negative numbers at the end, by which arrays make rows of different lengths equal."""
    end = len(items)
    while end and _is_padding(items[end - 1]):
        end -= 1
    return items[:end]


def _is_padding(item: Any) -> bool:
    return isinstance(item, int | float) and item < 0 and float(item).is_integer()


def guess_column(names: Sequence[str], where: str, known: Sequence[str] = NAMES) -> str:
    """The column that holds the sequences: by its name, or since there is no other. Raises InputError."""
    found = [name for name in names if name.lower() in known]
    if len(names) == 1:
        return names[0]
    if len(found) != 1:
        which = "more than one column has" if found else "no column has"
        raise InputError(
            f"{where}: {which} a name that says it holds the sequences ({', '.join(known)}). There are: "
            f"{listed(names)}. Name one with --column."
        )
    return found[0]


def table_row_length(folder: Path | str) -> int | None:
    """How many tokens a row of a table's store has, [CLS] and [SEP] included, none of which may be left out:
    a cell's position is its column. None for other stores, and for folders that are none.
    """
    if not (Path(folder) / CODEC_FILE).is_file():
        return None
    codec = read_codec(folder)
    return len(codec.columns) + _AROUND if codec.kind == "table" else None


def read_codec(store: Path | str) -> Codec:
    """The one of a store. Raises StoreError when it is missing or was altered."""
    path = Path(store) / CODEC_FILE
    if not path.is_file():
        raise StoreError(
            f"{store} holds no {CODEC_FILE}. Make one: `bertsmith sequences build FILE --out {store}`."
        )
    try:
        return Codec.model_validate(read_json(path))
    except ValidationError as error:
        raise StoreError(
            f"{path} was altered: {first_problem(error, Codec)} Build the store again."
        ) from error
