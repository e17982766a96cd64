"""Rows of JSON lines, CSV, TSV, Parquet and NumPy's files as records: column → value, with their place.

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
_FIRST = 100_000  # rows of JSON whose keys are the columns
_KINDS = "biufU"  # of NumPy's types: truth values, integers, floats, strings


class SequenceRow(NamedTuple):
    """A row's values by column, and its place for messages."""

    values: dict[str, Any]
    where: str


class RowFile(NamedTuple):
    """A file, and how it holds its rows; NumPy's files say that themselves."""

    path: Path | str
    header: bool = True
    format: str | None = None
    encoding: str = "utf-8"

    @property
    def of_objects(self) -> dict[str, Any]:
        """How objects, which name their columns, are read."""
        return {"format": self.format, "encoding": self.encoding}

    @property
    def layout(self) -> dict[str, Any]:
        """How a table is read."""
        return {"header": self.header, **self.of_objects}


def read_columns(file: RowFile, *, padded: bool = False) -> list[str]:
    """The columns of a file: of JSON all keys of its first rows, for a row may leave out what is empty.
    Raises InputError when it can't be read; where -1 at a row's end is `padded`, it says that one may do so.
    """
    path = file.path
    if _is_numpy(path):
        return list(_load_arrays(Path(path), padded))
    if not are_objects(path, **file.of_objects):
        names = read_column_names(path, **file.layout)
        if advice := separator_advice(names):
            raise InputError(f"{path}: expected columns, found one, {names[0]!r}.{advice}")
        return names
    first = islice(stream_objects(path, **file.of_objects), _FIRST)
    found = list(dict.fromkeys(key for each in first for key in each.fields))
    return found or read_column_names(path, **file.layout)  # which says that there is nothing


def stream_records(file: RowFile, *, padded: bool = False) -> Iterator[SequenceRow]:
    """Every row, one at a time; an .npz is in memory whole. Raises InputError, naming file and row;
    `padded` as above.
    """
    path = file.path
    if not _is_numpy(path) and are_objects(path, **file.of_objects):
        yield from _stream_objects(file)
        return
    if not _is_numpy(path):
        names = read_column_names(path, **file.layout)
        for values, where in stream_rows(path, names, **file.layout):
            yield SequenceRow(dict(zip(names, values, strict=True)), where)
        return
    arrays = _load_arrays(Path(path), padded)
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) != 1 or not next(iter(rows.values())):
        raise InputError(f"{path}: expected arrays of the same number of rows, one at least; found {rows}.")
    for number in range(next(iter(rows.values()))):
        yield SequenceRow(
            {name: array[number].tolist() for name, array in arrays.items()}, f"{path}, row {number + 1}"
        )


def _stream_objects(file: RowFile) -> Iterator[SequenceRow]:
    """Each with all columns, None where it has no such key."""
    names = read_columns(file)
    nothing = dict.fromkeys(names)
    for fields, where in stream_objects(file.path, **file.of_objects):
        late = next((key for key in fields if key not in nothing), None)
        if late is not None:
            raise InputError(
                f"{where}: the key {late!r} stands in none of the first {_FIRST:,} rows. Give it in the "
                "first row too, null if it is empty there."
            )
        yield SequenceRow(nothing | fields, where)


def _is_numpy(path: Path | str) -> bool:
    return str(path).endswith(_ENDINGS)


def _load_arrays(path: Path, padded: bool) -> dict[str, npt.NDArray[Any]]:
    """Without pickle: an array of Python objects could run code."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) == _MAGIC:
                found = {SEQUENCE: np.load(path, mmap_mode="r", allow_pickle=False)}
            else:
                file.seek(0)  # our own file, for NumPy leaves one that is no archive open
                with np.load(file, allow_pickle=False) as archive:
                    found = {name: archive[name] for name in archive.files}
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
    for name, array in found.items():
        if array.dtype.kind not in _KINDS:
            raise InputError(
                f"{path}: expected numbers or strings in the array {name}, found {array.dtype}. Convert them "
                "first: dates to numbers, complex numbers to two."
            )
    flat = [name for name, array in found.items() if array.ndim == 0]
    if not found or flat:
        raise InputError(f"{path}: expected arrays with a row each; found single values in {listed(flat)}.")
    return found
