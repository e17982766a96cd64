"""Measures a student: its scores beside its teacher's and beside those of the same student without a teacher,
and its costs beside the teacher's: parameters, bytes, and the time of a text, timed by turns.

out/results.json            every figure
out/predictions/dev.jsonl   the student's prediction of each row, with the right answer
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bertsmith.compression.distilling.tasks.session import DistilSession, TeacherAnswers
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.files import write_json, write_jsonl
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.reporting import formatting
from bertsmith.tasks.evaluating.evaluation import evaluate
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.task import Metrics
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.finetuning.results import Results
from bertsmith.training.log import as_json_value

STUDENT, ALONE = "student", "alone"  # folders of the two runs
_ROUNDS = 5
_FEW = 8  # texts that are timed first, to choose how many a round has
_MOST_TEXTS, _MOST_ALONE = 256, 16
_MOST_SECONDS = 2.0  # of a teacher's round; a slow teacher gets fewer texts


class Cost(NamedTuple):
    """The cost of one model, or of all models of an ensemble together: parameters, bytes of weights, and the
    median seconds of a text among many and of one alone.
    """

    parameters: int
    bytes: int
    seconds: float
    alone: float


@dataclass(frozen=True)
class CostComparison:
    """The costs of student and teacher. `share` and `share_alone` are the student's time as a share of the
    teacher's, for a text among many and for one alone: medians over alternating rounds. With a file of
    answers there is no teacher, and the shares are NaN.
    """

    student: Cost
    teacher: Cost | None = None
    share: float = math.nan
    share_alone: float = math.nan


def compare_costs(
    teachers: Sequence[TaskTeacher],
    student: TaskTeacher,
    teacher_inputs: Sequence[Sequence[EncodedExample]],
    student_inputs: Sequence[EncodedExample],
) -> CostComparison:
    """Times teachers and student by turns on the same examples, encoded for each teacher and for
    the student.
    """
    few = min(len(student_inputs), _FEW)
    seconds = _time_together(teachers, teacher_inputs, few) or _time_together(
        [student], [student_inputs], few
    )
    count = max(min(len(student_inputs), _MOST_TEXTS, int(few * _MOST_SECONDS / seconds)), 1)
    count_alone = min(count, _MOST_ALONE)
    together, alone = list[tuple[float, float]](), list[tuple[float, float]]()  # (teacher, student) by round
    for _ in range(_ROUNDS):
        teacher_seconds = _time_together(teachers, teacher_inputs, count)
        student_seconds = _time_together([student], [student_inputs], count)
        together.append((teacher_seconds / count, student_seconds / count))
        teacher_alone = _time_alone(teachers, teacher_inputs, count_alone)
        alone.append((teacher_alone, _time_alone([student], [student_inputs], count_alone)))
    student_cost = _sum_cost([student], [times[1] for times in together], [times[1] for times in alone])
    if not teachers:
        return CostComparison(student_cost)
    return CostComparison(
        student_cost,
        _sum_cost(teachers, [times[0] for times in together], [times[0] for times in alone]),
        statistics.median(student_time / teacher_time for teacher_time, student_time in together),
        statistics.median(student_time / teacher_time for teacher_time, student_time in alone),
    )


def _time_together(
    models: Sequence[TaskTeacher], encoded: Sequence[Sequence[EncodedExample]], count: int
) -> float:
    """Seconds of the first `count` texts in batches, one model after the other; 0 without models."""
    start = time.perf_counter()
    for model, texts in zip(models, encoded, strict=True):
        outputs_of(model.model, texts[:count])
    return time.perf_counter() - start if models else 0.0


def _time_alone(
    models: Sequence[TaskTeacher], encoded: Sequence[Sequence[EncodedExample]], count: int
) -> float:
    """Mean seconds of one text, over the first `count` texts, each in a batch of its own."""
    start = time.perf_counter()
    for index in range(count):
        for model, texts in zip(models, encoded, strict=True):
            outputs_of(model.model, [texts[index]])
    return (time.perf_counter() - start) / count


def _sum_cost(models: Sequence[TaskTeacher], seconds: Sequence[float], alone: Sequence[float]) -> Cost:
    from safetensors import safe_open

    parameters = size = 0
    for model in models:
        weights = list(model.folder.glob("*.safetensors"))
        size += sum(path.stat().st_size for path in weights) or (model.folder / WEIGHTS).stat().st_size
        for path in weights:
            with safe_open(path, "numpy") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
            parameters += sum(int(np.prod(shape)) for shape in shapes)
    return Cost(parameters, size, statistics.median(seconds), statistics.median(alone))


@dataclass(frozen=True)
class Exam:
    """The examples that a student is measured on, the teachers' answers to them, and the teachers' metrics.
    With a file of answers there are no teachers' answers; the metrics are empty then, and where the teachers'
    answers serve as labels.
    """

    split: EncodedExamples
    answers: TeacherAnswers | None
    teacher_metrics: Metrics


def measure(session: DistilSession, model: TaskModel, restart: Restart, exams: Mapping[str, Exam]) -> Results:
    """Calibrates the student on dev and evaluates it there and, if there is one, on test."""
    task, data, dev = session.task, session.data, exams["dev"].split
    figures = task.calibrate(outputs_of(model, dev.encoded), dev.examples, dev.encoded)
    evaluations = {
        name: evaluate(task, outputs_of(model, exam.split.encoded), data.labelled or None, exam.split)
        for name, exam in exams.items()
    }
    return Results(task, (restart,), 0, evaluations, figures, data.warnings, len(data.labelled))


def compare(
    session: DistilSession,
    folder: Path,
    student: Results,
    exams: Mapping[str, Exam],
    alone: dict[str, Metrics],
) -> "DistilResults":
    """Compares the finished student in `folder` with its teachers, and with the same student
    trained `alone`.
    """
    task, dev, agreement = session.task, exams["dev"].split, dict[str, float]()
    for name, exam in exams.items():
        if exam.answers is not None and task.answers_are_labels:
            pairs = zip(exam.split.examples, exam.answers.predictions, strict=True)
            labelled = [task.as_label(example, prediction) for example, prediction in pairs]
            agreement[name] = task.metrics(student.evaluations[name].predictions, labelled)[task.main_metric]
    finished = TaskTeacher.open(str(folder), type(task), session.machine.device)
    teacher_inputs = [
        encode_examples(teacher.task, dev.examples, teacher.tokenizer).encoded for teacher in session.teachers
    ]
    return DistilResults(
        student=student,
        teacher={name: exam.teacher_metrics for name, exam in exams.items() if exam.teacher_metrics},
        alone=alone,
        agreement=agreement,
        saving=compare_costs(session.teachers, finished, teacher_inputs, dev.encoded),
        texts=len(session.data.texts),
        labels_of_teacher=session.data.dev_is_unlabelled,
    )


@dataclass(frozen=True)
class DistilResults:
    """Every figure of a distillation. `student` has the student's results and baselines. By evaluation (dev,
    test): the `teacher`'s metrics, those of the student trained `alone` on the labels, and the `agreement`,
    the student's main metric with the teacher's predictions as labels. `labels_of_teacher`: dev has no labels
    but the teacher's.
    """

    student: Results
    teacher: dict[str, Metrics]
    alone: dict[str, Metrics]
    agreement: dict[str, float]
    saving: CostComparison
    texts: int
    labels_of_teacher: bool

    @property
    def metric(self) -> str:
        return self.student.task.main_metric

    def share_kept(self, name: str) -> float | None:
        """The student's score as a share of the teacher's on dev or test; None without the
        teacher's score.
        """
        teacher_score = self.teacher.get(name, {}).get(self.metric)
        return self.student.evaluations[name].model[self.metric] / teacher_score if teacher_score else None

    def beside(self, name: str) -> dict[str, Metrics]:
        """The metrics of an evaluation under the names that tables show: student, teacher, student without a
        teacher, and baselines.
        """
        evaluation = self.student.evaluations[name]
        metrics = {
            "the student": evaluation.model,
            "its teacher": self.teacher.get(name),
            "without the teacher": self.alone.get(name),
        }
        return {system: values for system, values in metrics.items() if values} | evaluation.baselines

    def sentences(self) -> list[str]:
        """Lines for the screen: the share of the score that was kept, and the costs."""
        lines, saving = [], self.saving
        for name in self.student.evaluations:
            share, agreement = self.share_kept(name), self.agreement.get(name)
            parts = [] if share is None else [f"{share:.1%} of the teacher's {self.metric}"]
            parts += (
                [] if agreement is None else [f"agreement with its answers {agreement:.4f} ({self.metric})"]
            )
            lines += [f"{name}: {', '.join(parts)}"] if parts else []
        student, teacher = saving.student, saving.teacher
        if teacher is None:
            return [
                *lines,
                f"{student.parameters / 1e6:.1f} M parameters; time for a text: "
                f"{1e3 * student.seconds:.2f} ms in batches, {1e3 * student.alone:.2f} ms one at a time",
            ]
        return [
            *lines,
            f"student: {student.parameters / 1e6:.1f} M parameters, {formatting.bytes(student.bytes)}; "
            f"teacher: {teacher.parameters / 1e6:.1f} M, {formatting.bytes(teacher.bytes)}",
            f"time for a text, in batches: {1e3 * student.seconds:.2f} ms, {saving.share:.0%} of the "
            f"teacher's ({1e3 * teacher.seconds:.2f} ms); one at a time: {1e3 * student.alone:.2f} ms, "
            f"{saving.share_alone:.0%} of the teacher's ({1e3 * teacher.alone:.2f} ms). The shares are "
            "medians of rounds in which both took turns.",
        ]

    @property
    def warnings(self) -> list[str]:
        """The student's warnings, and a sentence for each evaluation in which the teacher doesn't help."""
        sentences = list(self.student.warnings)
        for name, metrics in self.alone.items():
            score, alone = self.student.evaluations[name].model[self.metric], metrics[self.metric]
            if alone >= score:
                sentences.append(
                    f"on {name} the same student without a teacher has {self.metric} {alone:.4f}, with one "
                    f"{score:.4f}: the teacher brings nothing here. More texts would help it most"
                )
        return sentences

    def record(self) -> dict[str, Any]:
        """The content of results.json: plain values, scores as shares of 1, times in seconds."""
        own = {
            "teacher": self.teacher,
            "without_teacher": self.alone,
            "agreement": self.agreement,
            "share_kept": {name: self.share_kept(name) for name in self.student.evaluations},
            "saving": {
                "teacher": self.saving.teacher._asdict() if self.saving.teacher else None,
                "student": self.saving.student._asdict(),
                "share_of_time": self.saving.share,
                "share_of_time_alone": self.saving.share_alone,
            },
            "texts": self.texts,
            "labels_of_teacher": self.labels_of_teacher,
            "warnings": self.warnings,
        }
        return cast(dict[str, Any], as_json_value(self.student.record() | own))


def write_distil_results(out: Path, results: DistilResults) -> None:
    """Writes results.json, and the predictions of each evaluation as JSON lines."""
    write_json(out / "results.json", results.record())
    (out / "predictions").mkdir(exist_ok=True)
    task = results.student.task
    for name, evaluation in results.student.evaluations.items():
        pairs = zip(evaluation.split.examples, evaluation.predictions, strict=True)
        write_jsonl((task.line(*pair) for pair in pairs), out / "predictions" / f"{name}.jsonl")
