"""Labelled examples in memory become a trained model: head, loop and settings of a run without its folder.

For callers that train many small models and keep what they want of them, as scikit-learn's searches do.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertsmith.errors import RecipeError, TrainingStopped
from bertsmith.model.lora import merge_lora
from bertsmith.tasks.finetuning import Finetuning, encode_examples
from bertsmith.tasks.task import Metrics, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.training.best import Best
from bertsmith.training.finetune_recipe import FinetuneRecipe, FinetuneRun
from bertsmith.training.hardware import Hardware
from bertsmith.training.loop import Loop
from bertsmith.training.machine import Machine, plain_machine
from bertsmith.training.optimizer import make_optimizer
from bertsmith.training.settings import CheckpointSettings, GuardSettings
from bertsmith.training.start import start_model

Progress = Callable[[int, int | None, str], None]


def finetune_examples(
    task: Task[Any],
    recipe: FinetuneRecipe,
    source: Path,
    train: Sequence[Any],
    dev: Sequence[Any] = (),
    progress: Progress | None = None,
) -> TaskModel:
    """Trains on `train` and teaches `task` its labels; the model comes back in evaluation mode on the host.

    With `dev` the best evaluation's weights are kept, `recipe.patience` ends the run, and confidence is
    calibrated; without, all epochs are trained. The caller's torch generators stay as they were.
    Raises InputError for labels nothing can be learnt of, RecipeError, and TrainingStopped.
    """
    if recipe.restarts > 1:
        raise RecipeError("restarts are for runs with files. Train once for each seed instead.")
    task.learn_labels(train)
    task.check(dev)
    tokenizer = Tokenizer.load(source)
    machine = plain_machine(recipe.hardware, recipe.micro_batch_tokens, Hardware.detect())
    devices = [machine.device] if machine.device.type == "cuda" else []
    with torch.random.fork_rng(devices), TemporaryDirectory() as folder:
        model = start_model(recipe, task, source).to(machine.device)
        held_out = encode_examples(task, dev, tokenizer) if dev else None
        objective = Finetuning(
            task,
            model,
            encode_examples(task, train, tokenizer),
            held_out,
            recipe.batch_size,
            recipe.seed,
            machine.device,
        )
        _train(objective, recipe, machine, Path(folder), progress)
    model.head.finish()
    merge_lora(model.encoder)
    if held_out is not None:
        task.calibrate(outputs_of(model, held_out.encoded, machine.device), dev, held_out.encoded)
    return model.cpu().eval()


def _train(
    objective: Finetuning, recipe: FinetuneRecipe, machine: Machine, folder: Path, progress: Progress | None
) -> None:
    """Steps until the epochs are over, or dev gets no better; the weights are then the best ones."""
    settings = _without_checkpoints(recipe.resolved(objective.steps_per_epoch, recipe.seed))
    adam = settings.optimizer
    model = objective.model
    optimizer = make_optimizer(
        model, adam.weight_decay, (adam.beta1, adam.beta2), adam.epsilon, adam.layer_decay
    )
    best = Best(folder / "best", objective.task.main_metric, recipe.patience)

    def after_evaluation(step: int, metrics: Metrics) -> bool:
        best.consider(step, metrics, model)
        return best.stopped

    hears = after_evaluation if objective.dev is not None else None
    loop = Loop(objective, optimizer, settings, machine, folder, _Counter(settings, progress), hears)
    model.train()
    try:
        for batch in objective.batches(loop.progress.cursor):
            if not loop.advance(batch):
                break
    except TrainingStopped as error:  # its message names a folder that is gone by now
        raise TrainingStopped(
            f"The loss or its gradient was not finite at step {loop.progress.step + 1} of {settings.steps}. "
            "Lower the learning rate."
        ) from error
    if objective.dev is not None:
        if not best.stopped:
            after_evaluation(loop.progress.step, loop.evaluate())
        best.restore(model)
    model.eval()


def _without_checkpoints(run: FinetuneRun) -> FinetuneRun:
    """Nobody resumes a run without a folder; and a checkpoint may cost more than an epoch."""
    never = CheckpointSettings(every=(run.steps or 0) + 1)
    guard = GuardSettings(action="stop", spike_factor=run.guard.spike_factor)
    return run.model_copy(update={"checkpoint": never, "guard": guard})


class _Counter:
    """The loop's observer: counts steps for whoever wants to show them."""

    def __init__(self, settings: FinetuneRun, progress: Progress | None) -> None:
        self._steps, self._progress = settings.steps, progress

    def record(self, kind: str, step: int, **values: Any) -> None:
        if kind == "step" and self._progress is not None:
            self._progress(step, self._steps, "steps")

    def rewind(self, step: int) -> None:
        """Never: the guard stops such a run."""
