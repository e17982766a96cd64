"""The curves of a run of any length in bounded memory, and pictures as SVG for a page.

Pictures use the page's colours, so that they fit its dark mode and print. They are drawn with matplotlib's
Figure, never with pyplot, whose global state would leak into the user's own pictures.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Point = tuple[float, float]
Record = dict[str, Any]

MOST_POINTS = 1000
WIDTH, HEIGHT = 5.6, 2.9  # inches

# Placeholder colours for matplotlib, which are replaced by the colours of the page's style sheet.
INK, MUTED, GRID, FIRST, SECOND = "#10a001", "#10a002", "#10a003", "#10a004", "#10a005"
PAGE_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
}
STYLE = {
    "svg.hashsalt": "bertsmith",  # otherwise ids are random, and two reports of one run differ
    "svg.fonttype": "none",  # text stays text: it can be searched, and has the page's font
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
}


class Curve:
    """A curve that keeps at most `capacity` points: when it is full, each two neighbours are replaced by
    their mean.

    A run may have a million steps, while a screen has two hundred columns. Adding a point takes O(1), and
    each kept point is the mean of the points that it stands for.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = max(2, capacity)
        self._points: list[Point] = []
        self._bucket = 1  # the number of values that each point stands for
        self._sum_x = self._sum_y = 0.0
        self._waiting = 0

    def add(self, x: float | None, y: float | None) -> None:
        """Adds a point. Missing and non-finite values are ignored, since they can't be drawn."""
        if x is None or y is None or not math.isfinite(x) or not math.isfinite(y):
            return
        self._sum_x += x
        self._sum_y += y
        self._waiting += 1
        if self._waiting == self._bucket:
            self._points.append((self._sum_x / self._bucket, self._sum_y / self._bucket))
            self._sum_x, self._sum_y, self._waiting = 0.0, 0.0, 0
            if len(self._points) >= self.capacity:
                self._halve()

    def cut_after(self, x: float) -> None:
        """Drops the points after `x`, as when a run goes back to a checkpoint."""
        self._sum_x, self._sum_y, self._waiting = 0.0, 0.0, 0
        self._points = [point for point in self._points if point[0] <= x]

    def points(self) -> list[Point]:
        """The curve so far, its unfinished last point included."""
        if not self._waiting:
            return list(self._points)
        return [*self._points, (self._sum_x / self._waiting, self._sum_y / self._waiting)]

    def _halve(self) -> None:
        if len(self._points) % 2:  # an odd last point waits for its neighbour
            x, y = self._points.pop()
            self._sum_x, self._sum_y, self._waiting = x * self._bucket, y * self._bucket, self._bucket
        pairs = zip(self._points[::2], self._points[1::2], strict=True)
        self._points = [((ax + bx) / 2, (ay + by) / 2) for (ax, ay), (bx, by) in pairs]
        self._bucket *= 2


def smooth(points: Sequence[Point], weight: float = 0.9) -> list[Point]:
    """Smooths a curve: each point becomes the mean of its neighbours on both sides, whose weights fall by the
    factor `weight` with each step away. Unlike a running mean it doesn't lag behind the curve.
    """
    values = [y for _, y in points]
    past, future = _discounted_sums(values, weight), _discounted_sums(values[::-1], weight)[::-1]
    return [
        (x, (past_sum + future_sum - y) / (past_count + future_count - 1))
        for (x, y), (past_sum, past_count), (future_sum, future_count) in zip(
            points, past, future, strict=True
        )
    ]


def _discounted_sums(values: Sequence[float], weight: float) -> list[tuple[float, float]]:
    """For each value, the sum of all up to it, discounted by distance, and the sum of the discounts."""
    total = count = 0.0
    sums = []
    for value in values:
        total, count = weight * total + value, weight * count + 1
        sums.append((total, count))
    return sums


@dataclass(frozen=True)
class Line:
    """One curve of a chart. A `noisy` one is drawn faintly, with the smoothed curve over it."""

    label: str
    points: list[Point]
    colour: str = FIRST
    noisy: bool = False
    markers: bool = False


@dataclass(frozen=True)
class Chart:
    """The content of a picture. With `percent`, y is a share of 1. With `clip_start`, the steep fall of the
    first steps may be cut off. `marks` are vertical lines, as (x, text).
    """

    title: str
    x_label: str
    lines: Sequence[Line]
    percent: bool = False
    clip_start: bool = False
    marks: list[tuple[float, str]] = field(default_factory=list)


def charts(records: Sequence[Record]) -> list[Chart]:
    """The charts of a run's log, those without any numbers left out."""
    steps = [record for record in records if record["kind"] == "step"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    longest = max((record.get("elapsed") or 0.0 for record in steps + evaluations), default=0.0)
    unit, seconds = ("minutes", 60.0) if longest < 3 * 3600 else ("hours", 3600.0)
    if longest < 180:
        unit, seconds = "seconds", 1.0
    phases = [record for record in records if record["kind"] == "phase" and record["step"] > 0]
    marks = [(phase["step"], f"{phase.get('sequence_length')} tokens") for phase in phases]
    has_mlm = any("mlm_loss" in record for record in steps)

    def training(name: str, label: str, x: str = "step", scale: float = 1.0) -> Line:
        return Line(label, _points(steps, x, name, scale), FIRST, noisy=True)

    def heldout(name: str, label: str, x: str = "step", scale: float = 1.0) -> Line:
        return Line(label, _points(evaluations, x, name, scale), SECOND, markers=True)

    def losses(x: str, scale: float = 1.0) -> list[Line]:
        return [training(loss, "training", x, scale), heldout(loss, "held out", x, scale)]

    loss, loss_name = ("mlm_loss", "MLM loss") if has_mlm else ("loss", "Loss")
    schedule = Line("learning rate", _points(steps, "step", "learning_rate"))
    candidates = [
        Chart(f"{loss_name} by step", "step", losses("step"), clip_start=True, marks=marks),
        Chart(f"{loss_name} by time", f"{unit} of training", losses("elapsed", 1 / seconds), clip_start=True),
        Chart("MLM accuracy", "step", [heldout("mlm_accuracy", "held out")], percent=True),
        Chart("Gained and forgotten: MLM loss on held-out text", "step", _both_texts(evaluations)),
        Chart("NSP accuracy", "step", [heldout("nsp_accuracy", "held out")], percent=True),
        Chart("SOP accuracy", "step", [heldout("sop_accuracy", "held out")], percent=True),
        Chart("Replaced tokens found", "step", [heldout("rtd_recall", "held out")], percent=True),
        Chart("Learning rate", "step", [schedule]),
        Chart("Gradient norm", "step", [training("gradient_norm", "before clipping")], clip_start=True),
        Chart("Tokens per second", "step", [training("tokens_per_second", "real tokens")], marks=marks),
        Chart("Share of the matrix-product speed", "step", [training("mfu", "measured")], percent=True),
    ]
    return [chart for chart in candidates if any(line.points for line in chart.lines)]


def _both_texts(evaluations: Sequence[Record]) -> list[Line]:
    """The loss on the corpus's held-out text and on general text; empty where general text wasn't
    measured.
    """
    general = _points(evaluations, "step", "general_mlm_loss")
    if not general:
        return []
    own = Line("of the corpus", _points(evaluations, "step", "mlm_loss"), SECOND, markers=True)
    return [own, Line("general", general, FIRST, markers=True)]


def draw(chart: Chart) -> str:
    """The chart as an <svg> element."""

    def paint(axes: "Axes") -> None:
        for line in chart.lines:
            _draw_line(axes, line)
        _set_axes(axes, chart)

    return picture(chart.title, paint)


def picture(title: str, paint: Callable[["Axes"], None], height: float = HEIGHT) -> str:
    """An <svg> element of what `paint` draws; the same drawing gives the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure.add_subplot())
        buffer = io.StringIO()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    return _for_page(buffer.getvalue(), title)


def squares(coverage: float, epsilon: float) -> str:
    """An <svg> element of a hundred squares, one for each call in a hundred: those that a student answers, a
    share `coverage` of all, of which a share `epsilon` differs from the LLM's answers, and those that the LLM
    goes on answering. Neither kind is shown as all or none unless it is.
    """
    answered = round(100 * coverage)
    if 0 < coverage < 1:
        answered = min(max(answered, 1), 99)
    differing = min(answered, math.floor(answered * epsilon + 0.5))
    kinds = {
        "--first": (answered - differing, f"{answered - differing} answered as the LLM would"),
        "--second": (differing, f"{differing} answered otherwise, at most"),
        "--line": (100 - answered, f"{100 - answered} left to the LLM"),
    }
    colours = [colour for colour, (count, _) in kinds.items() for _ in range(count)]
    cells = "".join(
        f'<rect x="{22 * (number % 20)}" y="{22 * (number // 20)}" width="19" height="19" rx="3" '
        f'fill="var({colour})"/>'
        for number, colour in enumerate(colours)
    )
    labels = "".join(
        f'<rect x="0" y="{122 + 24 * number}" width="13" height="13" rx="2" fill="var({colour})"/>'
        f'<text x="22" y="{133 + 24 * number}" font-size="14" fill="var(--ink)">{words}</text>'
        for number, (colour, (_, words)) in enumerate(kinds.items())
    )
    title = "Of 100 calls " + ", ".join(words for _, words in kinds.values())
    frame = f'viewBox="0 0 437 190" role="img" aria-label="{title}"'
    return f"<svg {frame}><title>{title}</title>{cells}{labels}</svg>"


def _points(records: Sequence[Record], x: str, y: str, scale: float = 1.0) -> list[Point]:
    curve = Curve(MOST_POINTS)
    for record in records:
        position = record.get(x)
        curve.add(None if position is None else position * scale, record.get(y))
    return curve.points()


def _draw_line(axes: "Axes", line: Line) -> None:
    if not line.points:
        return
    marker = "o" if line.markers or len(line.points) == 1 else None
    x, y = zip(*line.points, strict=True)
    if line.noisy and len(line.points) > 20:
        axes.plot(x, y, color=line.colour, alpha=0.25, linewidth=0.8)
        weight = min(0.85, 1 - 20 / len(line.points))
        y = tuple(value for _, value in smooth(line.points, weight))
    axes.plot(x, y, color=line.colour, marker=marker, markersize=3.5, label=line.label)


def _set_axes(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    axes.set_xlabel(chart.x_label)
    if chart.x_label == "step":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 2.5, 5, 10]))
    values = [y for line in chart.lines for _, y in line.points]
    if chart.percent:
        decimals = 0 if max(values) - min(values) > 0.05 else None
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals, symbol=" %"))
    elif max(values) >= 1000:
        axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    if chart.clip_start:  # to 97 % of the values: the steep fall of the first steps would flatten the rest
        ordered = sorted(values)
        low, top = ordered[0], ordered[int(0.97 * (len(ordered) - 1))]
        axes.set_ylim(top=top + 0.08 * (top - low) if len(ordered) > 50 and top > low else None)
    for x, text in chart.marks:
        axes.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.annotate(
            text,
            (x, 1),
            (-4, 2),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=MUTED,
            fontsize=8.5,
        )
    if sum(bool(line.points) for line in chart.lines) > 1:
        axes.legend(loc="upper center")


def _for_page(svg: str, title: str) -> str:
    """The SVG without the parts that only a file needs, with the colours of the page's style sheet."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]+"', "<g", svg)  # never referred to, and not unique among several pictures
    svg = re.sub(r'(<svg[^>]*?) width="[^"]+"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]+"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", svg)
    for placeholder, colour in PAGE_COLOURS.items():
        svg = svg.replace(placeholder, colour)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
