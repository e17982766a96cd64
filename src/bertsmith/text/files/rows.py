"""Reads the rows of any table: the selected columns of each row, and the file and line for messages.

`tables.py` lists the formats. A file may be compressed: a.csv.gz, a.jsonl.zst. A dash is standard input,
which is read as JSON lines unless another format is given. Blank lines are left out; with `blank_lines`,
those of plain text and of a CSV or TSV with one column are rows. A byte-order mark decides the encoding and
is not part of a column's name. Read `read_rows` first: the other functions share its options.
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
    LINES_COLUMNS,
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
    """Reads all rows of a table, reduced to `columns`, each given by its name or by its number from 1.

    The values of the `optional` columns follow; None if the table has no such column. A row of CSV or TSV may
    lack columns that aren't selected, but must not have values beyond the header's last column. With
    `header=False` the first line of a CSV or TSV file is a row, columns have numbers only, and no row of CSV
    may be longer than the first. `encoding` is that of a file without a byte-order mark. With `blank_lines`,
    blank lines of plain text and of a table with one column are rows too, so that rows and lines have the
    same numbers: spreadsheets and pyarrow write an empty cell as a blank line. Raises InputError for a file
    that is missing, empty, broken or in another encoding, for a missing column, and for a row that is too
    short or too long, with its line.
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
    """Yields the rows of `read_rows` one at a time, for files that don't fit into memory.

    The file is opened at the first row, and an error is raised when its row is reached. Only .json files are
    read whole.
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
    """Yields one text per row: the lines of a plain file, or the cells of a table's `column`.

    Without a `column` it is guessed by its name, as `guess_text` does. Blank texts are left out.
    """
    layout: dict[str, Any] = {"format": format, "header": header, "encoding": encoding}
    if are_lines(path, format=format, encoding=encoding):
        column = LINES_COLUMNS[0]
    elif column is None:
        column = guess_text(path, **layout)
    for row in stream_rows(path, [column], **layout):
        text = as_text(row.values[0], row.where)
        if not is_blank(text):
            yield text


def _read_selection(
    path: str | Path, selection: Selection, format: str | None, encoding: str
) -> Iterator[Row]:
    row = None
    with _open_rows(path, format, encoding) as table:
        for row in FORMATS[table.format].rows(table.stream, selection):
            yield row
    if row is None:
        raise InputError(f"{table.name} has no rows. Expected at least one, as {table.format}.")


def read_column_names(
    path: str | Path, *, format: str | None = None, header: bool = True, encoding: str = "utf-8"
) -> list[str]:
    """The names of a table's columns (of JSON: the first object's keys); without a header '1', '2', …

    Raises InputError for a table without rows, and for standard input, which can be read only once.
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
    **named: Any,
) -> Columns:
    """The columns that `guess_columns` finds in a file; `named` are its options text, text_pair and label.

    For JSON objects the guess is made by the keys of the first one, which every row must have. Raises
    InputError as `guess_columns` does, and if the keys of all objects together would give another text, a
    pair or another label.
    """
    names = read_column_names(path, format=format, header=header, encoding=encoding)
    columns = guess_columns(names, str(path), labelled=labelled, **named)
    if not are_objects(path, format=format, encoding=encoding):
        return columns
    keys = read_keys(path, format=format, encoding=encoding)
    guesses = []
    if named.get("text") is None:
        guesses.append(("text", "--text (for look: --column)", {**named, "labelled": False}))
    if columns.label is not None and named.get("label") is None:
        guesses.append(("label", "--label", {**named, "text": columns.text, "text_pair": columns.text_pair}))
    for role, option, guess_options in guesses:
        try:
            by_all_keys = guess_columns(keys, str(path), **guess_options)
        except InputError:  # several keys fit, but the one that was guessed is in every row
            continue
        guessed = [
            str(column)
            for column in (by_all_keys[2:] if role == "label" else by_all_keys[:2])
            if column is not None
        ]
        if lacking := [column for column in guessed if column not in names]:
            raise InputError(
                f"{path}: by the names of all rows the {role} is {' with '.join(guessed)}, but the first row "
                f"has no {lacking[0]!r}. Give it to every row, or name the column that is meant with "
                f"{option}."
            )
    return columns


def guess_text(path: str | Path, **layout: Any) -> str:
    """The column of the text, for a file of which one text per row is read.

    Raises InputError as `guess_file_columns` does, and if the names are those of a pair of texts, since one
    of them would be left out.
    """
    columns = guess_file_columns(path, labelled=False, **layout)
    if columns.text_pair is not None:
        raise InputError(
            f"{path}: the text could be {columns.text} or {columns.text_pair}. "
            "Name it with --text (for look: --column)."
        )
    return str(columns.text)


def find_names_of_numbers(
    paths: Sequence[str | Path], columns: Mapping[str, str | int | None], **layout: Any
) -> dict[str, str]:
    """Key → column name, for those of `columns` that are given by number.

    A column is left out if the files have different names for it, if a file has another column of that name,
    or if the name is a number itself. `layout` are the options of `read_column_names`.
    """
    numbered = {key: column for key, column in columns.items() if str(column).isdecimal()}
    if not numbered or not layout.get("header", True) or "-" in map(str, paths):
        return {}
    files = [read_column_names(path, **layout) for path in paths]
    names_by_key = {key: {named_column(column, names) for names in files} for key, column in numbered.items()}
    return {
        key: name
        for key, (name, *others) in names_by_key.items()
        if name and not others and not name.isdecimal() and all(names.count(name) == 1 for names in files)
    }


def tells_format(path: str | Path) -> bool:
    """Whether a file's ending (before a compression's) is that of a table format."""
    return find_format_by_ending(file_ending(str(path))) is not None


def quoting_warnings(path: str | Path, texts: Iterable[str], format: str | None = None) -> list[str]:
    """A warning if a TSV file seems to be quoted like CSV, as pandas and spreadsheets do it; else an empty
    list.

    It seems so if every text with a quote begins and ends with one and doubles the quotes within, or is split
    into several rows at its line ends. In GLUE's files, where a quote is an ordinary letter, no text is like
    that.
    """
    if format != "tsv" and (format or file_ending(str(path)) not in FORMATS["tsv"].ENDINGS):
        return []
    count, split_count, example, within_quotes = 0, 0, "", False
    for text in texts:
        quotes = text.count('"')
        if quotes == 0:
            continue
        is_split = quotes % 2 == 1
        if not (within_quotes or text.startswith('"')) or not (
            is_split or within_quotes or _QUOTED.fullmatch(text)
        ):
            return []
        if within_quotes and is_split and not text.endswith('"'):
            return []
        count += not within_quotes
        split_count += is_split and not within_quotes
        example = example or (text if is_split or '"' in text[1:-1] else "")
        within_quotes ^= is_split
    if not example or within_quotes:
        return []
    short_example = example if len(example) <= 60 else example[:57] + "..."
    lines = f", and {split_count:,} of them torn into several rows at their line ends" if split_count else ""
    return [
        f"{path}: {count:,} texts are quoted as in CSV, such as {short_example}, and were read with their "
        f"quotes{lines}: in TSV these are letters. If they aren't meant, save the table as CSV or JSON lines"
    ]


def are_objects(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> bool:
    """Whether the rows are JSON objects, which may differ in their keys."""
    with _open_rows(path, format, encoding) as table:
        return FORMATS[table.format].HAS_OWN_KEYS


def read_keys(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> list[str]:
    """The keys of all rows of a .jsonl or .json file, in the order in which they first occur."""
    with _open_rows(path, format, encoding) as table:
        records = FORMATS[table.format].records(table.stream)
        return list(dict.fromkeys(key for record in records for key in record.fields))


def stream_objects(
    path: str | Path, *, format: str | None = None, encoding: str = "utf-8"
) -> Iterator[Record]:
    """Yields the rows of a table with all of their columns, such as the objects of JSON lines."""
    with _open_rows(path, format, encoding) as table:
        yield from FORMATS[table.format].records(table.stream)


def are_lines(path: str | Path, *, format: str | None = None, encoding: str = "utf-8") -> bool:
    """Whether the file is plain text, whose one column needs no name."""
    if format is not None or str(path) == "-":
        return format == "lines"
    with _open_rows(path, format, encoding) as table:
        return table.format == "lines"


def _open_rows(path: str | Path, format: str | None, encoding: str) -> AbstractContextManager[TableFile]:
    otherwise = "jsonl" if str(path) == "-" else None
    by_ending = table_endings(format, file_ending(str(path)))
    return open_table(path, format, encoding, by_ending, otherwise, whole_name=True)
