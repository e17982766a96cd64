"""The result of a benchmark: each task over its seeds, with intervals, as one record, as tables (the model
above the published ones, then task by task) and as report.html.

OUT/results.json has every figure. It is written anew from the tasks' folders whenever a seed has ended, so
that the last one writes it complete, also of several processes.
"""

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.benchmarks.benchmark import SCORE
from bertsmith.benchmarks.published import PublishedScores
from bertsmith.benchmarks.seed_run import DEV, SeedScore, read_seed_score
from bertsmith.files import atomic_write
from bertsmith.metrics.scores import Interval
from bertsmith.reporting import formatting
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.reporting.tables import Table, raw_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WITHIN = 1.96  # standard errors: 95 % of a normal distribution
_OTHER_NAMES = {"MNLI-mm": ("MNLI", "dev-mm")}  # a published column → our task and its part
_LARGE, _SMALL = 36, 14


@dataclass(frozen=True)
class TaskResult:
    """The result of one task: its seeds in order, and the search for its settings, if there was one."""

    name: str
    judged_by: str
    seeds: tuple[SeedScore, ...]
    searched: dict[str, Any] | None = None

    @property
    def best(self) -> SeedScore:
        """The seed with the best score on dev; among equal ones the lowest."""
        return max(self.seeds, key=lambda seed: (seed.score, -seed.seed))

    def scores(self, part: str = DEV) -> list[float]:
        """The task's score on a split, as a share of 1, in the order of its seeds."""
        return [seed.figures[part][SCORE] for seed in self.seeds]

    def mean(self, part: str = DEV) -> float:
        return statistics.mean(self.scores(part))

    def spread(self, part: str = DEV) -> float | None:
        """The standard deviation of the score over the seeds; None for a single seed."""
        scores = self.scores(part)
        return statistics.stdev(scores) if len(scores) > 1 else None

    def interval(self) -> Interval | None:
        """The 95 % interval of the mean score on dev, for other rows and other seeds, cut at 1. None where no
        seed's score has a standard error.
        """
        errors = [seed.standard_error for seed in self.seeds if seed.standard_error is not None]
        if not errors:
            return None
        over_rows, over_seeds = statistics.mean(errors), (self.spread() or 0.0) / math.sqrt(len(self.seeds))
        half = _WITHIN * math.hypot(over_rows, over_seeds)
        return Interval(self.mean() - half, min(self.mean() + half, 1.0))

    def to_json(self) -> dict[str, Any]:
        """The result as plain values for JSON, with scores as shares of 1."""
        interval = self.interval()
        return {
            "judged_by": self.judged_by,
            "mean": self.mean(),
            "spread": self.spread(),
            "interval": None if interval is None else list(interval),
            "best_seed": self.best.seed,
            "searched": self.searched,
            "seeds": [asdict(seed) for seed in self.seeds],
        }


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of a benchmark: the tasks with a finished seed, in the benchmark's order. `facts` are the
    settings, `notes` are sentences on the data, `published` has the scores of other models.
    """

    name: str
    model: str
    tasks: tuple[TaskResult, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]
    published: tuple[PublishedScores, ...]

    def average(self) -> float:
        """The mean of the tasks' mean scores on dev."""
        return statistics.mean(task.mean() for task in self.tasks)

    def warnings(self) -> list[str]:
        """The warnings of all seeds, each with its task and seed."""
        return [
            f"{task.name}, seed {seed.seed}: {sentence}"
            for task in self.tasks
            for seed in task.seeds
            for sentence in seed.warnings
        ]

    def to_json(self) -> dict[str, Any]:
        """The result as plain values for JSON: scores as shares of 1, published ones in points of 100."""
        return {
            "benchmark": self.name,
            "model": self.model,
            **self.facts,
            "tasks": {task.name: task.to_json() for task in self.tasks},
            "average": self.average() if self.tasks else None,
            "notes": list(self.notes),
            "published": [scores._asdict() for scores in self.published],
        }


def gather_seeds(task_folder: Path) -> tuple[SeedScore, ...]:
    """The scores of a task's finished seeds, in the order of seeds."""
    names = (path.name.removeprefix("seed-") for path in task_folder.glob("seed-*"))
    numbers = sorted(int(name) for name in names if name.isdecimal())
    scores = (read_seed_score(task_folder, number) for number in numbers)
    return tuple(score for score in scores if score is not None)


def write_benchmark_report(out: Path, result: BenchmarkResult, command: str) -> Path:
    """Writes report.html and returns its path. The same result gives the same bytes."""
    models: dict[tuple[str, str], list[str]] = {}  # (source, split) -> published models
    for other in result.published:
        models.setdefault((other.source, other.part), []).append(other.model)
    counts = [len(task.seeds) for task in result.tasks]
    fewest = f"{min(counts)} to " if min(counts) < max(counts) else ""
    most = formatting.counted(max(counts), "seed")
    page = render_page(
        "benchmark.html.jinja",
        title=f"{result.name} · {result.model}",
        status=f"{formatting.counted(len(result.tasks), 'task')}, {fewest}{most} each",
        headline=[(f"mean of {len(result.tasks)} scores on dev", points(result.average()))]
        + [(task.name, points(task.mean())) for task in result.tasks],
        warnings=[*result.notes, *result.warnings()],
        published=Table("", *published_table(result), text_columns=frozenset({0, 1})),
        tasks=Table("", *task_table(result), text_columns=frozenset({0, 1, 7})),
        pictures=[("Seeds on dev", as_markup(_seeds_picture(result)))],
        sources=[f"{', '.join(names)} ({part}): {source}" for (source, part), names in models.items()],
        searched=_searched_table(result),
        command=command,
        facts=raw_facts({"model": result.model, **result.facts}),
    )
    path = out / REPORT_FILE
    atomic_write(path, page)
    return path


def published_table(result: BenchmarkResult) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of the table beside published models: the model's mean on dev, its best seed, its
    mean on a test with labels, then each published model.
    """
    columns = _score_columns(result)
    rows = [[f"{result.model}, mean", "dev", *(points(_our_score(result, column)) for column in columns)]]
    if any(len(task.seeds) > 1 for task in result.tasks):
        best = (_our_score(result, column, best=True) for column in columns)
        rows.append([f"{result.model}, best seed", "dev", *map(points, best)])
    if any("test" in task.best.figures for task in result.tasks):
        rows.append(
            [
                f"{result.model}, mean",
                "test",
                *(points(_our_score(result, column, "test")) for column in columns),
            ]
        )
    for other in result.published:
        scores = [other.scores.get(name) for name in columns]
        cells = [formatting.UNKNOWN if value is None else f"{value:.1f}" for value in scores]
        rows.append([other.model, other.part, *cells])
    return ["", "part", *columns], rows


def _score_columns(result: BenchmarkResult) -> list[str]:
    """The names of the scores: metrics where published scores are metrics, as for SQuAD; otherwise the tasks,
    with MNLI's mismatched half.
    """
    published = {name for other in result.published for name in other.scores}
    if len(result.tasks) == 1:
        measures = [name for name in result.tasks[0].best.figures[DEV] if name in published]
        if measures:
            return measures
    names = []
    for task in result.tasks:
        names.append(task.name)
        names += [
            name
            for name, (suite_task, part) in _OTHER_NAMES.items()
            if suite_task == task.name and part in task.best.figures
        ]
    return names


def _our_score(result: BenchmarkResult, column: str, part: str = DEV, *, best: bool = False) -> float | None:
    """The model's score of a column: the mean over the seeds, or that of the best seed. None without one."""
    for task in result.tasks:
        seeds = (task.best,) if best else task.seeds
        if column in task.best.figures[DEV]:  # a metric, where there is one task
            return sum(seed.figures[DEV][column] for seed in seeds) / len(seeds)
        suite_task, its_part = _OTHER_NAMES.get(column, (column, part))
        if part != DEV and its_part != part:
            continue  # MNLI's mismatched half is a split of its own, measured on dev
        if suite_task == task.name and its_part in task.best.figures:
            return statistics.mean(seed.figures[its_part][SCORE] for seed in seeds)
    return None


def task_table(result: BenchmarkResult) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of the table of tasks: the mean score over the seeds, its interval, and the
    official metrics of the best seed.
    """
    columns = [
        "task",
        "metric",
        "dev rows",
        "mean",
        "95 % interval",
        "spread",
        "best",
        "metrics of the best",
        "s",
    ]
    rows = []
    for task in result.tasks:
        interval, best = task.interval(), task.best
        parts = [
            f"{part} {name} {points(value)}"
            for part, figures in best.figures.items()
            for name, value in figures.items()
            if name != SCORE
        ]
        row = [
            task.name,
            task.judged_by,
            formatting.count(best.rows[DEV]),
            points(task.mean()),
            formatting.UNKNOWN if interval is None else f"{points(interval.low)} to {points(interval.high)}",
            points(task.spread()),
            points(best.score),
            ", ".join(parts),
            f"{sum(seed.seconds for seed in task.seeds):,.0f}",
        ]
        rows.append(row)
    return columns, rows


def _searched_table(result: BenchmarkResult) -> Table:
    rows = [
        [
            task.name,
            str(task.searched["trials"]),
            formatting.duration(task.searched["seconds"]),
            ", ".join(f"{name} {value:.4g}" for name, value in task.searched["choice"].items()),
        ]
        for task in result.tasks
        if task.searched is not None
    ]
    return Table("", ["Task", "Trials", "Time", "Chosen on dev"], rows, text_columns=frozenset({0, 3}))


def _seeds_picture(result: BenchmarkResult) -> str:
    """A picture with a dot for each seed, the interval of their mean, and published dev scores as small
    dots.
    """

    def paint(axes: "Axes") -> None:
        for x, task in enumerate(result.tasks):
            interval = task.interval()
            if interval is not None:
                axes.plot([x, x], [100 * interval.low, 100 * interval.high], color=MUTED, linewidth=2)
            axes.scatter(
                [x] * len(task.seeds), [100 * score for score in task.scores()], color=FIRST, s=_LARGE
            )
            name = task.name if len(result.tasks) > 1 else _score_columns(result)[0]
            others: list[Any] = [
                other.scores[name] for other in result.published if other.part == DEV and name in other.scores
            ]
            axes.scatter([x + 0.18] * len(others), others, color=SECOND, s=_SMALL)
        axes.set_xticks(range(len(result.tasks)), [task.name for task in result.tasks])
        axes.set_ylabel("score on dev, in points; small: published")

    return picture("Seeds on dev", paint)


def points(share: float | None) -> str:
    """Formats a share of 1 in points, as the field prints scores: 84.3."""
    return formatting.UNKNOWN if share is None else f"{100 * share:.1f}"
