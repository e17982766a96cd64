"""`report.html` of a search for a smaller model: the picture, and the table behind it."""

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
    "of the model's",
    "parameters",
    "of its work",
    "a text alone",
    "of its time",
    "among many",
)


def write_shrink_report(out: Path, shrunk: ShrinkResults, model: str) -> Path:
    """Writes the page into the folder and returns its path. Raises ResourceError for a full disk."""
    path = out / REPORT_FILE
    atomic_write(path, render_shrink(shrunk, model))
    return path


def render_shrink(shrunk: ShrinkResults, model: str) -> str:
    """The page as text."""
    chosen, whole = shrunk.chosen, shrunk.whole
    kept = formatting.percent(chosen.score / whole.score) if whole.score else "–"
    return render_page(
        "shrink.html.jinja",
        title="How small can it be?",
        status=f"{model} · {shrunk.metric} on dev · to keep {shrunk.keep:.0%}",
        headline=[
            ("the least work that keeps it", chosen.name),
            ("of its score", kept),
            ("of its time for a text", formatting.percent(chosen.share_alone)),
            ("of its parameters", formatting.percent(chosen.parameters / whole.parameters)),
        ],
        warnings=list(shrunk.warnings),
        on_test=None if shrunk.on_test is None else shrunk.on_test.sentence(shrunk.metric),
        pictures=[
            (
                "Time of a text that comes alone",
                as_markup(_scatter(shrunk, lambda one: one.share_alone, "share of the model's time")),
            ),
            ("Size", as_markup(_scatter(shrunk, lambda one: one.parameters / 1e6, "million parameters"))),
        ],
        table=Table("", list(COLUMNS), rows(shrunk), 0, frozenset({0})),
    )


def rows(shrunk: ShrinkResults) -> list[list[str]]:
    """A row a candidate, the model itself last; the chosen one is marked."""
    whole = shrunk.whole
    found = []
    for each in (*sorted(shrunk.tried, key=lambda one: one.work), whole):
        low, high = each.interval
        found.append(
            [
                f"{each.name} ←" if each.slug == shrunk.chosen.slug else each.name,
                f"{each.score:.4f}",
                "–" if each.error is None else f"{low:.4f} to {high:.4f}",
                formatting.percent(each.score / whole.score) if whole.score else "–",
                f"{each.parameters / 1e6:.1f} M",
                formatting.percent(each.work / whole.work),
                f"{each.milliseconds_alone:.2f} ms",
                formatting.percent(each.share_alone),
                formatting.percent(each.share),
            ]
        )
    return found


def _scatter(shrunk: ShrinkResults, place: Callable[[CandidateResult], float], label: str) -> str:
    """A dot a candidate with its interval; what is asked for as a line."""

    def paint(axes: "Axes") -> None:
        for number, each in enumerate(sorted((*shrunk.tried, shrunk.whole), key=place)):
            colour = SECOND if each.slug == shrunk.chosen.slug else FIRST
            low, high = each.interval
            spread = [[each.score - low], [high - each.score]]
            axes.errorbar(
                place(each), each.score, yerr=spread, color=colour, marker="o", markersize=5, capsize=3
            )
            side = -1 if number % 2 else 1  # below and above in turn, for neighbours are often close
            axes.annotate(
                each.name,
                (place(each), high if side > 0 else low),
                (0, 4 * side),
                textcoords="offset points",
                ha="center",
                va="bottom" if side > 0 else "top",
                color=INK if each.slug == shrunk.chosen.slug else MUTED,
                fontsize=8.5,
            )
        axes.axhline(shrunk.wanted, color=MUTED, linewidth=1, linestyle="dashed")
        axes.set_xscale("log")
        axes.margins(x=0.15, y=0.15)
        axes.set_xlabel(label)
        axes.set_ylabel(f"{shrunk.metric} on dev")

    return picture(label, paint)
