"""`report.html` of BEIR or NanoBEIR: every data set by every system, the means, and BM25 as published."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.benchmarks.published import BM25, BM25_SOURCE
from bertsmith.benchmarks.report import points
from bertsmith.benchmarks.retrieval import FIRST as COUNTED
from bertsmith.benchmarks.retrieval import FORUMS, DatasetResult, RetrievalResult
from bertsmith.files import atomic_write
from bertsmith.reporting import formatting
from bertsmith.reporting.charts import FIRST, MUTED, picture
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.reporting.tables import Table, raw_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def dataset_table(result: RetrievalResult) -> tuple[list[str], list[list[str]]]:
    """A row a data set, nDCG@10 in points with intervals, then their means."""
    columns = ["data set", "documents", "queries", *result.systems, "BM25, published"]
    means = ["mean", "", "", *(points(value) for value in result.means().values()), ""]
    return columns, [*(_row(each) for each in result.datasets), *_forums_row(result), means]


def write_retrieval_report(out: Path, result: RetrievalResult, command: str) -> Path:
    """The same result gives the same bytes."""
    page = render_page(
        "retrieval_benchmark.html.jinja",
        title=f"{result.name} · {result.model}",
        status=f"nDCG@{COUNTED} over {formatting.counted(len(result.datasets), 'data set')}",
        headline=[(f"mean, {name}", points(value)) for name, value in result.means().items()],
        warnings=list(result.notes),
        figures=Table("", *dataset_table(result)),
        pictures=[("The model beside BM25", as_markup(_beside_bm25(result)))],
        source=BM25_SOURCE,
        command=command,
        facts=raw_facts({"model": result.model}),
    )
    path = out / REPORT_FILE
    atomic_write(path, page)
    return path


def _row(dataset: DatasetResult) -> list[str]:
    cells = []
    for name, score in dataset.scores.items():
        low, high = dataset.intervals[name]
        cells.append(f"{points(score)} ({points(low)} to {points(high)})")
    counts = formatting.count(dataset.documents), formatting.count(dataset.queries)
    published = formatting.UNKNOWN if dataset.published is None else f"{dataset.published:.1f}"
    return [dataset.name, *counts, *cells, published]


def _forums_row(result: RetrievalResult) -> list[list[str]]:
    """CQADupStack as it is published: the mean of its forums. No row without them."""
    forums = result.forums
    if not forums:
        return []
    counts = (
        formatting.count(sum(each.documents for each in forums)),
        formatting.count(sum(each.queries for each in forums)),
    )
    scores = [points(statistics.mean(each.scores[system] for each in forums)) for system in result.systems]
    return [[f"{FORUMS}, mean of {len(forums)} forums", *counts, *scores, f"{BM25[FORUMS]:.1f}"]]


def _beside_bm25(result: RetrievalResult) -> str:
    """A dot a data set: above the line the model's vectors find more than words do."""

    def paint(axes: "Axes") -> None:
        lexical, dense = result.systems[:2]
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8)
        for each in result.datasets:
            place = 100 * each.scores[lexical], 100 * each.scores[dense]
            axes.scatter(*place, color=FIRST, s=34)
            axes.annotate(each.name, place, fontsize=7, xytext=(4, 3), textcoords="offset points")
        axes.set_xlabel(f"nDCG@{COUNTED} of {lexical}")
        axes.set_ylabel(f"of {dense}")

    return picture("The model beside BM25", paint)
