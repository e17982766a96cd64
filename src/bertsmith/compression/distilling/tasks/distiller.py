"""Distils fine-tuned models: labelled rows and texts → the teachers' answers → student → scores and costs.

out/recipe.toml    the resolved recipe      out/student/      the student's run: log, checkpoints, best
out/answers/       the teachers' outputs    out/alone/        the run of the same student on the labels alone
out/results.json   scores, costs            out/model/        the student, which transformers opens too
out/report.html    the report
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.report import write_distil_report
from bertsmith.compression.distilling.tasks.results import (
    ALONE,
    STUDENT,
    DistilResults,
    Exam,
    compare,
    measure,
    write_distil_results,
)
from bertsmith.compression.distilling.tasks.session import DistilSession, TeacherAnswers
from bertsmith.compression.distilling.tasks.student import begin_student, start_head
from bertsmith.progress import Show
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples, steps_of_epoch
from bertsmith.tasks.task import Metrics, Task, fitted_again
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.finetuning.results import Results
from bertsmith.training.finetuning.task_run import WORST, BestWeights, TaskRun
from bertsmith.training.log import as_json_value
from bertsmith.training.machine import wait_for_ranks
from bertsmith.training.observer import describe_run
from bertsmith.training.resources import require_room_to_save
from bertsmith.training.run import Run
from bertsmith.training.run_folder import require_same_data


@dataclass(frozen=True)
class TaskStudent:
    """The student with its best weights, its results, and the splits it was measured on."""

    model: TaskModel
    results: Results
    exams: dict[str, Exam]


@dataclass(frozen=True)
class TaskDistiller:
    """The `Distiller` of teachers of a task, whose answers are learned. `recipe` has values for all settings;
    `show` opens a progress bar with a title.
    """

    run: Run[DistilRecipe]
    session: DistilSession
    recipe: DistilRecipe
    hashes: dict[str, str]
    show: Show

    @classmethod
    def open(cls, run: Run[DistilRecipe], answers_folder: Path, show: Show) -> "TaskDistiller":
        """Opens the session, with `answers_folder` for the cached answers, and completes the recipe.

        Raises InputError, RecipeError and ModelError.
        """
        session = DistilSession.open(run.recipe, run.machine, answers_folder)
        steps, config = session.steps_per_epoch(run.recipe), session.config
        recipe = run.recipe.complete(config.hidden_size, config.num_hidden_layers, steps)
        recipe.as_finetuning().resolve(steps, recipe.seed)  # raises for settings that don't fit together
        require_room_to_save(session.empty(recipe), run.out)
        hashes = session.hashes(recipe)
        require_same_data(run.out, hashes)
        return cls(run, session, recipe, hashes, show)

    @property
    def task_class(self) -> type[Task[Any]] | None:
        """The class by which the finished student is opened: the task itself, not `TaughtTask`."""
        return self.recipe.task_class

    def train(self) -> TaskStudent:
        """Collects the teachers' answers, then starts, trains and measures the student."""
        session = self.session
        answers = session.data.written
        if answers is None:
            answers = list(self._ask(session.train.examples, "texts to learn from").answers)
        exams = self._make_exams()
        taught_task, examples = session.taught(answers, self.recipe.soft_weight)
        model = session.begin(self.recipe, taught_task, examples)
        restart = self._train_to_end(self.recipe, taught_task, model, examples, exams["dev"].split, STUDENT)
        model = self._restore_best(session.task, session.empty(self.recipe), STUDENT)
        return TaskStudent(model, measure(session, model, restart, exams), exams)

    def save(self, student: TaskStudent, folder: Path) -> None:
        """Writes the student with its provenance: recipe, metrics, and the hashes of teachers and data."""
        session, results = self.session, student.results
        recipe = json.loads(self.recipe.model_dump_json(exclude_none=True))
        provenance = {
            "recipe": recipe | {"dev_share": session.data.dev_share},
            "teachers": [
                {"model": str(teacher.folder), "sha256": teacher.sha256} for teacher in session.teachers
            ],
            "layers": [layer + 1 for layer in session.source.layers],
            "metrics": as_json_value({name: split.model for name, split in results.evaluations.items()}),
            "sha256": dict(self.hashes),
            "columns": dict(session.data.columns),
            "method": "distil",
            "judged_by": results.judge,
        }
        save_task_model(folder, student.model, session.task, session.tokenizer, provenance, overwrite=True)

    def report(self, student: TaskStudent) -> DistilResults:
        """Trains the student alone for comparison, compares scores and costs, and writes the report (first
        process only).
        """
        session, out = self.session, self.run.out
        alone = self._train_alone(student.exams) if self.recipe.compare and session.data.labelled else {}
        results = compare(session, out / "model", student.results, student.exams, alone)
        if self.run.is_first:
            write_distil_results(out, results)
            write_distil_report(out, self.recipe, results, self.hashes)
        return results

    def _ask(self, examples: Sequence[Any], what: str) -> TeacherAnswers:
        """The teachers' answers. The first rank computes them; the others then read them from the cache."""
        answers = None
        if self.run.is_first:
            with self.show(f"Teacher: {what}") as progress:
                answers = self.session.ask(examples, progress)
        wait_for_ranks()
        return answers or self.session.ask(examples)

    def _make_exams(self) -> dict[str, Exam]:
        """The evaluations by name: dev, and test where there is one."""
        session, exams = self.session, dict[str, Exam]()
        task, data = session.task, session.data
        for name, examples in (("dev", data.dev), ("test", data.test)):
            if examples is None:
                continue
            answers, teacher_metrics = None, Metrics()
            if session.teachers:
                answers = self._ask(examples, name)
                pairs = zip(examples, answers.predictions, strict=True)
                if name == "dev" and data.dev_is_unlabelled:  # the teacher's predictions become its labels
                    examples = [task.as_label(example, prediction) for example, prediction in pairs]
                else:
                    teacher_metrics = task.metrics(answers.predictions, examples)
            exams[name] = Exam(encode_examples(task, examples, session.tokenizer), answers, teacher_metrics)
        return exams

    def _train_to_end(
        self,
        recipe: DistilRecipe,
        task: Task[Any],
        model: TaskModel,
        examples: EncodedExamples,
        dev: EncodedExamples,
        name: str,
    ) -> Restart:
        """Trains to the last step, or until dev no longer improves; a finished training isn't repeated. Its
        log and its best weights are in the folder `name` of the run.
        """
        run, folder = self.run, self.run.out / name
        if run.resume and (folder / "restart.json").exists():
            return Restart.read(folder / "restart.json")
        steps = steps_of_epoch(task, examples, recipe.batch_size)
        settings = recipe.as_finetuning().resolve(steps, recipe.seed)
        facts = describe_run(model, model.config, f"{len(examples):,} examples", run.machine)
        teaching = "from its teacher" if name == STUDENT else "without a teacher"
        observer = run.observer(f"{task.name.capitalize()} {teaching}", facts, settings, folder)
        parts = task, model, examples, dev, settings, run.machine, folder, observer
        training = TaskRun(*parts, resumable=True, measure_first=True, progress=observer.evaluating)
        elapsed = training.run_watched(observer, run.resume)
        best, score = training.best, training.best.score
        restart = Restart(recipe.seed, WORST if score is None else score, best.step, training.step, elapsed)
        if run.is_first:
            restart.write(folder / "restart.json")
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        wait_for_ranks()
        return restart

    def _restore_best(self, task: Task[Any], model: TaskModel, name: str) -> TaskModel:
        """The model with the best weights of the training `name`, ready for use."""
        BestWeights(self.run.out / name / "best", task.main_metric).restore(model)
        model.head.finish()
        task.bind(model.head)
        return model.to(self.run.machine.device)

    def _train_alone(self, exams: dict[str, Exam]) -> dict[str, Metrics]:
        """Fine-tunes the same student on the labels without a teacher; its metrics by evaluation."""
        session, recipe = self.session, self.recipe
        labelled, source = session.data.labelled, session.before
        assert source is not None
        task = fitted_again(session.task.as_student({}), labelled)
        task.know_labelled(labelled)  # of rows that lack a label, `fitted_again` weighs no class
        examples = encode_examples(task, labelled, session.tokenizer)
        model = begin_student(source, task, recipe.seed, recipe.dropout).to(self.run.machine.device)
        start_head(task, model, examples)
        dev = exams["dev"].split
        steps = recipe.epochs * session.steps_per_epoch(recipe)
        alone = recipe.alone(steps, steps_of_epoch(task, examples, recipe.batch_size))
        self._train_to_end(alone, task, model, examples, dev, ALONE)
        model = self._restore_best(task, begin_student(source, task, recipe.seed, recipe.dropout), ALONE)
        task.calibrate(outputs_of(model, dev.encoded), dev.examples, dev.encoded)
        metrics = dict[str, Metrics]()
        for name, exam in exams.items():
            split = exam.split
            predictions = task.decode(outputs_of(model, split.encoded), split.examples, split.encoded)
            metrics[name] = task.metrics(predictions, split.examples)
        return metrics
