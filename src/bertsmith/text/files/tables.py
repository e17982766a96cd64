"""Tables with a text column → documents: JSON lines, CSV, TSV, Parquet.

Every reader yields (row number from 0, text); a null is an empty document.
"""

import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.errors import InputError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.text.files.columns import separator_advice
from bertsmith.text.files.plain import Text

LONGEST_LINE = 1 << 26  # characters of one line of JSON or CSV: a bound on memory, far beyond real rows
ROWS_AT_A_TIME = 256  # of Parquet
csv.field_size_limit(LONGEST_LINE)


def json_lines(lines: Iterable[str], name: str, column: str) -> Iterator[Text]:
    """One JSON object a line, its text under the key `column`."""
    advice = "If the file holds plain text, say so with --format file."
    for row, (number, record) in enumerate(json_records(lines, name, advice)):
        if column not in record:
            raise _missing_column(f"{name}, line {number}", column, record)
        yield str(row), _text(record[column], f"{name}, line {number}", column)


def json_records(lines: Iterable[str], name: str, advice: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of every line that isn't blank."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line, with_distinct_keys)
        except (ValueError, RecursionError) as error:  # too many digits or brackets are errors of their own
            raise InputError(
                f"{name}, line {number}: expected one JSON object, but it is not valid JSON ({error}). "
                f"{advice}"
            ) from error
        if not isinstance(record, dict):
            raise InputError(f"{name}, line {number}: expected a JSON object, found {type(record).__name__}.")
        yield number, record


def separated(lines: Iterable[str], name: str, column: str, dialect: str) -> Iterator[Text]:
    """CSV with quotes as in RFC 4180, or TSV, where a quote is a letter like any other; a header first. The
    `lines` with their ends.
    """
    rows = separated_rows(lines, name, dialect)
    header = [field.strip() for field in next((row for _, row in rows if row), [])]
    if not header:
        return
    _require_one_column(header, name, column)
    at = header.index(column)
    for number, (line, row) in enumerate(rows):
        if not row:
            continue
        if len(row) <= at:
            raise InputError(
                f"{name}, line {line}: expected {len(header)} columns, found {len(row)}. Mend the row or "
                "remove it."
            )
        require_no_more(row, header, f"{name}, line {line}")
        yield str(number), row[at]


def require_no_more(row: Sequence[str], header: Sequence[str], where: str, named: str = "the header") -> None:
    """Raises InputError for values behind the last column: where a separator in a text isn't quoted, the
    rest of the text would be lost, or be taken for another column.
    """
    if len(row) > len(header) and any(field.strip() for field in row[len(header) :]):
        raise InputError(
            f"{where}: expected {len(header)} columns as in {named}, found {len(row)}. Put a text that "
            "holds the separator between quotes (in CSV), or remove the row."
        )


def separated_rows(lines: Iterable[str], name: str, dialect: str) -> Iterator[tuple[int, list[str]]]:
    """(number of the line it begins on, fields) of every row of CSV or TSV, from `lines` with their ends; a
    blank line has no fields.
    """
    reader = csv.reader(lines, **_DIALECTS[dialect])
    while True:
        begins = reader.line_num + 1
        try:
            yield begins, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # With a quote that is never closed the reader stands at the end of the file by now.
            raise InputError(f"{name}, line {begins}: not valid {dialect.upper()} ({error}).") from error


_DIALECTS: dict[str, dict[str, Any]] = {
    "csv": {"delimiter": ",", "strict": True},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


def parquet(file: Any, name: str, column: str) -> Iterator[Text]:
    """A string column of a Parquet file, a few hundred rows at a time."""

    def the_column(schema: pa.Schema) -> list[str]:
        _check_column(schema, name, column)
        return [column]

    row = 0
    for batch in record_batches(file, name, the_column):
        for text in column_values(batch, column, name, row):
            yield str(row), text or ""
            row += 1


def record_batches(
    file: Any, name: str, choose: Callable[[pa.Schema], Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """A Parquet file's rows, some hundreds at a time, of the columns that `choose` takes from its schema."""
    with _whole_parquet(name):
        # Without pre-buffering a row group is streamed page by page instead of loaded whole.
        table = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        columns = list(choose(table.schema_arrow))
        yield from table.iter_batches(batch_size=ROWS_AT_A_TIME, columns=columns, use_threads=False)


def column_values(batch: pa.RecordBatch, column: str, name: str, before: int) -> list[Any]:
    """One column of a batch of a Parquet file, in front of which there were `before` rows.

    Dates and times that Python has no values for, nanoseconds and years beyond 9999, are as Arrow spells
    them. Fractions of float32 and float16 are those that are printed and written into CSV: 0.1, not
    0.10000000149011612.
    Raises InputError for text that is no UTF-8, which not every writer makes sure of, and for a type that
    can't be read.
    """
    values = batch.column(column)
    try:
        return _as_written(list(values.to_pylist()), values.type)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, UnicodeDecodeError):
            raise _not_utf8(values, column, name, before) from error
        with contextlib.suppress(pa.ArrowException):
            spelled = list(values.cast(pa.string()).to_pylist())
            if not any(value is not None and value.startswith("<") for value in spelled):  # out of range
                return spelled
        raise InputError(
            f"{name}: the column {column!r} is of type {values.type}, which can't be read ({error}). Write "
            f'it as text, for instance in pandas: table["{column}"] = table["{column}"].astype(str)'
        ) from error


def _as_written(values: list[Any], kind: pa.DataType) -> list[Any]:
    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    narrow = np.float32 if pa.types.is_float32(kind) else np.float16 if pa.types.is_float16(kind) else None
    if narrow is None:
        return values
    return [None if value is None else float(str(narrow(value))) for value in values]


def _not_utf8(values: pa.Array, column: str, name: str, before: int) -> InputError:
    for row, value in enumerate(values, start=before + 1):
        try:
            value.as_py()
        except UnicodeDecodeError as error:
            return InputError(
                f"{name}, row {row}: expected UTF-8 in the column {column!r}, found other bytes ({error}). "
                "Write the file again with text in UTF-8."
            )
    raise AssertionError("every value of the batch is UTF-8")


def parquet_columns(file: Any, name: str) -> list[str]:
    """The names of a Parquet file's columns; no row is read."""
    with _whole_parquet(name):
        return list(pq.read_schema(file).names)


def parquet_rows(file: Any, name: str) -> int:
    """How many rows a Parquet file has; none is read."""
    with _whole_parquet(name):
        return int(pq.read_metadata(file).num_rows)


@contextlib.contextmanager
def _whole_parquet(name: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        raise InputError(
            f"{name}: pyarrow can't read a column of a type that this file has ({error}). Write it again "
            "without that column, or as text."
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{name}: not a whole Parquet file ({error}). Fetch or write it again.") from error


def _check_column(schema: pa.Schema, name: str, column: str) -> None:
    _require_one_column(schema.names, name, column)
    kind = schema.field(column).type
    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(f"{name}: expected text in the column {column!r}, found {kind}.")


def _require_one_column(names: Sequence[str], name: str, column: str) -> None:
    if column not in names:
        raise _missing_column(name, column, names)
    require_different(names, [column], name)


def require_different(names: Sequence[str], read: Iterable[str], where: str) -> None:
    """Raises InputError when one of the names that are `read` is that of several columns."""
    for name in read:
        if names.count(name) > 1:
            raise InputError(f"{where}: several columns are called {name!r}. Rename all but one of them.")


def _missing_column(where: str, column: str, columns: Iterable[str]) -> InputError:
    names = list(columns)
    advice = separator_advice(names) or " Choose one with --text-column (distil: --text)."
    return InputError(f"{where}: no column {column!r}. There are: {', '.join(names) or 'none'}.{advice}")


def _text(value: Any, where: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: expected text under {column!r}, found {type(value).__name__}.")
    return value
