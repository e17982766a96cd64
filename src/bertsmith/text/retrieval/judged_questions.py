"""Questions about documents of an index, each with the id of a document that answers it: a table.

| wanted | columns |
| --- | --- |
| the question | question, query, text |
| the document | document, document_id, doc_id, id, source, answer |
| its grade, 1 where there is none | grade, relevance, score |

A question with several right documents stands in several rows.
"""

from collections.abc import Mapping
from pathlib import Path

from bertsmith.errors import InputError, did_you_mean
from bertsmith.text.files.columns import listed
from bertsmith.text.files.values import as_label, as_number, as_text
from bertsmith.text.labelled.rows import read_column_names, read_rows
from bertsmith.text.retrieval.retrieval_data import RetrievalData

TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json", ".parquet")
_QUESTION = ("question", "query", "text")
_DOCUMENT = ("document", "document_id", "doc_id", "id", "source", "answer")
_GRADE = ("grade", "relevance", "score")


def read_judged_questions(path: Path, documents: Mapping[str, str], encoding: str = "utf-8") -> RetrievalData:
    """The questions of a table about `documents`, id -> text.

    Raises InputError naming file and line, and where no row names a document that there is.
    """
    names = read_column_names(path, encoding=encoding)
    question, document = (_column(path, names, usual) for usual in (_QUESTION, _DOCUMENT))
    grade = next((name for name in names if name.lower() in _GRADE), None)
    columns = [question, document, *([grade] if grade else [])]
    judgements: dict[str, dict[str, int]] = {}
    strangers: dict[str, str] = {}
    for values, where in read_rows(path, columns, encoding=encoding):
        text, id = as_text(values[0], where).strip(), as_label(values[1], f"{where}, column {document!r}")
        if not text:
            raise InputError(f"{where}: the question is empty. Fill it in or remove the row.")
        if id not in documents:
            strangers[id] = where
        judgements.setdefault(text, {})[id] = int(as_number(values[2], where)) if grade else 1
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


def _column(path: Path, names: list[str], usual: tuple[str, ...]) -> str:
    for wanted in usual:
        for name in names:
            if name.strip().lower() == wanted:
                return name
    raise InputError(
        f"{path}: expected a column {' or '.join(usual)}, found {listed(names)}. "
        "Rename the one that is meant."
    )
