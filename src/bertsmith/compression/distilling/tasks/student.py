"""What a distillation begins with: some of a model's layers under the task's head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.errors import BertsmithError, RecipeError
from bertsmith.inference.provenance import encoder_before
from bertsmith.model.checkpoint import load_encoder, read_checkpoint
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import read_own_tokenizer
from bertsmith.model.static_table import refuse_static
from bertsmith.model.student import make_student, spread_layers, student_config
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.linear_start import LinearProbe
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class StudentSource:
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
    def of(cls, recipe: DistilRecipe, teachers: Sequence[TaskTeacher]) -> "StudentSource":
        """As the recipe says. Raises RecipeError where it names no model beside a file of answers, and for
        layers that aren't there, ModelError for a static table, which has none.
        """
        if recipe.student is not None:
            folder = locate_model(recipe.student).folder
            config = read_checkpoint(folder).config
        elif teachers:
            folder, config = teachers[0].folder, teachers[0].model.config
        else:
            raise RecipeError("Answers in a file have no layers to begin with: name a model with --student.")
        refuse_static(folder)
        is_teacher, count, layers = recipe.student is None, config.num_hidden_layers, recipe.layers
        if layers is None:
            layers = max(count // 2, 1) if is_teacher else count
        named = (layers,) if isinstance(layers, int) else layers
        if not named or min(named) < 1 or max(named) > count:
            raise RecipeError(
                f"layers = {', '.join(map(str, named))}, but the model to begin with has {count}: choose "
                f"from 1 to {count}."
            )
        if isinstance(layers, int):
            chosen = spread_layers(count, layers)
        else:
            chosen = tuple(number - 1 for number in layers)
        return cls(folder, chosen, recipe.width or config.hidden_size, recipe.feed_forward, is_teacher)

    def before(self, task: Task[Any], recipe: DistilRecipe, tokenizer: Tokenizer) -> "StudentSource":
        """With the layers of the encoder that the teacher was fine-tuned from, where that is here and reads
        the same pieces: of a teacher with a pruned vocabulary, rows of the table would be those of other
        pieces. Else with the teacher's own.
        """
        own = replace(self, takes_head=False)
        folder = encoder_before(self.folder) if self.takes_head else None
        if folder is None:
            return own
        found = replace(own, folder=folder)
        try:
            if read_own_tokenizer(folder).sha256 != tokenizer.sha256:
                return own
            begin_student(found, task, recipe.seed)
        except BertsmithError:  # older models don't say which weights it had: another one may lie there now
            return own
        return found


def begin_student(
    source: StudentSource, task: Task[Any], seed: int, dropout: float | None = None
) -> TaskModel:
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
    if taught is not None and config.hidden_size == taught.config.hidden_size:  # what both heads have
        theirs, own = taught.head.state_dict(), model.head.state_dict()
        fitting = {
            name: theirs[name] for name in own if name in theirs and theirs[name].shape == own[name].shape
        }
        model.head.load_state_dict(own | dict(model.head.taken_over(fitting)))
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, Dropout):
                module.probability = dropout
    return model.train()


def start_head(task: Task[Any], model: TaskModel, examples: EncodedExamples) -> None:
    """The head's last layer begins with the best by the task's own loss on frozen layers, where it is linear
    in features.
    """
    probe = LinearProbe.of(task, model, examples)
    if probe is not None:
        probe.best().apply(model)
