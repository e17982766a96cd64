"""Reads the chosen columns of Parquet files in batches of 256 rows, as Python values."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.errors import InputError

ROWS_AT_A_TIME = 256


def read_record_batches(
    file: Any, name: str, choose_columns: Callable[[pa.Schema], Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows, 256 at a time, with the columns that `choose_columns` picks from its schema.

    `name` is what messages call the file. Raises InputError as `refuse_damaged_file` does.
    """
    with refuse_damaged_file(name):
        # Without pre-buffering, a row group is streamed page by page instead of being loaded whole.
        table = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        columns = list(choose_columns(table.schema_arrow))
        yield from table.iter_batches(batch_size=ROWS_AT_A_TIME, columns=columns, use_threads=False)


@contextlib.contextmanager
def refuse_damaged_file(name: str) -> Iterator[None]:
    """Turns what pyarrow raises for a damaged or unreadable file into an InputError that names it."""
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        raise InputError(
            f"{name}: pyarrow can't read a column of a type that this file has ({error}). Write it again "
            "without that column, or as text."
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{name}: not a whole Parquet file ({error}). Fetch or write it again.") from error


def read_column(batch: pa.RecordBatch, column: str, name: str, rows_before: int) -> list[Any]:
    """The values of one column of a batch; `rows_before` is the number of the file's rows before the batch.

    Dates and times that Python can't hold (nanoseconds, years beyond 9999) are spelled as Arrow spells them.
    float32 and float16 become the shortest decimal that rounds to the same number: 0.1, not
    0.10000000149011612. Raises InputError for text that is not UTF-8, which some writers let through, and for
    a type that can't be read.
    """
    values = batch.column(column)
    try:
        cells = list(values.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, UnicodeDecodeError):
            raise _bad_text_error(values, column, name, rows_before) from error
        with contextlib.suppress(pa.ArrowException):
            as_strings = list(values.cast(pa.string()).to_pylist())
            if not any(value is not None and value.startswith("<") for value in as_strings):  # out of range
                return as_strings
        raise InputError(
            f"{name}: the column {column!r} is of type {values.type}, which can't be read ({error}). Write "
            f'it as text, for instance in pandas: table["{column}"] = table["{column}"].astype(str)'
        ) from error
    column_type = value_type(values.type)
    float_type = (
        np.float32
        if pa.types.is_float32(column_type)
        else np.float16
        if pa.types.is_float16(column_type)
        else None
    )
    if float_type is None:
        return cells
    return [None if value is None else float(str(float_type(value))) for value in cells]


def value_type(column_type: pa.DataType) -> pa.DataType:
    """The type of a column's values; for a dictionary (pandas' categories), the type of its entries."""
    while pa.types.is_dictionary(column_type):
        column_type = column_type.value_type
    return column_type


def _bad_text_error(values: pa.Array, column: str, name: str, rows_before: int) -> InputError:
    """The error for the first value of a column that isn't UTF-8, with its row."""
    for row, value in enumerate(values, start=rows_before + 1):
        try:
            value.as_py()
        except UnicodeDecodeError as error:
            return InputError(
                f"{name}, row {row}: expected UTF-8 in the column {column!r}, found other bytes ({error}). "
                "Write the file again with text in UTF-8."
            )
    raise AssertionError("every value of the batch is UTF-8")
