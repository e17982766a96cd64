"""Tables with a text column → documents: JSON lines, CSV, TSV, Parquet.

Every reader yields (row number from 0, text); a null is an empty document.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.errors import InputError
from bertsmith.text.plain import Text

LONGEST_LINE = 1 << 26  # characters of one line of JSON or CSV: a bound on memory, far beyond real rows
ROWS_AT_A_TIME = 256  # of Parquet
csv.field_size_limit(LONGEST_LINE)


def json_lines(lines: Iterable[str], name: str, column: str) -> Iterator[Text]:
    """One JSON object a line, its text under the key `column`."""
    row = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{name}, line {number}: expected one JSON object, but it is not valid JSON ({error}). "
                "If the file holds plain text, say so with --format file."
            ) from error
        if not isinstance(record, dict):
            raise InputError(f"{name}, line {number}: expected a JSON object, found {type(record).__name__}.")
        if column not in record:
            raise _missing_column(f"{name}, line {number}", column, record)
        yield str(row), _text(record[column], f"{name}, line {number}", column)
        row += 1


def separated(lines: Iterable[str], name: str, column: str, dialect: str) -> Iterator[Text]:
    """CSV with quotes as in RFC 4180, or TSV, where a quote is a letter like any other; a header first."""
    rows = _rows(lines, name, dialect)
    header = next(rows, None)
    if header is None:
        return
    if column not in header:
        raise _missing_column(name, column, header)
    at = header.index(column)
    for number, row in enumerate(rows):
        if not row:
            continue
        if len(row) <= at:
            raise InputError(
                f"{name}: expected {len(header)} columns in row {number + 1:,} after the header, "
                f"found {len(row)}. Mend the row or remove it."
            )
        yield str(number), row[at]


def _rows(lines: Iterable[str], name: str, dialect: str) -> Iterator[list[str]]:
    reader = csv.reader((line + "\n" for line in lines), **_DIALECTS[dialect])
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"{name}, line {reader.line_num}: not valid {dialect.upper()} ({error})."
            ) from error


_DIALECTS: dict[str, dict[str, Any]] = {
    "csv": {"delimiter": ",", "strict": True},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


def parquet(file: Any, name: str, column: str) -> Iterator[Text]:
    """A string column of a Parquet file, a few hundred rows at a time."""
    try:
        # Without pre-buffering a row group is streamed page by page instead of loaded whole.
        table = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        _check_column(table.schema_arrow, name, column)
        row = 0
        for batch in table.iter_batches(batch_size=ROWS_AT_A_TIME, columns=[column], use_threads=False):
            for text in batch.column(0).to_pylist():
                yield str(row), text or ""
                row += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{name}: not a whole Parquet file ({error}). Fetch or write it again.") from error


def _check_column(schema: pa.Schema, name: str, column: str) -> None:
    if column not in schema.names:
        raise _missing_column(name, column, schema.names)
    kind = schema.field(column).type
    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{name}: expected text in the column {column!r}, found {kind}.")


def _missing_column(where: str, column: str, columns: Iterable[str]) -> InputError:
    listed = ", ".join(columns) or "none"
    return InputError(f"{where}: no column {column!r}. There are: {listed}. Choose one with --text-column.")


def _text(value: Any, where: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: expected text under {column!r}, found {type(value).__name__}.")
    return value
