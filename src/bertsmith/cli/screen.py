"""What the commands print with: results go to stdout with what to mistrust in them, progress to stderr."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bertsmith.errors import printable
from bertsmith.files import is_standard_output
from bertsmith.progress import Progress
from bertsmith.reporting import formatting

# A pipe or a file has no width of its own; at rich's 80 columns tables would lose their cells there.
_WIDTH_OF_A_FILE = 120
_SECONDS_BETWEEN_LINES = 10.0
_FIGURE = re.compile(r"$|[-+(±–~<>]?\s?\d|–")  # as a cell that is one begins, or an empty one


class PrintableConsole(Console):
    """Texts of users hold [brackets], :colons:, numbers and control characters; only what a command marks up
    on purpose is styled, and nothing of them steers the terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """rich itself leaves escape characters in."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


console = PrintableConsole(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
error_console = PrintableConsole(stderr=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Prints rows to stdout: numbers to the right with thousands separated, everything else as it is. In a
    narrow terminal texts are folded between words, then figures of several words, the widest column first;
    where that isn't enough, lines are longer than the terminal. No word is cut or left out.
    """
    if title:
        console.print(_as_plain(f"\n{title}", "bold"), soft_wrap=True)
    columns = [[name, *(_format_cell(row[number]) for row in rows)] for number, name in enumerate(header)]
    widths = [max(map(len, cells)) for cells in columns]
    words = [max(len(word) for cell in cells for word in (cell.split() or [""])) for cells in columns]
    whole = {number for number, cells in enumerate(columns) if all(map(_FIGURE.match, cells[1:]))}

    def minimal_width() -> int:
        """Columns have a blank on each side, and one between them."""
        return 1 + sum(3 + (widths if number in whole else words)[number] for number in range(len(columns)))

    while minimal_width() > console.width and any(widths[number] > words[number] for number in whole):
        whole.remove(max(whole, key=lambda number: widths[number] - words[number]))
    width = minimal_width()
    table = Table(box=box.SIMPLE_HEAD, width=width if width > console.width else None)
    for number, name in enumerate(header):
        numeric = all(isinstance(row[number], int | float) for row in rows)
        table.add_column(
            _as_plain(name),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=number in whole,
            min_width=words[number],
        )
    for row in rows:
        table.add_row(*[_as_plain(_format_cell(value)) for value in row])
    console.print(table, crop=False)


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Prints a heading and, below it, one named fact a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in facts.items():
        grid.add_row(_as_plain(f"  {name}"), _as_plain(fact))
    console.print(_as_plain(f"\n{title}", "bold"))
    console.print(grid)


def print_warning(sentence: str, out: Path | None = None) -> None:
    """Prints what to mistrust in the results, or to mend; beside them, so that a saved page has it too. Where
    rows are written to `out` and that is standard output, it goes to standard error.
    """
    shown_on = error_console if out is not None and is_standard_output(out) else console
    shown_on.print(Text.assemble(("Warning:", "yellow"), " ", sentence), soft_wrap=True)


def print_note(sentence: str, out: Path | None = None) -> None:
    """Prints what is good to know of the results; as a warning, not among rows that are written to `out`."""
    shown_on = error_console if out is not None and is_standard_output(out) else console
    shown_on.print(f"Note: {sentence}", markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Prints plain values as JSON for --json, indented."""
    console.print_json(data=value)


def print_paths(**paths: Path) -> None:
    """Prints what a command has written and where, one a line."""
    console.print()
    for name, path in paths.items():
        console.print(f"{name:<8}{path}", markup=False, soft_wrap=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Yields the callable that long work reports to; a bar in a terminal, a line now and then elsewhere.

    A change of what is counted ("documents", then "pairs compared") starts a bar of its own. The unit
    "bytes" is shown as MB or GB.
    """
    if not error_console.is_terminal:
        say = paced_lines()
        yield lambda done, total, unit: say(f"{title}: {_format_amount(done, total, unit)}")
        return
    from rich import progress as bars  # here: `--help` of every command has no use for it

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=28),
        bars.TextColumn("{task.fields[amount]}"),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=error_console, refresh_per_second=4) as shown:
        tasks: dict[str, bars.TaskID] = {}

        def report(done: int, total: int | None, unit: str) -> None:
            if unit not in tasks:
                for earlier in tasks.values():
                    shown.stop_task(earlier)
                tasks[unit] = shown.add_task(escape(title), total=total, amount="")
            shown.update(
                tasks[unit], completed=done, total=total, amount=escape(_format_amount(done, total, unit))
            )

        yield report


def paced_lines() -> Callable[[str], None]:
    """For logs of machines: prints a line every ten seconds, so that a short job stays silent."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            error_console.print(line, markup=False, soft_wrap=True)

    return say


def _format_amount(done: int, total: int | None, unit: str) -> str:
    if unit == "bytes":
        whole = "" if total is None else f" / {formatting.bytes(total)}"
        return f"{formatting.bytes(done)}{whole}"
    whole = "" if total is None else f" / {total:,}"
    return f"{done:,}{whole} {unit}"


def _as_plain(text: str, style: str = "") -> Text:
    """No markup, and escaped before its width is measured, so that nothing is cut off."""
    return Text(printable(text), style)


def _format_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value)
