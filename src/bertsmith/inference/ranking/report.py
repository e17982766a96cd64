"""A comparison of ways to search as a folder: results.json, a TREC run file of each system under runs/, and
report.html, with figures, what each query gains, and where the best system fails.

Q queries.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertsmith.files import atomic_folder, write_json
from bertsmith.inference.ranking.results import Comparison, Figures
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture
from bertsmith.reporting.page import as_markup, render_page
from bertsmith.reporting.tables import Table, raw_facts
from bertsmith.text.retrieval.trec_run import write_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORST, SHOWN, LONGEST = 20, 3, 300  # queries, documents of each, characters of a text


def write_comparison(out: Path, found: Comparison, command: str) -> None:
    """`command` is what to type to get it again.

    Raises InputError when `out` exists, ResourceError when the disk is full; then nothing is left behind.
    """
    with atomic_folder(out) as folder:
        (folder / "runs").mkdir()
        for figures in found.figures:
            system = figures.system
            write_run(folder / "runs" / f"{system.name.lower()}.run", system.rankings, system.name)
        write_json(folder / "results.json", found.to_json())
        (folder / "report.html").write_text(render_comparison(found, command), encoding="utf-8")


def render_comparison(found: Comparison, command: str) -> str:
    """The page as text; texts and ids are escaped. The same comparison gives the same bytes."""
    best = best_system(found)
    columns, rows = figure_table(found)
    headline = [
        (f"{_metric_title(found.main)}, {figure.system.name}", _format_mean(figure, found.main))
        for figure in found.figures
    ]
    return render_page(
        "ranking.html.jinja",
        title=f"Retrieval · {found.data.name}",
        status=f"{len(found.data.documents):,} documents · {len(found.queries):,} queries",
        headline=headline,
        warnings=[found.verdict(), *found.notes()],
        figures=Table("", columns, rows),
        metric=_metric_title(found.main),
        baseline=found.figures[0].system.name,
        pictures=[_draw_differences(found, figure) for figure in found.figures[1:]],
        best=best.system.name,
        failures=find_failures(found, best),
        command=command,
        facts=raw_facts(found.facts),
    )


def best_system(found: Comparison) -> Figures:
    """The one with the highest mean of the main metric."""
    return max(found.figures, key=lambda each: each.scores.means[found.main])


def figure_table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, a row a system: means, the main one with its interval, and the difference to the
    baseline with its interval and p-value."""
    baseline = found.figures[0].system.name
    columns = [
        "",
        _metric_title(found.main),
        "95 % interval",
        *map(_metric_title, found.metrics[1:]),
        f"above {baseline}",
        "p",
        "ms/query",
    ]
    rows = []
    for figures in found.figures:
        interval, beside = figures.intervals[found.main], ("", "")
        if figures.difference is not None:
            low, high = figures.difference.interval
            gain = f"{figures.difference.mean:+.4f} ({low:+.4f} to {high:+.4f})"
            beside = gain, f"{figures.difference.p:.4f}"
        row = [
            figures.system.name,
            _format_mean(figures, found.main),
            f"{interval.low:.4f} to {interval.high:.4f}",
            *(_format_mean(figures, name) for name in found.metrics[1:]),
            *beside,
            f"{figures.system.milliseconds:.1f}",
        ]
        rows.append(row)
    return columns, rows


def _format_mean(figures: Figures, metric: str) -> str:
    return f"{figures.scores.means[metric]:.4f}"


def _metric_title(metric: str) -> str:
    """As papers write it."""
    name, at, depth = metric.partition("@")
    return {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP"}.get(name, name) + at + depth


def _draw_differences(found: Comparison, figures: Figures) -> tuple[str, Any]:
    """The caption, and a picture of the queries in the order of what the system gained over the baseline,
    from the highest to the lowest.
    """
    baseline = found.figures[0]
    gained = np.sort(figures.scores.values[found.main] - baseline.scores.values[found.main])[::-1]
    better, worse = int((gained > 0).sum()), int((gained < 0).sum())
    caption = f"{figures.system.name}: {better:,} queries better than {baseline.system.name}, {worse:,} worse"
    label = f"{_metric_title(found.main)} above {baseline.system.name}"

    def paint(axes: "Axes") -> None:
        # One path each: a bar a query would be megabytes.
        for part, colour in ((np.maximum(gained, 0), FIRST), (np.minimum(gained, 0), SECOND)):
            axes.stairs(part, fill=True, color=colour, linewidth=0)
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.set_xlabel("queries, by what they gain")
        axes.set_ylabel(label)

    return caption, as_markup(picture(caption, paint))


class JudgedDocument(NamedTuple):
    """A document at its rank; `rank` is None when it wasn't found."""

    rank: int | None
    document: str
    grade: int
    text: str


class Failure(NamedTuple):
    """A query, its score by every system, what the best one put first, and the best that is relevant."""

    id: str
    query: str
    scores: str
    first: list[JudgedDocument]
    expected: JudgedDocument


def find_failures(found: Comparison, of: Figures) -> list[Failure]:
    """The queries with the lowest scores; of equally bad ones first those where another system did best."""
    own = of.scores.values[found.main]
    others = np.max([figure.scores.values[found.main] for figure in found.figures], axis=0)
    order = np.lexsort((-others, own))[:WORST]
    return [_describe_failure(found, of, int(place)) for place in order if own[place] < 1]


def _describe_failure(found: Comparison, of: Figures, place: int) -> Failure:
    query = found.queries[place]
    grades = found.data.judgements[query]
    ranking = [document for document, _ in of.system.rankings[query]]
    ranks = {document: rank for rank, document in enumerate(ranking, start=1)}

    def hit(document: str) -> JudgedDocument:
        text = found.data.documents.get(document, "(not in the collection)")
        return JudgedDocument(ranks.get(document), document, max(grades.get(document, 0), 0), _shorten(text))

    relevant = [document for document, grade in grades.items() if grade > 0]
    highest = min(relevant, key=lambda document: (-grades[document], ranks.get(document, len(ranking) + 1)))
    scores = " · ".join(
        f"{figure.system.name} {figure.scores.values[found.main][place]:.3f}" for figure in found.figures
    )
    text = _shorten(found.data.queries[query])
    return Failure(query, text, scores, [hit(each) for each in ranking[:SHOWN]], hit(highest))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"
