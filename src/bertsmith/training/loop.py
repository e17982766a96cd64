"""The one training loop: batches in, steps out, whatever the task.

A step depends on (weights, optimiser state, cursor, step number, seed) and nothing else, so a run that is
killed and resumed from its checkpoint repeats the uninterrupted one to the bit.
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
from bertsmith.training.machine import Machine, add_over_ranks, wait
from bertsmith.training.optimizer import (
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    set_learning_rate,
)
from bertsmith.training.settings import RunSettings
from bertsmith.training.sharding import load_own_rows, own_part, own_rows

_SETTLED_STEPS = 50  # a young run's loss may jump
_MEMORY = 0.95  # of the running mean: about the last twenty steps


class Observer(Protocol):
    """Hears what happens: the log and the live view."""

    def record(self, kind: str, step: int, **values: Any) -> None:
        """One thing that happened after `step` steps."""
        ...

    def rewind(self, step: int) -> None:
        """Steps after this one are taken back."""
        ...


class Loop:
    """Runs a task by a recipe until its steps or hours are over."""

    def __init__(
        self,
        task: Objective,
        recipe: RunSettings,
        machine: Machine,
        folder: Path | None,
        observer: Observer,
        after_evaluation: Callable[[int, dict[str, float]], bool] | None = None,
    ) -> None:
        """`folder` is where checkpoints go; None keeps none. `after_evaluation` hears each evaluation's step
        and metrics; True ends the run there.
        """
        self.task, self.recipe, self.machine = task, recipe, machine
        self.folder, self.observer = folder, observer
        self._after_evaluation = after_evaluation
        self._ended = False
        self.progress = RunProgress()
        self.schedule = recipe.schedule
        self.guard = Guard(recipe.guard.spike_factor)
        self.gradients = Gradients(task, machine, recipe.optimizer.max_grad_norm)
        # after the line above, which may divide the weights
        self.optimizer = make_optimizer(task.model, recipe.optimizer, machine.precision)
        self._writer = CheckpointWriter(recipe.checkpoint.keep, own_part(machine))
        self._interruption = Interruption()
        self._stop_agreed = False
        self._saved_step: int | None = None
        self._saved_elapsed = 0.0
        self._restart_clock()

    def resume(self) -> list[str]:
        """Takes up the newest whole checkpoint, if there is one; returns sentences about damaged ones."""
        state, complaints = self._newest_checkpoint()
        if state is not None:
            self._restore(state)
        return complaints

    @property
    def is_new(self) -> bool:
        """Whether no checkpoint of this run was there to take up."""
        return self._saved_step is None

    def begin_from(self, checkpoint: Path) -> None:
        """Begins with another run's weights and moments, at its place in the text; steps count from 0.

        Raises ModelError when the checkpoint is damaged or gone.
        """
        state = read_training_state(checkpoint, self._writer.part)
        found = state.progress
        begun = RunProgress(cursor=found.cursor, skipped=found.skipped, recent_loss=found.recent_loss)
        self._restore(replace(state, progress=begun))
        self._saved_step = None

    def run(self) -> None:
        """Trains to the end. Raises TrainingStopped; when interrupted, KeyboardInterrupt or what SIGTERM's
        handler raises, after saving a checkpoint.
        """
        self.task.model.train()
        if self.gradients.needs_settling:
            self.gradients.warm_up_ddp(next(self.task.batches(self.progress.cursor)).sequences)
        self._restart_clock()
        with self._interruption, self._writer:
            while self._share_done() < 1 and not self._ended:
                with closing(self._open_stream()) as batches:
                    for batch in batches:
                        if not self.advance(batch):
                            break
                        if self._stop_agreed:
                            self.save_now()
                            wait()  # launchers kill all ranks when one ends: not before the checkpoint stands
                            self._interruption.end()
            self.save_now()
            asked = add_over_ranks({"stop": float(self._interruption.asked)}, self.machine.device)
            if asked["stop"] > 0:  # on any rank, since the last step's gradients were summed
                wait()
                self._interruption.end()

    def evaluate(self) -> dict[str, float]:
        """Held-out metrics of the whole held-out sample, reported to the observer."""
        ranks, device = self.machine.ranks, self.machine.device
        try:
            metrics = self.gradients.with_whole_weights(
                lambda: self.task.evaluate(ranks.rank, ranks.count, lambda sums: add_over_ranks(sums, device))
            )
        except NotFinite as error:
            if self.progress.step == 0:  # the model came so
                raise
            self._stop("the model's outputs for held-out examples overflow", error)
        if metrics:
            self._record("evaluation", elapsed=self.progress.elapsed, tokens=self.progress.tokens, **metrics)
        return metrics

    def save(self) -> None:
        """Begins to write a checkpoint, unless this step's stands already: each rank that holds a part of
        its own. It stands after `save_now` or the next one.
        """
        self._saved_elapsed = self.progress.elapsed
        writes = self.machine.sharded or self.machine.ranks.is_first
        if self.folder is None or self._saved_step == self.progress.step or not writes:
            return
        moments = optimizer_tensors(self.task.model, self.optimizer)
        state = TrainingState(self.progress, own_rows(self.task.model.state_dict()), own_rows(moments))
        self._writer.write(self.folder / "checkpoints", state)
        self._saved_step = self.progress.step
        self._record("checkpoint")

    def save_now(self) -> None:
        """The same, and waits until it stands."""
        self.save()
        self._writer.finish()

    def advance(self, batch: GlobalBatch) -> bool:
        """One batch. False when the stream must be opened anew: the run is over, a phase ended, or went
        back.
        """
        if batch.start in self.progress.skipped:
            self.progress = replace(self.progress, cursor=batch.end)
            return True
        before = self._share_done()
        now = self._share_done(half_a_step=0.5)
        scheduled = {"learning_rate": self.schedule.learning_rate(now)}
        set_learning_rate(self.optimizer, scheduled["learning_rate"])
        scheduled |= self.task.follow(batch.start, self.schedule.decayed(now))
        started = time.monotonic()
        seed = dropout_seed(self.recipe.seed, self.progress.step, self.machine.ranks.rank)
        result = self.gradients.compute(
            batch.sequences, seed, stop=lambda: self._interruption.asked, clock=self._elapsed
        )
        self._stop_agreed = result.stop  # every rank stops after the same step
        if verdict := self.guard.verdict(self.progress, result.loss, result.gradient_norm):
            self._refuse(batch, verdict)
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
            recent_loss=self.guard.recent(self.progress, result.loss),
        )
        seconds = time.monotonic() - started
        if self.progress.step % self.recipe.log_every == 0:
            flops = self.task.flops(batch.sequences)
            self._record_step(batch.start.phase, result, scheduled, tokens / seconds, flops / seconds)
        self._after_step(before)
        return self._share_done() < 1 and not self._ended and self._phase() == self.progress.cursor.phase

    def _after_step(self, before: float) -> None:
        step, after = self.progress.step, self._share_done()
        if is_due(self.recipe.evaluation.every, step, before, after) and after < 1:
            metrics = self.evaluate()
            if self._after_evaluation is not None:
                self._ended = self._after_evaluation(step, metrics)
        minutes, unsaved = self.recipe.checkpoint.minutes, self.progress.elapsed - self._saved_elapsed
        long_since_saved = minutes is not None and unsaved >= 60 * minutes  # by the clock of all ranks
        if is_due(self.recipe.checkpoint.every, step, before, after) or long_since_saved:
            self.save()
        self._writer.check()

    # -- going back ----------------------------------------------------------------------------------------

    def _refuse(self, batch: GlobalBatch, verdict: str) -> None:
        """Saves the batch; stops, or goes back to the last checkpoint to pass it over."""
        step = self.progress.step + 1
        if self.folder is not None and self.machine.ranks.is_first:
            every = {name: getattr(batch.sequences, name) for name in Sequences.__dataclass_fields__}
            tensors = {name: array for name, array in every.items() if array is not None}
            with tensors_written_to(_bad_batch(self.folder, step)):
                save_file(tensors, _bad_batch(self.folder, step))
        skipped = (*self.progress.skipped, batch.start)
        if self.recipe.guard.action == "stop" or len(skipped) > self.recipe.guard.skips:
            self._stop(verdict, bad_step=step)
        state, _ = self._newest_checkpoint()
        if state is not None:  # before the first checkpoint the weights stay: the batch has not touched them
            self._restore(state)
            self._restart_clock()  # the schedule goes back with the weights: a run of hours takes longer
        self.progress = replace(self.progress, skipped=skipped)
        self.optimizer.zero_grad()
        self.observer.rewind(self.progress.step)
        self._record(
            "warning", message=f"step {step}: {verdict}; back to step {self.progress.step}, batch skipped"
        )

    def _stop(self, verdict: str, cause: Exception | None = None, *, bad_step: int | None = None) -> NoReturn:
        """The run's folder stays as it is: its log shows how it came to this."""
        step = self.progress.step if bad_step is None else bad_step
        self._record("warning", message=f"step {step}: {verdict}; stopped")
        raise TrainingStopped(f"Step {step}: {verdict}. {self._advice(bad_step)}") from cause

    def _advice(self, bad_step: int | None) -> str:
        if self.folder is None:
            return "Lower the learning rate."
        kept = [f"the log is {self.folder / 'log.jsonl'}"]
        again = "begin again in another folder with a lower optimizer.learning_rate"
        if bad_step is not None:
            kept.append(f"the batch is {_bad_batch(self.folder, bad_step)}")
            guard = self.recipe.guard
            more = "action=skip" if guard.action == "stop" else f"skips={2 * guard.skips + 10}"
            again += f", or go on past the batch by the same command with --resume guard.{more}"
        self._writer.finish()  # or the newest may not stand yet
        if self._saved_step is not None:
            kept.append(f"the checkpoint of step {self._saved_step:,} stands")
        return f"The run's folder is kept: {', '.join(kept)}. To go on, {again}."

    def _newest_checkpoint(self) -> tuple[TrainingState | None, list[str]]:
        if self.folder is None:
            return None, []
        self._writer.finish()
        wait()  # ranks that don't write would look while the first one does
        return load_training_state(self.folder / "checkpoints", self._writer.part)

    def _restore(self, state: TrainingState) -> None:
        load_own_rows(self.task.model, state.weights)
        load_optimizer_tensors(self.task.model, self.optimizer, state.optimizer)
        self.progress = state.progress
        self._saved_step = state.progress.step
        self._saved_elapsed = state.progress.elapsed

    # -- where the run stands ------------------------------------------------------------------------------

    def _share_done(self, half_a_step: float = 0.0) -> float:
        """Progress in [0, 1]."""
        return self.recipe.share_done(self.progress.step + half_a_step, self.progress.elapsed)

    def _phase(self) -> int:
        """Never an earlier one than before, as a run would have that begins in another's last one."""
        return max(self.recipe.phase(self._share_done()), self.progress.cursor.phase)

    def _open_stream(self) -> Generator[GlobalBatch, None, None]:
        """Batches from where the run stands; a new phase begins its own stream."""
        phase = self._phase()
        if phase != self.progress.cursor.phase or self.progress.step == 0:
            if phase != self.progress.cursor.phase:
                self.progress = replace(self.progress, cursor=Cursor(phase))
            self._record("phase", **self.recipe.phase_facts(phase))
        return prefetch(self.task.batches(self.progress.cursor))

    def _restart_clock(self) -> None:
        self._time_at_start, self._elapsed_at_start = time.monotonic(), self.progress.elapsed

    def _elapsed(self) -> float:
        """Seconds over all parts of the run, evaluation and checkpoints included, by this rank's clock."""
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
    """Whether what is done `every` so many steps, or share of the run, is due after this step."""
    if every >= 1:
        return step % int(every) == 0
    return int(after / every + 1e-9) > int(before / every + 1e-9)


def _bad_batch(folder: Path, step: int) -> Path:
    return folder / f"bad-batch-step-{step}.safetensors"


# -- what may end a run early --------------------------------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """Stops a run, or sends it back, before a bad batch spoils the weights. Bad is what is not finite, or a
    loss over `spike_factor` times the running mean.
    """

    spike_factor: float

    def verdict(self, progress: RunProgress, loss: float, gradient_norm: float) -> str | None:
        """What is wrong with this step, or None. Called before the weights are changed."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(gradient_norm):
            return f"the gradient's norm is {gradient_norm}"
        if progress.recent_loss is None or progress.step < _SETTLED_STEPS:
            return None
        if loss > self.spike_factor * progress.recent_loss:
            return f"the loss jumped to {loss:.2f} from a running mean of {progress.recent_loss:.2f}"
        return None

    def recent(self, progress: RunProgress, loss: float) -> float:
        """The running mean after this step."""
        if progress.recent_loss is None:
            return loss
        return _MEMORY * progress.recent_loss + (1 - _MEMORY) * loss


class Interruption:
    """Ctrl-C, SIGTERM and SIGHUP end a run between two steps, with a checkpoint; a second Ctrl-C ends it at
    once. While the block runs, `asked` says whether someone asked to stop. Elsewhere than in the main thread:
    never.

    Schedulers and launchers often send SIGTERM more than once, or after a Ctrl-C: it never ends the run
    early. Nor does SIGHUP, a terminal that closes; where nohup has it ignored, it stays so. Windows doesn't
    know it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._by = signal.SIGINT
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            for number in numbers:
                self._previous[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def end(self) -> NoReturn:
        """What the signal would have done at once: SIGTERM's or SIGHUP's own handler, where there is one;
        else, and on ranks that got none, KeyboardInterrupt.
        """
        terminate = self._previous.get(self._by)
        if self._by != signal.SIGINT and callable(terminate):
            terminate(self._by, None)
        raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked, self._by = True, signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(number, self._previous.pop(signal.SIGINT))
