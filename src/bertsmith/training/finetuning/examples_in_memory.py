"""Labelled examples in memory become a trained model: head, loop and settings of a run without its folder.

For callers that train many small models and keep what they want of them, as scikit-learn's searches do.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertsmith.errors import RecipeError
from bertsmith.model.lora import merge_lora
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.finetuning import encode_examples, steps_of_epoch
from bertsmith.tasks.linear_start import fit_linear_start
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.start import choose_pooling, start_model
from bertsmith.training.finetuning.task_run import TaskRun
from bertsmith.training.hardware import Hardware
from bertsmith.training.machine import plain_machine


def finetune_examples(
    task: Task[Any],
    recipe: FinetuneRecipe,
    source: Path,
    train: Sequence[Any],
    dev: Sequence[Any] = (),
    progress: Progress | None = None,
) -> tuple[TaskModel, FinetuneRecipe]:
    """Trains on `train` and teaches `task` its labels; the model comes back in evaluation mode on the host,
    and the recipe with what was chosen for it.

    With `dev` the best evaluation's weights are kept, `recipe.patience` ends the run, and confidence is
    calibrated; without, all epochs are trained. The caller's torch generators stay as they were.
    Raises InputError for labels nothing can be learnt of, RecipeError, and TrainingStopped.
    """
    if recipe.restarts > 1:
        raise RecipeError("restarts are for runs with files. Train once for each seed instead.")
    task.learn_labels(train)
    task.check([*train, *dev])
    machine = plain_machine(recipe.hardware, recipe.micro_batch_tokens, Hardware.detect())
    devices = [machine.device] if machine.device.type == "cuda" else []
    with torch.random.fork_rng(devices), TemporaryDirectory() as folder:
        choose_pooling(task, source)
        model = start_model(recipe, task, source).model.to(machine.device)
        tokenizer = load_own_tokenizer(source, model.config)
        encoded = encode_examples(task, train, tokenizer)
        linear = None if recipe.reinitialise else fit_linear_start(task, model, encoded)
        if linear is not None:
            linear.apply(model)
        held_out = encode_examples(task, dev, tokenizer) if dev else None
        steps = steps_of_epoch(task, encoded, recipe.batch_size)
        recipe = recipe.completed(model.config.hidden_size, steps)
        settings = recipe.resolved(steps, recipe.seed)
        observer = _Counter(settings.steps, progress)
        run = TaskRun(
            *(task, model, encoded, held_out, settings, machine, Path(folder), observer),
            measure_first=linear is not None,
        )
        run.run()
        if held_out is not None:
            run.best.restore(model)
    model.head.finish()
    merge_lora(model.encoder)
    if held_out is not None:
        task.calibrate(outputs_of(model, held_out.encoded), dev, held_out.encoded)
    return model.cpu().eval(), recipe


class _Counter:
    """The loop's observer: counts steps for whoever wants to show them."""

    def __init__(self, steps: int | None, progress: Progress | None) -> None:
        self._steps, self._progress = steps, progress

    def record(self, kind: str, step: int, **values: Any) -> None:
        if kind == "step" and self._progress is not None:
            self._progress(step, self._steps, "steps")

    def rewind(self, step: int) -> None:
        """Never: there is no checkpoint to go back to."""
