"""What a distillation works with: teachers, their answers to everything, the student's task and its data;
and one training of a student, with its teacher or alone.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.distil_data import DistilData, read_distil_data
from bertsmith.compression.distilling.distil_recipe import DistilRecipe
from bertsmith.compression.distilling.student import (
    Source,
    begin_student,
    linear_start,
)
from bertsmith.compression.distilling.taught_task import TaughtTask, taught_examples
from bertsmith.compression.distilling.teacher import (
    Teacher,
    cached_outputs,
    is_answer_file,
    open_teachers,
    read_answer_file,
)
from bertsmith.errors import BertsmithError, RecipeError
from bertsmith.files import make_folder
from bertsmith.inference.provenance import encoder_before
from bertsmith.model.checkpoint import read_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer, read_own_tokenizer
from bertsmith.progress import Progress
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.examples.text_settings import choose_pooling
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples, steps_of_epoch
from bertsmith.tasks.losses.distillation import DistillationLoss
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task, fitted_again
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetuning.results import Restart
from bertsmith.training.finetuning.task_run import WORST, Best, TaskRun
from bertsmith.training.machine import Machine, wait
from bertsmith.training.observer import run_facts
from bertsmith.training.run import Run

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
Show = Callable[[str], AbstractContextManager[Progress]]  # a bar of that title
STUDENT, ALONE = "student", "alone"  # folders of the two runs


@contextmanager
def silent(title: str) -> Iterator[Progress]:
    """Where nobody watches."""
    yield lambda done, total, unit: None


@dataclass(frozen=True)
class Said:
    """What the teachers say of some examples: `answers` to be learned, and their `predictions`."""

    answers: list[Outputs]
    predictions: list[Prediction]


@dataclass(frozen=True)
class DistilSession:
    """`task` and `config` are the student's; `data` has `train`'s examples, labelled rows first. Nothing was
    answered yet. There are no `teachers` where the answers stand in a file. `before` is where the same
    student without a teacher begins, None where it isn't asked for.
    """

    teachers: list[Teacher]
    task: Task[Any]
    soft_loss: DistillationLoss
    source: Source
    config: BertConfig
    tokenizer: Tokenizer
    data: DistilData
    train: EncodedExamples
    machine: Machine
    cache: Path
    before: Source | None

    @classmethod
    def open(cls, recipe: DistilRecipe, machine: Machine, cache: Path) -> "DistilSession":
        """Reads, checks and encodes: refuses what can't be learned before anything is computed."""
        teachers, file = list[Teacher](), None
        if is_answer_file(recipe.teacher):
            file = read_answer_file(Path(recipe.teacher[0]), recipe.task, recipe.settings)
            task = file.task
            task.settings = task.settings.model_copy(update=dict(task.student_settings))
        else:
            teachers = open_teachers(recipe.teacher, recipe.task, machine.device)
            task = teachers[0].task.as_student(recipe.settings)
        source = _source(recipe, teachers)
        if file is not None:
            choose_pooling(task, source.folder)
        begun = begin_student(source, task, recipe.seed)  # refuses what can't be begun
        tokenizer = load_own_tokenizer(source.folder, begun.config)
        data = read_distil_data(task, recipe, teachers, file)
        if teachers and data.dev_is_unlabelled and not task.answers_are_labels:
            raise RecipeError(f"{task.name} can't be judged by a teacher: give labelled rows with --dev.")
        if data.labelled:
            task.know_labelled(data.labelled)
        before = _before(source, task, recipe, tokenizer) if recipe.compare and data.labelled else None
        if before is not None and source.takes_head and before.folder == source.folder:
            data = replace(data, warnings=(*data.warnings, _FROM_TEACHER))
        train = encode_examples(task, [*data.labelled, *data.texts], tokenizer)
        encode_examples(task, [*data.dev, *(data.test or ())], tokenizer)  # refuses a cell that can't be read
        for teacher in teachers:
            _require_same_pieces(teacher, train)
        soft_loss = task.distillation_loss(recipe.temperature, begun.head)
        found = teachers, task, soft_loss, source, begun.config, tokenizer, data, train, machine, cache
        return cls(*found, before)

    @property
    def written(self) -> list[Outputs | None] | None:
        """The answers to all of `train` that stand in a file: none to rows that have a label."""
        data = self.data
        return None if data.written is None else [*[None] * len(data.labelled), *data.written]

    def ask(self, examples: Sequence[Any], progress: Progress | None = None) -> Said:
        """The teachers' answers, from the cache where it has them."""
        raw = []
        for teacher in self.teachers:
            encoded = encode_examples(teacher.task, examples, teacher.tokenizer).encoded
            raw.append((cached_outputs(teacher, encoded, self.cache, progress), encoded))
        each = [
            [self.soft_loss.answer(answer) for answer in teacher.task.teach(outputs)]
            for teacher, (outputs, _) in zip(self.teachers, raw, strict=True)
        ]
        if self.teachers[0].model.head.per_row:
            _require_alike(each)
        answers = [self.soft_loss.together(several) for several in zip(*each, strict=True)]
        outputs, encoded = raw[0]
        if len(raw) == 1:
            return Said(answers, list(self.teachers[0].task.decode(outputs, examples, encoded)))
        return Said(answers, self._said_together(answers, [found for found, _ in raw], examples, encoded))

    def _said_together(
        self,
        answers: Sequence[Outputs],
        outputs: Sequence[Sequence[Outputs]],
        examples: Sequence[Any],
        encoded: Sequence[Encoded],
    ) -> list[Prediction]:
        """The predictions of several teachers as one, by the mean of their thresholds."""
        teachers = [teacher.task for teacher in self.teachers]
        task = teachers[0].as_student({})
        if (rescaled := task.average(teachers, outputs)) is not None:
            answers = [self.soft_loss.together(several) for several in zip(*rescaled, strict=True)]
        return list(task.decode(answers, examples, encoded))

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
            _require_same_rows(examples)
        return TaughtTask(self.task, self.soft_loss, soft_weight), examples

    def begin(self, recipe: DistilRecipe, taught: TaughtTask, examples: EncodedExamples) -> TaskModel:
        """The student before its first step, its head the best for what it has of layers."""
        model = begin_student(self.source, self.task, recipe.seed, recipe.dropout).to(self.machine.device)
        start = linear_start(taught, model, examples)
        if start is not None:
            start.apply(model)
        return model

    def empty(self, recipe: DistilRecipe) -> TaskModel:
        """A student to put weights into."""
        return begin_student(self.source, self.task, recipe.seed, recipe.dropout)

    def judged_by_teacher(self, said: Said, examples: Sequence[Any]) -> list[Any]:
        """Examples without labels, with the teacher's. Where a task needs real ones, `open` has refused."""
        return [self.task.as_label(*each) for each in zip(examples, said.predictions, strict=True)]


def _before(source: Source, task: Task[Any], recipe: DistilRecipe, tokenizer: Tokenizer) -> Source:
    """With the layers of the encoder that the teacher was fine-tuned from, where that is here and reads the
    same pieces: of a teacher with a pruned vocabulary, rows of the table would be those of other pieces. Else
    with the teacher's own.
    """
    own = replace(source, takes_head=False)
    folder = encoder_before(source.folder) if source.takes_head else None
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


def _source(recipe: DistilRecipe, teachers: Sequence[Teacher]) -> Source:
    if recipe.student is None:
        if not teachers:
            raise RecipeError("Answers in a file have no layers to begin with: name a model with --student.")
        return Source.of(recipe, teachers[0].folder, teachers[0].model.config, is_teacher=True)
    folder = locate_model(recipe.student).folder
    return Source.of(recipe, folder, read_checkpoint(folder).config, is_teacher=False)


def _require_alike(answers: Sequence[Sequence[Outputs]]) -> None:
    """Of several teachers that answer for each word or piece."""
    for several in zip(*answers, strict=True):
        if len({len(answer) for answer in several}) > 1:
            raise RecipeError(
                "The teachers must read the same pieces of a text, for each of which they answer: these have "
                "other vocabularies, or were trained with another max_length or stride. Leave one out."
            )


def _require_same_pieces(teacher: Teacher, train: EncodedExamples) -> None:
    """By some examples, before the teacher is asked for all."""
    if not teacher.model.head.per_row:
        return
    theirs = encode_examples(teacher.task, train.examples[:_LOOKED_AT], teacher.tokenizer).encoded
    for one, other in zip(theirs, train.encoded, strict=False):
        if sum(len(each.rows) for each in one.windows) != sum(len(each.rows) for each in other.windows):
            raise RecipeError(_OTHER_PIECES)


def _require_same_rows(examples: EncodedExamples) -> None:
    for each in examples.encoded:
        if len(each.target.answer) != sum(each.target.rows):
            raise RecipeError(_OTHER_PIECES)


@dataclass(frozen=True)
class Work:
    """A distillation at work. `show` makes a progress bar of a title."""

    run: Run[DistilRecipe]
    session: DistilSession
    show: Show

    @property
    def machine(self) -> Machine:
        """Where it computes."""
        return self.session.machine

    def ask(self, examples: Sequence[Any], what: str) -> Said:
        """The teachers' answers, by the first rank alone: the others then find them."""
        said = None
        if self.run.is_first:
            with self.show(f"Teacher: {what}") as progress:
                said = self.session.ask(examples, progress)
        wait()
        return said or self.session.ask(examples)


@dataclass(frozen=True)
class Heard:
    """What is measured on: its examples, what the teachers say of them, and the teachers' figures. There are
    none of the last where their answers are the labels, and neither where answers stand in a file.
    """

    split: EncodedExamples
    said: Said | None
    teacher: Metrics


def hear(work: Work) -> dict[str, Heard]:
    """dev, and test where there is one."""
    session, found = work.session, dict[str, Heard]()
    data = session.data
    for name, examples in (("dev", data.dev), ("test", data.test)):
        if examples is None:
            continue
        said, figures = None, Metrics()
        if session.teachers:
            said = work.ask(examples, name)
            if name == "dev" and data.dev_is_unlabelled:
                examples = session.judged_by_teacher(said, examples)
            else:
                figures = session.task.metrics(said.predictions, examples)
        found[name] = Heard(encode_examples(session.task, examples, session.tokenizer), said, figures)
    return found


def answers_to_learn(work: Work) -> list[Outputs | None]:
    """What is learned of each of the examples to learn from."""
    written = work.session.written
    if written is not None:
        return written
    return list(work.ask(work.session.train.examples, "texts to learn from").answers)


def train_student(
    recipe: DistilRecipe,
    work: Work,
    task: Task[Any],
    model: TaskModel,
    examples: EncodedExamples,
    dev: EncodedExamples,
    name: str,
) -> Restart:
    """To the last step, or until dev gets no better; a finished run is not repeated. The best weights lie in
    the folder `name` of the run.
    """
    folder = work.run.out / name
    if work.run.resume and (folder / "restart.json").exists():
        return Restart.read(folder / "restart.json")
    settings = recipe.as_finetuning().resolved(steps_of_epoch(task, examples, recipe.batch_size), recipe.seed)
    facts = run_facts(model, model.config, f"{len(examples):,} examples", work.machine)
    title = f"{task.name.capitalize()} {'from its teacher' if name == STUDENT else 'without a teacher'}"
    observer = work.run.observer(title, facts, settings, folder)
    parts = task, model, examples, dev, settings, work.machine, folder, observer
    training = TaskRun(*parts, resumable=True, measure_first=True, progress=observer.evaluating)
    elapsed = training.run_watched(observer, work.run.resume)
    best = training.best
    restart = Restart(
        recipe.seed, WORST if best.score is None else best.score, best.step, training.step, elapsed
    )
    if work.run.is_first:
        make_folder(folder)
        restart.write(folder / "restart.json")
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    wait()
    return restart


def restored(task: Task[Any], model: TaskModel, work: Work, name: str) -> TaskModel:
    """The model with the best weights of a run, ready to be used."""
    Best(work.run.out / name / "best", task.main_metric).restore(model)
    model.head.finish()
    task.bind(model.head)
    return model.to(work.machine.device)


def learn_alone(recipe: DistilRecipe, work: Work, splits: Mapping[str, Heard]) -> dict[str, Metrics]:
    """What the same student learns of the labels without a teacher, as a fine-tuning would have it."""
    session = work.session
    labelled, source = session.data.labelled, session.before
    assert source is not None
    task = fitted_again(session.task.as_student({}), labelled)
    examples = encode_examples(task, labelled, session.tokenizer)
    model = begin_student(source, task, recipe.seed, recipe.dropout).to(work.machine.device)
    if (start := linear_start(task, model, examples)) is not None:
        start.apply(model)
    dev = splits["dev"].split
    steps = recipe.epochs * session.steps_per_epoch(recipe)
    own = recipe.alone(steps, steps_of_epoch(task, examples, recipe.batch_size))
    train_student(own, work, task, model, examples, dev, ALONE)
    model = restored(task, begin_student(source, task, recipe.seed, recipe.dropout), work, ALONE)
    task.calibrate(outputs_of(model, dev.encoded), dev.examples, dev.encoded)
    found = dict[str, Metrics]()
    for name, each in splits.items():
        split = each.split
        predictions = task.decode(outputs_of(model, split.encoded), split.examples, split.encoded)
        found[name] = task.metrics(predictions, split.examples)
    return found
