"""NanoBEIR's layout, that of BEIR's data sets on the hub: Parquet files in corpus/, queries/ and qrels/.

A document has `_id` and `text`, maybe `title`; a query `_id` and `text`; a judgement `query-id`, `corpus-id`
and maybe `score`, without which it says that the document answers the query. A file's name begins with that
of its split: test-00000-of-00001.parquet.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.text.files.values import as_text
from bertsmith.text.labelled.rows import LabelledRow, stream_rows
from bertsmith.text.retrieval.beir import as_grade
from bertsmith.text.retrieval.retrieval_data import Gathering, RetrievalData, titled

_PART_OF = re.compile(r"-\d+-of-\d+$")  # behind a split's name, where it is in several files
_PARTS = ("corpus", "queries", "qrels")


def is_nanobeir(folder: Path) -> bool:
    """Whether a folder holds the three folders of Parquet files by their names."""
    return all(any((folder / part).glob("*.parquet")) for part in _PARTS)


def read_nanobeir(folder: Path, split: str) -> RetrievalData:
    """Raises InputError naming file and row."""
    gathered = Gathering()
    for (id, text, title), where in _rows(_files(folder, "corpus"), ["_id", "text"], ["title"]):
        gathered.add_document(str(id), titled(as_text(title, where), as_text(text, where)), where)
    for (id, text), where in _rows(_files(folder, "queries"), ["_id", "text"]):
        gathered.add_query(str(id), as_text(text, where), where)
    judged = _judgements(folder, split)
    for (query, document, score), where in _rows(judged, ["query-id", "corpus-id"], ["score"]):
        gathered.judge(str(query), str(document), _grade(score, where), where)
    return gathered.finish(folder.name, "qrels")


def _grade(score: Any, where: str) -> int:
    """1 where there is no score; beside such a row pandas makes fractions, 1.0, of whole numbers."""
    if score is None:
        return 1
    whole = isinstance(score, float) and score.is_integer()
    return as_grade(str(int(score) if whole else score), where)


def _judgements(folder: Path, split: str) -> list[Path]:
    """The only split that there is, whatever it is called, for NanoBEIR calls its own train; else by name."""
    splits: dict[str, list[Path]] = {}
    for file in _files(folder, "qrels"):
        splits.setdefault(_PART_OF.sub("", file.stem), []).append(file)
    name = next(iter(splits)) if len(splits) == 1 else split
    if name not in splits:
        raise InputError(
            f"{folder}: no judgements of {split!r} in qrels/. There are: {', '.join(splits)}. Choose with "
            "--split."
        )
    return splits[name]


def _files(folder: Path, part: str) -> list[Path]:
    found = sorted((folder / part).glob("*.parquet"))
    if not found:
        raise InputError(f"{folder}: expected Parquet files in {part}/, as NanoBEIR has them, found none.")
    return found


def _rows(files: list[Path], columns: list[str], optional: list[str] | None = None) -> Iterator[LabelledRow]:
    for file in files:
        yield from stream_rows(file, columns, format="parquet", optional=optional or [])
