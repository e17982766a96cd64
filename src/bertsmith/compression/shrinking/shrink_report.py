"""`report.html` of a search for a smaller model: charts of score against time and size, and the table."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.compression.shrinking.candidates import CandidateResult, ShrinkResults
from bertsmith.files import atomic_write
from bertsmith.reporting import formatting
from bertsmith.reporting.charts import FIRST, INK, MUTED, SECOND, picture
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = (
    "",
    "score",
    "95 % interval",
    "of the model's score",
    "parameters",
    "of its work",
    "one text at a time",
    "of its time",
    "of its time in batches",
)
MEANINGS = (
    "Work: the calculations (FLOP) for the rows of dev, the same on every machine; times are measured on "
    "this one. Static table: a vector for each piece of the vocabulary, and no layers. N pieces: the model "
    "itself with only so many pieces in its vocabulary; a text may then take more of them. N layers of M: "
    "layers that are M numbers wide."
)


def write_shrink_report(out: Path, shrunk: ShrinkResults, model: str) -> Path:
    """Writes the page into the folder and returns its path. Raises ResourceError for a full disk."""
    path = out / REPORT_FILE
    atomic_write(path, render_shrink(shrunk, model))
    return path


def render_shrink(shrunk: ShrinkResults, model: str) -> str:
    """The page of a search's results as HTML; `model` is the name of the whole model."""
    chosen, whole = shrunk.chosen, shrunk.whole
    share_kept = formatting.percent(chosen.score / whole.score) if whole.score else "–"
    return render_page(
        "shrink.html.jinja",
        title="How small can it be?",
        status=f"{model} · {shrunk.metric} on dev · to keep {shrunk.keep:.0%}",
        headline=[
            ("keeps the score with the least work", chosen.name),
            ("of the model's score", share_kept),
            ("of the model's time for one text", formatting.percent(chosen.share_alone)),
            ("of the model's parameters", formatting.percent(chosen.parameters / whole.parameters)),
        ],
        warnings=list(shrunk.warnings),
        on_test=None if shrunk.on_test is None else shrunk.on_test.sentence(shrunk.metric),
        pictures=[
            (
                "Time for one text at a time",
                as_markup(
                    _draw_scatter(shrunk, lambda result: result.share_alone, "share of the model's time")
                ),
            ),
            (
                "Size",
                as_markup(
                    _draw_scatter(shrunk, lambda result: result.parameters / 1e6, "million parameters")
                ),
            ),
        ],
        table=Table("", list(COLUMNS), make_rows(shrunk), 0, frozenset({0})),
        meanings=MEANINGS,
    )


def make_rows(shrunk: ShrinkResults) -> list[list[str]]:
    """The table's rows, one a candidate by its work, the whole model last; the chosen one is marked."""
    whole = shrunk.whole
    table_rows = []
    for result in (*sorted(shrunk.tried, key=lambda result: result.work), whole):
        low, high = result.interval
        table_rows.append(
            [
                f"{result.name} ←" if result.slug == shrunk.chosen.slug else result.name,
                f"{result.score:.4f}",
                "–" if result.error is None else f"{low:.4f} to {high:.4f}",
                formatting.percent(result.score / whole.score) if whole.score else "–",
                f"{result.parameters / 1e6:.1f} M",
                formatting.percent(result.work / whole.work),
                f"{result.milliseconds_alone:.2f} ms",
                formatting.percent(result.share_alone),
                formatting.percent(result.share),
            ]
        )
    return table_rows


def _draw_scatter(shrunk: ShrinkResults, x_of: Callable[[CandidateResult], float], label: str) -> str:
    """A chart of the score over `x_of`: a dot with its interval for each candidate, the wanted score as a
    line.
    """

    def paint(axes: "Axes") -> None:
        for number, result in enumerate(sorted((*shrunk.tried, shrunk.whole), key=x_of)):
            colour = SECOND if result.slug == shrunk.chosen.slug else FIRST
            low, high = result.interval
            spread = [[result.score - low], [high - result.score]]
            axes.errorbar(
                x_of(result), result.score, yerr=spread, color=colour, marker="o", markersize=5, capsize=3
            )
            side = -1 if number % 2 else 1  # below and above by turns, since neighbours are often close
            axes.annotate(
                result.name,
                (x_of(result), high if side > 0 else low),
                (0, 4 * side),
                textcoords="offset points",
                ha="center",
                va="bottom" if side > 0 else "top",
                color=INK if result.slug == shrunk.chosen.slug else MUTED,
                fontsize=8.5,
            )
        axes.axhline(shrunk.wanted, color=MUTED, linewidth=1, linestyle="dashed")
        axes.set_xscale("log")
        axes.margins(x=0.15, y=0.15)
        axes.set_xlabel(label)
        axes.set_ylabel(f"{shrunk.metric} on dev")

    return picture(label, paint)
