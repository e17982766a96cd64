"""What a distillation begins with: some of a model's layers under the task's head."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.compression.distilling.distil_recipe import DistilRecipe
from bertsmith.errors import RecipeError
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.static_table import refuse_static
from bertsmith.model.student import make_student, spread_layers, student_config
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.linear_start import LinearProbe, LinearStart
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel


@dataclass(frozen=True)
class Source:
    """Where a student's layers come from: the `folder` of the teacher, or of another model. `layers`, counted
    from 0, `width` and the neurons of `feed_forward` parts (None: in proportion to the width) are what is
    kept of it; `takes_head`: it has the task's head, which is kept too.
    """

    folder: Path
    layers: tuple[int, ...]
    width: int
    feed_forward: int | None
    takes_head: bool

    @classmethod
    def of(cls, recipe: DistilRecipe, folder: Path, config: BertConfig, *, is_teacher: bool) -> "Source":
        """As the recipe says. Raises RecipeError for layers that aren't there, ModelError for a static table,
        which has none.
        """
        refuse_static(folder)
        count = config.num_hidden_layers
        layers = recipe.layers
        if layers is None:
            layers = max(count // 2, 1) if is_teacher else count
        if isinstance(layers, int):
            _require_layers((layers,), count)
            chosen = spread_layers(count, layers)
        else:
            _require_layers(layers, count)
            chosen = tuple(number - 1 for number in layers)
        return cls(folder, chosen, recipe.width or config.hidden_size, recipe.feed_forward, is_teacher)


def begin_student(source: Source, task: Task[Any], seed: int, dropout: float | None = None) -> TaskModel:
    """The same weights for the same seed. Raises ModelError, and RecipeError where it can't read as much as
    the teacher.
    """
    torch.manual_seed(seed)
    taught = load_task_model(source.folder, type(task))[0] if source.takes_head else None
    whole = load_encoder(source.folder) if taught is None else taught.encoder
    config = student_config(
        whole.config, width=source.width, kept=source.layers, feed_forward=source.feed_forward
    )
    encoder = make_student(whole, config, source.layers)
    if task.settings.max_length > config.max_length:
        raise RecipeError(
            f"Texts are read to {task.settings.max_length} tokens, but the student has positions for "
            f"{config.max_length}: choose another --student, or max_length={config.max_length}."
        )
    model = TaskModel(encoder, task.head(config))
    if taught is not None and config.hidden_size == taught.config.hidden_size:
        _take_over(taught.head.state_dict(), model)
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, Dropout):
                module.probability = dropout
    return model.train()


def linear_start(task: Task[Any], model: TaskModel, examples: EncodedExamples) -> LinearStart | None:
    """What the head's last layer begins with: the best by the task's own loss on frozen layers. None for a
    head that isn't linear in features.
    """
    probe = LinearProbe.of(task, model, examples)
    return None if probe is None else probe.best()


def _take_over(head: Mapping[str, torch.Tensor], model: TaskModel) -> None:
    """What both heads have."""
    own = model.head.state_dict()
    fitting = {name: head[name] for name in own if name in head and head[name].shape == own[name].shape}
    model.head.load_state_dict(own | dict(model.head.taken_over(fitting)))


def _require_layers(layers: tuple[int, ...], count: int) -> None:
    if not layers or min(layers) < 1 or max(layers) > count:
        raise RecipeError(
            f"layers = {', '.join(map(str, layers))}, but the model to begin with has {count}: choose from 1 "
            f"to {count}."
        )
