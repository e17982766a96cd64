"""Reads a table of questions about the documents of an index, each with the id of a document that answers it.

| value | usual names of its column |
| --- | --- |
| the question | question, query, text |
| the document | document, document_id, doc_id, id, source, answer |
| its grade, 1 if there is none | grade, relevance, score, label, relevant, is_relevant |

If there are several such columns, the name that is listed first is chosen. A question with several right
documents has several rows. Grades are integers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, did_you_mean
from bertsmith.text.files.columns import listed
from bertsmith.text.files.rows import are_objects, read_column_names, read_keys, read_rows
from bertsmith.text.files.streams import file_ending
from bertsmith.text.files.tables import LinesFormat, find_format_by_ending
from bertsmith.text.files.values import as_label, as_number, as_text, shown
from bertsmith.text.retrieval.retrieval_data import RetrievalData

_QUESTION_NAMES = ("question", "query", "text")
_DOCUMENT_NAMES = ("document", "document_id", "doc_id", "id", "source", "answer")
_GRADE_NAMES = ("grade", "relevance", "score", "label", "relevant", "is_relevant")


def is_table(path: Path) -> bool:
    """Whether a file's ending is that of a table with columns, and not of plain lines."""
    format = find_format_by_ending(file_ending(str(path)))
    return format is not None and not isinstance(format, LinesFormat)


def read_judged_questions(path: Path, documents: Mapping[str, str], encoding: str = "utf-8") -> RetrievalData:
    """Reads the questions of a table about `documents` (id -> text).

    Raises InputError naming file and line, and if no row names one of the documents.
    """
    has_objects = are_objects(path, encoding=encoding)  # JSON objects may leave the grade out
    names = read_keys(path, encoding=encoding) if has_objects else read_column_names(path, encoding=encoding)
    question_column = _require_column(path, names, _QUESTION_NAMES)
    document_column = _require_column(path, names, _DOCUMENT_NAMES)
    grade_column = _find_column(names, _GRADE_NAMES)
    columns = [question_column, document_column]
    grade_columns = [] if grade_column is None else [grade_column]
    if not has_objects:
        columns += grade_columns
    rows = read_rows(path, columns, encoding=encoding, optional=grade_columns if has_objects else [])
    judgements: dict[str, dict[str, int]] = {}
    unknown_documents: dict[str, str] = {}  # id -> where the last row with it is
    for (question_cell, document_cell, *grade_cells), where in rows:
        text = as_text(question_cell, where).strip()
        id = document_cell.strip() if isinstance(document_cell, str) else ""
        if id not in documents:  # read it like a label: pandas writes 7.0 where it reads 7
            id = as_label(document_cell, f"{where}, column {document_column!r}")
        if not text:
            raise InputError(f"{where}: the question is empty. Fill it in or remove the row.")
        if id not in documents:
            unknown_documents[id] = where
        graded = 1
        if grade_cells not in ([], [None]):
            graded = _parse_grade(grade_cells[0], f"{where}, column {grade_column!r}")
        earlier = judgements.setdefault(text, {}).setdefault(id, graded)
        if earlier != graded:
            raise InputError(
                f"{where}: document {id!r} has grade {graded} for {text!r}, but {earlier} further up. "
                "Keep one of them."
            )
    if len(unknown_documents) == len({id for grades in judgements.values() for id in grades}):
        id, where = next(iter(unknown_documents.items()), ("", str(path)))
        raise InputError(
            f"{where}: the index holds no document {id!r}, nor any other that {path} names. An id is what a "
            f"search shows, such as {next(iter(documents), '')!r}.{did_you_mean(id, documents)}"
        )
    note = (
        f"{len(unknown_documents):,} right documents are not in the index "
        f"({listed(list(unknown_documents))}): they count as never found."
    )
    queries = {f"q{number}": text for number, text in enumerate(judgements, start=1)}
    grades = {id: judgements[text] for id, text in queries.items()}
    return RetrievalData(path.name, documents, queries, grades, None, (note,) if unknown_documents else ())


def _parse_grade(value: Any, where: str) -> int:
    grade = as_number(value, where)
    if not grade.is_integer():
        raise InputError(
            f"{where}: expected a grade, a whole number such as 0 or 1, found {shown(value)}. Scale the "
            "grades up: 0.1 and 1 are 1 and 10."
        )
    return int(grade)


def _require_column(path: Path, names: list[str], usual_names: tuple[str, ...]) -> str:
    column = _find_column(names, usual_names)
    if column is None:
        raise InputError(
            f"{path}: expected a column {' or '.join(usual_names)}, found {listed(names)}. "
            "Rename the one that is meant."
        )
    return column


def _find_column(names: Sequence[str], usual_names: Sequence[str]) -> str | None:
    """The column with the first of the usual names that occurs; None if none does."""
    return next(
        (name for usual_name in usual_names for name in names if name.strip().lower() == usual_name), None
    )
