"""What a benchmark comes to: each task over its seeds, with intervals, and all of it as one record.

OUT/results.json has every figure; what lies in the tasks' folders is gathered anew whenever a seed has ended,
so that whoever ends last, of several processes too, writes it whole.
"""

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.benchmarks.benchmark_task import SCORE
from bertsmith.benchmarks.published import Published
from bertsmith.benchmarks.seed_run import DEV, SeedScore, read_seed
from bertsmith.metrics.scores import Interval

_WITHIN = 1.96  # standard errors: 95 % of a normal distribution


@dataclass(frozen=True)
class TaskResult:
    """One task: its seeds in order, and how its settings were searched, if they were."""

    name: str
    judged_by: str
    seeds: tuple[SeedScore, ...]
    searched: dict[str, Any] | None = None

    @property
    def best(self) -> SeedScore:
        """By dev; of equals the first."""
        return max(self.seeds, key=lambda seed: (seed.score, -seed.seed))

    def scores(self, part: str = DEV) -> list[float]:
        """Of each seed."""
        return [seed.figures[part][SCORE] for seed in self.seeds]

    def mean(self, part: str = DEV) -> float:
        return statistics.mean(self.scores(part))

    def spread(self, part: str = DEV) -> float | None:
        """The standard deviation over the seeds; None of one."""
        found = self.scores(part)
        return statistics.stdev(found) if len(found) > 1 else None

    def interval(self) -> Interval | None:
        """Of the mean on dev, 95 %: for other rows of the kind and other seeds, at most 1. None where nobody
        knows how far the rows move it.
        """
        errors = [seed.standard_error for seed in self.seeds if seed.standard_error is not None]
        if not errors:
            return None
        over_rows, over_seeds = statistics.mean(errors), (self.spread() or 0.0) / math.sqrt(len(self.seeds))
        half = _WITHIN * math.hypot(over_rows, over_seeds)
        return Interval(self.mean() - half, min(self.mean() + half, 1.0))


@dataclass(frozen=True)
class BenchmarkResult:
    """Tasks that have a seed that ended, in the benchmark's order; `facts` name the model and the settings,
    `notes` are sentences on the data, `published` what others reached.
    """

    name: str
    model: str
    tasks: tuple[TaskResult, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]
    published: tuple[Published, ...]

    def average(self) -> float:
        """Of the tasks' means on dev."""
        return statistics.mean(task.mean() for task in self.tasks)

    def warnings(self) -> list[str]:
        """The seeds' own, each said once a task."""
        return [
            f"{task.name}, seed {seed.seed}: {sentence}"
            for task in self.tasks
            for seed in task.seeds
            for sentence in seed.warnings
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values: shares of one; the published figures in points of a hundred, as they were."""
        return {
            "benchmark": self.name,
            "model": self.model,
            **self.facts,
            "tasks": {task.name: _plain(task) for task in self.tasks},
            "average": self.average() if self.tasks else None,
            "notes": list(self.notes),
            "published": [each._asdict() for each in self.published],
        }


def _plain(task: TaskResult) -> dict[str, Any]:
    interval = task.interval()
    return {
        "judged_by": task.judged_by,
        "mean": task.mean(),
        "spread": task.spread(),
        "interval": None if interval is None else list(interval),
        "best_seed": task.best.seed,
        "searched": task.searched,
        "seeds": [asdict(seed) for seed in task.seeds],
    }


def gather_seeds(task_folder: Path) -> tuple[SeedScore, ...]:
    """Those that have ended, in order."""
    names = (path.name.removeprefix("seed-") for path in task_folder.glob("seed-*"))
    numbers = sorted(int(name) for name in names if name.isdecimal())
    found = (read_seed(task_folder, number) for number in numbers)
    return tuple(score for score in found if score is not None)
