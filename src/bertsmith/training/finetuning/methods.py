"""The ways in which labelled rows become a model, each without a file: what cross-validation compares.

linear        the encoder as it is, under a linear model of its features
full          begun as that linear model, then all weights trained, as the recipe says
contrastive   the encoder taught by pairs of one label, then a linear model of what its features became
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertsmith.errors import RecipeError
from bertsmith.model.lora import merge_lora
from bertsmith.tasks.class_contrast import ClassContrast
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.finetuning import EncodedExamples, steps_of_epoch
from bertsmith.tasks.linear_start import LinearStart, fit_linear_start
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.start import start_model
from bertsmith.training.finetuning.task_run import TaskRun
from bertsmith.training.machine import Machine

AUTO, LINEAR, FULL, CONTRASTIVE = "auto", "linear", "full", "contrastive"


def possible_methods(task: Task[Any], recipe: FinetuneRecipe, linear: bool, layers: int) -> list[str]:
    """Those that suit the task, the cheapest first, for an encoder of so many layers. `linear`: the head can
    begin as a linear model.
    """
    if not linear:
        return [FULL]
    frozen = recipe.freeze_embeddings and recipe.freeze_layers >= layers
    by_pairs = isinstance(task, Classification) and task.settings.linear_pooling is not None
    return [LINEAR, *[CONTRASTIVE] * (by_pairs and not frozen), FULL]


def named_method(recipe: FinetuneRecipe) -> str:
    """LoRA asks to be trained; else what the recipe says."""
    return FULL if recipe.method == AUTO and recipe.lora.rank else recipe.method


def suits_folds(task: Task[Any], recipe: FinetuneRecipe) -> bool:
    """Whether a linear model of frozen features is a method here, which costs next to nothing a fold."""
    few = isinstance(task, Classification | MultiLabel | Regression | Tagging)
    return few and not recipe.reinitialise


def require_possible(method: str, task: Task[Any], possible: Sequence[str]) -> None:
    """Raises RecipeError for a method that doesn't suit the task."""
    if method not in (AUTO, *possible):
        raise RecipeError(
            f"method = {method} is not for this {task.name}: there {'are' if len(possible) > 1 else 'is'} "
            f"{', '.join(possible)}."
        )


def train_part(
    method: str,
    task: Task[Any],
    source: Path,
    recipe: FinetuneRecipe,
    train: EncodedExamples,
    machine: Machine,
    linear: LinearStart | None = None,
) -> TaskModel:
    """A model by this method, with the weights of its last step; the same for the same rows and seed.
    `linear` is what the head begins with, where it is known.
    """
    model = start_model(recipe, task, source).model.to(machine.device)
    if method == FULL:
        linear = linear or _linear_start(task, model, recipe, train)
        if linear is not None:
            linear.apply(model)
        _train(task, model, recipe, train, machine)
    else:
        if method == CONTRASTIVE:
            _train_contrast(task, model, recipe, train, machine)
        if method == CONTRASTIVE or linear is None:
            linear = fit_linear_start(task, model, train)
        assert linear is not None
        linear.apply(model)
    model.head.finish()
    merge_lora(model.encoder)
    task.bind(model.head)
    return model


def _linear_start(
    task: Task[Any], model: TaskModel, recipe: FinetuneRecipe, train: EncodedExamples
) -> LinearStart | None:
    return None if recipe.reinitialise else fit_linear_start(task, model, train)


def _train_contrast(
    task: Task[Any], model: TaskModel, recipe: FinetuneRecipe, train: EncodedExamples, machine: Machine
) -> None:
    head, contrast = model.head, ClassContrast(task)
    model.head = contrast.head(model.config).to(machine.device)
    _train(contrast, model, recipe.contrastive(), train, machine)
    model.head = head


def _train(
    task: Task[Any], model: TaskModel, recipe: FinetuneRecipe, train: EncodedExamples, machine: Machine
) -> None:
    steps = steps_of_epoch(task, train, recipe.batch_size)
    settings = recipe.completed(model.config.hidden_size, model.config.num_hidden_layers, steps).resolved(
        steps, recipe.seed
    )
    with TemporaryDirectory() as folder:
        TaskRun(task, model, train, None, settings, machine, Path(folder), Silent()).run()


class Silent:
    """The loop's observer where nobody watches."""

    def record(self, kind: str, step: int, **values: Any) -> None:
        """Nothing."""

    def rewind(self, step: int) -> None:
        """Nothing."""
