"""Reads the rows of a table as documents: id, text, title and metadata, one row at a time.

The columns are named by the user, or found by their usual names:

| column | usual names |
| --- | --- |
| the id | id, _id, doc_id, docid, document_id |
| the text | text, content, body, document, passage, sentence, abstract |
| the title | title |

Every other column is metadata, to filter by. JSON objects may leave keys out: a title may first appear in any
row, but either all rows have an id or none.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from bertsmith.errors import InputError
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.columns import find_column
from bertsmith.text.files.streams import SourceFile
from bertsmith.text.files.table_file import open_table
from bertsmith.text.files.tables import FORMATS, table_endings
from bertsmith.text.files.values import as_text, shown
from bertsmith.text.tokens.tokenizer import LONE_SURROGATE, replace_surrogates

USUAL_NAMES = {
    "id": ("id", "_id", "doc_id", "docid", "document_id"),
    "text": ("text", "content", "body", "document", "passage", "sentence", "abstract"),
    "title": ("title",),
}
COLUMNS_HELP = "By default the usual names decide"


class DocumentColumns(Protocol):
    """The columns that the user named; None for those to be found by their usual names."""

    @property
    def id(self) -> str | None: ...

    @property
    def text(self) -> str | None: ...

    @property
    def title(self) -> str | None: ...


class DocumentRow(NamedTuple):
    """One row as a document; `id` is None if the table has no column for it, `number` counts rows from 1."""

    id: str | None
    text: str
    title: str
    metadata: dict[str, Any]
    where: str
    number: int


class UntypedCell(str):
    """A cell of a format without types, such as CSV, in which 12 may be a number or a text."""


class _ColumnNames(NamedTuple):
    id: str | None
    text: str
    title: str | None


def read_table(
    file: SourceFile, format: str, settings: CorpusSettings, named_columns: DocumentColumns
) -> Iterator[DocumentRow]:
    """Yields the rows of one table. Raises InputError naming file and line for what can't be read, for a row
    without an id, and for ids and column names that no database could store.
    """
    local = "://" not in file.origin
    path = file.path if local else file.filesystem.unstrip_protocol(file.path)
    encoding, errors = settings.encoding, settings.encoding_errors
    endings = table_endings(format, file.suffix)
    with open_table(path, format, encoding, endings, None, encoding_errors=errors) as table:
        columns, names = None, dict[str, None]()  # the names of all rows so far, in order
        table_format = FORMATS[table.format]
        for number, (fields, where) in enumerate(table_format.records(table.stream), start=1):
            if not table_format.HAS_TYPES:
                fields = {name: UntypedCell(value) if value else None for name, value in fields.items()}
            if columns is None or not fields.keys() <= names.keys():
                names |= dict.fromkeys(fields)
                first_where = file.name if number == 1 else where
                columns = _choose_columns(columns, list(names), named_columns, first_where)
            yield _make_row(fields, columns, where, number)


def _make_row(fields: Mapping[str, Any], columns: _ColumnNames, where: str, number: int) -> DocumentRow:
    for name in fields:
        _refuse_surrogates(name, "a column called", where)
    id = None if columns.id is None else _parse_id(fields.get(columns.id), f"{where}, column {columns.id!r}")
    _refuse_surrogates(id or "", "an id", f"{where}, column {columns.id!r}")
    title = "" if columns.title is None else as_text(fields.get(columns.title), where)
    metadata = {name: as_filter_value(value) for name, value in fields.items() if name not in columns}
    return DocumentRow(id, as_text(fields.get(columns.text), where), title.strip(), metadata, where, number)


def _parse_id(value: Any, where: str) -> str:
    """The id as text: a string stays as it is ("1.0" is another id than "1"), the number 1.0 is "1".

    Raises InputError for an empty cell and for other types.
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():  # pandas makes floats of integers beside a null
        return str(int(value))
    raise InputError(f"{where}: expected an id, found {shown(value)}. Mend or remove the row.")


def _refuse_surrogates(text: str, kind: str, where: str) -> None:
    """Raises InputError for half of a UTF-16 pair in an id or a name. In texts it is replaced; but so two ids
    might become the same.
    """
    if not text.isascii() and LONE_SURROGATE.search(text):
        raise InputError(
            f"{where}: found {kind} {text!r}, half of a UTF-16 pair, which is no character. Mend or remove "
            "it."
        )


def as_filter_value(value: Any) -> Any:
    """A value that a column of the index can hold: strings, numbers, booleans and None stay as they are;
    lists and objects become JSON; anything else, such as a date, its string.
    """
    if isinstance(value, str) and not isinstance(value, UntypedCell):
        return replace_surrogates(value)
    if value is None or isinstance(value, UntypedCell | int | float | bool):
        return value
    if isinstance(value, list | dict | tuple):
        return replace_surrogates(json.dumps(value, ensure_ascii=False, default=str))
    return str(value)


def _choose_columns(
    previous: _ColumnNames | None, names: Sequence[str], named_columns: DocumentColumns, where: str
) -> _ColumnNames:
    """Chooses the columns of id, text and title: at the first row, and again whenever a row has a new column.

    `previous` are the columns of the rows before. Raises InputError if no column has a usual name for the
    text, if several fit, and if the rows before had no id.
    """
    id, text, title = (
        _find_column(role, getattr(named_columns, role), names, where) for role in ("id", "text", "title")
    )
    if text is None:
        raise InputError(
            f"{where}: no column has a name that says it holds the text. There are: {', '.join(names)}. "
            "Name it with --text, or leave such files out with --exclude."
        )
    if previous is not None and previous.id != id:
        raise InputError(
            f"{where}: found an id in {id!r}, which the rows before it don't have. Give every row an id, or "
            "give that column another name."
        )
    return _ColumnNames(id, text, title)


def _find_column(role: str, named_column: str | None, names: Sequence[str], where: str) -> str | None:
    if named_column is not None:
        return names[find_column(named_column, names, where)]
    candidates = [name for name in names if name.strip().lower() in USUAL_NAMES[role]]
    if len(candidates) > 1:
        raise InputError(f"{where}: {', '.join(candidates)} could all be the {role}. Name one with --{role}.")
    return candidates[0] if candidates else None
