"""BEIR's layout (Thakur et al. 2021), as its files are published, and as its data sets on the hub are.

BEIR's        corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv; each may be packed: corpus.jsonl.gz. The
judgements are tab-separated under a header. NanoBEIR's    Parquet files in corpus/, queries/ and qrels/,
whose names begin with that of their split: test-00000-of-00001.parquet

A document has `_id`, `text` and maybe `title`; a query `_id` and `text`; a judgement `query-id`,
`corpus-id` and `score`. NanoBEIR may leave the score out: then the document answers the query.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.text.files.rows import read_rows, stream_rows
from bertsmith.text.files.streams import COMPRESSIONS
from bertsmith.text.files.table_file import open_table
from bertsmith.text.files.tables import JsonLinesFormat, Record, Row
from bertsmith.text.files.values import as_text
from bertsmith.text.retrieval.retrieval_data import RetrievalData, RetrievalDataBuilder, join_title

_COLUMNS = ("query-id", "corpus-id", "score")
_PARTS = ("corpus", "queries", "qrels")
_PART_OF = re.compile(r"-\d+-of-\d+$")  # behind a split's name, where it is in several files


def is_beir(folder: Path) -> bool:
    """Whether a folder holds a corpus and queries by their names."""
    return bool(list(folder.glob("corpus.jsonl*")) and list(folder.glob("queries.jsonl*")))


def find_judgements(folder: Path) -> dict[str, Path]:
    """The files of judgements by their split's name; of one that lies there packed too the plain one."""
    found: dict[str, Path] = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        split, _, ending = path.name.rpartition(".tsv")
        if ending in ("", *COMPRESSIONS):
            found.setdefault(split, path)
    return found


def read_beir(folder: Path, split: str, encoding: str) -> RetrievalData:
    """Raises InputError naming file and line."""
    gathered = read_beir_texts(folder, encoding)
    there = find_judgements(folder)
    judged = there.get(split)
    if judged is None:
        names = ", ".join(there) or "none"
        raise InputError(
            f"{folder}: no judgements in qrels/{split}.tsv. There are: {names}. Choose with --split."
        )
    for (query, document, grade), where in read_rows(judged, _COLUMNS, format="tsv", encoding=encoding):
        gathered.judge(query, document, parse_grade(grade, where), where)
    return gathered.finish(folder.name, judged.name)


def read_beir_texts(folder: Path, encoding: str) -> RetrievalDataBuilder:
    """The documents and the queries, without judgements. Raises InputError naming file and line."""
    gathered = RetrievalDataBuilder()
    for record in _read_records(_find_file(folder, "corpus.jsonl"), encoding):
        title, text = _record_text(record, "title", missing=""), _record_text(record, "text")
        gathered.add_document(_record_id(record), join_title(title, text), record.where)
    for record in _read_records(_find_file(folder, "queries.jsonl"), encoding):
        gathered.add_query(_record_id(record), _record_text(record, "text"), record.where)
    return gathered


def parse_grade(value: str, where: str) -> int:
    """A grade as judgements spell it. Raises InputError for anything but a whole number."""
    try:
        return int(value)
    except ValueError as error:
        raise InputError(
            f"{where}: expected a grade, a whole number such as 0 or 1, found {value!r}."
        ) from error


def _read_records(path: Path, encoding: str) -> Iterator[Record]:
    """One at a time: a corpus of millions is held once, as text."""
    with open_table(path, "jsonl", encoding, {}, otherwise="jsonl") as table:
        yield from JsonLinesFormat().records(table.stream)


def _find_file(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}*"))
    if not found:
        raise InputError(f"{folder}: expected {name}, as BEIR's layout has it, found no such file.")
    return found[0]


def _record_id(record: Record) -> str:
    found = record.fields.get("_id")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return _record_text(record, "_id")


def _record_text(record: Record, key: str, missing: str | None = None) -> str:
    found: Any = record.fields.get(key, missing)
    if found is None and missing is not None:
        return missing
    if not isinstance(found, str):
        kind = "nothing" if found is None else type(found).__name__
        raise InputError(f"{record.where}: expected text under {key!r}, found {kind}.")
    return found


def is_nanobeir(folder: Path) -> bool:
    """Whether a folder holds the three folders of Parquet files by their names."""
    return all(any((folder / part).glob("*.parquet")) for part in _PARTS)


def read_nanobeir(folder: Path, split: str) -> RetrievalData:
    """Raises InputError naming file and row."""
    gathered = RetrievalDataBuilder()
    for (id, text, title), where in _read_parquet_rows(
        _find_parquet_files(folder, "corpus"), ["_id", "text"], ["title"]
    ):
        gathered.add_document(str(id), join_title(as_text(title, where), as_text(text, where)), where)
    for (id, text), where in _read_parquet_rows(_find_parquet_files(folder, "queries"), ["_id", "text"]):
        gathered.add_query(str(id), as_text(text, where), where)
    splits: dict[str, list[Path]] = {}
    for file in _find_parquet_files(folder, "qrels"):
        splits.setdefault(_PART_OF.sub("", file.stem), []).append(file)
    # The only split that there is, whatever it is called, for NanoBEIR calls its own train.
    judged = next(iter(splits.values())) if len(splits) == 1 else splits.get(split)
    if judged is None:
        raise InputError(
            f"{folder}: no judgements of {split!r} in qrels/. There are: {', '.join(splits)}. Choose with "
            "--split."
        )
    for (query, document, score), where in _read_parquet_rows(judged, ["query-id", "corpus-id"], ["score"]):
        # Without a score the document answers; beside such a row pandas makes 1.0 of 1.
        whole = int(score) if isinstance(score, float) and score.is_integer() else score
        grade = 1 if score is None else parse_grade(str(whole), where)
        gathered.judge(str(query), str(document), grade, where)
    return gathered.finish(folder.name, "qrels")


def _find_parquet_files(folder: Path, part: str) -> list[Path]:
    found = sorted((folder / part).glob("*.parquet"))
    if not found:
        raise InputError(f"{folder}: expected Parquet files in {part}/, as NanoBEIR has them, found none.")
    return found


def _read_parquet_rows(
    files: list[Path], columns: list[str], optional: list[str] | None = None
) -> Iterator[Row]:
    for file in files:
        yield from stream_rows(file, columns, format="parquet", optional=optional or [])
