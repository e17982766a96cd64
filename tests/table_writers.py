"""Rows written as tables of every format, by other libraries than the ones under test."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet as pq

Rows = Sequence[Mapping[str, Any]]


def _csv(path: Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _quoted_csv(path: Path, rows: Rows) -> None:
    """Every cell between quotes, a byte-order mark first, CRLF behind each row, as Excel writes it."""
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(rows)


def _tsv(path: Path, rows: Rows) -> None:
    """Without quotes: for cells without tabs and line breaks."""
    lines = [list(rows[0]), *(["" if cell is None else str(cell) for cell in row.values()] for row in rows)]
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8", newline="")


def _jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _json(path: Path, rows: Rows) -> None:
    path.write_text(json.dumps(list(rows), ensure_ascii=False, indent=1), encoding="utf-8")


def _parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(list(map(dict, rows))), path)


def _categories(path: Path, rows: Rows) -> None:
    """Every column as Arrow's dictionaries, pandas' categories."""
    table = pa.Table.from_pylist(list(map(dict, rows)))
    columns = [column.combine_chunks().dictionary_encode() for column in table.columns]
    pq.write_table(pa.table(columns, names=table.column_names), path)


def _pandas_parquet(path: Path, rows: Rows) -> None:
    """Where integers beside a null are fractions."""
    pandas.DataFrame(list(rows)).to_parquet(path)


def _pandas_csv(path: Path, rows: Rows) -> None:
    pandas.DataFrame(list(rows)).to_csv(path, index=False)


WRITERS: dict[str, tuple[str, Callable[[Path, Rows], None]]] = {
    "csv": ("csv", _csv),
    "quoted csv": ("csv", _quoted_csv),
    "csv of pandas": ("csv", _pandas_csv),
    "tsv": ("tsv", _tsv),
    "jsonl": ("jsonl", _jsonl),
    "json": ("json", _json),
    "parquet": ("parquet", _parquet),
    "parquet of categories": ("parquet", _categories),
    "parquet of pandas": ("parquet", _pandas_parquet),
}


def write_table(folder: Path, writer: str, rows: Rows, name: str = "rows") -> Path:
    """The file, its ending that of the format."""
    ending, write = WRITERS[writer]
    path = folder / f"{name}.{ending}"
    write(path, rows)
    return path
