"""What happens in a run goes to its log and, where there is one, to the live view, which is redrawn in a
terminal and prints lines elsewhere; other ranks are silent.
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
from bertsmith.training.live_panel import BESIDE_MLM, Record, RunState, panel
from bertsmith.training.log import RunLog, task_metrics
from bertsmith.training.machine import Machine
from bertsmith.training.settings import RunSettings

SHORTEST_PAUSE = 0.25  # seconds between two pictures
COST_SHARE = 0.01  # of the time at most goes into pictures
MESSAGES = 3


class RunObserver:
    """The loop's observer for one process of a run."""

    def __init__(
        self,
        folder: Path,
        title: str,
        facts: dict[str, str],
        recipe: RunSettings,
        machine: Machine,
        console: Console | None,
    ) -> None:
        self._folder, self._recipe, self._machine, self._console = folder, recipe, machine, console
        self._title, self._facts = title, facts
        self._log: RunLog | None = None
        self._view: LiveView | None = None

    @contextlib.contextmanager
    def open(self, step: int, notes: Iterable[str] = ()) -> Iterator[None]:
        """Opens the log at `step`, cutting off later lines of a run that is resumed, and the live view.
        `notes` are told there as warnings.
        """
        if not self._machine.ranks.is_first:
            yield
            return
        with RunLog(self._folder, append=True, step=step) as self._log, contextlib.ExitStack() as stack:
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

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Writes a line, and shows it."""
        if self._log is None:
            return
        record = self._log.write(kind, step, **values)
        if self._view is not None:
            self._view.show(record)
        complaint = self._log.new_complaint()
        if complaint is not None:
            self.record("warning", step, message=complaint)

    def evaluating(self, done: int, total: int | None, unit: str) -> None:
        """Shows how far an evaluation is (`Progress`)."""
        if self._view is not None:
            self._view.evaluating(done, total, unit)

    def rewind(self, step: int) -> None:
        """Takes back the lines after `step`."""
        if self._log is not None:
            self._log.rewind(step)
        if self._view is not None:
            self._view.rewind(step)


def run_facts(model: nn.Module, config: BertConfig, data: str, machine: Machine) -> dict[str, str]:
    """What a run works with, for people; `data` is what it is trained on."""
    count = sum(parameter.numel() for parameter in model.parameters())
    precision = str(machine.precision).removeprefix("torch.")
    return {
        "model": f"{config.num_hidden_layers} layers × {config.hidden_size}",
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

    title: what runs, for instance "Pre-training · quickstart".
    facts: what the run works with, in the order to be shown: model, parameters, corpus, precision, device.
    total_steps, total_seconds: the budget; with both, the one that runs out first counts.
    earlier: the log's records so far, when a run is resumed: its curve begins where the run began.
    line_interval: seconds between two lines where the output is no terminal.

    The picture is drawn by the caller's thread inside `step`, `evaluation`, `evaluating`, `message` and
    `tick`, at most four times a second and never for more than a hundredth of the time: between two pictures
    a call costs microseconds. A thread of its own would fight with the training for Python's lock and for the
    cores.
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
        self._evaluating: Text | None = None
        self._evaluating_since = 0.0
        # no picture can be redrawn, or its characters not be shown, in a file, a pipe, a bare terminal
        is_drawn = console.is_interactive and not console.options.ascii_only
        self._live = Live(console=console, auto_refresh=False) if is_drawn else None
        for record in earlier:
            self.state.take_in(record)

    def show(self, record: Record) -> None:
        """Takes any record of the log, as `RunLog.write` returns it."""
        match record["kind"]:
            case "step":
                self.step(record)
            case "evaluation":
                self.evaluation(record)
            case "warning":
                self.message(f"step {record['step']:,}: {record['message']}", warning=True)
            case "phase":
                self.state.take_in(record)
                if record["step"] > 0:
                    self.message(
                        f"from step {record['step']:,}: sequences of {record['sequence_length']} tokens"
                    )
            case "checkpoint":
                self.state.take_in(record)
                self._print_line(f"checkpoint at step {record['step']:,}")

    def step(self, record: Record) -> None:
        """Takes in a step."""
        self.state.take_in(record)
        self.tick()

    def evaluation(self, record: Record) -> None:
        """Takes in an evaluation and shows it at once."""
        self._evaluating = None
        self.state.take_in(record)
        self._print_line(_evaluation_line(record))
        self._draw()

    def evaluating(self, done: int, total: int | None, unit: str) -> None:
        """How far an evaluation is that is under way; one that is over soon needs no line."""
        now = time.monotonic()
        if self._evaluating is None:
            self._evaluating_since = now
        of_total = "" if total is None else f" / {total:,}"
        self._evaluating = Text(f"evaluating on dev: {done:,}{of_total} {unit}", style="dim", no_wrap=True)
        if self._live is None:
            begun = max(self._evaluating_since + self._line_interval, self._next_time)
            if now >= begun:
                self._next_time = now + self._line_interval
                self._print_line(self._evaluating.plain)
        elif now >= self._next_time:
            self._draw()

    def message(self, text: str, *, warning: bool = False) -> None:
        """Shows a sentence: among the last three in the picture, or as a line."""
        text = "".join(letter if letter.isprintable() else " " for letter in text)  # no escape codes
        style = "yellow" if warning else "dim"
        self._messages.append(Text(f"· {text}", style=style, no_wrap=True, overflow="ellipsis"))
        self._print_line(f"warning: {text}" if warning else text)
        self._draw()

    def rewind(self, step: int) -> None:
        """Forgets the steps after `step`: the guard took them back."""
        self.state.rewind(step)

    def tick(self) -> None:
        """Redraws if it is time: call it where a step takes many seconds."""
        now = time.monotonic()
        if now < self._next_time:
            return
        if self._live is None:
            self._next_time = now + self._line_interval
            if self.state.latest:
                self._print_line(_step_line(self.state))
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
            self._print_line(_step_line(self.state))

    def _draw(self) -> None:
        if self._live is None or not self._live.is_started:
            return
        start = time.monotonic()
        self._frame += 1
        messages = [*self._messages, *([] if self._evaluating is None else [self._evaluating])]
        picture = panel(self._console, self._title, self._facts, self.state, messages, self._frame)
        self._live.update(picture, refresh=True)
        end = time.monotonic()
        self._next_time = end + max(SHORTEST_PAUSE, (end - start) / COST_SHARE)

    def _print_line(self, line: str) -> None:
        if self._live is None:
            if self._console.options.ascii_only:
                line = line.encode("ascii", "replace").decode()
            self._console.print(Text(line), soft_wrap=True)


def _step_line(state: RunState) -> str:
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


def _evaluation_line(record: Record) -> str:
    if "mlm_loss" not in record:
        found = (f"{name} {formatting.score(value)}" for name, value in task_metrics(record).items())
        return " | ".join([f"dev at step {record['step']:,}", *found])
    parts = [
        f"held out at step {record['step']:,}",
        f"MLM loss {formatting.loss(record.get('mlm_loss'))}",
        f"perplexity {formatting.perplexity(record.get('mlm_perplexity'))}",
        f"accuracy {formatting.percent(record.get('mlm_accuracy'))}",
    ]
    for name in BESIDE_MLM:
        if record.get(f"{name.lower()}_accuracy") is not None:
            parts.append(f"{name} accuracy {formatting.percent(record[f'{name.lower()}_accuracy'])}")
    if record.get("general_mlm_loss") is not None:
        parts.append(f"general text: MLM loss {formatting.loss(record['general_mlm_loss'])}")
        parts.append(f"accuracy {formatting.percent(record.get('general_mlm_accuracy'))}")
    return " | ".join(parts)
