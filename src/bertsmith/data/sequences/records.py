"""Reads the rows of JSON lines, CSV, TSV, Parquet and NumPy's files as records: column → value.

A .npy file is one column, `sequence`; in an .npz each array is a column, and its first axis the rows.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertsmith.errors import InputError
from bertsmith.text.files.columns import listed, separator_advice
from bertsmith.text.files.rows import are_objects, read_column_names, stream_objects, stream_rows

SEQUENCE = "sequence"  # the column of a .npy
_ENDINGS = (".npy", ".npz")
_MAGIC = b"\x93NUMPY"
_KEY_ROWS = 100_000  # the first rows of JSON, whose keys are the columns
_DTYPE_KINDS = "biufU"  # booleans, integers, floats, strings


class SequenceRow(NamedTuple):
    """A row's values by column, and its location for messages."""

    values: dict[str, Any]
    where: str


class RowFile(NamedTuple):
    """A file, and the options for reading its rows; NumPy's files need none."""

    path: Path | str
    header: bool = True
    format: str | None = None
    encoding: str = "utf-8"

    @property
    def object_options(self) -> dict[str, Any]:
        """The arguments for reading JSON objects, which name their columns."""
        return {"format": self.format, "encoding": self.encoding}

    @property
    def table_options(self) -> dict[str, Any]:
        """The arguments for reading a table, whose first row may be a header."""
        return {"header": self.header, **self.object_options}


def read_columns(file: RowFile, *, padded: bool = False) -> list[str]:
    """The columns of a file; for JSON all keys of its first rows, since a row may leave out what is empty.

    Raises InputError if it can't be read. `padded` says that rows may be padded with -1, which the message
    about rows of different lengths then mentions.
    """
    path = file.path
    if _is_numpy(path):
        return list(_load_arrays(Path(path), padded))
    if not are_objects(path, **file.object_options):
        names = read_column_names(path, **file.table_options)
        if advice := separator_advice(names):
            raise InputError(f"{path}: expected columns, found one, {names[0]!r}.{advice}")
        return names
    first_rows = islice(stream_objects(path, **file.object_options), _KEY_ROWS)
    keys = list(dict.fromkeys(key for row in first_rows for key in row.fields))
    return keys or read_column_names(path, **file.table_options)  # raises: the file has no rows


def stream_records(file: RowFile, *, padded: bool = False) -> Iterator[SequenceRow]:
    """Every row, one at a time; the arrays of an .npz are in memory.

    Raises InputError, which names file and row. `padded` is that of `read_columns`.
    """
    path = file.path
    if not _is_numpy(path) and are_objects(path, **file.object_options):
        yield from _stream_objects(file)
        return
    if not _is_numpy(path):
        names = read_column_names(path, **file.table_options)
        for values, where in stream_rows(path, names, **file.table_options):
            yield SequenceRow(dict(zip(names, values, strict=True)), where)
        return
    arrays = _load_arrays(Path(path), padded)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
        raise InputError(
            f"{path}: expected arrays of the same number of rows, one at least; found {lengths}."
        )
    for index in range(next(iter(lengths.values()))):
        cells = {name: _as_cell(array[index]) for name, array in arrays.items()}
        yield SequenceRow(cells, f"{path}, row {index + 1}")


def _as_cell(value: Any) -> Any:
    """A row of an array as Python's value; a single float32 or float16 becomes the shortest decimal that
    rounds to the same number, as in Parquet: 0.1, not 0.10000000149011612.
    """
    return float(str(value)) if isinstance(value, np.float32 | np.float16) else value.tolist()


def _stream_objects(file: RowFile) -> Iterator[SequenceRow]:
    """The rows of JSON, each with all columns: None for a key that it doesn't have."""
    names = read_columns(file)
    empty = dict.fromkeys(names)
    for fields, where in stream_objects(file.path, **file.object_options):
        added = next((key for key in fields if key not in empty), None)
        if added is not None:
            raise InputError(
                f"{where}: the key {added!r} stands in none of the first {_KEY_ROWS:,} rows. Give it in the "
                "first row too, null if it is empty there."
            )
        yield SequenceRow(empty | fields, where)


def _is_numpy(path: Path | str) -> bool:
    return str(path).endswith(_ENDINGS)


def _load_arrays(path: Path, padded: bool) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a .npy or .npz file, by column. Pickled objects are refused: they could run code.

    Raises InputError for a file that can't be read, and for arrays of other types.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) == _MAGIC:
                arrays = {SEQUENCE: np.load(path, mmap_mode="r", allow_pickle=False)}
            else:
                file.seek(0)  # a file of our own: NumPy leaves one that is no archive open
                with np.load(file, allow_pickle=False) as archive:
                    arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file.") from error
    except Exception as error:  # whatever NumPy, zipfile and zlib stumble over in a damaged file
        first_line = str(error).partition("\n")[0][:200]
        or_padded = ", or are padded with -1" if padded else ""
        raise InputError(
            f"{path}: expected NumPy's arrays of numbers or strings (no objects, which would need pickle): "
            f"{first_line}. Rows of different lengths go into Parquet or JSON lines{or_padded}; a file that "
            "was cut is to be written again."
        ) from error
    for name, array in arrays.items():
        if array.dtype.kind not in _DTYPE_KINDS:
            raise InputError(
                f"{path}: expected numbers or strings in the array {name}, found {array.dtype}. Convert them "
                "first: dates to numbers, complex numbers to two."
            )
    scalars = [name for name, array in arrays.items() if array.ndim == 0]
    if not arrays or scalars:
        raise InputError(
            f"{path}: expected arrays with a row each; found single values in {listed(scalars)}."
        )
    return arrays
