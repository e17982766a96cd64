"""The contract of a benchmark's task: its files, what is fine-tuned on them, how predictions are judged, and
how they are handed in.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Figures = dict[str, float]  # measure → a share of one, the task's score first

SCORE = "score"


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
