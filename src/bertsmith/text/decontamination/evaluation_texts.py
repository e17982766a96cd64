"""Reads the texts of a test file or folder of any format, each with its row, its column and its location.

| what | a row | its columns |
| --- | --- | --- |
| CSV, TSV, JSON lines, JSON, Parquet | a row | those named, or those whose values are running text |
| CoNLL, CoNLL-U | a sentence | words |
| any other text | a line, or a sentence where the lines show CoNLL's columns | text, or words |
| SQuAD's JSON | a question | question, context |
| ReQA's JSON; folders in BEIR's, TREC's and other layouts | a query or a document | query, document |

A table needs no header: a first row of which every field has fewer than three words, or up to eight
characters of Chinese or Japanese, is taken for one, any other first row is data. A column is running text if
its values have three or more words on average, which excludes labels and ids; a character of Chinese or
Japanese is a word.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.files import sha256
from bertsmith.text.files.columns import BY_SEMICOLONS, column_index, listed, unknown_column
from bertsmith.text.files.rows import read_column_names, stream_rows
from bertsmith.text.files.streams import file_ending
from bertsmith.text.files.table_file import TableFile, open_table
from bertsmith.text.files.tables import FORMATS, CsvFormat, Record, TsvFormat, find_format, table_endings
from bertsmith.text.labelled.conll import TaggedSentence, read_tagged
from bertsmith.text.labelled.squad import read_squad
from bertsmith.text.retrieval.beir import is_beir, read_beir_texts
from bertsmith.text.retrieval.layouts import read_retrieval_data
from bertsmith.text.retrieval.retrieval_data import RetrievalData, RetrievalDataBuilder
from bertsmith.text.words import split_at_blanks

LEAST_MEAN_WORDS = 3  # of the values of a column that is taken for text
_LONGEST_NAME = 8  # characters of a Chinese or Japanese name in a header
_SAMPLE_VALUES = 1000  # values of a column that decide whether it is text
_TAGGED = {**dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), "conll"), ".conllu": "conllu"}  # by ending
_TEXT = "text"  # lines or CoNLL's columns, which the content decides
_FOLDER = "folder"  # of any layout, which its files decide


class EvaluationText(NamedTuple):
    """One text of one row; rows are counted from 0, `where` is the row's location for messages."""

    row: int
    column: str
    text: str
    where: str


@dataclass(frozen=True)
class EvaluationFile:
    """A test file or folder: the SHA-256 of each of its files, the number of rows, its columns and texts."""

    name: str
    hashes: dict[str, str]
    rows: int
    columns: tuple[str, ...]
    texts: tuple[EvaluationText, ...]


_Reader = Callable[[Path, str, str], list[Record]]


def read_evaluation_file(
    path: Path | str, columns: Sequence[str] = (), format: str | None = None, encoding: str = "utf-8"
) -> EvaluationFile:
    """Reads every text of a test file, or of a folder with retrieval data, into memory, in the file's order.

    `columns` are those to read, by name, or in a table by number from 1; by default those of running text.
    `format` is csv, tsv, jsonl, json, parquet, lines, conll, conllu, squad or reqa, for a folder beir or
    trec; by default the ending and the content decide. Raises InputError, naming file and line, for what
    can't be read, for a column that doesn't exist, and for a file without any text.
    """
    path = Path(path)
    if not path.exists():  # an address or standard input among them: the hash is that of a file
        raise InputError(f"{path} does not exist. Name a test file or a folder on this machine.")
    actual_format = _detect_format(path, format, encoding)
    rows = _READERS.get(actual_format, _read_table_rows)(path, actual_format, encoding)
    if not rows:
        raise InputError(f"{path} has no rows. Expected at least one.")
    chosen_columns = _choose_columns(
        rows, columns, str(path), guess=actual_format in FORMATS and actual_format != "lines"
    )
    texts = tuple(
        EvaluationText(index, column, text, row.where)
        for index, row in enumerate(rows)
        for column in chosen_columns
        if (text := _as_text(row.fields.get(column)).strip())
    )
    if not texts:
        raise InputError(
            f"{path}: expected text in {listed(chosen_columns)}, found none. Name a column with --column."
        )
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.name[0] != ".")
        hashes = {str(file.relative_to(path)): sha256(file) for file in files}
    else:
        hashes = {path.name: sha256(path)}
    return EvaluationFile(str(path), hashes, len(rows), tuple(chosen_columns), texts)


def _detect_format(path: Path, format: str | None, encoding: str) -> str:
    """The given format, else that of the ending or the content: a key of _READERS, or the name of a table."""
    if format is not None and format not in _READERS and find_format(format) is None:
        known = ", ".join(name for name in _READERS if name not in (_TEXT, _FOLDER))
        raise InputError(f"There is no format {format!r}. Choose one of {known}.")
    if path.is_dir() or format is not None:
        return format or _FOLDER
    tables = table_endings(None, file_ending(str(path)))
    by_ending = {ending: name for ending, name in tables.items() if name != "lines"} | _TAGGED
    with open_table(path, None, encoding, by_ending, _TEXT, whole_name=True) as table:
        if table.format == "csv":  # often saved with tabs: the more frequent separator decides
            first_line = next(iter(table.lines()), "")
            return "tsv" if first_line.count("\t") > first_line.count(",") else "csv"
        return _detect_json_format(table) if table.format == "json" else table.format


def _detect_json_format(table: TableFile) -> str:
    """SQuAD's and ReQA's files are one object with keys of their own; all other JSON is rows."""
    text = table.stream.text().lstrip()
    try:
        content = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):  # JSON lines, or broken JSON, for which the reader of rows raises
        content = None
    if isinstance(content, dict) and "data" in content:
        return "squad"
    return "reqa" if isinstance(content, dict) and "questions" in content else "json"


def _read_separated_rows(path: Path, format: str, encoding: str) -> list[Record]:
    """The rows of CSV or TSV, with or without a header and of any widths."""
    with open_table(path, format, encoding, {}, format, whole_name=True) as table:
        table_format = CsvFormat() if format == "csv" else TsvFormat()
        rows = [(line, fields) for line, fields in table_format.cells(table.stream) if fields]
    if not rows:
        return []
    if _has_semicolons([fields for _, fields in rows]):
        raise InputError(f"{path}: expected columns, found one in the first row. {BY_SEMICOLONS}")
    width = max(len(fields) for _, fields in rows)
    first_row = rows[0][1]
    names, has_header = [str(number) for number in range(1, width + 1)], _is_header(first_row)
    if has_header:
        names[: len(first_row)] = [field.strip() for field in first_row]
    return [Record(dict(zip(names, fields)), f"{path}, line {line}") for line, fields in rows[has_header:]]


def _has_semicolons(rows: Sequence[Sequence[str]]) -> bool:
    """Whether semicolons separate the columns: those of a header, or those of all rows."""
    if len(rows[0]) > 1 or ";" not in rows[0][0]:
        return False
    columns = rows[0][0].count(";")
    have_as_many = (",".join(fields).count(";") >= columns for fields in rows)
    return _is_header(rows[0][0].split(";")) or (len(rows) > 1 and all(have_as_many))


def _is_header(first: Sequence[str]) -> bool:
    """Whether the first row is a header. If the guess is wrong, the lost row is too short to be searched for,
    or has a few characters of Chinese or Japanese.

    The first column may have no name: pandas writes its index so.
    """
    names = [field.strip() for field in first]
    are_short = all(len(name.split()) < 3 and len(split_at_blanks(name)) <= _LONGEST_NAME for name in names)
    return all(names[1:]) and len(set(names)) == len(names) and are_short


def _read_record_rows(path: Path, format: str, encoding: str) -> list[Record]:
    """The rows of JSON or JSON lines."""
    with open_table(path, format, encoding, {}, format, whole_name=True) as table:
        return list(FORMATS[format].records(table.stream))


def _read_table_rows(path: Path, format: str, encoding: str) -> list[Record]:
    """The rows of Parquet, or of a format that an installed package adds."""
    names = read_column_names(path, format=format, encoding=encoding)
    rows = stream_rows(path, names, format=format, encoding=encoding)
    return [Record(dict(zip(names, row.values, strict=True)), row.where) for row in rows]


def _read_tagged_rows(path: Path, format: str, encoding: str) -> list[Record]:
    """Lines of text, or the sentences of CoNLL's columns."""
    known_format = None if format == _TEXT else format
    rows = read_tagged(path, format=known_format, tagged=False, encoding=encoding)
    return [
        Record(
            {"words": " ".join(row.words)} if isinstance(row, TaggedSentence) else {"text": row.text},
            row.where,
        )
        for row in rows
    ]


def _read_squad_rows(path: Path, format: str, encoding: str) -> list[Record]:
    questions = read_squad(path, labelled=False, format="json", encoding=encoding)
    return [Record({"question": row.question, "context": row.passage}, row.where) for row in questions]


def _read_retrieval_rows(path: Path, format: str, encoding: str) -> list[Record]:
    data: RetrievalData | RetrievalDataBuilder
    if format in (_FOLDER, "beir") and is_beir(path):  # with any splits, also those without judgements
        data = read_beir_texts(path, encoding)
    else:
        data = read_retrieval_data(path, None if format == _FOLDER else format, encoding=encoding)
    queries = [Record({"query": text}, f"{path}, query {id}") for id, text in data.queries.items()]
    documents = [Record({"document": text}, f"{path}, document {id}") for id, text in data.documents.items()]
    return queries + documents


_READERS: dict[str, _Reader] = {
    "csv": _read_separated_rows,
    "tsv": _read_separated_rows,
    "jsonl": _read_record_rows,
    "json": _read_record_rows,
    "parquet": _read_table_rows,
    _TEXT: _read_tagged_rows,
    "lines": _read_tagged_rows,
    "conll": _read_tagged_rows,
    "conllu": _read_tagged_rows,
    "squad": _read_squad_rows,
    _FOLDER: _read_retrieval_rows,
    "reqa": _read_retrieval_rows,
    "beir": _read_retrieval_rows,
    "trec": _read_retrieval_rows,
}


def _choose_columns(rows: Sequence[Record], columns: Sequence[str], where: str, *, guess: bool) -> list[str]:
    """The columns that were named; else all of them, or with `guess` those that look like running text."""
    names = list(dict.fromkeys(name for row in rows for name in row.fields))
    if columns:
        chosen_names = []
        for column in columns:
            index = column_index(column, names)
            if index is None:
                raise unknown_column(column, names, where)
            chosen_names.append(names[index])
        return chosen_names
    if not guess:
        return names
    chosen = [name for name in names if _is_running_text(row.fields.get(name) for row in rows)]
    if not chosen:
        raise InputError(
            f"{where}: no column looks like text ({LEAST_MEAN_WORDS} words or more on average). There are: "
            f"{listed(names)}. Name the columns with --column."
        )
    return chosen


def _is_running_text(values: Iterable[Any]) -> bool:
    """Whether the values of a column have, on average, as many words as running text."""
    texts = (text for value in values if (text := _as_text(value)))
    lengths = [len(split_at_blanks(text)) for text in islice(texts, _SAMPLE_VALUES)]
    return bool(lengths) and sum(lengths) >= LEAST_MEAN_WORDS * len(lengths)


def _as_text(value: Any) -> str:
    """A string, or a list of words as one text; anything else holds no text."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return value if isinstance(value, str) else ""
