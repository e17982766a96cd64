"""Reads and writes TREC's run files, a system's rankings: lines of query Q0 document rank score system."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.files import atomic_write
from bertsmith.text.files.table_file import open_table

_COLUMNS = 6
Rankings = Mapping[str, Sequence[tuple[str, float]]]  # query -> (document, score), the best first


def write_run(path: Path, rankings: Rankings, system: str) -> None:
    """Writes rankings as a run file, with scores in full precision, so that their order stays the same.

    A blank in a document's id, which would end the column, is written as %20; `system` must not have any.
    """
    lines = [
        f"{query} Q0 {'%20'.join(document.split())} {rank} {score!r} {system}\n"
        for query, ranking in rankings.items()
        for rank, (document, score) in enumerate(ranking, start=1)
    ]
    atomic_write(path, "".join(lines))


def read_run(path: Path | str, encoding: str = "utf-8") -> dict[str, dict[str, float]]:
    """Reads a run file: query -> document -> score. As in trec_eval, neither ranks nor the order of lines
    count.

    Raises InputError naming the line that has other columns, no finite score, or a document for a second
    time.
    """
    scores: dict[str, dict[str, float]] = {}
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
            query_scores = scores.setdefault(query, {})
            if document in query_scores:
                raise InputError(
                    f"{where}: document {document!r} a second time for query {query!r}. Remove one."
                )
            try:
                query_scores[document] = float(score.replace("_", "?"))  # float() reads 1_0 as 10
            except ValueError:
                query_scores[document] = math.nan
            if not math.isfinite(query_scores[document]):
                raise InputError(f"{where}: expected a finite score, found {score!r}.")
    if not scores:
        raise InputError(f"{path}: expected lines such as '7 Q0 d12 1 14.2 name', found none.")
    return scores
