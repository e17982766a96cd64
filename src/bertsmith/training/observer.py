"""What happens in a run goes to its log and, where there is one, to the live view; other ranks are silent."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from bertsmith import __version__
from bertsmith.model.config import BertConfig
from bertsmith.training.live.view import LiveView
from bertsmith.training.log import RunLog
from bertsmith.training.machine import Machine
from bertsmith.training.settings import RunSettings


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
    def open(self, step: int) -> Iterator[None]:
        """Opens the log at `step`, cutting off later lines of a run that is resumed, and the live view."""
        if not self._machine.ranks.is_first:
            yield
            return
        with RunLog(self._folder, append=True, step=step) as self._log, contextlib.ExitStack() as stack:
            if self._console is not None:
                self._view = stack.enter_context(self._live_view())
            self.record("start", step, version=__version__, torch=torch.__version__, machine=self._facts)
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

    def _live_view(self) -> LiveView:
        assert self._console is not None
        hours = self._recipe.hours
        return LiveView(
            self._console,
            f"{self._title} · {self._folder.name}",
            facts=self._facts,
            total_steps=self._recipe.steps,
            total_seconds=None if hours is None else hours * 3600,
            earlier=RunLog.read(self._folder),
        )


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
