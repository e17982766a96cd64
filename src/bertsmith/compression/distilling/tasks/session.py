"""The session of a task's distillation: the teachers and their answers, the student's task, model
and data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.data import (
    DistilData,
    hash_data_files,
    is_answer_file,
    read_answer_file,
    read_distil_data,
)
from bertsmith.compression.distilling.tasks.student import StudentSource, begin_student, start_head
from bertsmith.compression.distilling.tasks.taught_task import TaughtTask, add_teacher_answers
from bertsmith.compression.distilling.tasks.teacher import (
    TaskTeacher,
    compute_cached_outputs,
    hash_model_folder,
    open_teachers,
)
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

_CHECKED_EXAMPLES = 100
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
    """The teachers' answers to some examples: soft `answers` to be learned, and decoded `predictions`."""

    answers: list[Outputs]
    predictions: list[Prediction]


@dataclass(frozen=True)
class DistilSession:
    """All that a distillation works with. `task`, `config` and `tokenizer` are the student's; `train` has the
    encoded examples to learn from, labelled rows first. With a file of answers there are no `teachers`.
    `cache` is the folder of the teachers' outputs. `before` is the source of the same student without a
    teacher, None where none is trained.
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
        """Opens the teachers, reads and encodes the data, and checks that all fit together, before anything
        is computed. Raises InputError, RecipeError and ModelError.
        """
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
        student = begin_student(source, task, recipe.seed)  # raises where the student can't be made
        tokenizer = load_own_tokenizer(source.folder, student.config)
        data = read_distil_data(task, recipe, teachers, file)
        if teachers and data.dev_is_unlabelled and not task.answers_are_labels:
            raise RecipeError(f"{task.name} can't be judged by a teacher: give labelled rows with --dev.")
        if labelled := [*data.labelled, *(data.texts if file is not None else ())]:
            task.know_labelled(labelled)
        before = source.before(task, recipe, tokenizer) if recipe.compare and data.labelled else None
        if before is not None and source.takes_head and before.folder == source.folder:
            data = replace(data, warnings=(*data.warnings, _FROM_TEACHER))
        train = encode_examples(task, [*data.labelled, *data.texts], tokenizer)
        encode_examples(task, [*data.dev, *(data.test or ())], tokenizer)  # refuses a cell that can't be read
        for teacher in teachers:
            _require_same_pieces(teacher, train)
        soft_loss = task.distillation_loss(recipe.temperature, student.head)
        config = student.config
        return cls(teachers, task, soft_loss, source, config, tokenizer, data, train, machine, cache, before)

    def hashes(self, recipe: DistilRecipe) -> dict[str, str]:
        """The SHA-256 of every input of the student: data files, teachers, and the model of
        `recipe.student`.
        """
        hashes = hash_data_files(recipe)
        hashes |= {f"teacher {number}": teacher.sha256 for number, teacher in enumerate(self.teachers, 1)}
        return (
            hashes if recipe.student is None else hashes | {"student": hash_model_folder(self.source.folder)}
        )

    def ask(self, examples: Sequence[Any], progress: Progress | None = None) -> TeacherAnswers:
        """The teachers' answers, from the cache where it has them. Several teachers' outputs are averaged,
        and decoded with the mean of their thresholds.
        """
        outputs, encoded, teachers = [], [], [teacher.task for teacher in self.teachers]
        for teacher in self.teachers:
            encoded.append(encode_examples(teacher.task, examples, teacher.tokenizer).encoded)
            outputs.append(compute_cached_outputs(teacher, encoded[-1], self.cache, progress))
        answers_by_teacher = [
            [self.soft_loss.answer(answer) for answer in task.teach(teacher_outputs)]
            for task, teacher_outputs in zip(teachers, outputs, strict=True)
        ]
        if self.teachers[0].model.head.per_row:
            _require_same_lengths(answers_by_teacher)
        answers = [self.soft_loss.together(several) for several in zip(*answers_by_teacher, strict=True)]
        if len(teachers) == 1:
            return TeacherAnswers(answers, list(teachers[0].decode(outputs[0], examples, encoded[0])))
        task, scaled = teachers[0].as_student({}), answers
        if (rescaled := task.average(teachers, outputs)) is not None:
            scaled = [self.soft_loss.together(several) for several in zip(*rescaled, strict=True)]
        return TeacherAnswers(answers, list(task.decode(scaled, examples, encoded[0])))

    def steps_per_epoch(self, recipe: DistilRecipe) -> int:
        """The number of batches of the recipe's size in an epoch."""
        unanswered = add_teacher_answers(self.train, [None] * len(self.train))
        return steps_of_epoch(TaughtTask(self.task, self.soft_loss, 1.0), unanswered, recipe.batch_size)

    def taught(
        self, answers: Sequence[Outputs | None], soft_weight: float
    ) -> tuple[TaughtTask, EncodedExamples]:
        """The task with its teacher's loss, and the examples with the teacher's answers.

        Raises RecipeError where teacher and student divide a text into different tokens and answer for each.
        """
        if known := [answer for answer in answers if answer is not None]:
            self.soft_loss.begin(known)
            self.task.begin_student(known)
        examples = add_teacher_answers(self.train, answers)
        if self.teachers and self.teachers[0].model.head.per_row:
            targets = [example.target for example in examples.encoded]
            if any(len(target.answer) != sum(target.rows) for target in targets):
                raise RecipeError(_OTHER_PIECES)
        return TaughtTask(self.task, self.soft_loss, soft_weight), examples

    def begin(self, recipe: DistilRecipe, taught: TaughtTask, examples: EncodedExamples) -> TaskModel:
        """The student before its first step, with its head fitted to the features of its untrained layers."""
        model = self.empty(recipe).to(self.machine.device)
        start_head(taught, model, examples)
        return model

    def empty(self, recipe: DistilRecipe) -> TaskModel:
        """The student as `begin_student` makes it, on the CPU."""
        return begin_student(self.source, self.task, recipe.seed, recipe.dropout)


def _require_same_lengths(answers: Sequence[Sequence[Outputs]]) -> None:
    """Raises RecipeError where teachers that answer for each word or token read different ones."""
    for several in zip(*answers, strict=True):
        if len({len(answer) for answer in several}) > 1:
            raise RecipeError(
                "The teachers must read the same pieces of a text, for each of which they answer: these have "
                "other vocabularies, or were trained with another max_length or stride. Leave one out."
            )


def _require_same_pieces(teacher: TaskTeacher, train: EncodedExamples) -> None:
    """Raises RecipeError where a teacher that answers for each word or token reads others than the student.
    Checked on some examples, before the teacher answers all.
    """
    if not teacher.model.head.per_row:
        return
    encoded = encode_examples(teacher.task, train.examples[:_CHECKED_EXAMPLES], teacher.tokenizer).encoded
    for one, other in zip(encoded, train.encoded, strict=False):
        if sum(len(window.rows) for window in one.windows) != sum(
            len(window.rows) for window in other.windows
        ):
            raise RecipeError(_OTHER_PIECES)
