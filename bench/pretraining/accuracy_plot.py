"""Held-out accuracy over the time of training, a curve a run."""

import io
from collections.abc import Mapping, Sequence

_STYLE = {"svg.hashsalt": "bertsmith", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}


def draw(
    curves: Mapping[tuple[str, float], Sequence[tuple[float, float]]],
    mark: float | None = None,
    unit: str = "minutes",
) -> str:
    """An SVG. Curves are by side and time asked for, and have points of (time, accuracy in [0, 1]); the
    dashed line is the accuracy to be reached. A side has one colour; its longer runs are thinner.
    """
    import matplotlib
    from matplotlib.figure import Figure

    sides = list(dict.fromkeys(side for side, _ in curves))
    shortest = min((time for _, time in curves), default=0)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        for (side, time), points in curves.items():
            axes.plot(
                [moment for moment, _ in points],
                [100 * accuracy for _, accuracy in points],
                "o-",
                markersize=3,
                linewidth=1.6 if time == shortest else 0.8,
                color=f"C{sides.index(side)}",
                label=f"{side}, {time:g} {unit}",
            )
        if mark is not None:
            axes.axhline(100 * mark, color="0.5", linestyle="--", zorder=0)
        axes.set(xlabel=f"{unit} of training", ylabel="held-out accuracy, % of masked tokens")
        axes.legend(frameon=False)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()
