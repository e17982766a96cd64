"""The common parts of benchmarks: a benchmark's folder, which is begun once and resumed with the same
settings; the contract of a task (its files, the fine-tuned head, the official metrics and the files for the
server); and reading the official tab-separated files, which are written as JSON lines.

No official file quotes its cells. A split may consist of several files, each with columns of its own: where
RTE's training rows come as two files, the second lacks the header of the first.
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
Figures = dict[str, float]  # metric → its value as a share of 1, the task's score first
Column = str | int | None  # a name, or a number from 1 where there is no header
AsLabel = Callable[[str, str], Any]  # (cell, where) → label; raises InputError


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task as fine-tuning reads them. `labelled` has further splits with labels by name,
    `unlabelled` those whose labels the benchmark doesn't publish; `notes` are sentences on problems of the
    official files.
    """

    train: Path
    dev: Path
    labelled: Mapping[str, Path] = field(default_factory=dict)
    unlabelled: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def predicted(self) -> dict[str, Path]:
        """The splits that are predicted after training, with and without labels."""
        return {**self.labelled, **self.unlabelled}


class BenchmarkTask(ABC):
    """One task of a benchmark. `name` is its official name, `head` the task's name in `finetune`, `settings`
    are further arguments of `finetune`, `measures` the official metrics, and `judged_by` describes the score.
    """

    name: str
    head: str
    settings: Mapping[str, Any]
    measures: tuple[str, ...]
    judged_by: str

    @abstractmethod
    def is_in(self, folder: Path) -> bool:
        """Whether the benchmark's folder has this task's training rows."""

    @abstractmethod
    def source(self) -> str:
        """A sentence on the files that the task needs, and where to get them."""

    @abstractmethod
    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """Reads the official files and writes them under `out` as fine-tuning reads them: all rows of each
        split, or `rows` of them, drawn at random with a fixed seed. Raises InputError that names file and
        line.
        """

    @abstractmethod
    def figures(self, rows: Path, predictions: Path) -> Figures:
        """The official metrics of a file of predictions for labelled rows, with the task's `score` first."""

    def standard_error(self, rows: Path, predictions: Path, of_head: float | None) -> float | None:
        """The standard error of the score over the rows, by default `of_head`, that of the head's main
        metric, which is the score. None where it isn't known.
        """
        return of_head

    @abstractmethod
    def write_submission(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """Writes the predictions for a split into the folder `out`, in the format that the benchmark's server
        takes, and returns the file. Nothing is uploaded. None for splits that the server doesn't ask for.
        """


@dataclass(frozen=True)
class Suite:
    """A benchmark: its name, its tasks in the order of its table, and published scores."""

    name: str
    tasks: Sequence[BenchmarkTask]
    published: tuple[PublishedScores, ...]


def begin_benchmark(
    out: Path, settings: dict[str, Any], resume: bool, at_first: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Creates a benchmark's folder and records its settings there, with the values in `at_first`, which may
    differ when it is resumed. Returns the recorded values. Raises RecipeError where the folder has other
    content or a benchmark with other settings, and where it has this benchmark but `resume` is false.
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


def hash_model(model: str | Path) -> str:
    """The SHA-256 of all files that a model is loaded from, those in subfolders such as 1_Pooling too. It
    tells whether a path still holds the same model.
    """
    folder = locate_model(model).folder
    named = ("config.json", "model.safetensors")  # a StaticEmbedding has no config.json
    parts = sorted({path.parent for path in folder.glob("*/*") if path.name in named})
    paths = [path for part in (folder, *parts) for path in sorted(part.iterdir())]
    opened = [path for path in paths if path.suffix in _OPENED and path.is_file()]
    lines = "".join(f"{path.relative_to(folder).as_posix()} {sha256(path)}\n" for path in opened)
    return hashlib.sha256(lines.encode()).hexdigest()


class OfficialFile(NamedTuple):
    """An official file by its name in the task's folder, with the columns of a row's texts and label; `label`
    is None where the benchmark doesn't publish labels.
    """

    name: str
    text: Column
    pair: Column = None
    label: Column = None
    header: bool = True


Layout = tuple[OfficialFile, ...]  # the files of a split
Layouts = tuple[Layout, ...]  # forms in which a split was published; the first that is complete is read


class OfficialRows(NamedTuple):
    """Rows with id, text and, if there are any, text_pair and label; the number of rows that were too short,
    and whether all rows have labels.
    """

    rows: list[dict[str, Any]]
    short: int
    labelled: bool


def find_layout(folder: Path, layouts: Layouts) -> Layout | None:
    """The first layout whose files all exist; None without one."""
    return next((layout for layout in layouts if all((folder / f.name).is_file() for f in layout)), None)


def describe_layouts(layouts: Layouts) -> str:
    """The names of the files of all layouts, for messages."""
    return ", or ".join(" and ".join(file.name for file in layout) for layout in layouts)


def read_official(
    folder: Path, layout: Layout, as_label: AsLabel, *, skip_short: bool = False
) -> OfficialRows:
    """The rows of the layout's files in order, numbered from 0.

    With `skip_short`, rows without all the needed columns are left out and counted, as published scripts do
    with QQP; otherwise they raise InputError that names file and line, as invalid labels do.
    """
    rows: list[dict[str, Any]] = []
    short = 0
    for file in layout:
        for row in _read_cells(folder / file.name, file, skip_short):
            if row is None:
                short += 1
                continue
            text, pair, label, where = row
            values: dict[str, Any] = {"id": len(rows), "text": text}
            values |= {} if pair is None else {"text_pair": pair}
            values |= {} if label is None else {"label": as_label(label, where)}
            rows.append(values)
    if not rows:
        raise InputError(f"{folder / layout[0].name} has no rows. Take the file from the benchmark anew.")
    return OfficialRows(rows, short, all("label" in row for row in rows))


def _read_cells(
    path: Path, file: OfficialFile, skip_short: bool
) -> Iterator[tuple[str, str | None, str | None, str] | None]:
    """Yields (text, pair, label, where) of each row; None for a row that is too short."""
    columns = (file.text, file.pair, file.label)
    with open_table(path, "tsv", "utf-8", {".tsv": "tsv"}, None, whole_name=True) as table:
        rows = ((line, row) for line, row in TsvFormat().cells(table.stream) if row)
        if not file.header:
            indices = [None if column is None else int(column) - 1 for column in columns]
        else:
            names = [name.strip() for name in next(rows, (1, []))[1]]
            for column in columns:
                if isinstance(column, str) and column not in names:
                    raise InputError(
                        f"{path}: expected a column {column!r} in the header, as the official file has it, "
                        f"found {', '.join(names) or 'nothing'}. Take the file from the benchmark anew."
                    )
            indices = [None if column is None else names.index(str(column)) for column in columns]
        last = max(index for index in indices if index is not None)
        for line, row in rows:
            where = f"{table.name}, line {line}"
            if len(row) > last:
                text, pair, label = (None if index is None else row[index].strip("\r") for index in indices)
                yield text or "", pair, label, where
            elif skip_short:
                yield None
            else:
                raise InputError(
                    f"{where}: expected at least {last + 1} columns, found {len(row)}. Take the file from "
                    "the benchmark anew."
                )


def draw_rows(rows: Sequence[T], count: int | None) -> Sequence[T]:
    """All rows, or `count` of them in their order, drawn at random with a fixed seed."""
    if count is None or count >= len(rows):
        return rows
    return [rows[number] for number in sorted(random.Random(0).sample(range(len(rows)), count))]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows as JSON lines, atomically."""
    make_folder(path.parent)
    with atomic_file(path) as file:
        for row in rows:
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


def read_rows(path: Path) -> Iterator[Any]:
    """Yields the values of a file of JSON lines: rows for fine-tuning, or predictions."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
