"""What a distillation of a task works with: teachers and their answers to everything, the student's task and
its data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.data import (
    DistilData,
    data_hashes,
    is_answer_file,
    read_answer_file,
    read_distil_data,
)
from bertsmith.compression.distilling.tasks.student import StudentSource, begin_student, start_head
from bertsmith.compression.distilling.tasks.taught_task import TaughtTask, taught_examples
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher, cached_outputs, hash_of, open_teachers
from bertsmith.errors import RecipeError
from bertsmith.model.config import BertConfig
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples, steps_of_epoch
from bertsmith.tasks.losses.distillation import DistillationLoss
from bertsmith.tasks.task import Outputs, Prediction, Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.machine import Machine

_LOOKED_AT = 100  # examples
_OTHER_PIECES = (
    "The student must read the same pieces of a text as its teacher, which answers for each: choose a "
    "--student of the same vocabulary, and leave max_length as it is."
)
_FROM_TEACHER = (
    "the student without a teacher begins with the teacher's own fine-tuned layers, because the encoder from "
    "before the fine-tuning isn't at hand with the same weights and vocabulary: the teacher may bring more "
    "than this comparison shows"
)


@dataclass(frozen=True)
class TeacherAnswers:
    """What the teachers say of some examples: `answers` to be learned, and their `predictions`."""

    answers: list[Outputs]
    predictions: list[Prediction]


@dataclass(frozen=True)
class DistilSession:
    """`task` and `config` are the student's; `data` has `train`'s examples, labelled rows first. Nothing was
    answered yet. There are no `teachers` where the answers stand in a file. `before` is where the same
    student without a teacher begins, None where it isn't asked for.
    """

    teachers: list[TaskTeacher]
    task: Task[Any]
    soft_loss: DistillationLoss
    source: StudentSource
    config: BertConfig
    tokenizer: Tokenizer
    data: DistilData
    train: EncodedExamples
    machine: Machine
    cache: Path
    before: StudentSource | None

    @classmethod
    def open(cls, recipe: DistilRecipe, machine: Machine, cache: Path) -> "DistilSession":
        """Reads, checks and encodes: refuses what can't be learned before anything is computed."""
        teachers, file = list[TaskTeacher](), None
        if is_answer_file(recipe.teacher):
            file = read_answer_file(Path(recipe.teacher[0]), recipe.task, recipe.settings)
            task = file.task
            task.settings = task.settings.model_copy(update=dict(task.student_settings))
        else:
            teachers = open_teachers(recipe.teacher, recipe.task, machine.device)
            task = teachers[0].task.as_student(recipe.settings)
        source = StudentSource.of(recipe, teachers)
        if file is not None:
            choose_pooling(task, source.folder)
        begun = begin_student(source, task, recipe.seed)  # refuses what can't be begun
        tokenizer = load_own_tokenizer(source.folder, begun.config)
        data = read_distil_data(task, recipe, teachers, file)
        if teachers and data.dev_is_unlabelled and not task.answers_are_labels:
            raise RecipeError(f"{task.name} can't be judged by a teacher: give labelled rows with --dev.")
        if data.labelled:
            task.know_labelled(data.labelled)
        before = source.before(task, recipe, tokenizer) if recipe.compare and data.labelled else None
        if before is not None and source.takes_head and before.folder == source.folder:
            data = replace(data, warnings=(*data.warnings, _FROM_TEACHER))
        train = encode_examples(task, [*data.labelled, *data.texts], tokenizer)
        encode_examples(task, [*data.dev, *(data.test or ())], tokenizer)  # refuses a cell that can't be read
        for teacher in teachers:
            _require_same_pieces(teacher, train)
        soft_loss = task.distillation_loss(recipe.temperature, begun.head)
        found = teachers, task, soft_loss, source, begun.config, tokenizer, data, train, machine, cache
        return cls(*found, before)

    def hashes(self, recipe: DistilRecipe) -> dict[str, str]:
        """The SHA-256 of all that the student is made from: files, teachers and a model to begin with."""
        found = data_hashes(recipe) | {f"teacher {n}": each.sha256 for n, each in enumerate(self.teachers, 1)}
        return found if recipe.student is None else found | {"student": hash_of(self.source.folder)}

    @property
    def written(self) -> list[Outputs | None] | None:
        """The answers to all of `train` that stand in a file: none to rows that have a label."""
        data = self.data
        return None if data.written is None else [*[None] * len(data.labelled), *data.written]

    def ask(self, examples: Sequence[Any], progress: Progress | None = None) -> TeacherAnswers:
        """The teachers' answers, from the cache where it has them; the predictions of several teachers are
        those of one, by the mean of their thresholds.
        """
        outputs, encoded, teachers = [], [], [teacher.task for teacher in self.teachers]
        for teacher in self.teachers:
            encoded.append(encode_examples(teacher.task, examples, teacher.tokenizer).encoded)
            outputs.append(cached_outputs(teacher, encoded[-1], self.cache, progress))
        each = [
            [self.soft_loss.answer(answer) for answer in task.teach(own)]
            for task, own in zip(teachers, outputs, strict=True)
        ]
        if self.teachers[0].model.head.per_row:
            _require_alike(each)
        answers = [self.soft_loss.together(several) for several in zip(*each, strict=True)]
        if len(teachers) == 1:
            return TeacherAnswers(answers, list(teachers[0].decode(outputs[0], examples, encoded[0])))
        task, scaled = teachers[0].as_student({}), answers
        if (rescaled := task.average(teachers, outputs)) is not None:
            scaled = [self.soft_loss.together(several) for several in zip(*rescaled, strict=True)]
        return TeacherAnswers(answers, list(task.decode(scaled, examples, encoded[0])))

    def steps_per_epoch(self, recipe: DistilRecipe) -> int:
        """How many batches of the recipe's size an epoch is divided into."""
        unanswered = taught_examples(self.train, [None] * len(self.train))
        return steps_of_epoch(TaughtTask(self.task, self.soft_loss, 1.0), unanswered, recipe.batch_size)

    def taught(
        self, answers: Sequence[Outputs | None], soft_weight: float
    ) -> tuple[TaughtTask, EncodedExamples]:
        """The task with a teacher, and what is learned from. Raises RecipeError where teacher and student
        don't read the same rows.
        """
        if known := [answer for answer in answers if answer is not None]:
            self.soft_loss.begin(known)
            self.task.begin_student(known)
        examples = taught_examples(self.train, answers)
        if self.teachers and self.teachers[0].model.head.per_row:
            targets = [each.target for each in examples.encoded]
            if any(len(target.answer) != sum(target.rows) for target in targets):
                raise RecipeError(_OTHER_PIECES)
        return TaughtTask(self.task, self.soft_loss, soft_weight), examples

    def begin(self, recipe: DistilRecipe, taught: TaughtTask, examples: EncodedExamples) -> TaskModel:
        """The student before its first step, its head the best for what it has of layers."""
        model = self.empty(recipe).to(self.machine.device)
        start_head(taught, model, examples)
        return model

    def empty(self, recipe: DistilRecipe) -> TaskModel:
        """A student to put weights into."""
        return begin_student(self.source, self.task, recipe.seed, recipe.dropout)


def _require_alike(answers: Sequence[Sequence[Outputs]]) -> None:
    """Of several teachers that answer for each word or piece."""
    for several in zip(*answers, strict=True):
        if len({len(answer) for answer in several}) > 1:
            raise RecipeError(
                "The teachers must read the same pieces of a text, for each of which they answer: these have "
                "other vocabularies, or were trained with another max_length or stride. Leave one out."
            )


def _require_same_pieces(teacher: TaskTeacher, train: EncodedExamples) -> None:
    """By some examples, before the teacher is asked for all."""
    if not teacher.model.head.per_row:
        return
    theirs = encode_examples(teacher.task, train.examples[:_LOOKED_AT], teacher.tokenizer).encoded
    for one, other in zip(theirs, train.encoded, strict=False):
        if sum(len(each.rows) for each in one.windows) != sum(len(each.rows) for each in other.windows):
            raise RecipeError(_OTHER_PIECES)
