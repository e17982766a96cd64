"""The table formats: how the rows of a file are read, each with the line that it begins on.

| format | by the ending | a row's values |
| --- | --- | --- |
| csv | .csv | strings; quotes as in RFC 4180 |
| tsv | .tsv, .tab | strings; a quote is a letter like any other |
| jsonl | .jsonl, .ndjson | as JSON has them: strings, numbers, lists, None |
| json | .json | the same, from one list of objects (or from lines after all) |
| parquet | .parquet | as Parquet has them |
| lines | .txt | one column called `text`, a row a line |

Each format is one class below and one entry of `FORMATS`. Every command looks formats up there, by a file's
ending or by the name that --format gives. A package adds its own format in the entry-point group
`bertsmith.table_formats`, under the ending without its dot: docs/add-a-format-or-route.md. The format is
imported when a file has that ending. So a folder, a recipe or a model can choose among the formats that its
user installed, but can't name code to run.
"""

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from itertools import chain, islice, repeat
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.errors import InputError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.text.files.columns import (
    column_number,
    find_column,
    separator_advice,
    unknown_column,
)
from bertsmith.text.files.parquet import read_column, read_record_batches, refuse_damaged_file, value_type
from bertsmith.text.files.plain import Text
from bertsmith.text.files.streams import LONGEST_LINE, SourceStream

GROUP = "bertsmith.table_formats"
LINES_COLUMNS = ["text"]  # the one column of plain lines
csv.field_size_limit(LONGEST_LINE)


class Record(NamedTuple):
    """A row with all of its columns, by name, and its file and line for messages: 'a/train.tsv, line 12'."""

    fields: dict[str, Any]
    where: str


class Row(NamedTuple):
    """The values of the selected columns, in the order of the selection, and the row's file and line."""

    values: tuple[Any, ...]
    where: str


class Selection(NamedTuple):
    """Which columns to read: `columns` by name or number, then the `optional` ones by name.

    The value of an optional column is None if the table lacks it. Without a `header`, columns of CSV and TSV
    have numbers only. With `blank_lines`, blank lines are rows too, in plain text and in a table of one
    column.
    """

    columns: Sequence[str | int]
    header: bool = True
    optional: Sequence[str] = ()
    blank_lines: bool = False


class TableFormat(ABC):
    """One format of tables, and the methods that read it.

    A format must define `records`. The other methods build on it; a format overrides those that it can do
    more cheaply. All of them raise InputError naming file and line.
    """

    NAME: ClassVar[str]  # the value of --format
    ENDINGS: ClassVar[tuple[str, ...]]  # of file names, in lower case
    IS_TEXT: ClassVar[bool] = True  # False: binary, neither decoded nor checked for NUL bytes
    HAS_TYPES: ClassVar[bool] = True  # False: every cell is a string, which may spell a number
    HAS_OWN_KEYS: ClassVar[bool] = False  # True: a row may leave columns out, so columns have names only

    @abstractmethod
    def records(self, stream: SourceStream) -> Iterator[Record]:
        """Yields every row with all of its columns, one at a time."""

    def names(self, stream: SourceStream, header: bool = True) -> list[str]:
        """The names of the columns; of JSON, the keys of the first object. Empty where there is no row."""
        return [name for record in islice(self.records(stream), 1) for name in record.fields]

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        """Yields every row, reduced to the columns of `selection`."""
        column_names: list[str] | None = None
        for fields, where in self.records(stream):
            if column_names is None:
                names = list(fields)
                column_names = [
                    names[find_column(column, names, stream.name)] for column in selection.columns
                ]
            if missing := [name for name in column_names if name not in fields]:
                raise unknown_column(missing[0], list(fields), where)
            yield Row((*(fields[name] for name in column_names), *map(fields.get, selection.optional)), where)

    def texts(self, stream: SourceStream, column: str) -> Iterator[Text]:
        """Yields (row number from 0, text) of a column of texts, as `corpus build` reads them; a null is "".

        Raises InputError for a cell of another type.
        """
        return _read_texts(self.records(stream), column)

    def row_count(self, stream: SourceStream) -> int | None:
        """The number of rows, if the file has it without being read whole, else None."""
        return None


def _read_texts(records: Iterable[Record], column: str) -> Iterator[Text]:
    for number, (fields, where) in enumerate(records):
        if column not in fields:
            raise _missing_text_column(where, column, fields)
        text = fields[column]
        if not isinstance(text, str | None):
            raise InputError(f"{where}: expected text under {column!r}, found {type(text).__name__}.")
        yield str(number), text or ""


class SeparatedFormat(TableFormat):
    """CSV and TSV: rows of cells with a separator between them; the first row names the columns."""

    HAS_TYPES = False
    DIALECT: ClassVar[dict[str, Any]]

    def cells(self, stream: SourceStream) -> Iterator[tuple[int, list[str]]]:
        """Yields (number of the row's first line, cells) of every row, the header included.

        A blank line is a row without cells.
        """
        reader = csv.reader(stream.whole_lines(), **self.DIALECT)
        while True:
            first_line = reader.line_num + 1
            try:
                yield first_line, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # If a quote is never closed, the reader is at the end of the file: name the row's first line.
                raise InputError(
                    f"{stream.name}, line {first_line}: not valid {self.NAME.upper()} ({error})."
                ) from error

    def names(self, stream: SourceStream, header: bool = True) -> list[str]:
        """The cells of the first row that isn't blank; without a header their numbers '1', '2', …"""
        first = next((row for _, row in self.cells(stream) if row), [])
        return _strip_names(first) if header else [str(number) for number in range(1, len(first) + 1)]

    def records(self, stream: SourceStream) -> Iterator[Record]:
        """Yields the rows as records. Raises InputError if two columns have the same name, and for a row that
        is longer or shorter than the header.
        """
        rows = (row for row in self.cells(stream) if row[1])
        header = _strip_names(next(rows, (0, []))[1])
        require_different(header, header, stream.name)
        for line, row in rows:
            if len(row) != len(header):
                raise InputError(
                    f"{stream.name}, line {line}: expected {len(header)} columns, found {len(row)}. "
                    "Mend the row or remove it."
                )
            yield Record(dict(zip(header, row)), f"{stream.name}, line {line}")

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        numbered_rows = self.cells(stream)
        leading_rows = list[tuple[int, list[str]]]()  # blank lines and the first row
        first_row = list[str]()
        for line, first_row in numbered_rows:
            leading_rows.append((line, first_row))
            if first_row:
                break
        else:
            return
        blank_row = [""] if selection.blank_lines and len(first_row) == 1 else []
        data_rows = numbered_rows if selection.header else chain(leading_rows, numbered_rows)
        names = _strip_names(first_row) if selection.header else None
        indices = [_find_column_index(column, names, stream.name) for column in selection.columns]
        if names is not None:
            require_different(names, [name for name in selection.optional if name in names], stream.name)
        optional_indices = [
            names.index(name) if names and name in names else None for name in selection.optional
        ]
        needed = max(indices, default=-1) + 1
        for line, row in ((line, row or blank_row) for line, row in data_rows if row or blank_row):
            where = f"{stream.name}, line {line}"
            if len(row) < needed:
                hint = separator_advice(["\t"]) if self.NAME == "csv" and "\t" in "".join(row) else ""
                raise InputError(
                    f"{where}: expected {needed} columns or more, found {len(row)}. Mend the row or remove "
                    f"it.{hint}"
                )
            if names is not None:
                _refuse_extra_cells(row, names, where, "the header")
            elif self.NAME == "csv":  # in TSV, where a text holds no tab, STS-B has sources behind some rows
                _refuse_extra_cells(row, first_row, where, "the first row")
            optional = (
                None if index is None or index >= len(row) else row[index] for index in optional_indices
            )
            yield Row((*(row[index] for index in indices), *optional), where)

    def texts(self, stream: SourceStream, column: str) -> Iterator[Text]:
        """Yields (row number from 0, text); blank lines are left out, but they count as rows."""
        rows = self.cells(stream)
        header = _strip_names(next((row for _, row in rows if row), []))
        if not header:
            return
        _require_one_column(header, stream.name, column)
        index = header.index(column)
        for number, (line, row) in enumerate(rows):
            if not row:
                continue
            if len(row) <= index:
                raise InputError(
                    f"{stream.name}, line {line}: expected {len(header)} columns, found {len(row)}. Mend the "
                    "row or remove it."
                )
            _refuse_extra_cells(row, header, f"{stream.name}, line {line}", "the header")
            yield str(number), row[index]


class CsvFormat(SeparatedFormat):
    NAME = "csv"
    ENDINGS = (".csv",)
    DIALECT: ClassVar = {"delimiter": ",", "strict": True}


class TsvFormat(SeparatedFormat):
    NAME = "tsv"
    ENDINGS = (".tsv", ".tab")
    DIALECT: ClassVar = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}


def _strip_names(fields: Iterable[str]) -> list[str]:
    return [field.strip() for field in fields]


def _find_column_index(column: str | int, names: Sequence[str] | None, where: str) -> int:
    if names is not None:
        return find_column(column, names, where)
    number = column_number(column)
    if number is None:
        raise InputError(
            f"{where}: no column {column!r}: without a header, columns have only numbers, from 1."
        )
    return number - 1


def _refuse_extra_cells(row: Sequence[str], header: Sequence[str], where: str, header_name: str) -> None:
    """Raises InputError for values beyond the last column of `header`, which messages call `header_name`.

    They mostly come from a separator in an unquoted text: the rest of the text would be lost, or be taken for
    another column.
    """
    if len(row) > len(header) and any(field.strip() for field in row[len(header) :]):
        raise InputError(
            f"{where}: expected {len(header)} columns as in {header_name}, found {len(row)}. Put a text that "
            "holds the separator between quotes (in CSV), or remove the row."
        )


class JsonLinesFormat(TableFormat):
    """JSON lines: one object per line; blank lines are left out."""

    NAME = "jsonl"
    ENDINGS: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    HAS_OWN_KEYS = True

    def records(self, stream: SourceStream) -> Iterator[Record]:
        return read_json_records(stream.lines(), stream.name)

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        for fields, where in self.records(stream):
            for column in selection.columns:
                if column not in fields:
                    raise unknown_column(column, list(fields), where)
            values = [fields[str(column)] for column in selection.columns]
            yield Row((*values, *map(fields.get, selection.optional)), where)

    def texts(self, stream: SourceStream, column: str) -> Iterator[Text]:
        advice = "If the file holds plain text, say so with --format file."
        return _read_texts(read_json_records(stream.lines(), stream.name, advice), column)


class JsonFormat(JsonLinesFormat):
    """One JSON list of objects, read whole; a file that doesn't begin with [ is read as JSON lines."""

    NAME = "json"
    ENDINGS = (".json",)

    def records(self, stream: SourceStream) -> Iterator[Record]:
        text, name = stream.text(), stream.name
        if not text.lstrip().startswith("["):
            yield from read_json_records(text.split("\n"), name)
            return
        try:
            records = parse_json(text, with_distinct_keys)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{name}: expected one JSON list of objects, but it is not valid JSON ({error})."
            ) from error
        for number, record in enumerate(records, start=1):
            if not isinstance(record, dict):
                type_name = type(record).__name__
                raise InputError(f"{name}, item {number}: expected a JSON object, found {type_name}.")
            yield Record(record, f"{name}, item {number}")


def read_json_records(
    lines: Iterable[str],
    name: str,
    advice: str = "Mend the line, or name another format with --format.",
) -> Iterator[Record]:
    """Yields the object of every line that isn't blank.

    `name` is what messages call the file, `advice` the end of the message for a line that is not valid JSON.
    Raises InputError for such a line and for one with another JSON value than an object.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = parse_json(line, with_distinct_keys)
        except (ValueError, RecursionError) as error:  # too many digits or brackets raise errors of their own
            raise InputError(
                f"{where}: expected one JSON object, but it is not valid JSON ({error}). {advice}"
            ) from error
        if not isinstance(record, dict):
            raise InputError(f"{where}: expected a JSON object, found {type(record).__name__}.")
        yield Record(record, where)


class ParquetFormat(TableFormat):
    """Parquet: only the selected columns are read, 256 rows at a time."""

    NAME = "parquet"
    ENDINGS = (".parquet",)
    IS_TEXT = False

    def names(self, stream: SourceStream, header: bool = True) -> list[str]:
        with stream.seekable() as file, refuse_damaged_file(stream.name):
            return list(pq.read_schema(file).names)

    def row_count(self, stream: SourceStream) -> int:
        with stream.seekable() as file, refuse_damaged_file(stream.name):
            return int(pq.read_metadata(file).num_rows)

    def records(self, stream: SourceStream) -> Iterator[Record]:
        """Yields the rows as records. Raises InputError if two columns have the same name."""

        def choose_columns(schema: pa.Schema) -> list[str]:
            names: list[str] = schema.names
            require_different(names, names, stream.name)
            return names

        row = 0
        with stream.seekable() as file:
            for batch in read_record_batches(file, stream.name, choose_columns):
                names = batch.schema.names
                columns = [read_column(batch, name, stream.name, row) for name in names]
                for values in zip(*columns):
                    row += 1
                    yield Record(dict(zip(names, values)), f"{stream.name}, row {row}")

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        column_names: list[str | None] = []  # None: an optional column that the file doesn't have

        def choose_columns(schema: pa.Schema) -> list[str]:
            names = schema.names
            column_names.extend(
                names[find_column(column, names, stream.name)] for column in selection.columns
            )
            column_names.extend(name if name in names else None for name in selection.optional)
            distinct_names = list(dict.fromkeys(name for name in column_names if name is not None))
            require_different(names, distinct_names, stream.name)  # pyarrow reads columns by name
            return distinct_names

        row = 0
        with stream.seekable() as file:
            for batch in read_record_batches(file, stream.name, choose_columns):
                nulls = [None] * batch.num_rows
                columns = (
                    read_column(batch, name, stream.name, row) if name else nulls for name in column_names
                )
                rows: Iterable[tuple[Any, ...]] = (
                    zip(*columns) if column_names else repeat((), batch.num_rows)
                )
                for values in rows:
                    row += 1
                    yield Row(values, f"{stream.name}, row {row}")

    def texts(self, stream: SourceStream, column: str) -> Iterator[Text]:
        """Yields (row number from 0, text) of a column of any of Arrow's string types; a null is ""."""

        def choose_columns(schema: pa.Schema) -> list[str]:
            _require_one_column(schema.names, stream.name, column)
            column_type = value_type(schema.field(column).type)
            if not (
                pa.types.is_string(column_type)
                or pa.types.is_large_string(column_type)
                or pa.types.is_string_view(column_type)
            ):
                raise InputError(
                    f"{stream.name}: expected text in the column {column!r}, found {column_type}."
                )
            return [column]

        row = 0
        with stream.seekable() as file:
            for batch in read_record_batches(file, stream.name, choose_columns):
                for text in read_column(batch, column, stream.name, row):
                    yield str(row), text or ""
                    row += 1


class LinesFormat(TableFormat):
    """Plain text: a row per line. Blank lines are left out unless the selection asks for them."""

    NAME = "lines"
    ENDINGS = (".txt",)

    def names(self, stream: SourceStream, header: bool = True) -> list[str]:
        return LINES_COLUMNS

    def records(self, stream: SourceStream) -> Iterator[Record]:
        for (text,), where in self.rows(stream, Selection(LINES_COLUMNS)):
            yield Record({LINES_COLUMNS[0]: text}, where)

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        for column in selection.columns:
            find_column(column, LINES_COLUMNS, stream.name)
        for number, line in enumerate(stream.lines(), start=1):
            if line.strip() or selection.blank_lines:
                values = (*[line] * len(selection.columns), *[None] * len(selection.optional))
                yield Row(values, f"{stream.name}, line {number}")


def require_different(names: Sequence[str], read_names: Iterable[str], where: str) -> None:
    """Raises InputError if one of the `read_names` is the name of several of the columns `names`."""
    for name in read_names:
        if names.count(name) > 1:
            raise InputError(f"{where}: several columns are called {name!r}. Rename all but one of them.")


def _require_one_column(names: Sequence[str], where: str, column: str) -> None:
    if column not in names:
        raise _missing_text_column(where, column, names)
    require_different(names, [column], where)


def _missing_text_column(where: str, column: str, columns: Iterable[str]) -> InputError:
    names = list(columns)
    advice = separator_advice(names) or " Choose one with --text-column (distil: --text)."
    return InputError(f"{where}: no column {column!r}. There are: {', '.join(names) or 'none'}.{advice}")


FORMATS: dict[str, TableFormat] = {
    format.NAME: format
    for format in (CsvFormat(), TsvFormat(), JsonLinesFormat(), JsonFormat(), ParquetFormat(), LinesFormat())
}


def register(format: TableFormat) -> TableFormat:
    """Adds a format to the `FORMATS` of this process and returns it.

    Raises ValueError if another format has its name or one of its endings.
    """
    known_endings = {ending for known_format in FORMATS.values() for ending in known_format.ENDINGS}
    if format.NAME in FORMATS or known_endings.intersection(format.ENDINGS):
        raise ValueError(f"there is a table format {format.NAME!r}, or one of {format.ENDINGS}, already")
    FORMATS[format.NAME] = format
    return format


def find_format(name: str) -> TableFormat | None:
    """The format called `name`, Bertsmith's or an installed package's; None if there is none."""
    return FORMATS.get(name) or _load_installed(name)


def find_format_by_ending(ending: str) -> TableFormat | None:
    """The format of files with an ending (lower case, without a compression's); None if there is none."""
    formats = (known_format for known_format in FORMATS.values() if ending in known_format.ENDINGS)
    return next(formats, None) or _load_installed(ending.removeprefix("."))


def table_endings(format: str | None, ending: str) -> dict[str, str]:
    """Maps the endings of all known formats to the formats' names.

    An installed package's format that is called `format`, or that reads files with this `ending`, is imported
    first, so that it is among them.
    """
    if format is not None:
        find_format(format)
    find_format_by_ending(ending)
    return {ending: known_format.NAME for known_format in FORMATS.values() for ending in known_format.ENDINGS}


@cache  # a folder may have many files with an ending of no format
def _load_installed(name: str) -> TableFormat | None:
    """Imports the format of the entry point `name`, or returns None. Raises InputError if it is no format."""
    entry_point = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry_point is None:
        return None
    origin = f"The table format {name!r} ({entry_point.value})"
    try:
        format_class = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"{origin} can't be imported: {error}.") from error
    if not (isinstance(format_class, type) and issubclass(format_class, TableFormat)):
        raise InputError(f"{origin} is not a subclass of bertsmith.text.files.tables.TableFormat.")
    if format_class.__abstractmethods__ or name not in (
        format_class.NAME,
        *(ending.removeprefix(".") for ending in format_class.ENDINGS),
    ):
        raise InputError(f"{origin} must have records(), and be called {name!r} or have the ending .{name}.")
    return FORMATS.get(format_class.NAME) or register(format_class())
