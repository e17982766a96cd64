"""The tab-separated files that benchmarks are published as → rows, and rows as JSON lines.

No file quotes anything. Several files may make one part, each with columns of its own: where RTE's training
rows come as two files, the second lacks the header of the first.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertsmith.errors import InputError
from bertsmith.files import atomic_file, make_folder
from bertsmith.text.files.table_file import open_table
from bertsmith.text.files.tables import separated_rows

T = TypeVar("T")
Column = str | int | None  # a name, or a number from 1 where there is no header
AsLabel = Callable[[str, str], Any]  # (cell, where) → what the rows hold; raises InputError


class OfficialFile(NamedTuple):
    """One file, named from the task's folder, and in which columns a row's texts and label are; no `label`
    where the benchmark keeps them to itself.
    """

    name: str
    text: Column
    pair: Column = None
    label: Column = None
    header: bool = True


Layout = tuple[OfficialFile, ...]  # files that make a part together
Layouts = tuple[Layout, ...]  # ways in which a part was published, of which the first that is whole is read


class OfficialRows(NamedTuple):
    """Rows with id, text, text_pair and label as far as there are any, and how many rows were too short."""

    rows: list[dict[str, Any]]
    short: int
    labelled: bool


def find_layout(folder: Path, layouts: Layouts) -> Layout | None:
    """The first layout of which every file is there."""
    return next((layout for layout in layouts if all((folder / f.name).is_file() for f in layout)), None)


def names_of(layouts: Layouts) -> str:
    """The files that there should be, for messages."""
    return ", or ".join(" and ".join(file.name for file in layout) for layout in layouts)


def read_official(
    folder: Path, layout: Layout, as_label: AsLabel, *, skip_short: bool = False
) -> OfficialRows:
    """Every row of the layout's files in their order, numbered from 0.

    `skip_short`: rows that end before the columns asked for are left out and counted, as published scripts do
    with QQP. Raises InputError naming file and line for those otherwise, and for labels that are none.
    """
    rows: list[dict[str, Any]] = []
    short = 0
    for file in layout:
        for row in _cells(folder / file.name, file, skip_short):
            if row is None:
                short += 1
                continue
            text, pair, label, where = row
            made: dict[str, Any] = {"id": len(rows), "text": text}
            made |= {} if pair is None else {"text_pair": pair}
            made |= {} if label is None else {"label": as_label(label, where)}
            rows.append(made)
    if not rows:
        raise InputError(f"{folder / layout[0].name} has no rows. Take the file from the benchmark anew.")
    return OfficialRows(rows, short, all("label" in row for row in rows))


def draw(found: Sequence[T], rows: int | None) -> Sequence[T]:
    """All, or so many drawn at random, always the same, in their order."""
    if rows is None or rows >= len(found):
        return found
    return [found[number] for number in sorted(random.Random(0).sample(range(len(found)), rows))]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """As JSON lines, whole or not at all."""
    make_folder(path.parent)
    with atomic_file(path) as file:
        for row in rows:
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


def rows_of(path: Path) -> Iterator[Any]:
    """Such rows, or predictions."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _cells(
    path: Path, file: OfficialFile, skip_short: bool
) -> Iterator[tuple[str, str | None, str | None, str] | None]:
    """(text, pair, label, where) of each row; None for one that was too short."""
    wanted = (file.text, file.pair, file.label)
    with open_table(path, "tsv", "utf-8", {".tsv": "tsv"}, None, whole_name=True) as table:
        rows = ((line, row) for line, row in separated_rows(table.whole_lines(), table.name, "tsv") if row)
        places = _places(path, next(rows, (1, []))[1], wanted) if file.header else _numbers(wanted)
        last = max(place for place in places if place is not None)
        for line, row in rows:
            where = f"{table.name}, line {line}"
            if len(row) > last:
                text, pair, label = (None if place is None else row[place].strip("\r") for place in places)
                yield text or "", pair, label, where
            elif skip_short:
                yield None
            else:
                raise InputError(
                    f"{where}: expected at least {last + 1} columns, found {len(row)}. Take the file from "
                    "the benchmark anew."
                )


def _places(path: Path, header: Sequence[str], wanted: Sequence[Column]) -> list[int | None]:
    names = [name.strip() for name in header]
    for column in wanted:
        if isinstance(column, str) and column not in names:
            raise InputError(
                f"{path}: expected a column {column!r} in the header, as the official file has it, found "
                f"{', '.join(names) or 'nothing'}. Take the file from the benchmark anew."
            )
    return [None if column is None else names.index(str(column)) for column in wanted]


def _numbers(wanted: Sequence[Column]) -> list[int | None]:
    return [None if column is None else int(column) - 1 for column in wanted]
