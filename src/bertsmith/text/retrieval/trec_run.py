"""TREC's run files, which say how a system ranked: query Q0 document rank score system."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.files import atomic_write
from bertsmith.text.files.table_file import open_table

_COLUMNS = 6
Rankings = Mapping[str, Sequence[tuple[str, float]]]  # query -> (document, score), the best first


def write_run(path: Path, rankings: Rankings, system: str) -> None:
    """Scores are written in full, so that what reads them finds the same order. `system` has no blanks; one
    in an id, which would end its column, is written as %20."""
    lines = [
        f"{query} Q0 {'%20'.join(document.split())} {rank} {score!r} {system}\n"
        for query, ranking in rankings.items()
        for rank, (document, score) in enumerate(ranking, start=1)
    ]
    atomic_write(path, "".join(lines))


def read_run(path: Path | str, encoding: str = "utf-8") -> dict[str, dict[str, float]]:
    """Query -> document -> score. As in trec_eval the scores count, and not the ranks nor the lines' order.

    Raises InputError naming the line that has other columns, no finite score, or a document once more.
    """
    found: dict[str, dict[str, float]] = {}
    with open_table(path, "run", encoding, {}, otherwise="run") as table:
        for line, text in enumerate(table.lines(), start=1):
            fields, where = text.split(), f"{table.name}, line {line}"
            if not fields:
                continue
            if len(fields) != _COLUMNS:
                raise InputError(
                    f"{where}: expected {_COLUMNS} columns (query, Q0, document, rank, score, system), "
                    f"found {len(fields)}."
                )
            query, _, document, _, score, _ = fields
            documents = found.setdefault(query, {})
            if document in documents:
                raise InputError(
                    f"{where}: document {document!r} a second time for query {query!r}. Remove one."
                )
            try:
                documents[document] = float(score)
            except ValueError:
                documents[document] = math.nan
            if not math.isfinite(documents[document]):
                raise InputError(f"{where}: expected a finite score, found {score!r}.")
    if not found:
        raise InputError(f"{path}: expected lines such as '7 Q0 d12 1 14.2 name', found none.")
    return found
