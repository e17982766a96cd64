"""Questions about documents of an index, each with the id of a document that answers it: a table.

| wanted | columns |
| --- | --- |
| the question | question, query, text |
| the document | document, document_id, doc_id, id, source, answer |
| its grade, 1 where there is none | grade, relevance, score, label, relevant, is_relevant |

Of several such columns the name that stands first here decides. A question with several right documents
stands in several rows. Grades are whole numbers.
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

_QUESTION = ("question", "query", "text")
_DOCUMENT = ("document", "document_id", "doc_id", "id", "source", "answer")
_GRADE = ("grade", "relevance", "score", "label", "relevant", "is_relevant")


def is_table(path: Path) -> bool:
    """Whether a file's ending says that it has columns."""
    format = find_format_by_ending(file_ending(str(path)))
    return format is not None and not isinstance(format, LinesFormat)


def read_judged_questions(path: Path, documents: Mapping[str, str], encoding: str = "utf-8") -> RetrievalData:
    """The questions of a table about `documents`, id -> text.

    Raises InputError naming file and line, and where no row names a document that there is.
    """
    by_key = are_objects(path, encoding=encoding)  # objects may leave the grade out
    names = read_keys(path, encoding=encoding) if by_key else read_column_names(path, encoding=encoding)
    question, document = (_require_column(path, names, usual) for usual in (_QUESTION, _DOCUMENT))
    grade = _find_column(names, _GRADE)
    columns, graded_by = [question, document], [] if grade is None else [grade]
    if not by_key:
        columns += graded_by
    rows = read_rows(path, columns, encoding=encoding, optional=graded_by if by_key else [])
    judgements: dict[str, dict[str, int]] = {}
    strangers: dict[str, str] = {}
    for (asked, named, *graded), where in rows:
        text, id = as_text(asked, where).strip(), named.strip() if isinstance(named, str) else ""
        if id not in documents:  # else by the rule for labels, for pandas writes 7.0 where it reads 7
            id = as_label(named, f"{where}, column {document!r}")
        if not text:
            raise InputError(f"{where}: the question is empty. Fill it in or remove the row.")
        if id not in documents:
            strangers[id] = where
        given = 1 if graded in ([], [None]) else _parse_grade(graded[0], f"{where}, column {grade!r}")
        before = judgements.setdefault(text, {}).setdefault(id, given)
        if before != given:
            raise InputError(
                f"{where}: document {id!r} has grade {given} for {text!r}, but {before} further up. Keep one "
                "of them."
            )
    if len(strangers) == len({id for grades in judgements.values() for id in grades}):
        id, where = next(iter(strangers.items()), ("", str(path)))
        raise InputError(
            f"{where}: the index holds no document {id!r}, nor any other that {path} names. An id is what a "
            f"search shows, such as {next(iter(documents), '')!r}.{did_you_mean(id, documents)}"
        )
    noted = (
        f"{len(strangers):,} right documents are not in the index ({listed(list(strangers))}): they count as "
    )
    notes = (noted + "never found.",) if strangers else ()
    numbered = {f"q{number}": text for number, text in enumerate(judgements, start=1)}
    grades = {id: judgements[text] for id, text in numbered.items()}
    return RetrievalData(path.name, documents, numbered, grades, None, notes)


def _parse_grade(value: Any, where: str) -> int:
    grade = as_number(value, where)
    if not grade.is_integer():
        raise InputError(
            f"{where}: expected a grade, a whole number such as 0 or 1, found {shown(value)}. Scale the "
            "grades up: 0.1 and 1 are 1 and 10."
        )
    return int(grade)


def _require_column(path: Path, names: list[str], usual: tuple[str, ...]) -> str:
    found = _find_column(names, usual)
    if found is None:
        raise InputError(
            f"{path}: expected a column {' or '.join(usual)}, found {listed(names)}. "
            "Rename the one that is meant."
        )
    return found


def _find_column(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """The column of the first of the usual names that there is."""
    return next((name for each in usual for name in names if name.strip().lower() == each), None)
