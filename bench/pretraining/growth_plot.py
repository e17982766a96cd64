"""Time and memory over size, on logarithms both, where a power of the size is a straight line."""

import io
from collections.abc import Sequence
from itertools import groupby
from typing import Any

_STYLE = {"svg.hashsalt": "bertsmith", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}


def draw(growths: Sequence[Any]) -> str:
    """An SVG: a column for each thing that grows, seconds above, megabytes below.

    The grey line is proportional growth from the first point.
    """
    import matplotlib
    from matplotlib.figure import Figure

    columns = [(over, list(some)) for over, some in groupby(growths, key=lambda growth: growth.over)]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.2 * len(columns), 5.4), layout="constrained")
        axes = figure.subplots(2, len(columns), squeeze=False)
        for column, (over, some) in enumerate(columns):
            top, bottom = axes[0][column], axes[1][column]
            for growth in some:
                top.plot(growth.sizes, growth.seconds, "o-", label=growth.what)
                bottom.plot(growth.sizes, [each / 1e6 for each in growth.memory], "o-", label=growth.what)
            for place, label in ((top, "seconds"), (bottom, "MB")):
                _finish(place, over, label)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


def _finish(axes: Any, over: str, label: str) -> None:
    """Logarithms, words, and what proportional growth would be."""
    sizes, values = axes.lines[0].get_data()
    proportional = [values[0] * size / sizes[0] for size in sizes]
    axes.plot(sizes, proportional, color="0.7", linestyle="--", zorder=0)
    axes.set(xscale="log", yscale="log", xlabel=over, ylabel=label)
    axes.set_xticks(sizes, [f"{size:,g}" for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    if len(axes.lines) > 2:
        axes.legend(frameon=False)
