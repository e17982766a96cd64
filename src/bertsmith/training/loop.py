"""The training loop of all tasks: takes a step for each batch, and evaluates, saves and guards on the way.

A step depends on (weights, optimiser state, cursor, step number, seed) and nothing else. A run that is killed
and resumed from its checkpoint therefore repeats the uninterrupted one to the bit.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol, Self

from safetensors.numpy import save_file

from bertsmith.data.batch import Sequences
from bertsmith.data.stream import Cursor, GlobalBatch, prefetch
from bertsmith.errors import NotFinite, TrainingStopped
from bertsmith.files import tensors_written_to
from bertsmith.tasks.objective import Objective
from bertsmith.training.checkpoint import (
    CheckpointWriter,
    RunProgress,
    TrainingState,
    load_training_state,
    read_training_state,
)
from bertsmith.training.gradients import Gradients, StepResult, dropout_seed
from bertsmith.training.machine import Machine, add_over_ranks, wait_for_ranks
from bertsmith.training.optimizer import (
    collect_optimizer_tensors,
    load_optimizer_tensors,
    make_optimizer,
    set_learning_rate,
)
from bertsmith.training.settings import RunSettings
from bertsmith.training.sharding import load_own_rows, own_rows, own_shard

_SETTLED_STEPS = 50  # before them the loss may jump
_MEAN_DECAY = 0.95  # of the running mean of losses: about the last twenty steps count


class Observer(Protocol):
    """What a loop reports to: the log and the live view."""

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Called for everything that is logged: what happened (the log's `kind`) after `step` steps."""
        ...

    def rewind(self, step: int) -> None:
        """Called when the steps after `step` are taken back."""
        ...


class Loop:
    """Trains a task by a recipe until its steps or hours are over."""

    def __init__(
        self,
        task: Objective,
        recipe: RunSettings,
        machine: Machine,
        folder: Path | None,
        observer: Observer,
        after_evaluation: Callable[[int, dict[str, float]], bool] | None = None,
    ) -> None:
        """folder: the run's, below which checkpoints are written; None writes none.
        after_evaluation: called with the step and the metrics of each evaluation; True ends the run there.
        """
        self.task, self.recipe, self.machine = task, recipe, machine
        self.folder, self.observer = folder, observer
        self._after_evaluation = after_evaluation
        self._ended_early = False
        self.progress = RunProgress()
        self.schedule = recipe.schedule
        self.guard = Guard(recipe.guard.spike_factor)
        self.gradients = Gradients(task, machine, recipe.optimizer.max_grad_norm)
        # after the gradients, which may shard the weights
        self.optimizer = make_optimizer(task.model, recipe.optimizer, machine.precision)
        self._writer = CheckpointWriter(recipe.checkpoint.keep, own_shard(machine))
        self._interruption = Interruption()
        self._stop_agreed = False
        self._saved_step: int | None = None
        self._saved_elapsed = 0.0
        self._restart_clock()

    def resume(self) -> list[str]:
        """Goes on from the newest undamaged checkpoint, if there is one; returns sentences about damaged
        ones.

        Raises ModelError when there are checkpoints and all of them are damaged.
        """
        state, complaints = self._load_newest_checkpoint()
        if state is not None:
            self._restore(state)
        return complaints

    @property
    def is_new(self) -> bool:
        """Whether the run begins at step 0: no checkpoint was restored or written."""
        return self._saved_step is None

    def begin_from(self, checkpoint: Path) -> None:
        """Begins with another run's weights and moments, at its position in the text; steps count from 0.

        Raises ModelError when the checkpoint is damaged or missing.
        """
        state = read_training_state(checkpoint, self._writer.shard)
        source = state.progress
        begun = RunProgress(cursor=source.cursor, skipped=source.skipped, recent_loss=source.recent_loss)
        self._restore(replace(state, progress=begun))
        self._saved_step = None

    def run(self) -> None:
        """Trains to the end of the recipe, from where the run stands.

        Raises TrainingStopped when the loss guard ends the run, ResourceError when a checkpoint can't be
        written. When interrupted, saves a checkpoint and raises KeyboardInterrupt, or what the handler of
        SIGTERM raises.
        """
        self.task.model.train()
        if self.gradients.needs_warm_up:
            self.gradients.warm_up_ddp(next(self.task.batches(self.progress.cursor)).sequences)
        self._restart_clock()
        with self._interruption, self._writer:
            while self._share_done() < 1 and not self._ended_early:
                with closing(self._open_stream()) as batches:
                    for batch in batches:
                        if not self.advance(batch):
                            break
                        if self._stop_agreed:
                            self.save_now()
                            wait_for_ranks()  # launchers kill all ranks when the first one ends
                            self._interruption.end()
            self.save_now()
            requests = add_over_ranks({"stop": float(self._interruption.requested)}, self.machine.device)
            if requests["stop"] > 0:  # on any rank, since the last step's gradients were summed
                wait_for_ranks()
                self._interruption.end()

    def evaluate(self) -> dict[str, float]:
        """Computes the metrics of the held-out sample on all ranks together, reports and returns them; empty
        when there is nothing to evaluate on.

        Raises TrainingStopped when the model's outputs overflow, and NotFinite when they do before step 1.
        """
        ranks, device = self.machine.ranks, self.machine.device
        try:
            metrics = self.gradients.with_whole_weights(
                lambda: self.task.evaluate(ranks.rank, ranks.count, lambda sums: add_over_ranks(sums, device))
            )
        except NotFinite as error:
            if self.progress.step == 0:  # not trained yet: the given model's fault
                raise
            self._stop("the model's outputs for held-out examples overflow", error)
        if metrics:
            self._record("evaluation", elapsed=self.progress.elapsed, tokens=self.progress.tokens, **metrics)
        return metrics

    def save(self) -> None:
        """Starts to write a checkpoint, unless this step has one. The first rank writes it, or all ranks of a
        sharded model. It is on disk after `save_now`, or once the next one is started.
        """
        self._saved_elapsed = self.progress.elapsed
        writes = self.machine.sharded or self.machine.ranks.is_first
        if self.folder is None or self._saved_step == self.progress.step or not writes:
            return
        moments = collect_optimizer_tensors(self.task.model, self.optimizer)
        state = TrainingState(self.progress, own_rows(self.task.model.state_dict()), own_rows(moments))
        self._writer.write(self.folder / "checkpoints", state)
        self._saved_step = self.progress.step
        self._record("checkpoint")

    def save_now(self) -> None:
        """Writes a checkpoint as `save` does, and waits until it is on disk."""
        self.save()
        self._writer.finish()

    def advance(self, batch: GlobalBatch) -> bool:
        """Trains one step on a batch, or passes over one that the guard has rejected. Returns False when no
        batch of this stream may follow: the run is over, its phase ended, or the guard took it back.
        """
        if batch.start in self.progress.skipped:
            self.progress = replace(self.progress, cursor=batch.end)
            return True
        before = self._share_done()
        now = self._share_done(half_a_step=0.5)
        scheduled = {"learning_rate": self.schedule.learning_rate(now)}
        set_learning_rate(self.optimizer, scheduled["learning_rate"])
        scheduled |= self.task.prepare_step(batch.start, self.schedule.decayed(now))
        started = time.monotonic()
        seed = dropout_seed(self.recipe.seed, self.progress.step, self.machine.ranks.rank)
        result = self.gradients.compute(
            batch.sequences, seed, stop=lambda: self._interruption.requested, clock=self._read_clock
        )
        self._stop_agreed = result.stop  # every rank stops after the same step
        if problem := self.guard.find_problem(self.progress, result.loss, result.gradient_norm):
            self._reject_batch(batch, problem)
            return False
        self.optimizer.step()
        self.optimizer.zero_grad()
        tokens = int(batch.sequences.lengths.sum())
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            cursor=batch.end,
            tokens=self.progress.tokens + tokens,
            sequences=self.progress.sequences + len(batch.sequences),
            elapsed=result.elapsed,  # every rank's schedule goes by the same clock
            recent_loss=self.guard.update_mean(self.progress, result.loss),
        )
        seconds = time.monotonic() - started
        if self.progress.step % self.recipe.log_every == 0:
            flops = self.task.flops(batch.sequences)
            self._record_step(batch.start.phase, result, scheduled, tokens / seconds, flops / seconds)
        self._after_step(before)
        return (
            self._share_done() < 1 and not self._ended_early and self._phase() == self.progress.cursor.phase
        )

    def _after_step(self, before: float) -> None:
        step, after = self.progress.step, self._share_done()
        if is_due(self.recipe.evaluation.every, step, before, after) and after < 1:
            metrics = self.evaluate()
            if self._after_evaluation is not None:
                self._ended_early = self._after_evaluation(step, metrics)
        minutes, unsaved = self.recipe.checkpoint.minutes, self.progress.elapsed - self._saved_elapsed
        long_since_saved = minutes is not None and unsaved >= 60 * minutes  # by the clock of all ranks
        if is_due(self.recipe.checkpoint.every, step, before, after) or long_since_saved:
            self.save()
        self._writer.check()

    # -- going back ----------------------------------------------------------------------------------------

    def _reject_batch(self, batch: GlobalBatch, problem: str) -> None:
        """Saves the batch to a file, then stops the run, or goes back to the last checkpoint and marks the
        batch to be passed over.
        """
        step = self.progress.step + 1
        if self.folder is not None and self.machine.ranks.is_first:
            arrays = {name: getattr(batch.sequences, name) for name in Sequences.__dataclass_fields__}
            tensors = {name: array for name, array in arrays.items() if array is not None}
            with tensors_written_to(_bad_batch_path(self.folder, step)):
                save_file(tensors, _bad_batch_path(self.folder, step))
        skipped = (*self.progress.skipped, batch.start)
        if self.recipe.guard.action == "stop" or len(skipped) > self.recipe.guard.skips:
            self._stop(problem, bad_step=step)
        state, _ = self._load_newest_checkpoint()
        if state is not None:  # before the first checkpoint the weights stay: the batch has not touched them
            self._restore(state)
            self._restart_clock()  # the schedule goes back with the weights: a run of hours takes longer
        self.progress = replace(self.progress, skipped=skipped)
        self.optimizer.zero_grad()
        self.observer.rewind(self.progress.step)
        self._record(
            "warning", message=f"step {step}: {problem}; back to step {self.progress.step}, batch skipped"
        )

    def _stop(self, problem: str, cause: Exception | None = None, *, bad_step: int | None = None) -> NoReturn:
        """Logs the problem and raises TrainingStopped. The run's folder stays as it is."""
        step = self.progress.step if bad_step is None else bad_step
        self._record("warning", message=f"step {step}: {problem}; stopped")
        raise TrainingStopped(f"Step {step}: {problem}. {self._advise(bad_step)}") from cause

    def _advise(self, bad_step: int | None) -> str:
        """A sentence on what the run has left in its folder, and how to go on."""
        if self.folder is None:
            return "Lower the learning rate."
        facts = [f"the log is {self.folder / 'log.jsonl'}"]
        again = "begin again in another folder with a lower optimizer.learning_rate"
        if bad_step is not None:
            facts.append(f"the batch is {_bad_batch_path(self.folder, bad_step)}")
            guard = self.recipe.guard
            more = "action=skip" if guard.action == "stop" else f"skips={2 * guard.skips + 10}"
            again += f", or go on past the batch by the same command with --resume guard.{more}"
        self._writer.finish()  # the newest checkpoint may not be on disk yet
        if self._saved_step is not None:
            facts.append(f"the checkpoint of step {self._saved_step:,} stands")
        return f"The run's folder is kept: {', '.join(facts)}. To go on, {again}."

    def _load_newest_checkpoint(self) -> tuple[TrainingState | None, list[str]]:
        if self.folder is None:
            return None, []
        self._writer.finish()
        wait_for_ranks()  # ranks that don't write would read while the first one writes
        return load_training_state(self.folder / "checkpoints", self._writer.shard)

    def _restore(self, state: TrainingState) -> None:
        load_own_rows(self.task.model, state.weights)
        load_optimizer_tensors(self.task.model, self.optimizer, state.optimizer)
        self.progress = state.progress
        self._saved_step = state.progress.step
        self._saved_elapsed = state.progress.elapsed

    # -- where the run stands ------------------------------------------------------------------------------

    def _share_done(self, half_a_step: float = 0.0) -> float:
        """How much of the run is done, in [0, 1], with `half_a_step` added to its steps."""
        return self.recipe.share_done(self.progress.step + half_a_step, self.progress.elapsed)

    def _phase(self) -> int:
        """The phase that the run is in. A decay begins in a late phase of another run: the phase never goes
        back to an earlier one.
        """
        return max(self.recipe.phase(self._share_done()), self.progress.cursor.phase)

    def _open_stream(self) -> Generator[GlobalBatch, None, None]:
        """Opens the stream of batches where the run stands; a new phase begins its own stream."""
        phase = self._phase()
        if phase != self.progress.cursor.phase or self.progress.step == 0:
            if phase != self.progress.cursor.phase:
                self.progress = replace(self.progress, cursor=Cursor(phase))
            self._record("phase", **self.recipe.phase_facts(phase))
        return prefetch(self.task.batches(self.progress.cursor))

    def _restart_clock(self) -> None:
        self._time_at_start, self._elapsed_at_start = time.monotonic(), self.progress.elapsed

    def _read_clock(self) -> float:
        """Seconds of training by this rank's clock, with evaluations, checkpoints and earlier parts of a
        resumed run.
        """
        return self._elapsed_at_start + time.monotonic() - self._time_at_start

    def _record_step(
        self,
        phase: int,
        result: StepResult,
        scheduled: dict[str, float],
        tokens_per_second: float,
        flops_per_second: float,
    ) -> None:
        self._record(
            "step",
            phase=phase,
            loss=result.loss,
            **{f"{name}_loss": value for name, value in result.losses.items()},
            **scheduled,
            gradient_norm=result.gradient_norm,
            tokens=self.progress.tokens,
            sequences=self.progress.sequences,
            tokens_per_second=tokens_per_second,
            mfu=flops_per_second / (self.machine.peak * self.machine.ranks.count),
            elapsed=self.progress.elapsed,
        )

    def _record(self, kind: str, **values: Any) -> None:
        self.observer.record(kind, self.progress.step, **values)


def is_due(every: float, step: int, before: float, after: float) -> bool:
    """Whether a task that is done `every` so many steps is due after `step`. An `every` below 1 is a share of
    the run; `before` and `after` are the shares done before and after the step.
    """
    if every >= 1:
        return step % int(every) == 0
    return int(after / every + 1e-9) > int(before / every + 1e-9)


def _bad_batch_path(folder: Path, step: int) -> Path:
    return folder / f"bad-batch-step-{step}.safetensors"


# -- what may end a run early --------------------------------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """Finds bad steps before they change the weights: a loss or gradient that is not finite, or a loss over
    `spike_factor` times the running mean.
    """

    spike_factor: float

    def find_problem(self, progress: RunProgress, loss: float, gradient_norm: float) -> str | None:
        """What is wrong with a step of this loss and gradient norm, as a clause; None when nothing is."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(gradient_norm):
            return f"the gradient's norm is {gradient_norm}"
        if progress.recent_loss is None or progress.step < _SETTLED_STEPS:
            return None
        if loss > self.spike_factor * progress.recent_loss:
            return f"the loss jumped to {loss:.2f} from a running mean of {progress.recent_loss:.2f}"
        return None

    def update_mean(self, progress: RunProgress, loss: float) -> float:
        """The running mean of losses with this step's added."""
        if progress.recent_loss is None:
            return loss
        return _MEAN_DECAY * progress.recent_loss + (1 - _MEAN_DECAY) * loss


class Interruption:
    """A context manager in which Ctrl-C, SIGTERM and SIGHUP set `requested` instead of ending the process, so
    that a run can end between two steps, with a checkpoint. A second Ctrl-C ends it at once. Does nothing
    outside of the main thread, where signals can't be handled.

    Schedulers and launchers often send SIGTERM more than once, or after a Ctrl-C: it never ends the run at
    once. Nor does SIGHUP, sent when a terminal closes; where nohup ignores it, it stays ignored. Windows
    doesn't have it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._signal = signal.SIGINT
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            for number in numbers:
                self._previous[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def end(self) -> NoReturn:
        """Does what the signal would have done: calls the process's own handler of SIGTERM or SIGHUP, where
        there is one. Raises KeyboardInterrupt otherwise, and on ranks that got no signal.
        """
        terminate = self._previous.get(self._signal)
        if self._signal != signal.SIGINT and callable(terminate):
            terminate(self._signal, None)
        raise KeyboardInterrupt

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested, self._signal = True, signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(number, self._previous.pop(signal.SIGINT))
