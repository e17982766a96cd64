"""What a benchmark comes to: each task over its seeds, with intervals, all of it as one record, as tables
(the model above the published ones, then task by task) and as report.html.

OUT/results.json has every figure; what lies in the tasks' folders is gathered anew whenever a seed has ended,
so that whoever ends last, of several processes too, writes it whole.
"""

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.benchmarks.benchmark import SCORE
from bertsmith.benchmarks.published import PublishedScores
from bertsmith.benchmarks.seed_run import DEV, SeedScore, read_seed
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
    """One task: its seeds in order, and how its settings were searched, if they were."""

    name: str
    judged_by: str
    seeds: tuple[SeedScore, ...]
    searched: dict[str, Any] | None = None

    @property
    def best(self) -> SeedScore:
        """The seed with the best score on dev; of equal ones the lowest seed."""
        return max(self.seeds, key=lambda seed: (seed.score, -seed.seed))

    def scores(self, part: str = DEV) -> list[float]:
        """The task's score by seed."""
        return [seed.figures[part][SCORE] for seed in self.seeds]

    def mean(self, part: str = DEV) -> float:
        return statistics.mean(self.scores(part))

    def spread(self, part: str = DEV) -> float | None:
        """The standard deviation of the score over the seeds; None for a single seed."""
        scores = self.scores(part)
        return statistics.stdev(scores) if len(scores) > 1 else None

    def interval(self) -> Interval | None:
        """The 95 % interval of the mean score on dev, over other rows and other seeds, at most 1. None where
        no seed's score has a standard error.
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
    """Tasks that have a seed that ended, in the benchmark's order; `facts` name the model and the settings,
    `notes` are sentences on the data, `published` what others reached.
    """

    name: str
    model: str
    tasks: tuple[TaskResult, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]
    published: tuple[PublishedScores, ...]

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
            "tasks": {task.name: task.to_json() for task in self.tasks},
            "average": self.average() if self.tasks else None,
            "notes": list(self.notes),
            "published": [each._asdict() for each in self.published],
        }


def gather_seeds(task_folder: Path) -> tuple[SeedScore, ...]:
    """Those that have ended, in order."""
    names = (path.name.removeprefix("seed-") for path in task_folder.glob("seed-*"))
    numbers = sorted(int(name) for name in names if name.isdecimal())
    found = (read_seed(task_folder, number) for number in numbers)
    return tuple(score for score in found if score is not None)


def write_benchmark_report(out: Path, result: BenchmarkResult, command: str) -> Path:
    """The same result gives the same bytes."""
    models: dict[tuple[str, str], list[str]] = {}  # by where they were published, and on which part
    for each in result.published:
        models.setdefault((each.source, each.part), []).append(each.model)
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
        published=Table("", *beside_published(result), text_columns=frozenset({0, 1})),
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


def beside_published(result: BenchmarkResult) -> tuple[list[str], list[list[str]]]:
    """A row for the model's mean, its best seed and its test with labels, then one a published model."""
    columns = _columns(result)
    rows = [[f"{result.model}, mean", "dev", *(points(_ours(result, column)) for column in columns)]]
    if any(len(task.seeds) > 1 for task in result.tasks):
        best = (_ours(result, column, best=True) for column in columns)
        rows.append([f"{result.model}, best seed", "dev", *map(points, best)])
    if any("test" in task.best.figures for task in result.tasks):
        rows.append(
            [f"{result.model}, mean", "test", *(points(_ours(result, column, "test")) for column in columns)]
        )
    for other in result.published:
        found = [other.scores.get(name) for name in columns]
        cells = [formatting.UNKNOWN if value is None else f"{value:.1f}" for value in found]
        rows.append([other.model, other.part, *cells])
    return ["", "part", *columns], rows


def _columns(result: BenchmarkResult) -> list[str]:
    """The measures where others published these, as for SQuAD; else the tasks, and MNLI's other half."""
    published = {name for each in result.published for name in each.scores}
    if len(result.tasks) == 1:
        measures = [name for name in result.tasks[0].best.figures[DEV] if name in published]
        if measures:
            return measures
    found = []
    for task in result.tasks:
        found.append(task.name)
        found += [
            name for name, (of, part) in _OTHER_NAMES.items() if of == task.name and part in task.best.figures
        ]
    return found


def _ours(result: BenchmarkResult, column: str, part: str = DEV, *, best: bool = False) -> float | None:
    """The mean of the seeds, or that of the best one."""
    for row in result.tasks:
        seeds = (row.best,) if best else row.seeds
        if column in row.best.figures[DEV]:  # a metric, where there is one task
            return sum(seed.figures[DEV][column] for seed in seeds) / len(seeds)
        name, its_part = _OTHER_NAMES.get(column, (column, part))
        if part != DEV and its_part != part:
            continue  # MNLI's other half is a part of its own, measured on dev
        if row.name == name and its_part in row.best.figures:
            return statistics.mean(seed.figures[its_part][SCORE] for seed in seeds)
    return None


def task_table(result: BenchmarkResult) -> tuple[list[str], list[list[str]]]:
    """A row a task: the score's mean over the seeds, how sure it is, and the official metrics of the best."""
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
    """A dot a seed, the interval of their mean behind it, and published dev scores as small dots."""

    def paint(axes: "Axes") -> None:
        for place, task in enumerate(result.tasks):
            interval = task.interval()
            if interval is not None:
                axes.plot([place, place], [100 * interval.low, 100 * interval.high], color=MUTED, linewidth=2)
            axes.scatter(
                [place] * len(task.seeds), [100 * score for score in task.scores()], color=FIRST, s=_LARGE
            )
            name = task.name if len(result.tasks) > 1 else _columns(result)[0]
            others: list[Any] = [
                each.scores[name] for each in result.published if each.part == DEV and name in each.scores
            ]
            axes.scatter([place + 0.18] * len(others), others, color=SECOND, s=_SMALL)
        axes.set_xticks(range(len(result.tasks)), [task.name for task in result.tasks])
        axes.set_ylabel("score on dev, in points; small: published")

    return picture("Seeds on dev", paint)


def points(share: float | None) -> str:
    """84.3: a share of one as the field prints it."""
    return formatting.UNKNOWN if share is None else f"{100 * share:.1f}"
