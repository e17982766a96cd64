"""What a fine-tuning run found out as rows of text: figures with their standard errors, classes, errors.

E examples, C classes.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.metrics.baselines import baseline_title
from bertsmith.metrics.scores import ClassScore, LengthScore, by_length
from bertsmith.metrics.thresholds import risk_coverage
from bertsmith.reporting import formatting
from bertsmith.reporting.tables import MOST_ROWS, Table
from bertsmith.tasks.evaluating.error_analysis import ConfusionMatrix, ErrorAnalysis, ScoredPrediction
from bertsmith.tasks.evaluating.evaluation import THE_MODEL, Evaluation, groups_of, score_of
from bertsmith.tasks.task import Metrics, Task
from bertsmith.training.finetuning.choosing import MethodScore, describe_untried
from bertsmith.training.finetuning.column_study import ColumnStudy
from bertsmith.training.finetuning.results import Results

MOST_CLASSES = 20
NO_BREAK = "\N{NO-BREAK SPACE}"
LONGEST_TEXT = 240  # characters of a text that are shown
_SHARES = re.compile("accuracy|f1|precision|recall|exact_match")
_WORDS = {
    "f1": "F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "ece": "calibration error",
}


@dataclass(frozen=True)
class Cell:
    """A count in a confusion matrix; `tint` in 0 … 1 is the root of its share of the row."""

    count: int
    tint: float
    right: bool


@dataclass(frozen=True)
class ConfusionTable:
    """The classes that are confused most, and how many others are not shown."""

    labels: list[str]
    rows: list[tuple[str, list[Cell]]]
    more: int


@dataclass(frozen=True)
class Error:
    """A wrong answer, its text cut to what can be read."""

    text: str
    where: str
    answer: ScoredPrediction


def metric_name(name: str) -> str:
    """macro_f1 as people write it: macro F1."""
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def format_figure(name: str, value: float, error: float | None = None) -> str:
    """A metric for people: shares as percentages, correlations as they are, each with its standard error."""
    share = bool(_SHARES.search(name))
    factor, decimals, unit = (100, 1, " %") if share else (1, 3, "")
    if not math.isfinite(value):
        return formatting.UNKNOWN
    spread = "" if error is None or math.isnan(error) else f" ± {factor * error:.{decimals}f}"
    return f"{factor * value:.{decimals}f}{spread}{unit}".replace(" ", NO_BREAK)


def headline(results: Results) -> list[tuple[str, str]]:
    """The figures to remember, the most telling first."""
    metric = results.task.main_metric
    tiles = [
        (
            f"{metric_name(metric)} on {name}, ± standard error",
            format_figure(metric, evaluation.model[metric], results.standard_errors[name]),
        )
        for name, evaluation in results.evaluations.items()
    ]
    tiles += [
        (f"{baseline_title(name)}, on {results.judge}", format_figure(metric, score))
        for name, score in baselines_to_beat(results).items()
    ]
    if len(results.restarts) > 1:
        summary = results.summary()
        spread = format_figure(metric, summary["mean"], summary["spread"])
        tiles.append((f"mean of {len(results.restarts)} restarts on dev, ± spread", spread))
    if "ece_after" in results.figures:
        tiles.append(
            (f"calibration error on {results.judge}", formatting.percent(results.figures["ece_after"]))
        )
    tiles.append(("training rows", formatting.count(results.train_rows)))
    seconds = sum(restart.seconds for restart in results.restarts)
    return [*tiles, ("of training", formatting.duration(seconds))]


def baselines_to_beat(results: Results) -> dict[str, float]:
    """The most frequent answer and the best of the others, by the main metric on what chose the model."""
    metric = results.task.main_metric
    found = results.evaluations[results.judge].baselines
    scores = {name: figures[metric] for name, figures in found.items()}
    names = list(scores)
    best = max(names[1:], key=lambda name: scores[name], default=None)
    return {name: scores[name] for name in (*names[:1], best) if name is not None}


def evaluation_table(name: str, evaluation: Evaluation, metric: str, error: float | None) -> Table:
    """A file's figures: a row for the model, one for each baseline."""
    names = list(evaluation.model)

    def row(title: str, figures: Metrics, error: float | None) -> list[str]:
        spread = "" if error is None else f" ± {error:.4f}"
        values = [formatting.score(figures.get(n)) for n in names]
        return [title, *(value + (spread if n == metric else "") for n, value in zip(names, values))]

    best = evaluation.best(metric)
    rows = [
        row(mark_best(title, best), figures, error if title == THE_MODEL else None)
        for title, figures in evaluation.by_name.items()
    ]
    return Table(f"{name}: {evaluation.rows:,} rows", ["", *map(metric_name, names)], rows)


def mark_best(name: str, best: str) -> str:
    """A row's title in a comparison; the best one is marked in words, for there may be no colour."""
    title = baseline_title(name)
    return f"{title} (best)" if name == best else title


def restart_table(results: Results) -> Table:
    """A row for each restart."""
    metric = metric_name(results.task.main_metric)
    rows = [
        [
            f"{number + 1}" + (" (kept)" if number == results.best else ""),
            str(restart.seed),
            formatting.score(restart.score),
            f"{restart.step:,} of {restart.steps:,}",
            formatting.duration(restart.seconds),
        ]
        for number, restart in enumerate(results.restarts)
    ]
    return Table("", ["Restart", "Seed", f"Best {metric} on dev", "At step", "Time"], rows)


def method_table(results: Results) -> Table:
    """A row for each method that cross-validation compared."""
    metric = results.task.main_metric
    rows = [
        [
            f"{each.method} (chosen)" if each.method == results.method else each.method,
            formatting.UNKNOWN if each.score is None else format_figure(metric, each.score),
            formatting.UNKNOWN if each.gain is None else format_figure(metric, each.gain, each.error),
            _format_rows_judged(each),
            formatting.UNKNOWN if each.minutes else formatting.duration(each.seconds),
        ]
        for each in results.tried
    ]
    return Table("", ["Method", metric_name(metric), "Better than the first by", "Rows judged", "Time"], rows)


def _format_rows_judged(tried: MethodScore) -> str:
    if tried.diverged is not None:
        return f"diverged in fold {tried.diverged}: left out"
    return f"{tried.rows:,}" if tried.score is not None else describe_untried(tried)


def column_tables(study: ColumnStudy, metric: str) -> list[Table]:
    """What text and columns reach, and what each column is worth."""
    name, reached = metric_name(metric), []
    for each in study.reached:
        ends = each.interval
        interval = (
            formatting.UNKNOWN if ends is None else " to ".join(format_figure(metric, end) for end in ends)
        )
        reached.append([each.name, format_figure(metric, each.score), interval])
    worths = [
        [each.name, each.kind, each.showed, format_figure(metric, each.loss, each.error)]
        for each in study.worths
    ]
    return [
        Table(f"{study.judge}: {study.rows:,} rows", ["Linear model of", name, "95 % interval"], reached),
        Table("", ["Shuffled", "Kind", "Training showed", f"{name} lost"], worths, 0, frozenset({0, 1, 2})),
    ]


def class_table(found: Sequence[ClassScore]) -> Table:
    """Precision, recall and F1 by class, the worst first; a class without a row has none to show."""
    occurring = [each for each in found if each.support]
    ordered = sorted(occurring, key=lambda each: each.f1)
    rows = [
        [each.label, f"{each.precision:.3f}", f"{each.recall:.3f}", f"{each.f1:.3f}", f"{each.support:,}"]
        for each in ordered[:MOST_CLASSES]
    ]
    columns = ["Class, the worst first", "Precision", "Recall", "F1", "Support"]
    absent = len(found) - len(occurring)
    title = f"{absent:,} classes without a row are left out" if absent else ""
    return Table(title, columns, rows, max(0, len(ordered) - MOST_CLASSES))


def confusion_table(found: ConfusionMatrix) -> ConfusionTable:
    """Counts by right class (rows) and predicted class; of very many classes those confused most."""
    wrong = found.counts - np.diag(np.diag(found.counts))
    most = np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1)), kind="stable")[:MOST_CLASSES]
    shown = sorted(most.tolist())
    labels = [found.labels[number] for number in shown]
    totals = np.maximum(found.counts.sum(axis=1), 1)
    rows = []
    for number in shown:
        counts = found.counts[number, shown].tolist()
        cells = [
            Cell(count, math.sqrt(count / totals[number]), other == number)
            for count, other in zip(counts, shown, strict=True)
        ]
        rows.append((found.labels[number], cells))
    return ConfusionTable(labels, rows, len(found.labels) - len(shown))


def confusions_table(found: ConfusionMatrix) -> Table:
    """Which class is taken for which, the most frequent first."""
    totals = dict(zip(found.labels, found.counts.sum(axis=1).tolist(), strict=True))
    every = found.most_frequent()
    rows = [
        [right, given, f"{times:,}", formatting.percent(times / totals[right])]
        for right, given, times in every[:MOST_CLASSES]
    ]
    columns = ["Right", "Taken for", "Times", "Of the right ones"]
    return Table("", columns, rows, len(every) - len(rows), frozenset({0, 1}))


def coverage_table(confidence: Floats, error: Floats) -> Table:
    """What answering only the surest texts gains."""
    found = risk_coverage(confidence, 1 - error)
    rows = [
        [formatting.percent(each.coverage), formatting.percent(each.risk), f"{each.threshold:.3f}"]
        for each in found
    ]
    columns = ["Texts answered", "Error among them", "Confidence from"]
    return Table("", columns, rows, text_columns=frozenset())


def score_by_length(task: Task[Any], evaluation: Evaluation) -> list[LengthScore]:
    """The main metric of each quarter of the examples, by their number of words; rows that belong together
    are never divided, and count by their mean.
    """
    words = [sum(len(text.split()) for text in task.texts(example)) for example in evaluation.split.examples]
    groups = groups_of(task, evaluation.split.examples)
    lengths = [round(sum(words[row] for row in rows.tolist()) / len(rows)) for rows in groups]
    found = by_length(
        lengths, lambda some: score_of(task, evaluation, np.concatenate([groups[n] for n in some]))
    )
    return [each for each in found if not math.isnan(each.score)]


def worst_errors(task: Task[Any], evaluation: Evaluation, details: ErrorAnalysis) -> list[Error]:
    """The answers that are furthest from right, of equally wrong ones the surest first."""
    wrong = [number for number, answer in enumerate(details.answers) if answer.score < 1]

    def badness(number: int) -> tuple[float, float]:
        answer = details.answers[number]
        return answer.score, -(answer.confidence or 0.0)

    found = []
    for number in sorted(wrong, key=badness)[:MOST_ROWS]:
        example = evaluation.split.examples[number]
        texts = task.texts(example)
        shown = cut(" ".join(texts)) if task.is_pretokenized else " ▸ ".join(map(cut, texts))
        found.append(Error(shown, example.where, details.answers[number]))
    return found


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """At most so many characters, with a sign that there were more."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
