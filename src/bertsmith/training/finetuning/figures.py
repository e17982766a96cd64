"""Formats the results of a fine-tuning run for its page and the terminal: figures with their standard errors,
and tables of methods, restarts, classes and errors.

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
from bertsmith.tasks.heads.name_training import NamesStudy
from bertsmith.tasks.task import Metrics, Task
from bertsmith.text.words import split_at_blanks
from bertsmith.training.finetuning.choosing import MethodScore, describe_untried
from bertsmith.training.finetuning.column_study import ColumnStudy
from bertsmith.training.finetuning.results import Results

MOST_CLASSES = 20
NO_BREAK = "\N{NO-BREAK SPACE}"
LONGEST_TEXT = 240  # characters shown of a text
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
    """A count in a confusion matrix. `tint` in [0, 1] is the square root of the count's share of its row,
    `right` whether the prediction is the right class.
    """

    count: int
    tint: float
    right: bool


@dataclass(frozen=True)
class ConfusionTable:
    """The confusion matrix of the classes that are confused most: their labels (columns), a row for each
    right class, and how many classes aren't shown (`more`).
    """

    labels: list[str]
    rows: list[tuple[str, list[Cell]]]
    more: int


@dataclass(frozen=True)
class Error:
    """A wrong answer: the example's shortened text, where the example comes from, and the prediction."""

    text: str
    where: str
    answer: ScoredPrediction


def metric_name(name: str) -> str:
    """A metric's name as people write it: macro_f1 as macro F1."""
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def format_figure(name: str, value: float, error: float | None = None) -> str:
    """Formats a metric with its standard error, if there is one: shares as percentages ('84.1 ± 1.2 %'),
    other metrics such as correlations as they are. A value that isn't finite becomes a dash.
    """
    share = bool(_SHARES.search(name))
    factor, decimals, unit = (100, 1, " %") if share else (1, 3, "")
    if not math.isfinite(value):
        return formatting.UNKNOWN
    spread = "" if error is None or math.isnan(error) else f" ± {factor * error:.{decimals}f}"
    return f"{factor * value:.{decimals}f}{spread}{unit}".replace(" ", NO_BREAK)


def headline(results: Results) -> list[tuple[str, str]]:
    """The most important figures as (title, figure), the most telling first: the main metric on each split,
    baselines, the spread over restarts, calibration, training rows and time.
    """
    metric = results.task.main_metric
    tiles = [] if results.evaluations else _names_tile(results.names)
    tiles += [
        (
            f"{metric_name(metric)} on {name}" + ("" if error is None else ", ± standard error"),
            format_figure(metric, results.evaluations[name].model[metric], error),
        )
        for name, error in results.standard_errors.items()
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
    if not results.restarts:
        return tiles
    seconds = sum(restart.seconds for restart in results.restarts)
    return [*tiles, ("of training", formatting.duration(seconds))]


def _names_tile(study: NamesStudy | None) -> list[tuple[str, str]]:
    if study is None or study.expected is None:
        return []
    score, low, high = (f"{100 * share:.0f}" for share in study.expected)
    return [("expected accuracy, an estimate without labels", f"{score}{NO_BREAK}% ({low} to {high})")]


def baselines_to_beat(results: Results) -> dict[str, float]:
    """The main metric of the most frequent answer and of the best other baseline, by the split that the model
    was chosen by.
    """
    metric = results.task.main_metric
    if not results.judge:
        return {}
    baselines = results.evaluations[results.judge].baselines
    scores = {name: figures[metric] for name, figures in baselines.items()}
    names = list(scores)
    finite = [name for name in names[1:] if math.isfinite(scores[name])]
    best = max(finite or names[1:], key=lambda name: scores[name], default=None)
    return {name: scores[name] for name in (*names[:1], best) if name is not None}


def names_table(study: NamesStudy) -> Table:
    """The table of how many of the unlabelled texts have each label, the most frequent first."""
    order = sorted(study.shares, key=lambda label: -study.shares[label])
    rows = [[shorten(label, 40), formatting.percent(study.shares[label])] for label in order[:MOST_CLASSES]]
    title = f"{formatting.counted(study.texts, 'text')} by the names of the labels"
    return Table(title, ["Label", "Texts"], rows, len(order) - len(rows))


def unsure_table(study: NamesStudy) -> Table:
    """The table of some texts that a model learned from names is least sure of."""
    rows = [
        [shorten(text), shorten(label, 40), formatting.percent(sure)] for text, label, sure in study.unsure
    ]
    return Table(
        "Texts it is least sure of", ["Text", "It looks like", "How sure"], rows, 0, frozenset({0, 1})
    )


def evaluation_table(name: str, evaluation: Evaluation, metric: str, error: float | None) -> Table:
    """The table of a split's metrics: a row for the model and one for each baseline. `error` is the standard
    error of the main metric `metric` of the model.
    """
    names = list(evaluation.model)

    def row(title: str, figures: Metrics, error: float | None) -> list[str]:
        spread = "" if error is None else f" ± {error:.4f}"
        values = {column: formatting.score(figures.get(column)) for column in names}
        return [title, *(value + (spread if column == metric else "") for column, value in values.items())]

    best = evaluation.best(metric)
    rows = [
        row(mark_best(title, best), figures, error if title == THE_MODEL else None)
        for title, figures in evaluation.by_name.items()
    ]
    return Table(f"{name}: {evaluation.rows:,} rows", ["", *map(metric_name, names)], rows)


def mark_best(name: str, best: Sequence[str]) -> str:
    """A row's title in a comparison. The best are marked in words, for where there is no colour."""
    title = baseline_title(name)
    return f"{title} (best)" if name in best else title


def restart_table(results: Results) -> Table:
    """The table of restarts: seed, best score on dev, its step, and the time."""
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
    """The table of the methods that cross-validation compared: score, gain, scored rows, and the time."""
    metric = results.task.main_metric
    rows = [
        [
            f"{score.method} (chosen)" if score.method == results.method else score.method,
            formatting.UNKNOWN if score.score is None else format_figure(metric, score.score),
            formatting.UNKNOWN if score.gain is None else format_figure(metric, score.gain, score.error),
            _format_rows_judged(score),
            formatting.UNKNOWN if score.minutes else formatting.duration(score.seconds),
        ]
        for score in results.tried
    ]
    return Table("", ["Method", metric_name(metric), "Better than the first by", "Rows judged", "Time"], rows)


def _format_rows_judged(score: MethodScore) -> str:
    if score.diverged is not None:
        return f"diverged in fold {score.diverged}: left out"
    return f"{score.rows:,}" if score.score is not None else describe_untried(score)


def column_tables(study: ColumnStudy, metric: str) -> list[Table]:
    """Two tables: the score of the models of text and columns, and what each column is worth."""
    name, reached = metric_name(metric), []
    for score in study.reached:
        ends = score.interval
        interval = (
            formatting.UNKNOWN if ends is None else " to ".join(format_figure(metric, end) for end in ends)
        )
        reached.append([score.name, format_figure(metric, score.score), interval])
    worths = [
        [worth.name, worth.kind, worth.showed, format_figure(metric, worth.loss, worth.error)]
        for worth in study.worths
    ]
    return [
        Table(f"{study.judge}: {study.rows:,} rows", ["Linear model of", name, "95 % interval"], reached),
        Table("", ["Shuffled", "Kind", "Training showed", f"{name} lost"], worths, 0, frozenset({0, 1, 2})),
    ]


def class_table(scores: Sequence[ClassScore]) -> Table:
    """The table of precision, recall and F1 by class, the worst F1 first. Classes without a row are left out,
    and so are all but the `MOST_CLASSES` worst.
    """
    occurring = [score for score in scores if score.support]
    by_f1 = sorted(occurring, key=lambda score: score.f1)
    rows = [
        [
            score.label,
            f"{score.precision:.3f}",
            f"{score.recall:.3f}",
            f"{score.f1:.3f}",
            f"{score.support:,}",
        ]
        for score in by_f1[:MOST_CLASSES]
    ]
    columns = ["Class, the worst first", "Precision", "Recall", "F1", "Rows"]
    absent = len(scores) - len(occurring)
    title = f"Left out: {formatting.counted(absent, 'label')} without a row" if absent else ""
    return Table(title, columns, rows, max(0, len(by_f1) - MOST_CLASSES))


def confusion_table(matrix: ConfusionMatrix) -> ConfusionTable:
    """Counts by right class (rows) and predicted class (columns), for the classes that are confused most."""
    wrong = matrix.counts - np.diag(np.diag(matrix.counts))
    most_confused = np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1)), kind="stable")[:MOST_CLASSES]
    shown = sorted(most_confused.tolist())
    labels = [matrix.labels[index] for index in shown]
    totals = np.maximum(matrix.counts.sum(axis=1), 1)
    rows = []
    for index in shown:
        counts = matrix.counts[index, shown].tolist()
        cells = [
            Cell(count, math.sqrt(count / totals[index]), other == index)
            for count, other in zip(counts, shown, strict=True)
        ]
        rows.append((matrix.labels[index], cells))
    return ConfusionTable(labels, rows, len(matrix.labels) - len(shown))


def confusions_table(matrix: ConfusionMatrix) -> Table:
    """The table of pairs of right and predicted class that differ, the most frequent first."""
    totals = dict(zip(matrix.labels, matrix.counts.sum(axis=1).tolist(), strict=True))
    confusions = matrix.most_frequent()
    rows = [
        [right, predicted, f"{count:,}", formatting.percent(count / totals[right])]
        for right, predicted, count in confusions[:MOST_CLASSES]
    ]
    columns = ["Right", "Taken for", "Times", "Of the right ones"]
    return Table("", columns, rows, len(confusions) - len(rows), frozenset({0, 1}))


def coverage_table(confidence: Floats, error: Floats) -> Table:
    """The table of error by coverage, if only the texts with the highest confidence are answered.
    `confidence` and `error` are (A,) of the answers with a confidence.
    """
    points = risk_coverage(confidence, 1 - error)
    rows = [
        [formatting.percent(point.coverage), formatting.percent(point.risk), f"{point.threshold:.3f}"]
        for point in points
    ]
    columns = ["Texts answered", "Error among them", "Confidence from"]
    return Table("", columns, rows, text_columns=frozenset())


def score_by_length(task: Task[Any], evaluation: Evaluation) -> list[LengthScore]:
    """The main metric of each quarter of the examples by their number of words, or characters of Chinese
    and Japanese. Rows of one group stay together, with their mean number of words. Quarters whose metric is
    NaN are left out.
    """
    words = [
        sum(len(split_at_blanks(text)) for text in task.texts(example))
        for example in evaluation.split.examples
    ]
    groups = groups_of(task, evaluation.split.examples)
    lengths = [round(sum(words[row] for row in rows.tolist()) / len(rows)) for rows in groups]
    scores = by_length(
        lengths,
        lambda indices: score_of(task, evaluation, np.concatenate([groups[index] for index in indices])),
    )
    return [score for score in scores if not math.isnan(score.score)]


def worst_errors(task: Task[Any], evaluation: Evaluation, details: ErrorAnalysis) -> list[Error]:
    """The wrong answers by rising score, of equal ones those with the highest confidence first."""
    wrong = [index for index, answer in enumerate(details.answers) if answer.score < 1]

    def sort_key(index: int) -> tuple[float, float]:
        answer = details.answers[index]
        return answer.score, -(answer.confidence or 0.0)

    errors = []
    for index in sorted(wrong, key=sort_key)[:MOST_ROWS]:
        example = evaluation.split.examples[index]
        texts = task.texts(example)
        shown = shorten(" ".join(texts)) if task.is_pretokenized else " ▸ ".join(map(shorten, texts))
        errors.append(Error(shown, example.where, details.answers[index]))
    return errors


def shorten(text: str, longest: int = LONGEST_TEXT) -> str:
    """Shortens the text to at most `longest` characters, with an ellipsis if there were more."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
