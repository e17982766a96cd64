"""What fine-tuning begins with: the pre-trained encoder under a new head, adapted as the recipe says."""

from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import RecipeError
from bertsmith.model.adaptation import freeze, reinitialise
from bertsmith.model.layers.dropout import Dropout
from bertsmith.model.lora import add_lora
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import Start, begin_task_model
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.linear_start import LinearProbe, LinearStart
from bertsmith.tasks.task import Task
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.inputs import require_room_for_learned_rows
from bertsmith.training.machine import Machine


def linear_probe(
    recipe: FinetuneRecipe,
    task: Task[Any],
    source: Path,
    train: EncodedExamples,
    machine: Machine,
    progress: Progress | None = None,
) -> LinearProbe | None:
    """What the head may begin with; None where the encoder itself begins anew, or the head isn't linear."""
    if recipe.reinit_layers:
        return None
    model = start_model(recipe, task, source).model.to(machine.device)
    return LinearProbe.of(task, model, train, progress=progress)


def start_model(
    recipe: FinetuneRecipe,
    task: Task[Any],
    source: Path,
    seed: int | None = None,
    linear: LinearStart | None = None,
) -> Start:
    """The same weights for the same seed, and what the user should know of them. What stands under a `linear`
    start is drawn by the recipe's seed, whatever the run's.

    Raises ModelError for a folder without an encoder, and RecipeError when the task's windows are longer than
    what the model can read, or shorter than the rows of the table that it was pre-trained on.
    """
    seed = recipe.seed if seed is None else seed
    # a linear start fits the layers below it as the recipe's seed draws them: other ones would undo it
    drawn_by = seed if linear is None else recipe.seed
    torch.manual_seed(drawn_by)
    start = begin_task_model(source, task)
    if seed != drawn_by:
        torch.manual_seed(seed)
    model = start.model
    _check_room(task, model)
    require_room_for_learned_rows(source, task.settings.max_length)
    if recipe.dropout is not None:
        for module in model.modules():
            if isinstance(module, Dropout):
                module.probability = recipe.dropout
    reinitialise(model.encoder, recipe.reinit_layers)
    freeze(model.encoder, recipe.freeze_embeddings, recipe.freeze_layers)
    if recipe.lora.rank:
        lora = recipe.lora
        targets = lora.targets
        if targets and model.new_pooler:  # which is trained in full, as the head is
            targets = tuple(target for target in targets if target != "pooler")
        add_lora(model.encoder, lora.rank, lora.alpha, lora.dropout, targets)
        if model.new_pooler:
            model.encoder.get_submodule("pooler").requires_grad_(True)
    if linear is not None:
        linear.apply(model)
    return start


def _check_room(task: Task[Any], model: TaskModel) -> None:
    if task.settings.max_length > model.config.max_length:
        raise RecipeError(
            f"max_length = {task.settings.max_length}, but the model has positions for "
            f"{model.config.max_length} tokens. To read longer texts as windows, set a stride, such as "
            "stride=64."
        )
