"""Reports a run as it goes on: `RunObserver` writes its log and feeds the live view, `LiveView` redraws a
picture in a terminal and prints lines elsewhere. Only the first rank reports.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text
from torch import nn

from bertsmith import __version__
from bertsmith.model.config import BertConfig
from bertsmith.reporting import formatting
from bertsmith.training.live_panel import EXTRA_LOSS_KEYS, RunState, draw_panel
from bertsmith.training.log import Record, RunLog, task_metrics
from bertsmith.training.machine import Machine
from bertsmith.training.settings import RunSettings
from bertsmith.training.trackers import OpenTrackers

SHORTEST_PAUSE = 0.25  # seconds between two pictures
COST_SHARE = 0.01  # the most of the time that goes into pictures
MESSAGES = 3


class RunObserver:
    """The loop's `Observer` in one process of a run: writes the log, and shows the run on a console."""

    def __init__(
        self,
        folder: Path,
        title: str,
        facts: dict[str, str],
        recipe: RunSettings,
        machine: Machine,
        console: Console | None,
        name: str,
    ) -> None:
        """`name` is what trackers call the run, such as tickets/restarts/2."""
        self._folder, self._recipe, self._machine, self._console = folder, recipe, machine, console
        self._title, self._facts, self._name = title, facts, name
        self._log: RunLog | None = None
        self._trackers: OpenTrackers | None = None
        self._view: LiveView | None = None

    @contextlib.contextmanager
    def open(self, step: int, notes: Iterable[str] = ()) -> Iterator[None]:
        """Opens the log and the live view for the block. In the log of a resumed run, lines after `step` are
        cut off. `notes` are reported as warnings. Ranks but the first open nothing.
        """
        if not self._machine.ranks.is_first:
            yield
            return
        with RunLog(self._folder, append=True, step=step) as self._log, contextlib.ExitStack() as stack:
            stack.enter_context(self._open_trackers())
            if self._console is not None:
                hours = self._recipe.hours
                view = LiveView(
                    self._console,
                    f"{self._title} · {self._folder.name}",
                    facts=self._facts,
                    total_steps=self._recipe.steps,
                    total_seconds=None if hours is None else hours * 3600,
                    earlier=RunLog.read(self._folder),
                )
                self._view = stack.enter_context(view)
            self.record("start", step, version=__version__, torch=torch.__version__, machine=self._facts)
            for note in notes:
                self.record("warning", step, message=note)
            yield

    @contextlib.contextmanager
    def _open_trackers(self) -> Iterator[None]:
        """The trackers of the recipe, for the block."""
        settings = self._recipe.model_dump(mode="json")
        self._trackers = trackers = OpenTrackers(self._recipe.trackers, self._name, self._folder, settings)
        try:
            yield
        except BaseException:
            trackers.close(failed=True)
            raise
        trackers.close(failed=False)

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Writes a line to the log, and shows it; nothing outside of `open`."""
        if self._log is None:
            return
        record = self._log.write(kind, step, **values)
        if self._view is not None:
            self._view.show(record)
        failures = [self._log.pop_failure()]
        if self._trackers is not None:
            self._trackers.record(record)
            failures += self._trackers.pop_failures()
        for failure in filter(None, failures):
            self.record("warning", step, message=failure)

    def evaluating(self, done: int, total: int | None, unit: str) -> None:
        """Shows how far an evaluation is: `done` of `total` units, None when the total isn't known."""
        if self._view is not None:
            self._view.evaluating(done, total, unit)

    def rewind(self, step: int) -> None:
        """Takes back the log's lines after `step`, and the live view's."""
        if self._log is not None:
            self._log.rewind(step)
        if self._view is not None:
            self._view.rewind(step)


def describe_run(model: nn.Module, config: BertConfig, data: str, machine: Machine) -> dict[str, str]:
    """Describes what a run works with (model, parameters, data, precision, device, peak), for its header and
    log. `data` names what it is trained on.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    precision = str(machine.precision).removeprefix("torch.")
    return {
        "model": f"{formatting.counted(config.num_hidden_layers, 'layer')} × {config.hidden_size}",
        "parameters": f"{count / 1e6:.1f} M parameters",
        "data": data,
        "precision": precision,
        "device": f"{machine.device.type} × {machine.ranks.count}"
        if machine.ranks.count > 1
        else machine.device.type,
        "peak": f"peak {machine.peak / 1e9:,.0f} GFLOP/s",
    }


# -- the live view -------------------------------------------------------------------------------------


class LiveView:
    """Shows a run on `console` while it goes on; a context manager.

    title: of the run, for instance "Pre-training · quickstart".
    facts: what the run works with, in the order to be shown: model, parameters, corpus, precision, device.
    total_steps, total_seconds: the budget; with both, the one that runs out first counts.
    earlier: the log's records so far when a run is resumed, so that its curve begins where the run began.
    line_interval: seconds between two lines where the output is no terminal.

    The picture is drawn in the caller's thread, inside of `step`, `evaluation`, `evaluating`, `message` and
    `tick`, at most four times a second and for at most a hundredth of the time: between two pictures a call
    costs microseconds. A thread of its own would compete with the training for Python's lock and for cores.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        *,
        facts: Mapping[str, str] | None = None,
        total_steps: int | None = None,
        total_seconds: float | None = None,
        earlier: Iterable[Record] = (),
        line_interval: float = 10.0,
    ) -> None:
        self.state = RunState(total_steps, total_seconds)
        self._console, self._title, self._facts = console, title, dict(facts or {})
        self._messages: deque[Text] = deque(maxlen=MESSAGES)
        self._frame = 0
        self._next_time = 0.0
        self._line_interval = line_interval
        self._evaluation_progress: Text | None = None
        self._evaluation_start = 0.0
        # a file, a pipe or a bare terminal can't redraw a picture, or can't show its characters
        is_drawn = console.is_interactive and not console.options.ascii_only
        self._live = Live(console=console, auto_refresh=False) if is_drawn else None
        for record in earlier:
            self.state.add(record)

    def show(self, record: Record) -> None:
        """Shows a record of the log, of any kind, as `RunLog.write` returns it."""
        match record["kind"]:
            case "step":
                self.step(record)
            case "evaluation":
                self.evaluation(record)
            case "warning":
                self.message(f"step {record['step']:,}: {record['message']}", warning=True)
            case "phase":
                self.state.add(record)
                if record["step"] > 0:
                    self.message(
                        f"from step {record['step']:,}: sequences of {record['sequence_length']} tokens"
                    )
            case "checkpoint":
                self.state.add(record)
                self._print_line(f"checkpoint at step {record['step']:,}")

    def step(self, record: Record) -> None:
        """Adds a step's record, and redraws if it is time."""
        self.state.add(record)
        self.tick()

    def evaluation(self, record: Record) -> None:
        """Adds an evaluation's record and shows it at once."""
        self._evaluation_progress = None
        self.state.add(record)
        self._print_line(_format_evaluation(record))
        self._draw()

    def evaluating(self, done: int, total: int | None, unit: str) -> None:
        """Shows how far an evaluation is: `done` of `total` units. Where lines are printed, not before the
        evaluation has taken `line_interval`.
        """
        now = time.monotonic()
        if self._evaluation_progress is None:
            self._evaluation_start = now
        of_total = "" if total is None else f" / {total:,}"
        self._evaluation_progress = Text(
            f"evaluating on dev: {done:,}{of_total} {unit}", style="dim", no_wrap=True
        )
        if self._live is None:
            begun = max(self._evaluation_start + self._line_interval, self._next_time)
            if now >= begun:
                self._next_time = now + self._line_interval
                self._print_line(self._evaluation_progress.plain)
        elif now >= self._next_time:
            self._draw()

    def message(self, text: str, *, warning: bool = False) -> None:
        """Shows a sentence, among the last three in the picture or as a line of its own."""
        text = "".join(letter if letter.isprintable() else " " for letter in text)  # no escape codes
        style = "yellow" if warning else "dim"
        self._messages.append(Text(f"· {text}", style=style, no_wrap=True, overflow="ellipsis"))
        self._print_line(f"warning: {text}" if warning else text)
        self._draw()

    def rewind(self, step: int) -> None:
        """Takes back what is shown of the steps after `step`; see `RunState.rewind`."""
        self.state.rewind(step)

    def tick(self) -> None:
        """Redraws the picture, or prints a line, if it is time. Call it during steps of many seconds."""
        now = time.monotonic()
        if now < self._next_time:
            return
        if self._live is None:
            self._next_time = now + self._line_interval
            if self.state.latest:
                self._print_line(_format_step(self.state))
        else:
            self._draw()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._draw()
        else:
            self._print_line(" | ".join([self._title, *self._facts.values()]))
            self._next_time = time.monotonic() + min(1.0, self._line_interval)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._draw()
            self._live.stop()
        elif self.state.latest:
            self._print_line(_format_step(self.state))

    def _draw(self) -> None:
        if self._live is None or not self._live.is_started:
            return
        start = time.monotonic()
        self._frame += 1
        messages = [
            *self._messages,
            *([] if self._evaluation_progress is None else [self._evaluation_progress]),
        ]
        picture = draw_panel(self._console, self._title, self._facts, self.state, messages, self._frame)
        self._live.update(picture, refresh=True)
        end = time.monotonic()
        self._next_time = end + max(SHORTEST_PAUSE, (end - start) / COST_SHARE)

    def _print_line(self, line: str) -> None:
        if self._live is None:
            if self._console.options.ascii_only:
                line = line.encode("ascii", "replace").decode()
            self._console.print(Text(line), soft_wrap=True)


def _format_step(state: RunState) -> str:
    record = state.latest
    of_steps = f"/{state.total_steps:,}" if state.total_steps else ""
    parts = {
        f"step {record['step']:,}{of_steps}": True,
        f"{state.loss_name} {formatting.loss(state.loss)}": state.loss is not None,
        f"learning rate {formatting.small(record.get('learning_rate'))}": "learning_rate" in record,
        f"{formatting.count(record.get('tokens_per_second'))} tokens/s": "tokens_per_second" in record,
        f"{formatting.percent(record.get('mfu'))} of peak": "mfu" in record,
        f"{formatting.duration(state.elapsed)} spent": True,
        f"{formatting.duration(state.seconds_left)} left": state.seconds_left is not None,
    }
    return " | ".join(part for part, known in parts.items() if known)


def _format_evaluation(record: Record) -> str:
    if "mlm_loss" not in record:
        metrics = (f"{name} {formatting.score(value)}" for name, value in task_metrics(record).items())
        return " | ".join([f"dev at step {record['step']:,}", *metrics])
    parts = [
        f"held out at step {record['step']:,}",
        f"MLM loss {formatting.loss(record.get('mlm_loss'))}",
        f"perplexity {formatting.perplexity(record.get('mlm_perplexity'))}",
        f"accuracy {formatting.percent(record.get('mlm_accuracy'))}",
    ]
    for name in EXTRA_LOSS_KEYS:
        if record.get(f"{name.lower()}_accuracy") is not None:
            parts.append(f"{name} accuracy {formatting.percent(record[f'{name.lower()}_accuracy'])}")
    if record.get("general_mlm_loss") is not None:
        parts.append(f"general text: MLM loss {formatting.loss(record['general_mlm_loss'])}")
        parts.append(f"accuracy {formatting.percent(record.get('general_mlm_accuracy'))}")
    return " | ".join(parts)
