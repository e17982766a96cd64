"""Parquet files, a few hundred rows at a time: their columns, and the values of some of them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.errors import InputError

ROWS_AT_A_TIME = 256


def read_record_batches(
    file: Any, name: str, choose: Callable[[pa.Schema], Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """A file's rows, some hundreds at a time, of the columns that `choose` takes from its schema."""
    with refuse_damaged_file(name):
        # Without pre-buffering a row group is streamed page by page instead of loaded whole.
        table = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        columns = list(choose(table.schema_arrow))
        yield from table.iter_batches(batch_size=ROWS_AT_A_TIME, columns=columns, use_threads=False)


@contextlib.contextmanager
def refuse_damaged_file(name: str) -> Iterator[None]:
    """Raises InputError for whatever pyarrow finds wrong with the file of that name."""
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        raise InputError(
            f"{name}: pyarrow can't read a column of a type that this file has ({error}). Write it again "
            "without that column, or as text."
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{name}: not a whole Parquet file ({error}). Fetch or write it again.") from error


def read_column(batch: pa.RecordBatch, column: str, name: str, before: int) -> list[Any]:
    """One column of a batch, in front of which there were `before` rows.

    Dates and times that Python has no values for, nanoseconds and years beyond 9999, are as Arrow spells
    them. Fractions of float32 and float16 are those that are printed and written into CSV: 0.1, not
    0.10000000149011612.
    Raises InputError for text that is no UTF-8, which not every writer makes sure of, and for a type that
    can't be read.
    """
    values = batch.column(column)
    try:
        read = list(values.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, UnicodeDecodeError):
            raise _describe_bad_text(values, column, name, before) from error
        with contextlib.suppress(pa.ArrowException):
            spelled = list(values.cast(pa.string()).to_pylist())
            if not any(value is not None and value.startswith("<") for value in spelled):  # out of range
                return spelled
        raise InputError(
            f"{name}: the column {column!r} is of type {values.type}, which can't be read ({error}). Write "
            f'it as text, for instance in pandas: table["{column}"] = table["{column}"].astype(str)'
        ) from error
    kind = value_type(values.type)
    narrow = np.float32 if pa.types.is_float32(kind) else np.float16 if pa.types.is_float16(kind) else None
    if narrow is None:
        return read
    return [None if value is None else float(str(narrow(value))) for value in read]


def value_type(kind: pa.DataType) -> pa.DataType:
    """Of a column; of pandas' categories that of each category."""
    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind


def _describe_bad_text(values: pa.Array, column: str, name: str, before: int) -> InputError:
    for row, value in enumerate(values, start=before + 1):
        try:
            value.as_py()
        except UnicodeDecodeError as error:
            return InputError(
                f"{name}, row {row}: expected UTF-8 in the column {column!r}, found other bytes ({error}). "
                "Write the file again with text in UTF-8."
            )
    raise AssertionError("every value of the batch is UTF-8")
