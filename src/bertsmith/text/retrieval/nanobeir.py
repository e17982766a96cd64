"""NanoBEIR's layout, that of BEIR's data sets on the hub: Parquet files in corpus/, queries/ and qrels/.

A document has `_id` and `text`, maybe `title`; a query `_id` and `text`; a judgement `query-id`, `corpus-id`
and maybe `score`, without which it says that the document answers the query.
"""

from collections.abc import Iterator
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.text.files.values import as_text
from bertsmith.text.labelled.rows import LabelledRow, stream_rows
from bertsmith.text.retrieval.beir import as_grade
from bertsmith.text.retrieval.retrieval_data import Gathering, RetrievalData, titled

_PARTS = ("corpus", "queries", "qrels")


def is_nanobeir(folder: Path) -> bool:
    """Whether a folder holds the three folders of Parquet files by their names."""
    return all(any((folder / part).glob("*.parquet")) for part in _PARTS)


def read_nanobeir(folder: Path) -> RetrievalData:
    """Raises InputError naming file and row."""
    gathered = Gathering()
    for (id, text, title), where in _rows(folder, "corpus", ["_id", "text"], ["title"]):
        gathered.add_document(str(id), titled(as_text(title, where), as_text(text, where)), where)
    for (id, text), where in _rows(folder, "queries", ["_id", "text"]):
        gathered.add_query(str(id), as_text(text, where), where)
    for (query, document, grade), where in _rows(folder, "qrels", ["query-id", "corpus-id"], ["score"]):
        gathered.judge(str(query), str(document), 1 if grade is None else as_grade(str(grade), where), where)
    return gathered.finish(folder.name, "qrels")


def _rows(
    folder: Path, part: str, columns: list[str], optional: list[str] | None = None
) -> Iterator[LabelledRow]:
    files = sorted((folder / part).glob("*.parquet"))
    if not files:
        raise InputError(f"{folder}: expected Parquet files in {part}/, as NanoBEIR has them, found none.")
    for file in files:
        yield from stream_rows(file, columns, format="parquet", optional=optional or [])
