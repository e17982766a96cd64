"""Starts and follows trainings, each a process of its own: `bertsmith mirror train`. A machine trains one
version at a time, and a version is trained on one machine at a time. So are forecasts made, by `bertsmith
mirror plan`: only what they say is stored, for a student in shadow would take a share of delta. Read
`Trainer.begin` and `poll` first.
"""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.files import locked_folder
from bertsmith.mirror.answering.stage_store import (
    UNDER_WAY,
    StageStore,
    begin_forecast,
    read_forecasts,
    save_forecast,
    withdraw_forecast,
)
from bertsmith.mirror.answering.stages import Stage, StudentRecord
from bertsmith.mirror.settings import ENVIRONMENT, MirrorSettings
from bertsmith.mirror.student_file import FILE
from bertsmith.serving import LOG

_LEASE = 120.0  # seconds that a reservation of a training lasts without being extended
_FORECAST_LEASE = 3600.0  # seconds in which a forecast is made, or was killed
_FORECAST_OPTIONS = ("--kinds", "--tiers", "--model")  # those of a training that a forecast has too
_PATIENCE = 10.0  # seconds that a training gets to end by itself
Command = Callable[[Stage, Path, MirrorSettings], Sequence[str]]


def train_command(stage: Stage, out: Path, settings: MirrorSettings) -> list[str]:
    """The command line of a training. The store's address, which may hold a password, goes by the
    environment.
    """
    return [
        sys.executable, "-m", "bertsmith", "mirror", "train",
        "--site", stage.site, "--version", stage.version,
        "--epsilon", str(settings.epsilon), "--delta", str(settings.delta), "--out", str(out),
        *settings.train_options,
    ]  # fmt: skip


def forecast_command(stage: Stage, settings: MirrorSettings) -> list[str]:
    """The command line of a forecast for a version, by the kinds of student that are to be trained."""
    words = [part for option in settings.train_options for part in option.split("=", 1)]
    options = [word for name, value in pairwise(words) if name in _FORECAST_OPTIONS for word in (name, value)]
    prices = {
        "--call-price": settings.prices.call,
        "--input-price": settings.prices.million_input_tokens,
        "--output-price": settings.prices.million_output_tokens,
    }
    priced = [str(part) for name, price in prices.items() if price for part in (name, price)]
    return [
        sys.executable, "-m", "bertsmith", "mirror", "plan", "--version", stage.version,
        "--epsilon", str(settings.epsilon), *options, *priced,
    ]  # fmt: skip


class _TrainingProcess(NamedTuple):
    """`is_forecast`: it makes a forecast, and no student."""

    stage: Stage
    out: Path
    began: float
    process: "subprocess.Popen[bytes]"
    calls: int = 0
    is_forecast: bool = False


class Trainer:
    """Starts trainings and collects their students; used by one thread."""

    def __init__(self, settings: MirrorSettings, store: StageStore, command: Command = train_command) -> None:
        self.settings, self.store, self.command = settings, store, command
        self.owner = f"{socket.gethostname()}-{os.getpid()}"
        self._running: _TrainingProcess | None = None
        self._extended = 0.0  # when the reservation was last extended

    @property
    def is_busy(self) -> bool:
        """Whether this process runs a training now."""
        return self._running is not None

    def begin(self, stage: Stage, calls: int) -> bool:
        """Starts a training unless one runs here or another machine trains this version; whether it did.
        Raises OSError where the process can't be started: then the training doesn't count.
        """
        if self._running or not self.store.begin_training(stage.version, calls, self.owner, _LEASE):
            return False
        out, began = self._folder(stage), time.time()
        try:
            process = self._start_process(self.command(stage, out, self.settings), out)
        except Exception:
            self.store.end_training(stage.version, self.owner, "could not be begun", is_undone=True)
            raise
        self._running, self._extended = _TrainingProcess(stage, out, began, process), time.monotonic()
        LOG.info("training a student for version %s on %d calls", stage.version, calls)
        return True

    def begin_forecast(self, stage: Stage, calls: int) -> bool:
        """Starts a forecast of what a student could answer, unless a process runs here, another machine makes
        one, or one by as many calls is there; whether it did. Raises OSError as `begin`.
        """
        if self._running or not begin_forecast(self.store.store, stage.version, calls, _FORECAST_LEASE):
            return False
        out = self._folder(stage).with_name(f"{stage.version}-forecast")
        try:
            process = self._start_process(forecast_command(stage, self.settings), out)
        except Exception:
            withdraw_forecast(self.store.store, stage.version)
            raise
        self._running = _TrainingProcess(stage, out, time.time(), process, calls, is_forecast=True)
        return True

    def _start_process(self, command: Sequence[str], out: Path) -> "subprocess.Popen[bytes]":
        out.parent.mkdir(parents=True, exist_ok=True)
        address = {ENVIRONMENT + "STORE": self.settings.store}
        with (out.parent / f"{out.name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **address},
                start_new_session=True,  # Ctrl-C is the mirror's; it ends the training itself
            )

    def adopt(
        self, stages: Mapping[str, Stage], trainings: Mapping[str, Any]
    ) -> tuple[Stage, StudentRecord] | None:
        """A student whose training outlived the killed mirror that started it; None where there is none. A
        training that was killed too doesn't count and starts again. `trainings`: the last one of each
        version.
        """
        for version, row in trainings.items():
            is_left = row.outcome == UNDER_WAY and row.until < time.time()
            if self._running or not is_left or version not in stages:
                continue
            out = self._folder(stages[version])
            is_finished = _has_student_of(out, row.began)
            if not is_finished and _is_at_work(out):
                continue
            if not self.store.begin_training(version, row.calls, self.owner, _LEASE):
                continue
            student, outcome = (
                self._outcome(stages[version], out, 0, row.began) if is_finished else (None, "killed")
            )
            self.store.end_training(version, self.owner, outcome, is_undone=not is_finished)
            if student is not None:
                return stages[version], student
        return None

    def poll(self) -> tuple[Stage, StudentRecord] | None:
        """The student of a training that has just ended with a proven claim, or a plan of one, else None."""
        if self._running is None:
            return None
        stage, out, began, process, calls, is_forecast = self._running
        if process.poll() is None:
            if is_forecast:
                return None
            if time.monotonic() - self._extended > _LEASE / 4:
                self.store.keep_training(stage.version, self.owner, _LEASE)
                self._extended = time.monotonic()
            return None
        if is_forecast:
            self._running = None
            self._end_forecast(stage, out, calls)
            return None
        student, outcome = self._outcome(stage, out, process.returncode, began)
        self.store.end_training(stage.version, self.owner, outcome)
        self._running = None
        level = logging.ERROR if process.returncode else logging.INFO
        LOG.log(level, "the training for version %s has ended: %s", stage.version, outcome)
        return None if student is None else (stage, student)

    def _end_forecast(self, stage: Stage, out: Path, calls: int) -> None:
        """Logs the forecast that the process has stored; where it has stored none, stores that."""
        forecast = read_forecasts(self.store.store).get(stage.version, {})
        if "text" not in forecast:
            forecast = {"text": "", "why_not": f"it failed: {out}.log says why"}
            save_forecast(self.store.store, stage.version, calls, forecast)
        why = f"no forecast: {forecast.get('why_not')}"
        LOG.info("version %s: %s", stage.version, forecast["text"] or why)

    def close(self) -> None:
        """Ends the training process; the next training resumes its work."""
        if self._running is None:
            return
        stage, process, is_forecast = self._running.stage, self._running.process, self._running.is_forecast
        _terminate(process)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            _terminate(process, at_once=True)
            process.wait()
        if is_forecast:
            withdraw_forecast(self.store.store, stage.version)
        else:
            self.store.end_training(stage.version, self.owner, "ended with the mirror", is_undone=True)
        self._running = None

    def _folder(self, stage: Stage) -> Path:
        """The folder of a version's next student: the same again until a training yields a student."""
        site = re.sub(r"[^\w.-]", "_", stage.site)
        number = 1 + sum(student.version == stage.version for student in self.store.students().values())
        return Path(self.settings.students).absolute() / f"{site}-{stage.version}-{number}"

    def _outcome(
        self, stage: Stage, out: Path, status: int, began: float
    ) -> tuple[StudentRecord | None, str]:
        from bertsmith.errors import BertsmithError

        if status != 0:
            return None, f"failed with status {status}: {out}.log says why"
        try:
            # A student of an earlier training stays where less is proven of the new one.
            student = read_student(out, stage.version) if _has_student_of(out, began) else None
        except BertsmithError as error:
            return None, str(error)
        if student is None:
            return None, "nothing proven: the LLM goes on answering"
        self.store.add_student(student)
        outcome = f"student {student.id}"
        return student, outcome if student.plan is None else f"{outcome}, whose proof goes on in shadow"


def _terminate(process: "subprocess.Popen[bytes]", *, at_once: bool = False) -> None:
    """Ends a process and those that it started; on Windows, without process groups, only itself."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL if at_once else signal.SIGTERM)
    elif at_once:
        process.kill()
    else:
        process.terminate()


def _has_student_of(out: Path, began: float) -> bool:
    """Whether a training that began then (seconds since 1970) has left its student in the folder."""
    return (out / FILE).is_file() and (out / FILE).stat().st_mtime >= began - 1


def _is_at_work(out: Path) -> bool:
    """Whether a process still trains for this folder (bertsmith.mirror.learning.train)."""
    work = out.with_name(out.name + ".training")
    if not work.is_dir():
        return False
    with locked_folder(work) as is_free:
        return not is_free


def read_student(folder: Path, version: str) -> StudentRecord | None:
    """The store's record of a student's folder; None where nothing is proven of it and nothing is planned.
    Raises ModelError.
    """
    from bertsmith.mirror.student_file import read_student_file, student_id

    file = read_student_file(folder)
    if not file.is_promotable and file.plan is None:
        return None
    return StudentRecord(
        student_id(folder),
        version,
        str(folder.absolute()),
        file.claims.epsilon,
        file.claims.delta,
        plan=None if file.is_promotable else file.plan,
    )
