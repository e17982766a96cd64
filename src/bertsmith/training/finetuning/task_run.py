"""One training of a task: the loop over its examples, and the weights that did best on dev."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertsmith.progress import Progress
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.finetuning import EncodedExamples, Finetuning, steps_of_epoch
from bertsmith.tasks.task import Metrics, Task
from bertsmith.training.finetune_recipe import FinetuneRecipe, FinetuneRun
from bertsmith.training.finetuning.best import Best
from bertsmith.training.loop import Loop, Observer
from bertsmith.training.machine import Machine, from_first


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
        should_stop: Callable[[Best], bool] = lambda best: False,
        progress: Progress | None = None,
    ) -> None:
        """The best weights are kept in `folder`, and checkpoints too if the run is to be `resumable`. To
        `measure_first` is for a model that answers well before its first step, and may stay the best.
        `should_stop` is asked after each evaluation; True ends the run there. `progress` is of one
        evaluation.
        """
        self.best = Best(folder / "best", task.main_metric, settings.patience)
        self._judge, self._machine = _Judge(self.best, model, machine, should_stop), machine
        self._measure_first, self._has_dev, self._resumable = measure_first, dev is not None, resumable
        parts = task, model, train, dev, settings.batch_size, settings.seed, machine.device
        objective = Finetuning(*parts, progress=progress)
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
        self, best: Best, model: TaskModel, machine: Machine, should_stop: Callable[[Best], bool]
    ) -> None:
        self._best, self._model, self._machine, self._should_stop = best, model, machine, should_stop

    def hear(self, step: int, metrics: Metrics) -> bool:
        """Keeps the weights if none were better; whether the run ends here."""
        if not metrics:  # without a dev there is nothing to choose by
            return False
        # Each rank has measured for itself: by another last bit, one of them would stop or gather alone.
        agreed = from_first(metrics[self._best.metric], self._machine.device)
        scores = metrics | {self._best.metric: agreed}
        self._best.consider(step, scores, self._model, self._machine.ranks.is_first)
        return self._should_stop(self._best) or self._best.stopped


class Silent:
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
        TaskRun(task, model, train, None, settings, machine, Path(folder), Silent()).run()
