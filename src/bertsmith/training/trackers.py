"""Sends a run's figures to trackers of experiments too: MLflow, and Weights & Biases. TensorBoard's files are
always written (log.py).

A tracker is a copy to look at: if it fails, training goes on without it. Its place and its keys come from its
own variables, such as MLFLOW_TRACKING_URI; Weights & Biases writes to this machine (offline) unless
WANDB_MODE says otherwise.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.training.log import TAGS, Record, task_metrics

_LONGEST_VALUE = 500  # characters of a setting, which is what MLflow takes
_NOT_IN_NAMES = re.compile(r"[^\w./ -]")  # of MLflow's metrics


class Tracker(ABC):
    """One run at a tracker, from its beginning to `close`. Methods may raise whatever the tracker does."""

    @abstractmethod
    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        """Begins a run with this name. `folder` is the run's own; `settings` are by their dotted names."""

    @abstractmethod
    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Adds a point to each curve."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """Ends the run, as the tracker shows it."""


class MLflowTracker(Tracker):
    """A run of MLflow: the one that the program has open, or a new one. Where the open one has such settings
    already, as a restart before this one left them, the new one is its child: MLflow keeps a setting once.
    """

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self._mlflow: Any = import_module("mlflow")
        open_run = self._mlflow.active_run()
        known = {} if open_run is None else self._mlflow.get_run(open_run.info.run_id).data.params
        self._is_ours = open_run is None or not known.keys().isdisjoint(settings)
        if self._is_ours:
            self._mlflow.start_run(run_name=name, nested=open_run is not None)
        self._mlflow.log_params({setting: value[:_LONGEST_VALUE] for setting, value in settings.items()})

    def log(self, figures: Mapping[str, float], step: int) -> None:
        named = {_NOT_IN_NAMES.sub("_", name): value for name, value in figures.items()}  # such as mrr@10
        self._mlflow.log_metrics(named, step=step)

    def close(self, *, failed: bool) -> None:
        if self._is_ours:
            self._mlflow.end_run("FAILED" if failed else "FINISHED")


class WandbTracker(Tracker):
    """A run of Weights & Biases, in the project of WANDB_PROJECT or "bertsmith". Curves are by `step`, not by
    the number of calls: the loss guard may take a run some steps back.
    """

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self._run: Any = import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", "bertsmith"),
            name=name,
            dir=str(folder),
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log({**figures, "step": step})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflowTracker, "wandb": WandbTracker}


class OpenTrackers:
    """The trackers of a run. One that fails is left out from then on, and `pop_failures` says why."""

    def __init__(
        self, names: Iterable[str], run_name: str, folder: Path, settings: Mapping[str, Any]
    ) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._failures: list[str] = []
        texts = dict(_list_settings(settings))
        for name in names:
            self._try(name, partial(self._open, name, run_name, folder, texts))

    def record(self, record: Record) -> None:
        """Hands on the figures of a line of the log."""
        tags = TAGS.get(record["kind"], {})
        if record["kind"] == "evaluation" and "mlm_loss" not in record:
            tags = {name: f"heldout/{name}" for name in task_metrics(record)}
        figures = {tag: record[name] for name, tag in tags.items() if record.get(name) is not None}
        if figures:
            for name, tracker in list(self._trackers.items()):
                self._try(name, partial(tracker.log, figures, record["step"]))

    def close(self, *, failed: bool) -> None:
        """Ends the run of each tracker."""
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.close, failed=failed))
        self._trackers.clear()

    def pop_failures(self) -> list[str]:
        """Sentences on the trackers that failed since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def _open(self, name: str, run_name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self._trackers[name] = TRACKERS[name](run_name, folder, settings)

    def _try(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            self._trackers.pop(name, None)
            self._failures.append(
                f"{name} failed, and gets no more of this run: {type(error).__name__}: {error}"
            )


def require_trackers(names: Iterable[str]) -> None:
    """Raises InputError if a tracker's package is not installed, before a run begins."""
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            package = "mlflow-skinny" if name == "mlflow" else name
            raise InputError(
                f"trackers = {name} needs a package that isn't there: pip install {package}. ({error}.)"
            ) from error


def _list_settings(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Each setting that has a value, by its dotted name."""
    listed: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            listed += _list_settings(value, f"{prefix}{name}.")
        elif value is not None:
            listed.append((f"{prefix}{name}", str(value)))
    return listed
