"""The live picture of a run in a terminal: header, progress, metrics, loss curve and last messages in one
panel. `RunState` gathers what it shows from the records of the log, `draw_panel` draws it.

The panel keeps to the terminal's width and height: the curve takes the height that is left, and is the first
to be left out.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bertsmith.reporting import formatting
from bertsmith.reporting.charts import Curve, Point, smooth
from bertsmith.training.log import Record, task_metrics

TRAINING_STYLE, HELDOUT_STYLE, SPEED_STYLE, QUIET_STYLE = "cyan", "magenta", "green", "dim"
SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TALLEST_CURVE, LOWEST_CURVE = 12, 3
LABEL_WIDTH = 8
NAME_WIDTH, VALUE_WIDTH, GAP = 14, 9, 2
EXTRA_LOSS_KEYS = {"NSP": "nsp_loss", "SOP": "sop_loss", "RTD": "weighted_rtd_loss"}
# The bit of each dot of a braille cell, by row and column (Unicode 15, section 21.1).
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800


class RunState:
    """What is known of a run from the records of its log, added one by one.

    total_steps, total_seconds: the run's budget, where it has one; with both, the first to run out counts.
    """

    def __init__(self, total_steps: int | None = None, total_seconds: float | None = None) -> None:
        self.total_steps, self.total_seconds = total_steps, total_seconds
        self.latest: Record = {}
        self.checkpoint: int | None = None
        self.training_loss = Curve(600)
        self.heldout_loss = Curve(200)
        self._evaluations: list[Record] = []
        self._phases: list[Record] = []
        self._recent_losses: deque[dict[str, float | None]] = deque(maxlen=20)
        self._pace: deque[tuple[int, float]] = deque(maxlen=200)

    def add(self, record: Record) -> None:
        """Adds a record of the log. log.py lists the kinds; those that the panel doesn't show are ignored."""
        match record["kind"]:
            case "step":
                self._add_step(record)
            case "evaluation":
                self._evaluations.append(record)
                self.heldout_loss.add(record["step"], record.get("mlm_loss"))
            case "phase":
                self._phases.append(record)
                self._pace.clear()  # the pace of shorter sequences says nothing about the time left
            case "checkpoint":
                self.checkpoint = record["step"]

    def rewind(self, step: int) -> None:
        """Forgets what came after `step`, since the loss guard (training/loop.py) went back to it: points of
        the curves, evaluations and phases. `latest` stays until the next step's record.
        """
        self._evaluations = [record for record in self._evaluations if record["step"] <= step]
        self._phases = [record for record in self._phases if record["step"] <= step]
        self.training_loss.cut_after(step)
        self.heldout_loss.cut_after(step)
        self._recent_losses.clear()
        self._pace.clear()

    def _add_step(self, record: Record) -> None:
        self.latest = record
        shown = record.get("mlm_loss", record.get("loss"))
        extra = {name: record.get(key) for name, key in EXTRA_LOSS_KEYS.items()}
        self._recent_losses.append({"shown": shown, **extra})
        self.training_loss.add(record["step"], shown)
        if record.get("elapsed") is not None:
            self._pace.append((record["step"], record["elapsed"]))

    @property
    def evaluation(self) -> Record:
        """The record of the last evaluation; empty before the first."""
        return self._evaluations[-1] if self._evaluations else {}

    @property
    def sequence_length(self) -> int | None:
        """The tokens of a sequence in this phase; None where the phases don't tell."""
        return self._phases[-1].get("sequence_length") if self._phases else None

    @property
    def loss_name(self) -> str:
        """The name of the loss that the curve shows: MLM alone where it is known, since the sum with other
        losses would hide its course.
        """
        return "MLM loss" if "mlm_loss" in self.latest or not self.latest else "loss"

    @property
    def loss(self) -> float | None:
        """The mean loss of the last 20 records (single batches vary too much to be read); None before the
        first.
        """
        return self._recent_mean("shown")

    @property
    def extra_losses(self) -> list[str]:
        """The short names of the losses beside MLM that the run has: NSP, SOP or RTD."""
        return [name for name, key in EXTRA_LOSS_KEYS.items() if key in self.latest]

    @property
    def extra_loss_means(self) -> dict[str, float | None]:
        """The mean of each extra loss over the last 20 records. RTD, replaced-token detection, is weighted as
        in the training loss.
        """
        return {f"{name} loss": self._recent_mean(name) for name in self.extra_losses}

    def _recent_mean(self, name: str) -> float | None:
        known = [loss for losses in self._recent_losses if (loss := losses[name]) is not None]
        return sum(known) / len(known) if known else None

    @property
    def elapsed(self) -> float:
        """Seconds of training up to the last step, by the log."""
        return float(self.latest.get("elapsed") or 0.0)

    @property
    def share_done(self) -> float:
        """How much of the budget that runs out first is used, in [0, 1]; 0 without a budget."""
        steps = self.latest.get("step", 0) / self.total_steps if self.total_steps else 0.0
        seconds = self.elapsed / self.total_seconds if self.total_seconds else 0.0
        return min(1.0, max(steps, seconds))

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training until the budget runs out, at the recent pace; None while it isn't known."""
        candidates = []
        if self.total_seconds:
            candidates.append(max(0.0, self.total_seconds - self.elapsed))
        if self.total_steps and len(self._pace) > 1:
            (first_step, first_second), (last_step, last_second) = self._pace[0], self._pace[-1]
            if last_step > first_step:
                seconds_per_step = (last_second - first_second) / (last_step - first_step)
                candidates.append(max(0, self.total_steps - self.latest["step"]) * seconds_per_step)
        return min(candidates, default=None)


# -- the picture ---------------------------------------------------------------------------------------


def draw_panel(
    console: Console,
    title: str,
    facts: Mapping[str, str],
    state: RunState,
    messages: Sequence[Text],
    frame: int,
) -> Panel:
    """Draws the run at the console's size.

    title: of the panel. facts: the header's entries, in order. messages: the last lines.
    frame: the picture's number, which turns the spinner in the progress line.
    """
    width = max(20, console.width - 4)
    header = list(Text(" · ".join(facts.values()), style=QUIET_STYLE).wrap(console, width)) if facts else []
    parts: list[RenderableType] = [
        *header,
        _draw_progress_bar(state),
        _format_progress(state, width, frame),
        Text(),
    ]
    parts += _format_metrics(_collect_metric_columns(state), width)
    reserved = 5  # two borders, a blank line, the x axis, and the line of the cursor below the panel
    free = console.height - len(parts) - len(messages) - reserved
    if free >= LOWEST_CURVE:
        parts += [Text(), *_draw_loss_curve(state, width, min(free, TALLEST_CURVE))]
    return Panel(
        Group(*parts, *messages),
        title=Text(title, style="bold"),
        title_align="left",
        box=box.ROUNDED,
        border_style=QUIET_STYLE,
    )


def _draw_progress_bar(state: RunState) -> Table:
    line = Table.grid(expand=True, padding=(0, 1, 0, 0))
    line.add_column(ratio=1)
    line.add_column(justify="right", width=4)
    line.add_row(
        ProgressBar(1.0, state.share_done, complete_style=TRAINING_STYLE), f"{100 * state.share_done:.0f}%"
    )
    return line


def _format_progress(state: RunState, width: int, frame: int) -> Text:
    step, spent = f"step {formatting.count(state.latest.get('step', 0))}", formatting.duration(state.elapsed)
    if state.total_steps:
        step += f" of {formatting.count(state.total_steps)}"
    if state.total_seconds:
        spent += f" of {formatting.duration(state.total_seconds)}"
    parts = [f"{SPINNER_FRAMES[frame % len(SPINNER_FRAMES)]} {step}", spent]
    if state.checkpoint is not None:
        parts.append(f"checkpoint {formatting.count(state.checkpoint)}")
    left = f"{formatting.duration(state.seconds_left)} left"
    line = Text("  ·  ".join(parts))
    line.truncate(width - len(left) - 1, overflow="ellipsis", pad=True)
    return line.append(f" {left}", "bold")


def _collect_metric_columns(state: RunState) -> list[tuple[str, str, dict[str, str]]]:
    """Three columns, each with title, style, and formatted values by name. "general MLM" is the masked
    accuracy on general text (`MaskedTask.general_heldout`).
    """
    step, evaluation = state.latest, state.evaluation
    training = {
        state.loss_name: formatting.loss(state.loss),
        **{name: formatting.loss(value) for name, value in state.extra_loss_means.items()},
        "learning rate": formatting.small(step.get("learning_rate")),
        "gradient norm": formatting.loss(step.get("gradient_norm")),
    }
    heldout = _format_task_metrics(state) or {
        "MLM accuracy": formatting.percent(evaluation.get("mlm_accuracy")),
        **{
            f"{name} accuracy": formatting.percent(evaluation.get(f"{name.lower()}_accuracy"))
            for name in state.extra_losses
        },
        "MLM perplexity": formatting.perplexity(evaluation.get("mlm_perplexity")),
        "general MLM": formatting.percent(evaluation.get("general_mlm_accuracy")),
        "at step": formatting.count(evaluation.get("step")),
    }
    speed = {
        "tokens/s": formatting.count(step.get("tokens_per_second")),
        "of matmul peak": formatting.percent(step.get("mfu")),
        "tokens seen": formatting.large(step.get("tokens")),
        "length": formatting.count(state.sequence_length),
    }
    if "general_mlm_accuracy" not in evaluation:
        heldout.pop("general MLM", None)
    return [
        ("Training", TRAINING_STYLE, training),
        ("Held out", HELDOUT_STYLE, heldout),
        ("Speed", SPEED_STYLE, speed),
    ]


def _format_task_metrics(state: RunState) -> dict[str, str]:
    """The first three metrics of a fine-tuning, in the task's order: the main metric first. None in
    pre-training.
    """
    if not state.latest or "mlm_loss" in state.latest:
        return {}
    metrics = list(task_metrics(state.evaluation).items())[:3]
    return {name.replace("_", " ")[:NAME_WIDTH]: formatting.score(value) for name, value in metrics} | {
        "at step": formatting.count(state.evaluation.get("step"))
    }


def _format_metrics(columns: Sequence[tuple[str, str, Mapping[str, str]]], width: int) -> list[Text]:
    """The columns side by side, as many as fit. Laid out by hand, since nested tables of rich took two thirds
    of a picture's time.
    """
    columns = columns[: max(1, width // (NAME_WIDTH + VALUE_WIDTH + GAP))]
    column_width = width // len(columns)
    lines = [Text(no_wrap=True)]
    for title, style, _ in columns:
        lines[0].append(f"{title:<{column_width}}", f"bold {style}")
    for row in range(max(len(values) for _, _, values in columns)):
        line = Text(no_wrap=True)
        for _, _, values in columns:
            name, value = list(values.items())[row] if row < len(values) else ("", "")
            line.append(f"{name:<{NAME_WIDTH}}", QUIET_STYLE)
            line.append(f"{value:>{VALUE_WIDTH}}".ljust(column_width - NAME_WIDTH))
        lines.append(line)
    return lines


def _draw_loss_curve(state: RunState, width: int, rows: int) -> list[Text]:
    """The loss curve in `rows` lines, then the x axis; a sentence while there are fewer than two points."""
    training, heldout = smooth(state.training_loss.points(), 0.6), state.heldout_loss.points()
    points = training + heldout
    if len(points) < 2:
        return [Text("The loss curve appears here after the first steps.", style=QUIET_STYLE)]
    first, last = min(x for x, _ in points), max([state.latest.get("step", 0), *(x for x, _ in points)])
    # From step 0, unless the log begins much later.
    x_range = (0.0 if first < last / 20 else first, last)
    ordered = sorted(y for _, y in points)
    # The top is the value that 3 % exceed: the steep fall at first would flatten the rest.
    lowest, top = ordered[0], ordered[min(len(ordered) - 1, int(len(ordered) * 0.97))]
    y_range = (lowest, top) if top > lowest else (lowest - 0.5, lowest + 0.5)
    canvas = Canvas(width - LABEL_WIDTH, rows, x_range, y_range)
    canvas.draw_line(training, TRAINING_STYLE)
    canvas.draw_markers(heldout, f"bold {HELDOUT_STYLE}")
    values = {0: y_range[1], rows // 2: sum(y_range) / 2, rows - 1: y_range[0]}
    labels = [f"{values[row]:>6.2f} ┤" if row in values else " " * 7 + "│" for row in range(rows)]
    picture = [
        Text.assemble((label, QUIET_STYLE), row) for label, row in zip(labels, canvas.rows(), strict=True)
    ]
    return [*picture, _draw_x_axis(state, x_range, width)]


def _draw_x_axis(state: RunState, x_range: Point, width: int) -> Text:
    first, last = (formatting.count(x) for x in x_range)
    legend = Text.assemble(
        ("─", TRAINING_STYLE), " training  ", ("●", HELDOUT_STYLE), f" held out  {state.loss_name} by step"
    )
    room = max(0, width - LABEL_WIDTH - len(first) - len(last))
    if len(legend) > room:
        legend = Text()
    legend.align("center", room)
    return Text.assemble(" " * LABEL_WIDTH, (first, QUIET_STYLE), legend, (last, QUIET_STYLE))


# -- curves in a terminal ------------------------------------------------------------------------------


class Canvas:
    """A picture of `width` × `height` characters, each a braille cell of 2 × 4 dots. `x_range` and `y_range`
    are the values at its left and right edge, and at its bottom and top.
    """

    def __init__(self, width: int, height: int, x_range: Point, y_range: Point) -> None:
        self.width, self.height = width, height
        self._x_range, self._y_range = x_range, y_range
        self._cells = [[BLANK] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]

    def draw_line(self, points: Sequence[Point], style: str) -> None:
        """Joins the points by straight lines; points outside the ranges are moved to the edge."""
        dots = [self._locate_dot(point) for point in points]
        for start, end in zip(dots, dots[1:] or dots):
            self._join_dots(start, end, style)

    def draw_markers(self, points: Sequence[Point], style: str, marker: str = "●") -> None:
        """Puts the character `marker` on each point, over what was drawn before."""
        for point in points:
            column, row = self._locate_dot(point)
            self._cells[row // 4][column // 2] = ord(marker)
            self._styles[row // 4][column // 2] = style

    def rows(self) -> list[Text]:
        """Returns the lines of the picture, the top one first."""
        return [_style_row(cells, styles) for cells, styles in zip(self._cells, self._styles, strict=True)]

    def _locate_dot(self, point: Point) -> tuple[int, int]:
        column = _scale_to_dot(point[0], self._x_range, 2 * self.width)
        row = _scale_to_dot(point[1], self._y_range, 4 * self.height)
        return column, 4 * self.height - 1 - row

    def _join_dots(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        (start_column, start_row), (end_column, end_row) = start, end
        steps = max(abs(end_column - start_column), abs(end_row - start_row), 1)
        for step in range(steps + 1):
            column = start_column + round(step * (end_column - start_column) / steps)
            row = start_row + round(step * (end_row - start_row) / steps)
            self._cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
            self._styles[row // 4][column // 2] = style


def _style_row(cells: Sequence[int], styles: Sequence[str]) -> Text:
    """Makes one line of the picture. Neighbouring cells of one style are appended together, since each change
    of style costs rich as much as a line.
    """
    row, column = Text(), 0
    for style, run in groupby(styles):
        end = column + len(list(run))
        row.append("".join(" " if cell == BLANK else chr(cell) for cell in cells[column:end]), style)
        column = end
    return row


def _scale_to_dot(value: float, value_range: Point, size: int) -> int:
    """The index of the dot that shows `value`, in 0 … size - 1; the middle one for an empty range."""
    low, high = value_range
    share = (value - low) / (high - low) if high > low else 0.5
    return min(max(int(share * size), 0), size - 1)
