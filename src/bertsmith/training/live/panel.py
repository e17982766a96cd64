"""The live view's picture: header, progress, metrics, loss curve and last messages in one panel.

It keeps to the terminal's width and height: the curve takes what height is left and goes first.
"""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bertsmith.reporting import formatting
from bertsmith.reporting.curves import Point, smooth
from bertsmith.training.live.braille import Canvas
from bertsmith.training.live.state import RunState
from bertsmith.training.log import task_metrics

TRAINING, HELDOUT, SPEED, QUIET = "cyan", "magenta", "green", "dim"
SIGNS_OF_LIFE = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TALLEST_CURVE, LOWEST_CURVE = 12, 3
LABEL_WIDTH = 8
NAME_WIDTH, VALUE_WIDTH, GAP = 14, 9, 2


def panel(
    console: Console,
    title: str,
    facts: Mapping[str, str],
    state: RunState,
    messages: Sequence[Text],
    frame: int,
) -> Panel:
    """One picture of the run for the console's size; `frame` counts them, so that something always moves."""
    width = max(20, console.width - 4)
    header = list(Text(" · ".join(facts.values()), style=QUIET).wrap(console, width)) if facts else []
    parts: list[RenderableType] = [*header, _progress_bar(state), _progress_line(state, width, frame), Text()]
    parts += _metrics_lines(_metric_columns(state), width)
    others = 5  # two borders, a blank line, the x axis, and the line of the cursor below the panel
    free = console.height - len(parts) - len(messages) - others
    if free >= LOWEST_CURVE:
        parts += [Text(), *_loss_curve(state, width, min(free, TALLEST_CURVE))]
    return Panel(
        Group(*parts, *messages),
        title=Text(title, style="bold"),
        title_align="left",
        box=box.ROUNDED,
        border_style=QUIET,
    )


def _progress_bar(state: RunState) -> Table:
    line = Table.grid(expand=True, padding=(0, 1, 0, 0))
    line.add_column(ratio=1)
    line.add_column(justify="right", width=4)
    line.add_row(
        ProgressBar(1.0, state.share_done, complete_style=TRAINING), f"{100 * state.share_done:.0f}%"
    )
    return line


def _progress_line(state: RunState, width: int, frame: int) -> Text:
    step, spent = f"step {formatting.count(state.latest.get('step', 0))}", formatting.duration(state.elapsed)
    if state.total_steps:
        step += f" of {formatting.count(state.total_steps)}"
    if state.total_seconds:
        spent += f" of {formatting.duration(state.total_seconds)}"
    parts = [f"{SIGNS_OF_LIFE[frame % len(SIGNS_OF_LIFE)]} {step}", spent]
    if state.checkpoint is not None:
        parts.append(f"checkpoint {formatting.count(state.checkpoint)}")
    left = f"{formatting.duration(state.seconds_left)} left"
    line = Text("  ·  ".join(parts))
    line.truncate(width - len(left) - 1, overflow="ellipsis", pad=True)
    return line.append(f" {left}", "bold")


def _metric_columns(state: RunState) -> list[tuple[str, str, dict[str, str]]]:
    """Title, style, and names with their values."""
    step, evaluation = state.latest, state.evaluation
    training = {
        state.loss_name: formatting.loss(state.loss),
        **{name: formatting.loss(value) for name, value in state.other_losses.items()},
        "learning rate": formatting.small(step.get("learning_rate")),
        "gradient norm": formatting.loss(step.get("gradient_norm")),
    }
    heldout = _task_metrics(state) or {
        "MLM accuracy": formatting.percent(evaluation.get("mlm_accuracy")),
        **{
            f"{name} accuracy": formatting.percent(evaluation.get(f"{name.lower()}_accuracy"))
            for name in state.others
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
    return [("Training", TRAINING, training), ("Held out", HELDOUT, heldout), ("Speed", SPEED, speed)]


def _task_metrics(state: RunState) -> dict[str, str]:
    """Of a task that is fine-tuned: its first metrics; of pre-training none."""
    if not state.latest or "mlm_loss" in state.latest:
        return {}
    found = list(task_metrics(state.evaluation).items())[:3]
    return {name.replace("_", " ")[:NAME_WIDTH]: formatting.score(value) for name, value in found} | {
        "at step": formatting.count(state.evaluation.get("step"))
    }


def _metrics_lines(columns: Sequence[tuple[str, str, Mapping[str, str]]], width: int) -> list[Text]:
    """The columns side by side, set by hand: nested tables of rich took two thirds of a picture's time."""
    columns = columns[: max(1, width // (NAME_WIDTH + VALUE_WIDTH + GAP))]
    column_width = width // len(columns)
    lines = [Text(no_wrap=True)]
    for title, style, _ in columns:
        lines[0].append(f"{title:<{column_width}}", f"bold {style}")
    for row in range(max(len(values) for _, _, values in columns)):
        line = Text(no_wrap=True)
        for _, _, values in columns:
            name, value = list(values.items())[row] if row < len(values) else ("", "")
            line.append(f"{name:<{NAME_WIDTH}}", QUIET)
            line.append(f"{value:>{VALUE_WIDTH}}".ljust(column_width - NAME_WIDTH))
        lines.append(line)
    return lines


def _loss_curve(state: RunState, width: int, rows: int) -> list[Text]:
    """`rows` lines of picture, then the x axis."""
    training, heldout = smooth(state.training_loss.points(), 0.6), state.heldout_loss.points()
    points = training + heldout
    if len(points) < 2:
        return [Text("The loss curve appears here after the first steps.", style=QUIET)]
    first, last = min(x for x, _ in points), max([state.latest.get("step", 0), *(x for x, _ in points)])
    x_range = (0.0 if first < last / 20 else first, last)
    y_range = _loss_range([y for _, y in points])
    canvas = Canvas(width - LABEL_WIDTH, rows, x_range, y_range)
    canvas.line(training, TRAINING)
    canvas.markers(heldout, f"bold {HELDOUT}")
    values = {0: y_range[1], rows // 2: sum(y_range) / 2, rows - 1: y_range[0]}
    labels = [f"{values[row]:>6.2f} ┤" if row in values else " " * 7 + "│" for row in range(rows)]
    picture = [Text.assemble((label, QUIET), row) for label, row in zip(labels, canvas.rows(), strict=True)]
    return [*picture, _x_axis(state, x_range, width)]


def _x_axis(state: RunState, x_range: Point, width: int) -> Text:
    first, last = (formatting.count(x) for x in x_range)
    legend = Text.assemble(
        ("─", TRAINING), " training  ", ("●", HELDOUT), f" held out  {state.loss_name} by step"
    )
    room = max(0, width - LABEL_WIDTH - len(first) - len(last))
    if len(legend) > room:
        legend = Text()
    legend.align("center", room)
    return Text.assemble(" " * LABEL_WIDTH, (first, QUIET), legend, (last, QUIET))


def _loss_range(values: list[float]) -> Point:
    """From the lowest value to one that 3 % exceed: the steep fall at first would flatten the rest."""
    ordered = sorted(values)
    top = ordered[min(len(ordered) - 1, int(len(ordered) * 0.97))]
    return (ordered[0], top) if top > ordered[0] else (ordered[0] - 0.5, ordered[0] + 0.5)
