"""How the figures of a fine-tuned model are shown: beside its baselines, with what to mistrust."""

from bertsmith.cli.screen import console, print_table, print_warning
from bertsmith.reporting import formatting
from bertsmith.tasks.evaluating.evaluation import Evaluation
from bertsmith.training.finetuning.column_study import ColumnStudy
from bertsmith.training.finetuning.figures import column_tables
from bertsmith.training.finetuning.results import Results

_FIGURES = {"ece_before": "calibration error before", "ece_after": "after scaling by the temperature"}


def show_results(results: Results) -> None:
    """A table for each file, the restarts, then the warnings."""
    for name, evaluation in results.evaluations.items():
        error = results.standard_errors[name]
        spread = "" if error is None else f", {results.task.main_metric} ± {error:.4f}"
        show_evaluation(evaluation, f"{name}: {evaluation.rows:,} rows{spread}")
    if results.columns is not None:
        _show_columns(results.columns, results.task.main_metric)
    summary = results.summary()
    if len(results.restarts) > 1:
        console.print(
            f"{len(results.restarts)} restarts, {results.task.main_metric} on dev: "
            f"mean {formatting.score(summary['mean'])}, spread {formatting.score(summary['spread'])}, "
            f"best {formatting.score(summary['best'])}, "
            f"{results.degenerate} degenerate",
            markup=False,
        )
    if results.figures:
        figures = (f"{_FIGURES.get(name, name)} {value:.4f}" for name, value in results.figures.items())
        console.print(" · ".join(figures), markup=False)
    if results.expected is not None:
        console.print(results.expected.as_sentence(results.task.main_metric), markup=False)
    if results.learning_curve is not None:
        console.print(results.learning_curve.as_sentence(results.task.main_metric), markup=False)
    for warning in results.warnings:
        print_warning(warning)


def _show_columns(study: ColumnStudy, metric: str) -> None:
    for table in column_tables(study, metric):
        print_table(table.columns, table.rows, title=table.title)
    console.print(study.as_sentence(metric), markup=False)


def show_evaluation(evaluation: Evaluation, title: str) -> None:
    """One file's figures, a row for the model and one for each baseline."""
    names = list(evaluation.model)
    rows = [("the model", *(formatting.score(evaluation.model[name]) for name in names))]
    for baseline, metrics in evaluation.baselines.items():
        rows.append((baseline, *(formatting.score(metrics.get(name)) for name in names)))
    print_table(("", *names), rows, title=title)
