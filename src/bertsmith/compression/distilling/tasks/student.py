"""The student before its training: some of a model's layers and the task's head."""

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
    """Where a student's first weights come from: the `folder` of the teacher or of another model, the indices
    of the `layers` to take, from 0, the student's `width` and `feed_forward` neurons (None: in proportion to
    the width). `takes_head`: the model's head is of the same task, and is taken too.
    """

    folder: Path
    layers: tuple[int, ...]
    width: int
    feed_forward: int | None
    takes_head: bool

    @classmethod
    def of(cls, recipe: DistilRecipe, teachers: Sequence[TaskTeacher]) -> "StudentSource":
        """The source that the recipe names, by default the first teacher.

        Raises RecipeError for layers that don't exist, and where there is neither a teacher nor a `student`;
        ModelError for a static table, which has no layers.
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
        numbers = (layers,) if isinstance(layers, int) else layers
        if not numbers or min(numbers) < 1 or max(numbers) > count:
            raise RecipeError(
                f"layers = {', '.join(map(str, numbers))}, but the model to begin with has {count}: choose "
                f"from 1 to {count}."
            )
        if isinstance(layers, int):
            chosen = spread_layers(count, layers)
        else:
            chosen = tuple(number - 1 for number in layers)
        return cls(folder, chosen, recipe.width or config.hidden_size, recipe.feed_forward, is_teacher)

    def before(self, task: Task[Any], recipe: DistilRecipe, tokenizer: Tokenizer) -> "StudentSource":
        """The source of the same student without a teacher: the layers of the encoder that the teacher was
        fine-tuned from, where that is at hand and has the student's vocabulary (a teacher with a pruned
        vocabulary has another); otherwise the teacher's own layers, without its head.
        """
        without_head = replace(self, takes_head=False)
        folder = encoder_before(self.folder) if self.takes_head else None
        if folder is None:
            return without_head
        before = replace(without_head, folder=folder)
        try:
            if read_own_tokenizer(folder).sha256 != tokenizer.sha256:
                return without_head
            begin_student(before, task, recipe.seed)
        except BertsmithError:  # old models don't record their encoder's hash: another one may be there now
            return without_head
        return before


def begin_student(
    source: StudentSource, task: Task[Any], seed: int, dropout: float | None = None
) -> TaskModel:
    """Makes the student from its source; the same seed gives the same weights.

    Raises ModelError, and RecipeError where the student has fewer positions than the task's texts need.
    """
    torch.manual_seed(seed)
    teacher = load_task_model(source.folder, type(task))[0] if source.takes_head else None
    full_encoder = load_encoder(source.folder) if teacher is None else teacher.encoder
    config = student_config(
        full_encoder.config, width=source.width, kept=source.layers, feed_forward=source.feed_forward
    )
    encoder = make_student(full_encoder, config, source.layers)
    if task.settings.max_length > config.max_length:
        raise RecipeError(
            f"Texts are read to {task.settings.max_length} tokens, but the student has positions for "
            f"{config.max_length}: choose another --student, or max_length={config.max_length}."
        )
    model = TaskModel(encoder, task.head(config))
    if teacher is not None and config.hidden_size == teacher.config.hidden_size:
        teacher_state, state = teacher.head.state_dict(), model.head.state_dict()
        shared = {
            name: teacher_state[name]
            for name in state
            if name in teacher_state and teacher_state[name].shape == state[name].shape
        }
        model.head.load_state_dict(state | dict(model.head.taken_over(shared)))
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, Dropout):
                module.probability = dropout
    return model.train()


def start_head(task: Task[Any], model: TaskModel, examples: EncodedExamples) -> None:
    """Fits the head's last layer to the task's loss on the features of the frozen encoder, where the head is
    linear in features; other heads stay as they are.
    """
    probe = LinearProbe.of(task, model, examples)
    if probe is not None:
        probe.fit_best().apply(model)
