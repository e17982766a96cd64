"""The view of a running training: a picture that is redrawn in a terminal, plain lines anywhere else."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bertsmith.reporting import formatting
from bertsmith.training.live.panel import panel
from bertsmith.training.live.state import BESIDE_MLM, Record, RunState
from bertsmith.training.log import task_metrics

SHORTEST_PAUSE = 0.25  # seconds between two pictures
COST_SHARE = 0.01  # of the time at most goes into pictures
MESSAGES = 3


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
        self._live = _live_display(console)
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


def _live_display(console: Console) -> Live | None:
    """None where a picture can't be redrawn or its characters not shown: a file, a pipe, a bare terminal."""
    if not console.is_interactive or console.options.ascii_only:
        return None
    return Live(console=console, auto_refresh=False)


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
