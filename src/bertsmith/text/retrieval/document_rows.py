"""Rows of a table → ids, texts, titles and whatever else a row says, read as a stream.

A document's columns are named, or found by their usual names:

| wanted | names that say so |
| --- | --- |
| the id | id, _id, doc_id, docid, document_id |
| the text | text, content, body, document, passage, sentence, abstract |
| the title | title |

Every other column is metadata, to filter by. Objects of JSON may leave keys out: a title may appear in any
row, and ids are in all of them or in none.
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

USUAL = {
    "id": ("id", "_id", "doc_id", "docid", "document_id"),
    "text": ("text", "content", "body", "document", "passage", "sentence", "abstract"),
    "title": ("title",),
}
COLUMNS_HELP = "By default the usual names decide"


class DocumentColumns(Protocol):
    """The columns that were named; None for those to be found."""

    @property
    def id(self) -> str | None: ...

    @property
    def text(self) -> str | None: ...

    @property
    def title(self) -> str | None: ...


class DocumentRow(NamedTuple):
    """One row; `id` is None when the table has no column for it, `number` counts from 1."""

    id: str | None
    text: str
    title: str
    metadata: dict[str, Any]
    where: str
    number: int


class UntypedCell(str):
    """A value of CSV or TSV, which don't say whether 12 is a number."""


class _ColumnNames(NamedTuple):
    id: str | None
    text: str
    title: str | None


def read_table(
    file: SourceFile, format: str, reading: CorpusSettings, wanted: DocumentColumns
) -> Iterator[DocumentRow]:
    """The rows of one table. Raises InputError naming file and line for what can't be read or lacks an id,
    and for ids and names of columns that no database could store."""
    local = "://" not in file.origin
    path = file.path if local else file.filesystem.unstrip_protocol(file.path)
    encoding, errors = reading.encoding, reading.encoding_errors
    endings = table_endings(format, file.suffix)
    with open_table(path, format, encoding, endings, None, encoding_errors=errors) as table:
        columns, names = None, dict[str, None]()
        read_as = FORMATS[table.format]
        for number, (fields, where) in enumerate(read_as.records(table.stream), start=1):
            if not read_as.HAS_TYPES:
                fields = {name: UntypedCell(value) if value else None for name, value in fields.items()}
            if columns is None or not fields.keys() <= names.keys():
                names |= dict.fromkeys(fields)
                columns = _choose_columns(columns, list(names), wanted, file.name if number == 1 else where)
            yield _make_row(fields, columns, where, number)


def _make_row(fields: Mapping[str, Any], columns: _ColumnNames, where: str, number: int) -> DocumentRow:
    for name in fields:
        _require_characters(name, "a column called", where)
    id = None if columns.id is None else _parse_id(fields.get(columns.id), f"{where}, column {columns.id!r}")
    _require_characters(id or "", "an id", f"{where}, column {columns.id!r}")
    title = "" if columns.title is None else as_text(fields.get(columns.title), where)
    metadata = {name: as_filter_value(value) for name, value in fields.items() if name not in columns}
    return DocumentRow(id, as_text(fields.get(columns.text), where), title.strip(), metadata, where, number)


def _parse_id(value: Any, where: str) -> str:
    """Text as it stands, for "1.0" is another id than "1"; 1.0 is '1'. Raises InputError for none."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():  # pandas makes these of integers beside a null
        return str(int(value))
    raise InputError(f"{where}: expected an id, found {shown(value)}. Mend or remove the row.")


def _require_characters(text: str, kind: str, where: str) -> None:
    """Texts are mended, but two ids or names might become one."""
    if not text.isascii() and LONE_SURROGATE.search(text):
        raise InputError(
            f"{where}: found {kind} {text!r}, half of a UTF-16 pair, which is no character. Mend or remove "
            "it."
        )


def as_filter_value(value: Any) -> Any:
    """A value as a column can hold it: texts, numbers, truth values and nothing stay; dates are written out,
    lists and objects as JSON."""
    if isinstance(value, str) and not isinstance(value, UntypedCell):
        return replace_surrogates(value)
    if value is None or isinstance(value, UntypedCell | int | float | bool):
        return value
    if isinstance(value, list | dict | tuple):
        return replace_surrogates(json.dumps(value, ensure_ascii=False, default=str))
    return str(value)


def _choose_columns(
    before: _ColumnNames | None, names: Sequence[str], wanted: DocumentColumns, where: str
) -> _ColumnNames:
    """Once more where a row has a column that those `before` it lacked."""
    id, text, title = (
        _find_column(role, getattr(wanted, role), names, where) for role in ("id", "text", "title")
    )
    if text is None:
        raise InputError(
            f"{where}: no column has a name that says it holds the text. There are: {', '.join(names)}. "
            "Name it with --text, or leave such files out with --exclude."
        )
    if before is not None and before.id != id:
        raise InputError(
            f"{where}: found an id in {id!r}, which the rows before it don't have. Give every row an id, or "
            "give that column another name."
        )
    return _ColumnNames(id, text, title)


def _find_column(role: str, named: str | None, names: Sequence[str], where: str) -> str | None:
    if named is not None:
        return names[find_column(named, names, where)]
    found = [name for name in names if name.strip().lower() in USUAL[role]]
    if len(found) > 1:
        raise InputError(f"{where}: {', '.join(found)} could all be the {role}. Name one with --{role}.")
    return found[0] if found else None
