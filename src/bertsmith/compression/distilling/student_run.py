"""One training of a student, with its teacher or alone, and what every part of a distillation works with."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertsmith.compression.distilling.distil_recipe import DistilRecipe
from bertsmith.compression.distilling.distil_session import DistilSession, Said, Show
from bertsmith.compression.distilling.student import begin_student, linear_start
from bertsmith.files import make_folder
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples, steps_of_epoch
from bertsmith.tasks.task import Metrics, Outputs, Task, fitted_again
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetuning.results import Restart
from bertsmith.training.finetuning.task_run import WORST, Best, TaskRun
from bertsmith.training.machine import Machine, wait
from bertsmith.training.observer import run_facts
from bertsmith.training.run import Run

STUDENT, ALONE = "student", "alone"  # folders of the two runs


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
