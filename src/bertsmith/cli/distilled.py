"""How a distilled student is shown: beside its teacher, beside itself without one, and what it saves."""

from typing import TYPE_CHECKING

from bertsmith.cli.screen import console, print_table, print_warning
from bertsmith.reporting import formatting

if TYPE_CHECKING:
    from bertsmith.compression.distilling.distil_results import DistilResults


def show_distilled(results: "DistilResults") -> None:
    """A table for each file, the saving, then the warnings."""
    metric = results.metric
    for name, evaluation in results.student.evaluations.items():
        error = results.student.standard_errors[name]
        spread = "" if error is None else f", {metric} ± {error:.4f}"
        names = list(evaluation.model)
        rows = [
            (who, *(formatting.score(figures.get(each)) for each in names))
            for who, figures in results.beside(name).items()
        ]
        print_table(("", *names), rows, title=f"{name}: {evaluation.rows:,} rows{spread}")
    for sentence in results.sentences():
        console.print(sentence, markup=False)
    for warning in results.warnings:
        print_warning(warning)
