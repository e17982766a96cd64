"""One training of a task: the loop over its examples, the weights that did best on dev, and when to stop
waiting for better.

best/weights.safetensors    the weights, in our names
best/history.json           every evaluation: step, score; the best one's step
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

WORST = -math.inf  # in place of a score that is no number: a constant output has no correlation


@dataclass
class BestWeights:
    """Keeps the best of a run's evaluations by a metric of which more is better.

    `patience` is how many evaluations without a better one end the run; None waits to the end.
    """

    folder: Path
    metric: str
    patience: int | None = None
    history: list[tuple[int, float]] = field(default_factory=list)

    def resume(self, step: int) -> None:
        """Takes up the history of a run that goes on from `step`; later evaluations will come again."""
        path = self.folder / "history.json"
        if path.exists():
            scores = [(at, WORST if score is None else score) for at, score in read_json(path)["history"]]
            self.history = [(at, score) for at, score in scores if at <= step]

    @property
    def score(self) -> float | None:
        return max((score for _, score in self.history), default=None)

    def has(self, step: int) -> bool:
        """Whether this step is the last one that was evaluated."""
        return bool(self.history) and self.history[-1][0] == step

    @property
    def step(self) -> int:
        """The first step of the best score. Raises ValueError before any evaluation."""
        return max(self.history, key=lambda each: each[1])[0]

    @property
    def stopped(self) -> bool:
        """Whether the last `patience` evaluations brought nothing better."""
        if self.patience is None or len(self.history) <= self.patience:
            return False
        scores = [score for _, score in self.history]
        return max(scores[-self.patience :]) <= max(scores[: -self.patience])

    def consider(self, step: int, metrics: dict[str, float], model: nn.Module, write: bool = True) -> None:
        """Adds an evaluation, and keeps the weights if it is the best so far; of equals the first.

        All ranks call this, since a divided model is gathered by all; one of them is to `write`.
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
        """Keeps the weights of a run that nothing measured on the way: those of its last step."""
        self.history = [(step, WORST)]
        weights = gather_tensors(model.state_dict(), keep=write)
        if write:
            self._write_weights(weights)
            self._write_history()

    def restore(self, model: nn.Module) -> None:
        """Puts the best weights into the model."""
        model.load_state_dict(load_file(self.folder / "weights.safetensors"))

    def _write_weights(self, weights: dict[str, Tensor]) -> None:
        """File by file: a folder is for a moment absent while it is replaced, and the history with it.

        A kill before the history is written costs nothing: the evaluation comes again on resuming.
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
    """Trains `model` on `train`, and keeps in `best` what did best on `dev`; without one, the last
    weights of a run that is `resumable`.
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
        """The best weights are kept in `folder`, and checkpoints too if the run is to be `resumable`. To
        `measure_first` is for a model that answers well before its first step, and may stay the best.
        `should_stop` is asked after each evaluation; True ends the run there. `progress` is of one
        evaluation.
        """
        self.best = BestWeights(folder / "best", task.main_metric, settings.patience)
        self._judge, self._machine = _Judge(self.best, model, machine, should_stop), machine
        self._measure_first, self._has_dev, self._resumable = measure_first, dev is not None, resumable
        parts = task, model, train, dev, settings.batch_size, settings.seed, machine.device
        objective = FinetuningObjective(*parts, progress=progress)
        checkpoints = folder if resumable else None
        self.loop = Loop(objective, settings, machine, checkpoints, observer, self._judge.hear)

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self.loop.progress.step

    def resume(self) -> list[str]:
        """Takes up where a killed run stood; returns sentences about damaged checkpoints."""
        complaints = self.loop.resume()
        self.best.resume(self.step)
        return complaints

    def run_watched(self, observer: RunObserver, resume: bool) -> float:
        """The same as `run`, told to the observer's log, from where it stood on `resume`. Returns the seconds
        of training.
        """
        complaints = self.resume() if resume else []
        begun = time.monotonic()
        with observer.open(self.step, complaints):
            self.run()
            elapsed = self.loop.progress.elapsed or time.monotonic() - begun
            observer.record("end", self.step, elapsed=elapsed, reason="finished")
        return elapsed

    def run(self) -> None:
        """To the last step and its evaluation, or until dev gets no better. Raises as `Loop.run` does."""
        if self.best.stopped:
            return
        if self._measure_first and self._has_dev and self.step == 0 and not self.best.history:
            self._judge.hear(0, self.loop.evaluate())
        self.loop.run()
        if not self._has_dev and self._resumable:
            self.best.keep(self.step, self.loop.task.model, self._machine.ranks.is_first)
        elif self._has_dev and not self.best.stopped and not self.best.has(self.step):
            self._judge.hear(self.step, self.loop.evaluate())


class _Judge:
    """What the loop tells its evaluations. It doesn't know its run: where a run and its loop held each other,
    the weights and moments of one run after another would stay until Python looks for such rings.
    """

    def __init__(
        self,
        best: BestWeights,
        model: TaskModel,
        machine: Machine,
        should_stop: Callable[[BestWeights], bool],
    ) -> None:
        self._best, self._model, self._machine, self._should_stop = best, model, machine, should_stop

    def hear(self, step: int, metrics: Metrics) -> bool:
        """Keeps the weights if none were better; whether the run ends here."""
        if not metrics:  # without a dev there is nothing to choose by
            return False
        # Each rank has measured for itself: by another last bit, one of them would stop or gather alone.
        agreed = broadcast_value(metrics[self._best.metric], self._machine.device)
        scores = metrics | {self._best.metric: agreed}
        self._best.consider(step, scores, self._model, self._machine.ranks.is_first)
        return self._should_stop(self._best) or self._best.stopped


class SilentObserver:
    """The loop's observer where nobody watches."""

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Nothing."""

    def rewind(self, step: int) -> None:
        """Nothing."""


def train_silently(
    task: Task[Any], model: TaskModel, recipe: FinetuneRecipe, train: EncodedExamples, machine: Machine
) -> None:
    """To the last step, without a dev or a file that stays."""
    steps = steps_of_epoch(task, train, recipe.batch_size)
    completed = recipe.completed(model.config.hidden_size, model.config.num_hidden_layers, steps)
    settings = completed.resolved(steps, recipe.seed)
    with TemporaryDirectory() as folder:
        TaskRun(task, model, train, None, settings, machine, Path(folder), SilentObserver()).run()
