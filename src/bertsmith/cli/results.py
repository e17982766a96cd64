"""How the figures of a trained model are shown, and what to mistrust in them: beside its baselines, or a
student's beside its teacher's, beside itself without one, and what it saves.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from bertsmith.cli.screen import console, print_table, print_warning
from bertsmith.metrics.baselines import baseline_title
from bertsmith.reporting import formatting
from bertsmith.reporting.tables import CLASS_FIGURES, Table, explain_metrics
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis
from bertsmith.tasks.evaluating.evaluation import THE_MODEL, Evaluation
from bertsmith.tasks.heads.name_training import NamesStudy
from bertsmith.tasks.task import Metrics
from bertsmith.training.finetuning.figures import (
    class_table,
    column_tables,
    confusions_table,
    mark_best,
    names_table,
)
from bertsmith.training.finetuning.results import Results

if TYPE_CHECKING:
    from bertsmith.compression.distil_static import StaticResult
    from bertsmith.compression.distilling.tasks.results import DistilResults

_FIGURES = {"ece_before": "calibration error before", "ece_after": "after dividing by the temperature"}

_LOSSES = {
    "soft": "words as the teacher says them (nats)",
    "mlm": "masked words (nats)",
    "states": "hidden states (1 - cosine)",
    "relations": "relations of self-attention (nats)",
    "vectors": "vectors of texts (1 - cosine)",
}
_MUCH_UNKNOWN = 0.5  # of the words of a table's texts


def show_results(results: Results, *, data_warnings: bool = True) -> None:
    """A table for each file, the restarts, then the warnings, those on the data among them."""
    for name, evaluation in results.evaluations.items():
        show_evaluation(evaluation, name, results.task.main_metric, results.standard_errors[name])
    if results.judge:
        show_meanings(results.evaluations[results.judge].model)
    if results.names is not None:
        show_names(results.names, estimate=not results.evaluations)
    show_remarks(results.task.remarks())
    if results.columns is not None:
        for table in column_tables(results.columns, results.task.main_metric):
            print_table(table.columns, table.rows, title=table.title)
        console.print(results.columns.as_sentence(results.task.main_metric), markup=False)
    summary = results.summary()
    if len(results.restarts) > 1:
        console.print(
            f"{len(results.restarts)} restarts, {results.task.main_metric} on dev: "
            f"mean {formatting.score(summary['mean'])}, spread {formatting.score(summary['spread'])}, "
            f"best {formatting.score(summary['best'])}, "
            f"{results.degenerate} learned nothing",
            markup=False,
        )
    if results.figures:
        figures = (f"{_FIGURES.get(name, name)} {value:.4f}" for name, value in results.figures.items())
        console.print(" · ".join(figures), markup=False)
        show_meanings(results.figures)
    if results.expected is not None:
        console.print(results.expected.as_sentence(results.task.main_metric), markup=False)
    if results.learning_curve is not None:
        console.print(results.learning_curve.as_sentence(results.task.main_metric), markup=False)
    for warning in results.warnings[0 if data_warnings else len(results.data_warnings) :]:
        print_warning(warning)


def show_names(study: NamesStudy, *, estimate: bool) -> None:
    """How texts were sorted by the names of the labels, and which way was taken."""
    table = names_table(study)
    print_table(table.columns, table.rows, title=table.title)
    if table.more:
        console.print(f"and {table.more:,} more labels: results.json has all", markup=False)
    for sentence in study.sentences(estimate=estimate):
        console.print(sentence, markup=False)


def show_meanings(names: Iterable[str]) -> None:
    """A line on those of the metrics that need a word, if there are any."""
    if sentence := explain_metrics(names):
        console.print(sentence, markup=False)


def show_remarks(remarks: Mapping[str, str]) -> None:
    """Prints how each file was read: a line a file."""
    for name, remark in remarks.items():
        console.print(f"{name}: {remark}", markup=False)


def show_evaluation(
    evaluation: Evaluation,
    name: str,
    metric: str,
    error: float | None,
    beside: Mapping[str, Metrics] = MappingProxyType({}),
) -> None:
    """One file's figures, a row for the model, for others `beside` it, and for each baseline; the best of the
    model and its baselines by the metric is marked.
    """
    best = evaluation.best(metric)
    by_name = {mark_best(THE_MODEL, best): evaluation.model, **beside}
    by_name |= {mark_best(who, best): figures for who, figures in evaluation.baselines.items()}
    _print_figures(by_name, evaluation, name, metric, error)


def _print_figures(
    by_name: Mapping[str, Mapping[str, float]],
    evaluation: Evaluation,
    name: str,
    metric: str,
    error: float | None,
) -> None:
    """A row for each of those named; above them the file, its rows, and how far the metric may be off."""
    names = list(evaluation.model)
    rows = [
        (who, *(formatting.score(figures.get(metric_name)) for metric_name in names))
        for who, figures in by_name.items()
    ]
    spread = "" if error is None else f", {metric} ± {error:.4f}"
    print_table(("", *names), rows, title=f"{name}: {evaluation.rows:,} rows{spread}")


def show_classes(analysis: ErrorAnalysis) -> None:
    """How each class fares, the worst first, and which are taken for which most often."""
    if analysis.per_class:
        _show_table(class_table(analysis.per_class))
        console.print(CLASS_FIGURES, markup=False)
    if analysis.confusion is not None:
        _show_table(confusions_table(analysis.confusion))


def _show_table(table: Table) -> None:
    if table.rows:
        print_table(table.columns, table.rows, title=table.title or None)
    if table.more:
        console.print(f"and {table.more:,} more: --json prints all")


def show_distilled(results: "DistilResults") -> None:
    """A table for each file, the saving, then the warnings."""
    for name, evaluation in results.student.evaluations.items():
        error = results.student.standard_errors[name]
        by_name = {baseline_title(who): figures for who, figures in results.beside(name).items()}
        _print_figures(by_name, evaluation, name, results.metric, error)
    show_meanings([results.metric])
    for sentence in results.sentences():
        console.print(sentence, markup=False)
    for warning in results.warnings:
        print_warning(warning)


def show_losses(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """How far an encoder is from its teacher on held-out text, where there is any."""
    names = [name for name in _LOSSES if f"{name}_loss" in after]
    rows = [
        (_LOSSES[name], *(formatting.loss(losses.get(f"{name}_loss")) for losses in (before, after)))
        for name in names
    ]
    if rows:
        print_table(("how far from the teacher", "as cut", "distilled"), rows, title="On held-out text")


def show_static_table(result: "StaticResult") -> None:
    """A static table's size, and how near it is to its teacher."""
    console.print(f"{result.pieces:,} vectors of {result.dimensions} dimensions.", markup=False)
    if result.after is None:
        print_warning(
            "without --texts the table has only the vectors of single pieces: learned from texts of your "
            "kind it is much nearer to its teacher"
        )
        return
    console.print(
        f"Cosine to the teacher on {result.heldout:,} sentences held out: {result.after:.4f}, before "
        f"learning from {result.sentences - result.heldout:,} others {result.before:.4f}.",
        markup=False,
    )
    if result.unknown is not None and result.unknown > _MUCH_UNKNOWN:
        print_warning(
            f"{result.unknown:.0%} of the words of the texts can't be spelled by the teacher's vocabulary "
            "and have no vector: take a teacher that knows their language"
        )
