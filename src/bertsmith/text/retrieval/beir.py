"""Reads test collections in BEIR's layout (Thakur et al. 2021) and in NanoBEIR's.

| layout | files |
| --- | --- |
| BEIR | corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv with a header; each may be compressed: corpus.jsonl.gz |
| NanoBEIR | Parquet in corpus/, queries/ and qrels/, named by the split: test-00000-of-00001.parquet |

A document has `_id`, `text` and maybe `title`; a query has `_id` and `text`; a judgement has `query-id`,
`corpus-id` and `score`. NanoBEIR may leave the score out: then the document is relevant to the query.
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
from bertsmith.text.files.values import as_text, is_blank, shown
from bertsmith.text.retrieval.retrieval_data import RetrievalData, RetrievalDataBuilder, join_title

_COLUMNS = ("query-id", "corpus-id", "score")
_PARTS = ("corpus", "queries", "qrels")
_SHARD_SUFFIX = re.compile(r"-\d+-of-\d+$")  # of a file name, after the split


def is_beir(folder: Path) -> bool:
    """Whether a folder has a corpus and queries under BEIR's names."""
    return bool(list(folder.glob("corpus.jsonl*")) and list(folder.glob("queries.jsonl*")))


def find_judgements(folder: Path) -> dict[str, Path]:
    """The files of judgements by the name of their split; the uncompressed one if there are both."""
    files: dict[str, Path] = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        split, _, ending = path.name.rpartition(".tsv")
        if ending in ("", *COMPRESSIONS):
            files.setdefault(split, path)
    return files


def read_beir(folder: Path, split: str, encoding: str) -> RetrievalData:
    """Reads a folder in BEIR's layout, with the judgements of one split. Raises InputError naming file and
    line.
    """
    builder = read_beir_texts(folder, encoding)
    judgement_files = find_judgements(folder)
    judgement_file = judgement_files.get(split)
    if judgement_file is None:
        names = ", ".join(judgement_files) or "none"
        raise InputError(
            f"{folder}: no judgements in qrels/{split}.tsv. There are: {names}. Choose with --split."
        )
    for (query, document, grade), where in read_rows(
        judgement_file, _COLUMNS, format="tsv", encoding=encoding
    ):
        builder.judge(query, document, parse_grade(grade, where), where)
    return builder.finish(folder.name, judgement_file.name)


def read_beir_texts(folder: Path, encoding: str) -> RetrievalDataBuilder:
    """Reads the documents and the queries, without judgements. Raises InputError naming file and line."""
    builder = RetrievalDataBuilder()
    for record in _read_records(_find_file(folder, "corpus.jsonl"), encoding):
        title, text = _record_text(record, "title", default=""), _record_text(record, "text")
        builder.add_document(_record_id(record), join_title(title, text), record.where)
    for record in _read_records(_find_file(folder, "queries.jsonl"), encoding):
        builder.add_query(_record_id(record), _record_text(record, "text"), record.where)
    return builder


def parse_grade(value: str, where: str) -> int:
    """The grade of a judgement. Raises InputError unless `value` spells an integer."""
    try:
        return int(value.replace("_", " "))  # int() reads 1_0 as 10
    except ValueError as error:
        raise InputError(
            f"{where}: expected a grade, a whole number such as 0 or 1, found {value!r}."
        ) from error


def _read_records(path: Path, encoding: str) -> Iterator[Record]:
    """Streams the records of a JSON lines file, so that the builder holds the only copy of the texts."""
    with open_table(path, "jsonl", encoding, {}, otherwise="jsonl") as table:
        yield from JsonLinesFormat().records(table.stream)


def _find_file(folder: Path, name: str) -> Path:
    files = [folder / f"{name}{ending}" for ending in ("", *COMPRESSIONS)]
    files = [file for file in files if file.is_file()]
    if not files:
        raise InputError(f"{folder}: expected {name}, as BEIR's layout has it, found no such file.")
    return files[0]


def _record_id(record: Record) -> str:
    id = record.fields.get("_id")
    if isinstance(id, int) and not isinstance(id, bool):
        return str(id)
    return _record_text(record, "_id")


def _record_text(record: Record, key: str, default: str | None = None) -> str:
    """The text under `key`; for a missing or null one the default. Raises InputError for another type, and
    without a default for a missing text.
    """
    value: Any = record.fields.get(key, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        type_name = "nothing" if value is None else type(value).__name__
        raise InputError(f"{record.where}: expected text under {key!r}, found {type_name}.")
    return value


def is_nanobeir(folder: Path) -> bool:
    """Whether a folder has the three folders of Parquet files under NanoBEIR's names."""
    return all(any((folder / part).glob("*.parquet")) for part in _PARTS)


def read_nanobeir(folder: Path, split: str) -> RetrievalData:
    """Reads a folder in NanoBEIR's layout, with the judgements of one split. If the folder has only one
    split, that one is read whatever `split` says: NanoBEIR's is called train.

    Raises InputError naming file and row.
    """
    builder = RetrievalDataBuilder()
    for (id, text, title), where in _read_parquet_rows(
        _find_parquet_files(folder, "corpus"), ["_id", "text"], ["title"]
    ):
        builder.add_document(
            _parquet_id(id, where), join_title(as_text(title, where), as_text(text, where)), where
        )
    for (id, text), where in _read_parquet_rows(_find_parquet_files(folder, "queries"), ["_id", "text"]):
        builder.add_query(_parquet_id(id, where), as_text(text, where), where)
    splits: dict[str, list[Path]] = {}
    for file in _find_parquet_files(folder, "qrels"):
        splits.setdefault(_SHARD_SUFFIX.sub("", file.stem), []).append(file)
    judgement_files = next(iter(splits.values())) if len(splits) == 1 else splits.get(split)
    if judgement_files is None:
        raise InputError(
            f"{folder}: no judgements of {split!r} in qrels/. There are: {', '.join(splits)}. Choose with "
            "--split."
        )
    for (query, document, score), where in _read_parquet_rows(
        judgement_files, ["query-id", "corpus-id"], ["score"]
    ):
        if isinstance(score, float) and score.is_integer():  # pandas makes 1.0 of 1 beside a null
            score = int(score)
        grade = 1 if score is None else parse_grade(str(score), where)
        builder.judge(_parquet_id(query, where), _parquet_id(document, where), grade, where)
    return builder.finish(folder.name, "qrels")


def _parquet_id(value: Any, where: str) -> str:
    if is_blank(value):
        raise InputError(f"{where}: expected an id, found {shown(value)}. Mend or remove the row.")
    return str(value)


def _find_parquet_files(folder: Path, part: str) -> list[Path]:
    files = sorted((folder / part).glob("*.parquet"))
    if not files:
        raise InputError(f"{folder}: expected Parquet files in {part}/, as NanoBEIR has them, found none.")
    return files


def _read_parquet_rows(
    files: list[Path], columns: list[str], optional: list[str] | None = None
) -> Iterator[Row]:
    for file in files:
        yield from stream_rows(file, columns, format="parquet", optional=optional or [])
