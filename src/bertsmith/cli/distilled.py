"""How a distilled student is shown: beside its teacher, beside itself without one, and what it saves."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertsmith.cli.screen import console, print_table, print_warning
from bertsmith.reporting import formatting

if TYPE_CHECKING:
    from bertsmith.compression.distilling.distil_results import DistilResults
    from bertsmith.compression.static.distil_static import StaticResult


_MUCH_UNKNOWN = 0.5  # of the words of a table's texts


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


_LOSSES = {
    "soft": "words as the teacher says them (nats)",
    "mlm": "masked words (nats)",
    "states": "hidden states (1 - cosine)",
    "relations": "relations of self-attention (nats)",
    "vectors": "vectors of texts (1 - cosine)",
}


def show_losses(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """How far an encoder is from its teacher on held-out text, where there is any."""
    names = [name for name in _LOSSES if f"{name}_loss" in after]
    rows = [
        (_LOSSES[name], *(formatting.loss(each.get(f"{name}_loss")) for each in (before, after)))
        for name in names
    ]
    if rows:
        print_table(("how far from the teacher", "as cut", "distilled"), rows, title="On held-out text")


def show_table(result: "StaticResult") -> None:
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
