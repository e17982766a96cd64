"""The ways in which labelled rows become a model, each without a file: what cross-validation compares.

linear          the encoder as it is, under a linear model of its features, or their cosine for similarity
self-training   the same, and unlabelled texts are learned from by what it says of them
contrastive     the encoder taught by pairs of one label, then a linear model of what its features became
cloze           the encoder taught to say the label's words in a gap, then the same
full            begun as the linear model, then all weights trained, as the recipe says
upper           the same for the upper half of the layers alone
lora            the same for added weights of low rank alone
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import RecipeError
from bertsmith.model.adaptation import trained_share
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.similarity import compares_vectors
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task import Task
from bertsmith.tasks.teaching.class_contrast import FEWEST_A_BATCH, ClassContrast
from bertsmith.tasks.teaching.cloze import Cloze, can_be_gapped
from bertsmith.tasks.teaching.teaching import Teaching
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import FinetuneRecipe

AUTO, LINEAR, FULL, CONTRASTIVE = "auto", "linear", "full", "contrastive"
CLOZE, SELF_TRAINING, UPPER, LORA = "cloze", "self-training", "upper", "lora"
UNTRAINED = LINEAR, SELF_TRAINING  # the encoder stays as it is
TRAINED = FULL, UPPER, LORA  # with the head on it
_TAUGHT_EPOCHS = 4
_LORA_RANK = 8


def possible_methods(
    task: Task[Any],
    recipe: FinetuneRecipe,
    source: Path,
    tokenizer: Tokenizer,
    layers: int,
    *,
    linear: bool,
    trains: bool,
    unlabelled: bool,
) -> list[str]:
    """Those that suit the task, the cheapest first, for the encoder in `source` of so many layers. `linear`:
    the head can begin as a linear model; `trains`: not all weights are frozen; `unlabelled`: there are texts
    without labels.
    """
    if compares_vectors(task) and not recipe.reinit_layers:
        return [LINEAR, FULL] if trains else [LINEAR]
    if not linear:
        return [FULL]
    found = [LINEAR]
    if unlabelled and isinstance(task, Classification):
        found.append(SELF_TRAINING)
    if recipe.freeze_embeddings and recipe.freeze_layers >= layers:
        return [*found, FULL]
    classes = isinstance(task, Classification | MultiLabel) and task.settings.linear_pooling is not None
    if classes and recipe.batch_size >= FEWEST_A_BATCH:
        found.append(CONTRASTIVE)
    if classes and isinstance(task, Classification) and can_be_gapped(task, source, tokenizer):
        found.append(CLOZE)
    found.append(FULL)
    if recipe.lora.rank:
        return found + [LORA] * (recipe.method == LORA)  # its settings make `full` the same
    if _freezes(recipe):
        return found + [UPPER] * (recipe.method == UPPER)
    return [*found, *[UPPER] * (layers > 1), LORA]


def compared_methods(recipe: FinetuneRecipe, possible: Sequence[str]) -> list[str]:
    """Those that are compared: the one that the recipe names or, where it gives no time, those that win most
    often.
    """
    if named_method(recipe) != AUTO:
        return [named_method(recipe)]
    return [method for method in possible if recipe.minutes is not None or method not in (UPPER, LORA)]


def named_method(recipe: FinetuneRecipe) -> str:
    """LoRA's settings ask to be trained; else what the recipe says."""
    return FULL if recipe.method == AUTO and recipe.lora.rank else recipe.method


def recipe_of(method: str, recipe: FinetuneRecipe, layers: int) -> FinetuneRecipe:
    """What the method trains by, an encoder of so many layers."""
    changes: dict[str, Any] = {}
    if method in (CONTRASTIVE, CLOZE) and "epochs" not in recipe.model_fields_set:
        changes["epochs"] = _TAUGHT_EPOCHS
    if method == UPPER and not _freezes(recipe):
        changes |= {"freeze_embeddings": True, "freeze_layers": layers // 2}
    if method == LORA and not recipe.lora.rank:
        changes["lora"] = recipe.lora.model_copy(update={"rank": _LORA_RANK})
    return recipe.model_copy(update=changes) if changes else recipe


def _freezes(recipe: FinetuneRecipe) -> bool:
    return recipe.freeze_embeddings or recipe.freeze_layers > 0


def teaching_of(method: str, task: Task[Any], source: Path, tokenizer: Tokenizer) -> Teaching | None:
    """What the encoder is taught by before it has its head, if anything."""
    if method == CONTRASTIVE:
        return ClassContrast(task)
    return Cloze(task, source, tokenizer) if method == CLOZE else None


def suits_folds(task: Task[Any], recipe: FinetuneRecipe) -> bool:
    """Whether a linear model of frozen features is a method here, which costs next to nothing a fold."""
    few = isinstance(task, Classification | MultiLabel | Regression | Tagging) or compares_vectors(task)
    return few and not recipe.reinit_layers


def require_folds_suit(recipe: FinetuneRecipe, task: Task[Any], processes: int = 1) -> None:
    """Raises RecipeError for `folds` that are asked for where rows can't judge in turn."""
    if recipe.folds is None:
        return
    folds, instead = f"folds = {recipe.folds}", "leave folds out: a dev set judges then."
    if processes > 1:
        raise RecipeError(
            f"{folds} is for one process, and torchrun started {processes}. Start without it, or {instead}"
        )
    if recipe.reinit_layers:
        raise RecipeError(
            f"{folds} can't be used with reinit_layers: each fold begins with a linear model of the layers "
            f"as they were pre-trained. Set reinit_layers=0, or {instead}"
        )
    if not suits_folds(task, recipe):
        raise RecipeError(
            f"{folds} is not for this {task.name}: rows judge in turn in classification, multi-label, "
            f"regression, tagging and similarity (of scores, not of classes). {instead.capitalize()}"
        )


def require_trained(recipe: FinetuneRecipe, task: Task[Any], model: TaskModel) -> None:
    """Raises RecipeError where the recipe freezes all there is to train: a head may have no weights."""
    if not trained_share(model):
        raise RecipeError(
            f"freeze_layers = {recipe.freeze_layers} leaves nothing to train: {task.name} has no weights but "
            "the encoder's. Freeze fewer layers."
        )


def require_possible(recipe: FinetuneRecipe, task: Task[Any], possible: Sequence[str]) -> None:
    """Raises RecipeError for a named method that doesn't suit the task."""
    method, few = recipe.method, recipe.batch_size < FEWEST_A_BATCH
    if method not in (AUTO, *possible):
        pairs = f" contrastive compares texts: it takes a batch_size of {FEWEST_A_BATCH} or more."
        raise RecipeError(
            f"method = {method} is not for this {task.name}. Choose {' or '.join(possible)}."
            f"{pairs if few and method == CONTRASTIVE else ''}"
        )
