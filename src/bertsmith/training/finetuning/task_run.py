"""One training of a task: runs the loop over its examples, keeps the weights that are best on dev, and stops
early if dev gets no better.

best/weights.safetensors    the best weights, by the names of our modules
best/history.json           step and score of every evaluation, and the step of the best one
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertsmith.files import flush, read_json, tensors_written_to, write_json
from bertsmith.progress import Progress
from bertsmith.tasks.finetuning import EncodedExamples, FinetuningObjective, steps_of_epoch
from bertsmith.tasks.task import Metrics, Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.training.finetune_recipe import FinetuneRecipe, FinetuneRun
from bertsmith.training.log import as_json_value
from bertsmith.training.loop import Loop, Observer
from bertsmith.training.machine import Machine, broadcast_value
from bertsmith.training.observer import RunObserver
from bertsmith.training.sharding import gather_tensors

WORST = -math.inf  # replaces a score that is NaN, as the correlation of constant predictions is


@dataclass
class BestWeights:
    """Keeps the weights of a run's best evaluation in `folder`, by a metric of which more is better.

    `patience` is the number of evaluations without a better one that end the run; None never ends it.
    `history` has the step and score of each evaluation.
    """

    folder: Path
    metric: str
    patience: int | None = None
    history: list[tuple[int, float]] = field(default_factory=list)

    def resume(self, step: int) -> None:
        """Reads the history of a run that is resumed at `step`. Later evaluations are dropped: they will come
        again.
        """
        path = self.folder / "history.json"
        if path.exists():
            stored = read_json(path)["history"]
            self.history = [
                (evaluated, WORST if score is None else score)
                for evaluated, score in stored
                if evaluated <= step
            ]

    @property
    def score(self) -> float | None:
        """The best score; None before any evaluation."""
        return max((score for _, score in self.history), default=None)

    def has(self, step: int) -> bool:
        """Whether `step` is the last one that was evaluated."""
        return bool(self.history) and self.history[-1][0] == step

    @property
    def step(self) -> int:
        """The first step of the best score. Raises ValueError before any evaluation."""
        return max(self.history, key=lambda evaluation: evaluation[1])[0]

    @property
    def stopped(self) -> bool:
        """Whether the last `patience` evaluations brought nothing better."""
        if self.patience is None or len(self.history) <= self.patience:
            return False
        scores = [score for _, score in self.history]
        return max(scores[-self.patience :]) <= max(scores[: -self.patience])

    def consider(self, step: int, metrics: dict[str, float], model: nn.Module, write: bool = True) -> None:
        """Adds an evaluation, and keeps the model's weights if it is better than all before.

        All ranks have to call this, since a sharded model is gathered by all of them; only one may `write`.
        """
        score, best = metrics[self.metric], self.score
        if math.isnan(score):
            score = WORST
        if self.has(step):
            return
        self.history.append((step, score))
        if best is None or score > best:
            weights = gather_tensors(model.state_dict(), keep=write)
            if write:
                self._write_weights(weights)
        if write:
            self._write_history()

    def keep(self, step: int, model: nn.Module, write: bool = True) -> None:
        """Keeps the weights at `step`, the last one of a run without evaluations."""
        self.history = [(step, WORST)]
        weights = gather_tensors(model.state_dict(), keep=write)
        if write:
            self._write_weights(weights)
            self._write_history()

    def restore(self, model: nn.Module) -> None:
        """Loads the best weights into the model."""
        model.load_state_dict(load_file(self.folder / "weights.safetensors"))

    def _write_weights(self, weights: dict[str, Tensor]) -> None:
        """Replaces the file of weights alone, since replacing the folder would remove the history for a
        moment.

        If the process is killed before the history is written, the evaluation comes again on resuming.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
        partial = self.folder / ".weights.partial"
        with tensors_written_to(partial):
            save_file(tensors, partial)
        flush(partial)
        partial.replace(self.folder / "weights.safetensors")

    def _write_history(self) -> None:
        value: dict[str, Any] = {"metric": self.metric, "best_step": self.step, "history": self.history}
        write_json(self.folder / "history.json", as_json_value(value))


class TaskRun:
    """Trains `model` on `train`, and keeps the weights that are best on `dev` in `best`. Without dev, a
    `resumable` run keeps its last weights there.
    """

    def __init__(
        self,
        task: Task[Any],
        model: TaskModel,
        train: EncodedExamples,
        dev: EncodedExamples | None,
        settings: FinetuneRun,
        machine: Machine,
        folder: Path,
        observer: Observer,
        *,
        resumable: bool = False,
        measure_first: bool = False,
        should_stop: Callable[[BestWeights], bool] = lambda best: False,
        progress: Progress | None = None,
    ) -> None:
        """`folder` gets the best weights, and checkpoints if the run is `resumable`. With `measure_first` the
        model is evaluated before the first step too, for one that is good from the start and may stay the
        best. `should_stop` is called after each evaluation, and ends the run if it returns True. `progress`
        is called during an evaluation.
        """
        self.best = BestWeights(folder / "best", task.main_metric, settings.patience)
        self._judge, self._machine = _Judge(self.best, model, machine, should_stop), machine
        self._measure_first, self._has_dev, self._resumable = measure_first, dev is not None, resumable
        objective = FinetuningObjective(
            task,
            model,
            train,
            dev,
            settings.batch_size,
            settings.seed,
            machine.device,
            progress=progress,
        )
        checkpoints = folder if resumable else None
        self.loop = Loop(objective, settings, machine, checkpoints, observer, self._judge.on_evaluation)

    @property
    def step(self) -> int:
        """The number of steps that are done."""
        return self.loop.progress.step

    def resume(self) -> list[str]:
        """Loads the newest checkpoint of an interrupted run. Returns sentences about damaged checkpoints."""
        warnings = self.loop.resume()
        self.best.resume(self.step)
        return warnings

    def run_watched(self, observer: RunObserver, resume: bool) -> float:
        """Runs with the observer's log open, from the newest checkpoint if `resume` is set. Returns the
        seconds of training, those before the interruption included.
        """
        warnings = self.resume() if resume else []
        start = time.monotonic()
        with observer.open(self.step, warnings):
            self.run()
            elapsed = self.loop.progress.elapsed or time.monotonic() - start
            observer.record("end", self.step, elapsed=elapsed, reason="finished")
        return elapsed

    def run(self) -> None:
        """Trains to the last step and evaluation, or until dev gets no better. Raises as `Loop.run` does."""
        if self.best.stopped:
            return
        if self._measure_first and self._has_dev and self.step == 0 and not self.best.history:
            self._judge.on_evaluation(0, self.loop.evaluate())
        self.loop.run()
        if not self._has_dev and self._resumable:
            self.best.keep(self.step, self.loop.task.model, self._machine.ranks.is_first)
        elif self._has_dev and not self.best.stopped and not self.best.has(self.step):
            self._judge.on_evaluation(self.step, self.loop.evaluate())


class _Judge:
    """Receives the loop's evaluations. It has no reference to its run, because a run and a loop that refer to
    each other would keep the weights and moments of finished runs in memory until the garbage collector
    finds the cycle.
    """

    def __init__(
        self,
        best: BestWeights,
        model: TaskModel,
        machine: Machine,
        should_stop: Callable[[BestWeights], bool],
    ) -> None:
        self._best, self._model, self._machine, self._should_stop = best, model, machine, should_stop

    def on_evaluation(self, step: int, metrics: Metrics) -> bool:
        """Keeps the weights if they are the best so far. Returns whether the run ends here."""
        if not metrics:  # there is no dev
            return False
        # Each rank has measured on its own. If the last bit of their scores differed, one of them might stop,
        # or gather the weights, alone.
        agreed = broadcast_value(metrics[self._best.metric], self._machine.device)
        scores = metrics | {self._best.metric: agreed}
        self._best.consider(step, scores, self._model, self._machine.ranks.is_first)
        return self._should_stop(self._best) or self._best.stopped


class SilentObserver:
    """An observer of the loop that records nothing."""

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Ignores a record of the loop, such as the loss of a step."""

    def rewind(self, step: int) -> None:
        """Ignores that the loop went back to an earlier step."""


def train_silently(
    task: Task[Any], model: TaskModel, recipe: FinetuneRecipe, train: EncodedExamples, machine: Machine
) -> None:
    """Trains the model to the last step of the recipe, without dev, log, or files that stay."""
    steps = steps_of_epoch(task, train, recipe.batch_size)
    completed = recipe.complete(model.config.hidden_size, model.config.num_hidden_layers, steps)
    settings = completed.resolve(steps, recipe.seed)
    with TemporaryDirectory() as folder:
        TaskRun(task, model, train, None, settings, machine, Path(folder), SilentObserver()).run()
