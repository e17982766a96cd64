"""Formats of tables: how rows lie in a file, and how they are read with the line that each stands on.

| format | by the ending | a row's values |
| --- | --- | --- |
| csv | .csv | strings; quotes as in RFC 4180 |
| tsv | .tsv, .tab | strings; a quote is a letter like any other |
| jsonl | .jsonl, .ndjson | as JSON has them: strings, numbers, lists, None |
| json | .json | the same, from one list of objects (or from lines after all) |
| parquet | .parquet | as Parquet has them |
| lines | .txt | one column called `text`, a row a line |

Each format is one class below, and a row of `FORMATS`. Every command finds them there, by a file's ending or
by the name that --format gives. A package adds its own in the entry-point group `bertsmith.table_formats`, by
the ending without its dot: docs/add-a-table-format.md. It is imported when a file has that ending. So a
folder, a recipe or a model can choose among what its user has installed, and can't say where code lies.
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
LINES_HAVE = ["text"]  # the one column of plain lines
csv.field_size_limit(LONGEST_LINE)


class Record(NamedTuple):
    """A row whole, its values by column, and its place for messages: 'a/train.tsv, line 12'."""

    fields: dict[str, Any]
    where: str


class Row(NamedTuple):
    """A row's values in the order of the columns asked for, and its place."""

    values: tuple[Any, ...]
    where: str


class Selection(NamedTuple):
    """What is asked of each row: `columns` by name or number, and behind them the `optional` ones, None where
    there is no such column. Without a `header` columns of CSV and TSV have numbers only. `blank_lines`: lines
    without text are rows too, of plain lines and of a table of one column.
    """

    columns: Sequence[str | int]
    header: bool = True
    optional: Sequence[str] = ()
    blank_lines: bool = False


class TableFormat(ABC):
    """How rows lie in one kind of file. `records` is all that a format needs; whatever else is asked is made
    of it, unless the format can do so with less. Everything raises InputError, naming file and line.
    """

    NAME: ClassVar[str]  # as --format has it
    ENDINGS: ClassVar[tuple[str, ...]]  # of files' names, in small letters
    IS_TEXT: ClassVar[bool] = True  # False: bytes, which are neither decoded nor looked at for NULs
    HAS_TYPES: ClassVar[bool] = True  # False: every cell is a string, which may spell a number
    HAS_OWN_KEYS: ClassVar[bool] = False  # True: a row may leave columns out, so they are known by name only

    @abstractmethod
    def records(self, stream: SourceStream) -> Iterator[Record]:
        """Every row whole, one at a time."""

    def names(self, stream: SourceStream, header: bool = True) -> list[str]:
        """Those of the columns; of JSON the first object's keys. None where there is no row."""
        return [name for record in islice(self.records(stream), 1) for name in record.fields]

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        """Every row, reduced to what is asked of it."""
        picked: list[str] | None = None
        for fields, where in self.records(stream):
            if picked is None:
                names = list(fields)
                picked = [names[find_column(each, names, stream.name)] for each in selection.columns]
            if missing := [name for name in picked if name not in fields]:
                raise unknown_column(missing[0], list(fields), where)
            yield Row((*(fields[name] for name in picked), *map(fields.get, selection.optional)), where)

    def texts(self, stream: SourceStream, column: str) -> Iterator[Text]:
        """(row number from 0, text) of a column that holds nothing but texts, as a corpus is built of; a null
        is an empty text.
        """
        return _read_texts(self.records(stream), column)

    def row_count(self, stream: SourceStream) -> int | None:
        """How many rows there are, where it is known before they are read."""
        return None


def _read_texts(records: Iterable[Record], column: str) -> Iterator[Text]:
    for number, (fields, where) in enumerate(records):
        if column not in fields:
            raise _missing_column(where, column, fields)
        text = fields[column]
        if not isinstance(text, str | None):
            raise InputError(f"{where}: expected text under {column!r}, found {type(text).__name__}.")
        yield str(number), text or ""


class SeparatedFormat(TableFormat):
    """Rows of cells with a separator between them, the first of which names the columns."""

    HAS_TYPES = False
    DIALECT: ClassVar[dict[str, Any]]

    def cells(self, stream: SourceStream) -> Iterator[tuple[int, list[str]]]:
        """(number of the line it begins on, cells) of every row, the header too; a blank line has none."""
        reader = csv.reader(stream.whole_lines(), **self.DIALECT)
        while True:
            begins = reader.line_num + 1
            try:
                yield begins, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # With a quote that is never closed the reader stands at the end of the file by now.
                raise InputError(
                    f"{stream.name}, line {begins}: not valid {self.NAME.upper()} ({error})."
                ) from error

    def names(self, stream: SourceStream, header: bool = True) -> list[str]:
        """Without a header '1', '2', ..."""
        first = next((row for _, row in self.cells(stream) if row), [])
        return _strip_names(first) if header else [str(number) for number in range(1, len(first) + 1)]

    def records(self, stream: SourceStream) -> Iterator[Record]:
        """Each as long as the header, whose names differ."""
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
        every = self.cells(stream)
        before = list[tuple[int, list[str]]]()  # blank lines: cells too, where there is no header
        for first in every:
            if first[1]:
                break
            before.append(first)
        else:
            return
        blank = [""] if selection.blank_lines and len(first[1]) == 1 else []
        behind = every if selection.header else chain(before, [first], every)
        names = _strip_names(first[1]) if selection.header else None
        picked = [_column_index(column, names, stream.name) for column in selection.columns]
        more = [names.index(name) if names and name in names else None for name in selection.optional]
        needed = max(picked, default=-1) + 1
        for line, row in ((line, row or blank) for line, row in behind if row or blank):
            where = f"{stream.name}, line {line}"
            if len(row) < needed:
                hint = separator_advice(["\t"]) if self.NAME == "csv" and "\t" in "".join(row) else ""
                raise InputError(
                    f"{where}: expected {needed} columns or more, found {len(row)}. Mend the row or remove "
                    f"it.{hint}"
                )
            if names is not None:
                _require_no_more(row, names, where, "the header")
            elif self.NAME == "csv":  # in TSV, where a text holds no tab, STS-B has sources behind some rows
                _require_no_more(row, first[1], where, "the first row")
            optional = (None if index is None or index >= len(row) else row[index] for index in more)
            yield Row((*(row[index] for index in picked), *optional), where)

    def texts(self, stream: SourceStream, column: str) -> Iterator[Text]:
        """Blank lines are counted too."""
        rows = self.cells(stream)
        header = _strip_names(next((row for _, row in rows if row), []))
        if not header:
            return
        _require_one_column(header, stream.name, column)
        at = header.index(column)
        for number, (line, row) in enumerate(rows):
            if not row:
                continue
            if len(row) <= at:
                raise InputError(
                    f"{stream.name}, line {line}: expected {len(header)} columns, found {len(row)}. Mend the "
                    "row or remove it."
                )
            _require_no_more(row, header, f"{stream.name}, line {line}", "the header")
            yield str(number), row[at]


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


def _column_index(column: str | int, names: Sequence[str] | None, where: str) -> int:
    if names is not None:
        return find_column(column, names, where)
    number = column_number(column)
    if number is None:
        raise InputError(
            f"{where}: no column {column!r}: without a header, columns have only numbers, from 1."
        )
    return number - 1


def _require_no_more(row: Sequence[str], header: Sequence[str], where: str, named: str) -> None:
    """Raises InputError for values behind the last column: where a separator in a text isn't quoted, the
    rest of the text would be lost, or be taken for another column.
    """
    if len(row) > len(header) and any(field.strip() for field in row[len(header) :]):
        raise InputError(
            f"{where}: expected {len(header)} columns as in {named}, found {len(row)}. Put a text that "
            "holds the separator between quotes (in CSV), or remove the row."
        )


class JsonLinesFormat(TableFormat):
    """An object a line."""

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
    """One list of objects, which is read whole, or an object a line after all."""

    NAME = "json"
    ENDINGS = (".json",)

    def records(self, stream: SourceStream) -> Iterator[Record]:
        text, name = stream.text(), stream.name
        if not text.lstrip().startswith("["):
            yield from read_json_records(text.split("\n"), name)
            return
        try:
            listed = parse_json(text, with_distinct_keys)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{name}: expected one JSON list of objects, but it is not valid JSON ({error})."
            ) from error
        for number, record in enumerate(listed, start=1):
            if not isinstance(record, dict):
                kind = type(record).__name__
                raise InputError(f"{name}, item {number}: expected a JSON object, found {kind}.")
            yield Record(record, f"{name}, item {number}")


def read_json_records(
    lines: Iterable[str],
    name: str,
    advice: str = "Mend the line, or name another format with --format.",
) -> Iterator[Record]:
    """The object of every line that isn't blank."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = parse_json(line, with_distinct_keys)
        except (ValueError, RecursionError) as error:  # too many digits or brackets are errors of their own
            raise InputError(
                f"{where}: expected one JSON object, but it is not valid JSON ({error}). {advice}"
            ) from error
        if not isinstance(record, dict):
            raise InputError(f"{where}: expected a JSON object, found {type(record).__name__}.")
        yield Record(record, where)


class ParquetFormat(TableFormat):
    """Columns, of which those that are asked for are read, some hundred rows at a time."""

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
        """The names of its columns differ."""

        def choose(schema: pa.Schema) -> list[str]:
            names: list[str] = schema.names
            require_different(names, names, stream.name)
            return names

        number = 0
        with stream.seekable() as file:
            for batch in read_record_batches(file, stream.name, choose):
                names = batch.schema.names
                columns = [read_column(batch, name, stream.name, number) for name in names]
                for values in zip(*columns):
                    number += 1
                    yield Record(dict(zip(names, values)), f"{stream.name}, row {number}")

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        chosen: list[str | None] = []  # None: a column that there isn't

        def choose(schema: pa.Schema) -> list[str]:
            names = schema.names
            chosen.extend(names[find_column(column, names, stream.name)] for column in selection.columns)
            chosen.extend(name if name in names else None for name in selection.optional)
            read = list(dict.fromkeys(name for name in chosen if name is not None))
            require_different(names, read, stream.name)  # Parquet is read by name
            return read

        row = 0
        with stream.seekable() as file:
            for batch in read_record_batches(file, stream.name, choose):
                nothing = [None] * batch.num_rows
                columns = (read_column(batch, name, stream.name, row) if name else nothing for name in chosen)
                rows: Iterable[tuple[Any, ...]] = zip(*columns) if chosen else repeat((), batch.num_rows)
                for values in rows:
                    row += 1
                    yield Row(values, f"{stream.name}, row {row}")

    def texts(self, stream: SourceStream, column: str) -> Iterator[Text]:
        """Of a column of strings, whatever Arrow's type for them."""

        def choose(schema: pa.Schema) -> list[str]:
            _require_one_column(schema.names, stream.name, column)
            kind = value_type(schema.field(column).type)
            if not (
                pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
            ):
                raise InputError(f"{stream.name}: expected text in the column {column!r}, found {kind}.")
            return [column]

        row = 0
        with stream.seekable() as file:
            for batch in read_record_batches(file, stream.name, choose):
                for text in read_column(batch, column, stream.name, row):
                    yield str(row), text or ""
                    row += 1


class LinesFormat(TableFormat):
    """Plain text, a row a line; a blank line is none, unless it is asked for."""

    NAME = "lines"
    ENDINGS = (".txt",)

    def names(self, stream: SourceStream, header: bool = True) -> list[str]:
        return LINES_HAVE

    def records(self, stream: SourceStream) -> Iterator[Record]:
        for (text,), where in self.rows(stream, Selection(LINES_HAVE)):
            yield Record({LINES_HAVE[0]: text}, where)

    def rows(self, stream: SourceStream, selection: Selection) -> Iterator[Row]:
        for column in selection.columns:
            find_column(column, LINES_HAVE, stream.name)
        for number, line in enumerate(stream.lines(), start=1):
            if line.strip() or selection.blank_lines:
                values = (*[line] * len(selection.columns), *[None] * len(selection.optional))
                yield Row(values, f"{stream.name}, line {number}")


def require_different(names: Sequence[str], read: Iterable[str], where: str) -> None:
    """Raises InputError when one of the names that are `read` is that of several columns."""
    for name in read:
        if names.count(name) > 1:
            raise InputError(f"{where}: several columns are called {name!r}. Rename all but one of them.")


def _require_one_column(names: Sequence[str], where: str, column: str) -> None:
    if column not in names:
        raise _missing_column(where, column, names)
    require_different(names, [column], where)


def _missing_column(where: str, column: str, columns: Iterable[str]) -> InputError:
    names = list(columns)
    advice = separator_advice(names) or " Choose one with --text-column (distil: --text)."
    return InputError(f"{where}: no column {column!r}. There are: {', '.join(names) or 'none'}.{advice}")


FORMATS: dict[str, TableFormat] = {
    each.NAME: each
    for each in (CsvFormat(), TsvFormat(), JsonLinesFormat(), JsonFormat(), ParquetFormat(), LinesFormat())
}


def register(format: TableFormat) -> TableFormat:
    """Makes a format known, in this process, by its name and its endings. Raises ValueError where one of them
    is another format's.
    """
    taken = {ending for each in FORMATS.values() for ending in each.ENDINGS}
    if format.NAME in FORMATS or taken.intersection(format.ENDINGS):
        raise ValueError(f"there is a table format {format.NAME!r}, or one of {format.ENDINGS}, already")
    FORMATS[format.NAME] = format
    return format


def find_format(name: str) -> TableFormat | None:
    """The format of that name, ours or an installed package's."""
    return FORMATS.get(name) or _load_installed(name)


def find_format_by_ending(ending: str) -> TableFormat | None:
    """The format of files whose names end so, in small letters, without that of a compression."""
    there = (each for each in FORMATS.values() if ending in each.ENDINGS)
    return next(there, None) or _load_installed(ending.removeprefix("."))


def table_endings(format: str | None, ending: str) -> dict[str, str]:
    """Which ending tells which format: ours, and of the installed ones what a file may need that has this
    `ending` or is said to have the `format`.
    """
    if format is not None:
        find_format(format)
    find_format_by_ending(ending)
    return {ending: each.NAME for each in FORMATS.values() for ending in each.ENDINGS}


@cache  # a folder may have many files of an ending that tells none
def _load_installed(name: str) -> TableFormat | None:
    """By its entry point, which imports it. Raises InputError for one that is no format."""
    point = next(iter(entry_points(group=GROUP, name=name)), None)
    if point is None:
        return None
    origin = f"The table format {name!r} ({point.value})"
    try:
        kind = point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"{origin} can't be imported: {error}.") from error
    if not (isinstance(kind, type) and issubclass(kind, TableFormat)):
        raise InputError(f"{origin} is not a subclass of bertsmith.text.files.tables.TableFormat.")
    if kind.__abstractmethods__ or name not in (
        kind.NAME,
        *(each.removeprefix(".") for each in kind.ENDINGS),
    ):
        raise InputError(f"{origin} must have records(), and be called {name!r} or have the ending .{name}.")
    return FORMATS.get(kind.NAME) or register(kind())
