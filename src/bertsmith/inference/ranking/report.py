"""Writes a comparison of ways to search as a folder: results.json, a TREC run file of each system under
runs/, and report.html with figures, each query's gain, and the best system's worst queries.

Q queries.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertsmith.files import atomic_folder, write_json
from bertsmith.inference.ranking.ranking import system_title
from bertsmith.inference.ranking.results import Comparison, Figures
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture
from bertsmith.reporting.page import as_markup, render_page
from bertsmith.reporting.tables import Table, explain_metrics, metric_title, raw_facts
from bertsmith.text.retrieval.trec_run import write_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORST, SHOWN, LONGEST = 20, 3, 300  # queries, documents of each, characters of a text


def write_comparison(out: Path, comparison: Comparison, command: str) -> None:
    """Writes the folder `out`. `command` is the command line that repeats the comparison.

    Raises InputError when `out` exists, ResourceError when the disk is full; then nothing is left behind.
    """
    with atomic_folder(out) as folder:
        (folder / "runs").mkdir()
        for figures in comparison.figures:
            system = figures.system
            write_run(folder / "runs" / f"{system.name.lower()}.run", system.rankings, system.name)
        write_json(folder / "results.json", comparison.to_json())
        (folder / "report.html").write_text(render_comparison(comparison, command), encoding="utf-8")


def render_comparison(comparison: Comparison, command: str) -> str:
    """Renders report.html. Texts and ids are escaped. The same comparison gives the same bytes."""
    best = best_system(comparison)
    columns, rows = figure_table(comparison)
    headline = [
        (
            f"{metric_title(comparison.main)}, {system_title(figure.system.name)}",
            _format_mean(figure, comparison.main),
        )
        for figure in comparison.figures
    ]
    return render_page(
        "ranking.html.jinja",
        title=f"Retrieval · {comparison.data.name}",
        status=f"{len(comparison.data.documents):,} documents · {len(comparison.queries):,} queries",
        headline=headline,
        warnings=comparison.notes(),
        verdict=comparison.verdict(),
        figures=Table("", columns, rows),
        metric=metric_title(comparison.main),
        metrics_in_words=explain_metrics(comparison.metrics),
        baseline=system_title(comparison.figures[0].system.name),
        pictures=[_draw_differences(comparison, figure) for figure in comparison.figures[1:]],
        best=system_title(best.system.name),
        failures=find_failures(comparison, best),
        command=command,
        facts=raw_facts(comparison.facts),
    )


def best_system(comparison: Comparison) -> Figures:
    """The figures of the system with the highest mean of the main metric."""
    return max(comparison.figures, key=lambda figures: figures.scores.means[comparison.main])


def figure_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of a table with a row for each system: means, the main one with its interval, and
    the difference to the baseline with its interval and p-value.
    """
    baseline = system_title(comparison.figures[0].system.name)
    columns = [
        "",
        metric_title(comparison.main),
        "95 % interval",
        *map(metric_title, comparison.metrics[1:]),
        f"above {baseline}",
        "p",
        "ms/query",
    ]
    rows = []
    for figures in comparison.figures:
        interval, difference_cells = figures.intervals[comparison.main], ("", "")
        if figures.difference is not None:
            low, high = figures.difference.interval
            gain = f"{figures.difference.mean:+.4f} ({low:+.4f} to {high:+.4f})"
            difference_cells = gain, f"{figures.difference.p:.4f}"
        row = [
            system_title(figures.system.name),
            _format_mean(figures, comparison.main),
            f"{interval.low:.4f} to {interval.high:.4f}",
            *(_format_mean(figures, name) for name in comparison.metrics[1:]),
            *difference_cells,
            f"{figures.system.milliseconds:.1f}",
        ]
        rows.append(row)
    return columns, rows


def _format_mean(figures: Figures, metric: str) -> str:
    return f"{figures.scores.means[metric]:.4f}"


def _draw_differences(comparison: Comparison, figures: Figures) -> tuple[str, Any]:
    """A caption and a chart of what each query gained over the baseline, from the highest to the lowest."""
    baseline = comparison.figures[0]
    name, title = system_title(figures.system.name), system_title(baseline.system.name)
    gained = np.sort(figures.scores.values[comparison.main] - baseline.scores.values[comparison.main])[::-1]
    better, worse = int((gained > 0).sum()), int((gained < 0).sum())
    caption = f"{name}: {better:,} queries better than {title}, {worse:,} worse"
    label = f"{metric_title(comparison.main)} above {title}"

    def paint(axes: "Axes") -> None:
        # One path for all queries: a bar for each would make megabytes.
        for part, colour in ((np.maximum(gained, 0), FIRST), (np.minimum(gained, 0), SECOND)):
            axes.stairs(part, fill=True, color=colour, linewidth=0)
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.set_xlabel("queries, by what they gain")
        axes.set_ylabel(label)

    return caption, as_markup(picture(caption, paint))


class JudgedDocument(NamedTuple):
    """A document with its rank, None if it wasn't found, and the grade it was judged with."""

    rank: int | None
    document: str
    grade: int
    text: str


class Failure(NamedTuple):
    """A query with its scores by every system, the best system's first documents, and the relevant document
    that should have been first.
    """

    id: str
    query: str
    scores: str
    first: list[JudgedDocument]
    expected: JudgedDocument


def find_failures(comparison: Comparison, best: Figures) -> list[Failure]:
    """The queries with the lowest scores by the system `best`, below 1. Ties are ordered by how well another
    system did.
    """
    own = best.scores.values[comparison.main]
    others = np.max([figure.scores.values[comparison.main] for figure in comparison.figures], axis=0)
    order = np.lexsort((-others, own))[:WORST]
    return [_describe_failure(comparison, best, int(position)) for position in order if own[position] < 1]


def _describe_failure(comparison: Comparison, best: Figures, position: int) -> Failure:
    query = comparison.queries[position]
    grades = comparison.data.judgements[query]
    ranking = [document for document, _ in best.system.rankings[query]]
    ranks = {document: rank for rank, document in enumerate(ranking, start=1)}

    def hit(document: str) -> JudgedDocument:
        text = comparison.data.documents.get(document, "(not in the collection)")
        return JudgedDocument(ranks.get(document), document, max(grades.get(document, 0), 0), _shorten(text))

    relevant = [document for document, grade in grades.items() if grade > 0]
    highest = min(relevant, key=lambda document: (-grades[document], ranks.get(document, len(ranking) + 1)))
    scores = " · ".join(
        f"{system_title(figure.system.name)} {figure.scores.values[comparison.main][position]:.3f}"
        for figure in comparison.figures
    )
    text = _shorten(comparison.data.queries[query])
    return Failure(query, text, scores, [hit(document) for document in ranking[:SHOWN]], hit(highest))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"
