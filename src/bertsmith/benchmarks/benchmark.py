"""What benchmarks have in common: the folder of one, begun once or gone on with by the same settings; the
contract of a task (its files, what is fine-tuned on them, how predictions are judged and handed in); and the
tab-separated files that benchmarks are published as → rows, and rows as JSON lines.

No official file quotes anything. Several files may make one part, each with columns of its own: where RTE's
training rows come as two files, the second lacks the header of the first.
"""

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertsmith.benchmarks.published import PublishedScores
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import atomic_file, make_folder, read_json, sha256, write_json
from bertsmith.model.locate import locate_model
from bertsmith.text.files.table_file import open_table
from bertsmith.text.files.tables import TsvFormat

SCORE = "score"
BEGUN = "benchmark.json"
_OPENED = (".safetensors", ".bin", ".json", ".txt")  # weights, settings, vocabularies
T = TypeVar("T")
Figures = dict[str, float]  # measure → a share of one, the task's score first
Column = str | int | None  # a name, or a number from 1 where there is no header
AsLabel = Callable[[str, str], Any]  # (cell, where) → what the rows hold; raises InputError


@dataclass(frozen=True)
class TaskFiles:
    """Rows as fine-tuning reads them. `judged` are further parts with labels, by name, `unjudged` those whose
    labels the benchmark keeps to itself; `notes` are sentences on what reading had to do.
    """

    train: Path
    dev: Path
    judged: Mapping[str, Path] = field(default_factory=dict)
    unjudged: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def predicted(self) -> dict[str, Path]:
        """Every part that is predicted when the training has ended."""
        return {**self.judged, **self.unjudged}


class BenchmarkTask(ABC):
    """One task of a benchmark. `name` is the benchmark's own, `head` the task as `finetune` knows it,
    `settings` what it is told beside the files, `measures` the official metrics, and `judged_by` what the
    score is made of, in words.
    """

    name: str
    head: str
    settings: Mapping[str, Any]
    measures: tuple[str, ...]
    judged_by: str

    @abstractmethod
    def is_in(self, folder: Path) -> bool:
        """Whether the benchmark's folder has this task's rows to train on."""

    @abstractmethod
    def source(self) -> str:
        """A sentence that says which files there should be, and where they are from."""

    @abstractmethod
    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """Reads the official files and writes them under `out` as fine-tuning reads them: all rows of each
        part, or `rows` drawn at random, always the same. Raises InputError naming file and line.
        """

    @abstractmethod
    def figures(self, rows: Path, predictions: Path) -> Figures:
        """The official metrics of a file of predictions for labelled rows, `score` first."""

    def standard_error(self, rows: Path, predictions: Path, of_head: float | None) -> float | None:
        """Of the score, over the rows: `of_head`, that of the head's main metric, where that is the score.
        None where it can't be told.
        """
        return of_head

    @abstractmethod
    def hand_in(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """Writes predictions for rows into the folder `out` as the benchmark's server takes them; None for
        parts that it doesn't ask for.
        """


@dataclass(frozen=True)
class Suite:
    """A benchmark: its name, its tasks in the order of its table, and what others reached."""

    name: str
    tasks: Sequence[BenchmarkTask]
    published: tuple[PublishedScores, ...]


def begin(
    out: Path, settings: dict[str, Any], resume: bool, at_first: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Makes the folder and notes what was begun there, and beside it `at_first`, which need not be the same
    when it goes on. Returns what was noted when it was begun. Raises RecipeError where the folder holds
    something else, other settings, or the same unasked.
    """
    stored = out / BEGUN
    if stored.exists():
        if not resume:
            raise RecipeError(
                f"{out} already holds a benchmark. Go on with it by --resume, or take another folder."
            )
        begun: dict[str, Any] = read_json(stored)
        if differing := [name for name in settings if begun.get(name) != settings[name]]:
            raise RecipeError(
                f"{out} was begun with other settings: {', '.join(differing)}. Resume with the same ones, or "
                "choose another folder."
            )
        return begun
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and holds no benchmark. Choose another folder.")
    make_folder(out)
    begun = {**settings, **(at_first or {})}
    write_json(stored, begun)
    return begun


def model_hash(model: str | Path) -> str:
    """SHA-256 of all that a model is opened from, its parts such as 1_Pooling too: its path may hold other
    files tomorrow.
    """
    folder = locate_model(model).folder
    parts = sorted(path.parent for path in folder.glob("*/config.json"))
    paths = [path for part in (folder, *parts) for path in sorted(part.iterdir())]
    opened = [path for path in paths if path.suffix in _OPENED and path.is_file()]
    lines = "".join(f"{path.relative_to(folder).as_posix()} {sha256(path)}\n" for path in opened)
    return hashlib.sha256(lines.encode()).hexdigest()


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


def _cells(
    path: Path, file: OfficialFile, skip_short: bool
) -> Iterator[tuple[str, str | None, str | None, str] | None]:
    """(text, pair, label, where) of each row; None for one that was too short."""
    wanted = (file.text, file.pair, file.label)
    with open_table(path, "tsv", "utf-8", {".tsv": "tsv"}, None, whole_name=True) as table:
        rows = ((line, row) for line, row in TsvFormat().cells(table.stream) if row)
        if not file.header:
            places = [None if column is None else int(column) - 1 for column in wanted]
        else:
            names = [name.strip() for name in next(rows, (1, []))[1]]
            for column in wanted:
                if isinstance(column, str) and column not in names:
                    raise InputError(
                        f"{path}: expected a column {column!r} in the header, as the official file has it, "
                        f"found {', '.join(names) or 'nothing'}. Take the file from the benchmark anew."
                    )
            places = [None if column is None else names.index(str(column)) for column in wanted]
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
    """Reads JSON lines: rows for fine-tuning, or predictions."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
