"""Rows of any table: the columns asked for, and where each row stands.

`tables.py` says which formats there are. A file may be packed: a.csv.gz, a.jsonl.zst. A dash is standard
input, JSON lines unless another format is given. Blank lines are passed over, unless those of plain lines,
and of a CSV or TSV of one column, are asked for. A byte-order mark settles the encoding and is no part of a
column's name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.text.files.columns import Columns, guess_columns, named_column
from bertsmith.text.files.streams import file_ending
from bertsmith.text.files.table_file import TableFile, open_table
from bertsmith.text.files.tables import (
    FORMATS,
    LINES_HAVE,
    Record,
    Row,
    Selection,
    find_format_by_ending,
    table_endings,
)
from bertsmith.text.files.values import as_text, is_blank

_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_rows(
    path: str | Path,
    columns: Sequence[str | int],
    *,
    format: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    optional: Sequence[str] = (),
    blank_lines: bool = False,
) -> list[Row]:
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
    return list(_read_selection(path, Selection(columns, header, optional, blank_lines), format, encoding))


def stream_rows(
    path: str | Path,
    columns: Sequence[str | int],
    *,
    format: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    optional: Sequence[str] = (),
    blank_lines: bool = False,
) -> Iterator[Row]:
    """The rows of `read_rows` one at a time, for files that don't fit into memory (.json is read whole). The
    file is opened at the first row, and errors are raised where they stand.
    """
    return _read_selection(path, Selection(columns, header, optional, blank_lines), format, encoding)


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


def _read_selection(path: str | Path, wanted: Selection, format: str | None, encoding: str) -> Iterator[Row]:
    row = None
    with _open_rows(path, format, encoding) as table:
        for row in FORMATS[table.format].rows(table.stream, wanted):
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
    with _open_rows(path, format, encoding) as table:
        names = FORMATS[table.format].names(table.stream, header)
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


def find_names_of_numbers(
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
    return find_format_by_ending(file_ending(str(path))) is not None


def quoting_warnings(path: str | Path, texts: Iterable[str], format: str | None = None) -> list[str]:
    """A sentence where the texts of a TSV file that hold quotes are all quoted, theirs doubled or with line
    ends between, as pandas and spreadsheets write them. Of GLUE's files, where a quote is a letter, none has
    such texts.
    """
    if format != "tsv" and (format or file_ending(str(path)) not in FORMATS["tsv"].ENDINGS):
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
    with _open_rows(path, format, encoding) as table:
        return FORMATS[table.format].HAS_OWN_KEYS


def read_keys(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> list[str]:
    """The keys of all objects of a .jsonl or .json file, in the order in which they come."""
    with _open_rows(path, format, encoding) as table:
        records = FORMATS[table.format].records(table.stream)
        return list(dict.fromkeys(key for record in records for key in record.fields))


def stream_objects(
    path: str | Path, *, format: str | None = None, encoding: str = "utf-8"
) -> Iterator[Record]:
    """The objects of a .jsonl or .json file whole, one at a time."""
    with _open_rows(path, format, encoding) as table:
        yield from FORMATS[table.format].records(table.stream)


def are_lines(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> bool:
    """Whether the rows are plain lines, whose one column needs no name."""
    if format is not None or str(path) == "-":
        return format == "lines"
    with _open_rows(path, format, encoding) as table:
        return table.format == "lines"


def _open_rows(path: str | Path, format: str | None, encoding: str) -> AbstractContextManager[TableFile]:
    otherwise = "jsonl" if str(path) == "-" else None
    by_ending = table_endings(format, file_ending(str(path)))
    return open_table(path, format, encoding, by_ending, otherwise, whole_name=True)
