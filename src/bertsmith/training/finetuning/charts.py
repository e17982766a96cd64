"""Pictures of what a fine-tuned model can do, in the look of `report/charts.py`.

E examples, A answers of which a confidence is known.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.metrics.calibration import ReliabilityBin, reliability
from bertsmith.metrics.scores import LengthScore
from bertsmith.reporting.charts import FIRST, MOST_POINTS, MUTED, SECOND, Curve, Point, picture
from bertsmith.tasks.evaluating.error_analysis import Calibration
from bertsmith.training.finetuning.column_study import THE_TEXT, ColumnStudy
from bertsmith.training.finetuning.learning_curve import LearningCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DOTS = 2000
_GOLDEN = 0.6180339887  # its multiples spread dots evenly, without chance
_DASHES = (0, (2, 3))
_MOST_BARS, _LONGEST_NAME = 15, 24


def restart_strip(scores: Sequence[float], best: int, baselines: Mapping[str, float], metric: str) -> str:
    """One dot a restart, in another colour for the one kept; the mean and baselines as vertical lines."""

    def paint(axes: "Axes") -> None:
        heights = [(number * _GOLDEN) % 1 for number in range(1, len(scores) + 1)]
        axes.scatter(scores, heights, color=FIRST, s=34, alpha=0.7, label="a restart")
        axes.scatter([scores[best]], [heights[best]], color=SECOND, s=44, label="kept")
        axes.axvline(float(np.mean(scores)), color=FIRST, linewidth=1, label="mean")
        for style, (name, score) in zip(("dotted", "dashed"), baselines.items(), strict=False):
            axes.axvline(score, color=MUTED, linewidth=1, linestyle=style, label=name)
        axes.set_ylim(-0.15, 1.15)
        axes.set_yticks([])
        axes.set_xlabel(f"{metric} on dev")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    return picture("restarts", paint, height=1.9)


def learning_curve(title: str, curve: LearningCurve) -> str:
    """The score by rows, and where twice as many would lead, with a standard error to either side."""

    def paint(axes: "Axes") -> None:
        axes.plot(curve.rows, curve.scores, color=FIRST, marker="o", markersize=4, label="measured")
        ends = [curve.rows[-1], 2 * curve.rows[-1]]
        expected = curve.scores[-1] + curve.gain
        axes.plot(ends, [curve.scores[-1], expected], color=SECOND, linestyle=_DASHES, label="expected")
        axes.errorbar(ends[1], expected, yerr=curve.error, color=SECOND, marker="o", markersize=4, capsize=3)
        axes.set_xscale("log", base=2)
        places = [*curve.rows, ends[1]]
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
        axes.set_xlabel("rows")
        axes.legend(loc="lower right")

    return picture(title, paint)


def column_worths(study: ColumnStudy, metric: str) -> str:
    """What the score loses without each column, the dearest on top, with a 95 % interval to either side."""
    shown = study.worths[:_MOST_BARS][::-1]

    def paint(axes: "Axes") -> None:
        places, losses = range(len(shown)), [each.loss for each in shown]
        colours = [SECOND if each.name == THE_TEXT else FIRST for each in shown]
        axes.barh(places, losses, xerr=[1.96 * each.error for each in shown], color=colours, height=0.6)
        axes.set_yticks(places, [cut_name(each.name) for each in shown])
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{metric} lost when shuffled")

    return picture("what columns are worth", paint, height=1.2 + 0.3 * len(shown))


def cut_name(name: str) -> str:
    """A column's name as an axis has room for it; mathematics in it stays text."""
    short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return short.replace("$", r"\$")


def restart_curves(
    title: str, x_label: str, curves: Sequence[Sequence[Point]], best: int, markers: bool = False
) -> str:
    """One line a restart, the one that was kept over the others."""

    def paint(axes: "Axes") -> None:
        for number in sorted(range(len(curves)), key=lambda number: number == best):
            points = curves[number]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            kept = number == best
            marker = "o" if markers or len(points) == 1 else None
            axes.plot(
                x,
                y,
                color=SECOND if kept else FIRST,
                alpha=1.0 if kept else 0.45,
                marker=marker,
                markersize=3.5,
            )
        axes.set_xlabel(x_label)

    return picture(title, paint)


def reliability_diagram(found: Calibration) -> str:
    """How often answers of some confidence are right; a dot is the larger, the more answers it stands for."""

    def paint(axes: "Axes") -> None:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=_DASHES)
        if found.before is not None:
            _draw_bins(axes, reliability(found.before, found.correct), FIRST, "before temperature scaling")
        label = "as the model says" if found.before is None else "after"
        _draw_bins(axes, reliability(found.confidence, found.correct), SECOND, label)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share right")
        axes.legend(loc="upper left")

    return picture("reliability", paint)


def risk_curve(confidence: Floats, error: Floats, chosen: Point | None = None) -> str:
    """The mean error (A,) of the surest answers, by the share of texts that they are.

    `chosen` is the coverage and risk of the threshold in use.
    """
    points = risk_points(confidence, error)

    def paint(axes: "Axes") -> None:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=SECOND, marker="o" if len(points) == 1 else None)
        if chosen is not None:
            axes.scatter([chosen[0]], [chosen[1]], color=FIRST, s=44, zorder=3, label="threshold in use")
            axes.legend(loc="upper left")
        axes.set_xlim(0, 1.02)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("share of texts answered, the surest first")
        axes.set_ylabel("error among them")

    return picture("risk and coverage", paint)


def risk_points(confidence: Floats, error: Floats) -> list[Point]:
    """(coverage, mean error) for each threshold there is; equal confidences are answered together."""
    order = np.argsort(-confidence, kind="stable")
    ranked, errors = confidence[order], np.cumsum(error[order])
    ends = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], True))
    curve = Curve(MOST_POINTS)
    for end in ends.tolist():
        curve.add((end + 1) / len(ranked), float(errors[end]) / (end + 1))
    return curve.points()


def length_bars(found: Sequence[LengthScore], metric: str) -> str:
    """The score of short and of long texts."""

    def paint(axes: "Axes") -> None:
        places = range(len(found))
        axes.bar(places, [each.score for each in found], color=FIRST, width=0.6)
        for place, each in zip(places, found, strict=True):
            axes.annotate(
                f"{each.score:.3f}", (place, each.score), (0, 3), textcoords="offset points", ha="center"
            )
        axes.set_xticks(places, [f"{each.shortest}–{each.longest}\n{each.count:,} texts" for each in found])
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.15)
        axes.set_xlabel("words")
        axes.set_ylabel(metric)

    return picture("score by length", paint)


def scatter(gold: Floats, given: Floats) -> str:
    """(E,) right and predicted scores; of very many examples, some at equal distances."""
    step = -(-len(gold) // MOST_DOTS)

    def paint(axes: "Axes") -> None:
        ends = [float(gold.min()), float(gold.max())]
        axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=_DASHES)
        axes.scatter(gold[::step], given[::step], color=FIRST, s=12, alpha=0.4, linewidths=0)
        axes.set_xlabel("right score")
        axes.set_ylabel("predicted score")

    return picture("right and predicted scores", paint)


def _draw_bins(axes: "Axes", bins: Sequence[ReliabilityBin], colour: str, label: str) -> None:
    total = sum(each.count for each in bins)
    x, y = [each.confidence for each in bins], [each.accuracy for each in bins]
    axes.plot(x, y, color=colour, linewidth=1.2, label=label)
    axes.scatter(
        x, y, s=[12 + 140 * each.count / total for each in bins], color=colour, alpha=0.8, linewidths=0
    )
