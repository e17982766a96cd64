"""Rows of labelled data out of any table: the columns asked for, and where each row stands.

| format | by the ending | a row's values |
| --- | --- | --- |
| csv | .csv | strings; quotes as in RFC 4180 |
| tsv | .tsv, .tab | strings; a quote is a letter like any other |
| jsonl | .jsonl, .ndjson | as JSON has them: strings, numbers, lists, None |
| json | .json | the same, from one list of objects (or from lines after all) |
| parquet | .parquet | as Parquet has them |
| lines | .txt | one column called `text`, a row a line |

Each may be packed: a.csv.gz, a.jsonl.zst. A dash is standard input, JSON lines unless another format is
given. Blank lines are passed over, unless those of plain lines, and of a CSV or TSV of one column, are asked
for. A byte-order mark settles the encoding and is no part of a column's name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from bertsmith.errors import InputError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.text.files import tables
from bertsmith.text.files.columns import (
    Columns,
    column_number,
    find_column,
    guess_columns,
    named_column,
    separator_advice,
    unknown_column,
)
from bertsmith.text.files.streams import COMPRESSIONS
from bertsmith.text.files.table_file import TableFile, open_table
from bertsmith.text.files.values import as_text, is_blank

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".txt": "lines",
}
LINES_HAVE = ["text"]  # the one column of plain lines
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


class LabelledRow(NamedTuple):
    """Values in the order of the columns asked for, and their place for messages: 'a/train.tsv, line 12'."""

    values: tuple[Any, ...]
    where: str


class Record(NamedTuple):
    """One JSON object whole, and its place."""

    fields: dict[str, Any]
    where: str


def read_rows(
    path: str | Path,
    columns: Sequence[str | int],
    *,
    format: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    optional: Sequence[str] = (),
    blank_lines: bool = False,
) -> list[LabelledRow]:
    """Every row of a table, reduced to `columns`, each given by name or by its number from 1, and behind them
    those of the `optional` ones, None where there is no such column.

    A row of CSV or TSV may lack columns that aren't asked for, and has no values behind the header's last.
    `header=False`: the first line of a CSV or TSV file is a row, columns have numbers only, and no row of CSV
    is longer than the first. `encoding`: of a file without a byte-order mark. `blank_lines`: lines without
    text are rows too, so that rows are counted as lines are: plain ones, and those of a table of one column,
    as spreadsheets and pyarrow write an empty cell there.
    Raises InputError for a file that is missing, empty, broken or in another encoding, for a column that
    isn't there, and for a row that is too short or too long, with its line.
    """
    wanted = _Wanted(columns, header, optional, blank_lines)
    return list(_stream(path, wanted, format, encoding))


def stream_rows(
    path: str | Path,
    columns: Sequence[str | int],
    *,
    format: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    optional: Sequence[str] = (),
    blank_lines: bool = False,
) -> Iterator[LabelledRow]:
    """The rows of `read_rows` one at a time, for files that don't fit into memory (.json is read whole). The
    file is opened at the first row, and errors are raised where they stand.
    """
    return _stream(path, _Wanted(columns, header, optional, blank_lines), format, encoding)


def stream_texts(
    path: str | Path,
    column: str | int | None = None,
    *,
    format: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
) -> Iterator[str]:
    """A text a row: the lines of a plain file, or a table's column, guessed by its name unless said. Blank
    ones are passed over.
    """
    layout: dict[str, Any] = {"format": format, "header": header, "encoding": encoding}
    if are_lines(path, format=format, encoding=encoding):
        column = LINES_HAVE[0]
    elif column is None:
        column = guess_text(path, **layout)
    for row in stream_rows(path, [column], **layout):
        text = as_text(row.values[0], row.where)
        if not is_blank(text):
            yield text


class _Wanted(NamedTuple):
    """What is asked of each row."""

    columns: Sequence[str | int]
    header: bool
    optional: Sequence[str] = ()
    blank_lines: bool = False


def _stream(path: str | Path, wanted: _Wanted, format: str | None, encoding: str) -> Iterator[LabelledRow]:
    row = None
    with _opened(path, format, encoding) as table:
        for row in _READERS[table.format](table, wanted):
            yield row
    if row is None:
        raise InputError(f"{table.name} has no rows. Expected at least one, as {table.format}.")


def read_column_names(
    path: str | Path, *, format: str | None = None, header: bool = True, encoding: str = "utf-8"
) -> list[str]:
    """The names of a table's columns (of JSON: the first object's keys); without a header '1', '2', ...

    Standard input is read once only: to know its columns, name them.
    """
    if str(path) == "-":
        raise InputError("The columns of standard input cannot be looked up beforehand. Name them.")
    with _opened(path, format, encoding) as table:
        names = _NAMES[table.format](table, header)
    if not names:
        raise InputError(f"{table.name} has no rows. Expected at least one, as {table.format}.")
    return names


def guess_file_columns(
    path: str | Path,
    *,
    format: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    labelled: bool = True,
    **said: Any,
) -> Columns:
    """As `guess_columns` has it of what was `said`, by the names in a file; of objects by those of the first,
    which every row has to have. Raises InputError, too, where by the keys of all objects the text is another
    one, or one of a pair, or the label is another one.
    """
    names = read_column_names(path, format=format, header=header, encoding=encoding)
    found = guess_columns(names, str(path), labelled=labelled, **said)
    if not are_objects(path, format=format, encoding=encoding):
        return found
    keys = read_keys(path, format=format, encoding=encoding)
    guesses = []
    if said.get("text") is None:
        guesses.append(("text", "--text (for look: --column)", {**said, "labelled": False}))
    if found.label is not None and said.get("label") is None:
        guesses.append(("label", "--label", {**said, "text": found.text, "text_pair": found.text_pair}))
    for role, option, known in guesses:
        try:
            of_all = guess_columns(keys, str(path), **known)
        except InputError:  # several could be it, and one of them all rows have
            continue
        columns = [str(each) for each in (of_all[2:] if role == "label" else of_all[:2]) if each is not None]
        if lacking := [column for column in columns if column not in names]:
            raise InputError(
                f"{path}: by the names of all rows the {role} is {' with '.join(columns)}, but the first row "
                f"has no {lacking[0]!r}. Give it to every row, or name the column that is meant with "
                f"{option}."
            )
    return found


def guess_text(path: str | Path, **layout: Any) -> str:
    """Where one text a row is read: its column. Raises InputError as `guess_file_columns` does, and for the
    two of a pair, of which one would be left out.
    """
    text, pair, _ = guess_file_columns(path, labelled=False, **layout)
    if pair is not None:
        raise InputError(
            f"{path}: the text could be {text} or {pair}. Name it with --text (for look: --column)."
        )
    return str(text)


def names_of_numbers(
    paths: Sequence[str | Path], columns: Mapping[str, str | int | None], **layout: Any
) -> dict[str, str]:
    """The names of the `columns` that are given by number, by their keys: where all files have the same one
    there, and each no other of that name. `layout` as for `read_column_names`.
    """
    numbered = {key: column for key, column in columns.items() if str(column).isdecimal()}
    if not numbered or not layout.get("header", True) or "-" in map(str, paths):
        return {}
    files = [read_column_names(path, **layout) for path in paths]
    found = {key: {named_column(column, names) for names in files} for key, column in numbered.items()}
    return {
        key: name
        for key, (name, *others) in found.items()
        if name and not others and not name.isdecimal() and all(names.count(name) == 1 for names in files)
    }


def tells_format(path: str | Path) -> bool:
    """Whether a file's ending, before that of its compression, says by which format it is read."""
    return _told_format(path) is not None


def _told_format(path: str | Path) -> str | None:
    stem = Path(path).name.lower()
    for ending in COMPRESSIONS:
        stem = stem.removesuffix(ending)
    return FORMATS.get(Path(stem).suffix)


def quoting_warnings(path: str | Path, texts: Iterable[str], format: str | None = None) -> list[str]:
    """A sentence where the texts of a TSV file that hold quotes are all quoted, theirs doubled or with line
    ends between, as pandas and spreadsheets write them. Of GLUE's files, where a quote is a letter, none has
    such texts.
    """
    if (format or _told_format(path)) != "tsv":
        return []
    count, torn, first, is_open = 0, 0, "", False
    for text in texts:
        quotes = text.count('"')
        if quotes == 0:
            continue
        is_torn = quotes % 2 == 1
        if not (is_open or text.startswith('"')) or not (is_torn or is_open or _QUOTED.fullmatch(text)):
            return []
        if is_open and is_torn and not text.endswith('"'):
            return []
        count += not is_open
        torn += is_torn and not is_open
        first = first or (text if is_torn or '"' in text[1:-1] else "")
        is_open ^= is_torn
    if not first or is_open:
        return []
    shown = first if len(first) <= 60 else first[:57] + "..."
    lines = f", and {torn:,} of them torn into several rows at their line ends" if torn else ""
    return [
        f"{path}: {count:,} texts are quoted as in CSV, such as {shown}, and were read with their "
        f"quotes{lines}: in TSV these are letters. If they aren't meant, save the table as CSV or JSON lines"
    ]


def are_objects(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> bool:
    """Whether the rows are JSON objects, each of which may have other keys."""
    with _opened(path, format, encoding) as table:
        return table.format in ("json", "jsonl")


def read_keys(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> list[str]:
    """The keys of all objects of a .jsonl or .json file, in the order in which they come."""
    with _opened(path, format, encoding) as table:
        return list(dict.fromkeys(key for record in records(table) for key in record.fields))


def stream_objects(
    path: str | Path, *, format: str | None = None, encoding: str = "utf-8"
) -> Iterator[Record]:
    """The objects of a .jsonl or .json file whole, one at a time."""
    with _opened(path, format, encoding) as table:
        yield from records(table)


def are_lines(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> bool:
    """Whether the rows are plain lines, whose one column needs no name."""
    if format is not None or str(path) == "-":
        return format == "lines"
    with _opened(path, format, encoding) as table:
        return table.format == "lines"


def _opened(path: str | Path, format: str | None, encoding: str) -> AbstractContextManager[TableFile]:
    otherwise = "jsonl" if str(path) == "-" else None
    return open_table(path, format, encoding, FORMATS, otherwise, whole_name=True)


def _separated(table: TableFile, wanted: _Wanted) -> Iterator[LabelledRow]:
    every = tables.separated_rows(table.whole_lines(), table.name, table.format)
    before = list[tuple[int, list[str]]]()  # blank lines: cells too, where there is no header
    for first in every:
        if first[1]:
            break
        before.append(first)
    else:
        return
    blank = [""] if wanted.blank_lines and len(first[1]) == 1 else []
    behind = every if wanted.header else chain(before, [first], every)
    rows = ((line, row or blank) for line, row in behind if row or blank)
    names = _header(first[1]) if wanted.header else None
    picked = [_place(column, names, table.name) for column in wanted.columns]
    more = [names.index(name) if names and name in names else None for name in wanted.optional]
    needed = max(picked, default=-1) + 1
    for line, row in rows:
        where = f"{table.name}, line {line}"
        if len(row) < needed:
            raise _too_short(row, needed, where, table.format)
        if names is not None:
            tables.require_no_more(row, names, where)
        elif table.format == "csv":  # in TSV, where a text holds no tab, STS-B has sources behind some rows
            tables.require_no_more(row, first[1], where, "the first row")
        optional = (None if index is None or index >= len(row) else row[index] for index in more)
        yield LabelledRow((*(row[index] for index in picked), *optional), where)


def _header(fields: Iterable[str]) -> list[str]:
    return [field.strip() for field in fields]


def _place(column: str | int, names: Sequence[str] | None, where: str) -> int:
    if names is not None:
        return find_column(column, names, where)
    number = column_number(column)
    if number is None:
        raise InputError(
            f"{where}: no column {column!r}: without a header, columns have only numbers, from 1."
        )
    return number - 1


def _too_short(row: Sequence[str], needed: int, where: str, format: str) -> InputError:
    hint = ""
    if format == "csv" and "\t" in "".join(row):
        hint = separator_advice(["\t"])
    return InputError(
        f"{where}: expected {needed} columns or more, found {len(row)}. Mend the row or remove it.{hint}"
    )


def _objects(table: TableFile, wanted: _Wanted) -> Iterator[LabelledRow]:
    for fields, where in records(table):
        for column in wanted.columns:
            if column not in fields:
                raise unknown_column(column, list(fields), where)
        values = [fields[str(column)] for column in wanted.columns]
        yield LabelledRow((*values, *map(fields.get, wanted.optional)), where)


def records(table: TableFile) -> Iterator[Record]:
    """The objects of an opened .jsonl or .json file, one at a time."""
    lines: Iterable[str] = table.lines()
    if table.format == "json":
        text = table.stream.text()
        if text.lstrip().startswith("["):
            yield from _listed_records(text, table.name)
            return
        lines = text.split("\n")
    advice = "Mend the line, or name another format with --format."
    for number, record in tables.json_records(lines, table.name, advice):
        yield Record(record, f"{table.name}, line {number}")


def _listed_records(text: str, name: str) -> Iterator[Record]:
    try:
        found = parse_json(text, with_distinct_keys)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: expected one JSON list of objects, but it is not valid JSON ({error})."
        ) from error
    for number, record in enumerate(found, start=1):
        if not isinstance(record, dict):
            raise InputError(f"{name}, item {number}: expected a JSON object, found {type(record).__name__}.")
        yield Record(record, f"{name}, item {number}")


def _parquet(table: TableFile, wanted: _Wanted) -> Iterator[LabelledRow]:
    chosen: list[str | None] = []  # None: a column that there isn't

    def choose(schema: pa.Schema) -> list[str]:
        names = schema.names
        chosen.extend(names[find_column(column, names, table.name)] for column in wanted.columns)
        chosen.extend(name if name in names else None for name in wanted.optional)
        read = list(dict.fromkeys(name for name in chosen if name is not None))
        tables.require_different(names, read, table.name)  # Parquet is read by name
        return read

    row = 0
    with table.binary() as file:
        for batch in tables.record_batches(file, table.name, choose):
            nothing = [None] * batch.num_rows
            columns = (
                tables.column_values(batch, name, table.name, row) if name else nothing for name in chosen
            )
            rows: Iterable[tuple[Any, ...]] = zip(*columns) if chosen else repeat((), batch.num_rows)
            for values in rows:
                row += 1
                yield LabelledRow(values, f"{table.name}, row {row}")


def _lines(table: TableFile, wanted: _Wanted) -> Iterator[LabelledRow]:
    for column in wanted.columns:
        find_column(column, LINES_HAVE, table.name)
    for number, line in enumerate(table.lines(), start=1):
        if line.strip() or wanted.blank_lines:
            values = (*[line] * len(wanted.columns), *[None] * len(wanted.optional))
            yield LabelledRow(values, f"{table.name}, line {number}")


_READERS: dict[str, Callable[[TableFile, _Wanted], Iterator[LabelledRow]]] = {
    "csv": _separated,
    "tsv": _separated,
    "jsonl": _objects,
    "json": _objects,
    "parquet": _parquet,
    "lines": _lines,
}


def _separated_names(table: TableFile, header: bool) -> list[str]:
    rows = tables.separated_rows(table.whole_lines(), table.name, table.format)
    first = next((row for _, row in rows if row), [])
    return _header(first) if header else [str(number) for number in range(1, len(first) + 1)]


def _object_names(table: TableFile, header: bool) -> list[str]:
    return [name for record in islice(records(table), 1) for name in record.fields]


def _parquet_names(table: TableFile, header: bool) -> list[str]:
    with table.binary() as file:
        return tables.parquet_columns(file, table.name)


_NAMES: dict[str, Callable[[TableFile, bool], list[str]]] = {
    "csv": _separated_names,
    "tsv": _separated_names,
    "jsonl": _object_names,
    "json": _object_names,
    "parquet": _parquet_names,
    "lines": lambda table, header: LINES_HAVE,
}
