"""A student measured, and what its distillation brought: it stands beside its teacher, and beside itself
without one; and what it saves, in parameters, bytes and the time of a text, taken in turn with the teacher.

out/results.json            every figure
out/predictions/dev.jsonl   what the student says of each row, with the right answer
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
from bertsmith.files import write_json
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.reporting import formatting
from bertsmith.tasks.evaluating.evaluation import evaluate
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.task import Metrics
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.training.finetuning.restarts import Restart
from bertsmith.training.finetuning.results import Results
from bertsmith.training.log import json_value

STUDENT, ALONE = "student", "alone"  # folders of the two runs
_ROUNDS = 5
_FEW = 8  # texts, to see how long one takes
_MOST_TEXTS, _MOST_ALONE = 256, 16
_MOST_SECONDS = 2.0  # of a teacher's round: fewer texts, where it would take longer


class Cost(NamedTuple):
    """Of one model, or of an ensemble together. Seconds of a text among many, and of one that comes alone:
    medians of rounds.
    """

    parameters: int
    bytes: int
    seconds: float
    alone: float


@dataclass(frozen=True)
class CostComparison:
    """Shares are the student's of the teacher's: of times the median over rounds that alternate. Without a
    teacher, whose answers came in a file, there are none.
    """

    student: Cost
    teacher: Cost | None = None
    share: float = math.nan
    share_alone: float = math.nan


def measure_saving(
    teachers: Sequence[TaskTeacher],
    student: TaskTeacher,
    asked: Sequence[Sequence[EncodedExample]],
    heard: Sequence[EncodedExample],
) -> CostComparison:
    """On the same examples: `asked` as each of the teachers reads them, `heard` as the student does."""
    few = min(len(heard), _FEW)
    slower = _together(teachers, asked, few) or _together([student], [heard], few)
    count = max(min(len(heard), _MOST_TEXTS, int(few * _MOST_SECONDS / slower)), 1)
    lone = min(count, _MOST_ALONE)
    together, alone = list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(_ROUNDS):
        pair = _together(teachers, asked, count), _together([student], [heard], count)
        together.append((pair[0] / count, pair[1] / count))
        alone.append((_alone(teachers, asked, lone), _alone([student], [heard], lone)))
    ours = _cost([student], [each[1] for each in together], [each[1] for each in alone])
    if not teachers:
        return CostComparison(ours)
    return CostComparison(
        ours,
        _cost(teachers, [each[0] for each in together], [each[0] for each in alone]),
        statistics.median(student / teacher for teacher, student in together),
        statistics.median(student / teacher for teacher, student in alone),
    )


def _together(
    models: Sequence[TaskTeacher], encoded: Sequence[Sequence[EncodedExample]], count: int
) -> float:
    """Seconds of so many texts, one model after the other."""
    begun = time.perf_counter()
    for model, texts in zip(models, encoded, strict=True):
        outputs_of(model.model, texts[:count])
    return time.perf_counter() - begun if models else 0.0


def _alone(models: Sequence[TaskTeacher], encoded: Sequence[Sequence[EncodedExample]], count: int) -> float:
    """Seconds of a text."""
    begun = time.perf_counter()
    for number in range(count):
        for model, texts in zip(models, encoded, strict=True):
            outputs_of(model.model, [texts[number]])
    return (time.perf_counter() - begun) / count


def _cost(models: Sequence[TaskTeacher], seconds: Sequence[float], alone: Sequence[float]) -> Cost:
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
    """What a student is measured on: its examples, what the teachers say of them, and the teachers' figures.
    There are none of the last where their answers are the labels, and neither where answers stand in a file.
    """

    split: EncodedExamples
    said: TeacherAnswers | None
    teacher: Metrics


def measure(session: DistilSession, model: TaskModel, restart: Restart, exams: Mapping[str, Exam]) -> Results:
    """Calibrates the student on dev, and measures it there and, once, on test."""
    task, data, dev = session.task, session.data, exams["dev"].split
    figures = task.calibrate(outputs_of(model, dev.encoded), dev.examples, dev.encoded)
    evaluations = {
        name: evaluate(task, outputs_of(model, each.split.encoded), data.labelled or None, each.split)
        for name, each in exams.items()
    }
    return Results(task, (restart,), 0, evaluations, figures, data.warnings, len(data.labelled))


def compare(
    session: DistilSession,
    folder: Path,
    student: Results,
    exams: Mapping[str, Exam],
    alone: dict[str, Metrics],
) -> "DistilResults":
    """The finished student in `folder` beside its teachers, and beside itself trained `alone`."""
    task, dev, agreement = session.task, exams["dev"].split, dict[str, float]()
    for name, each in exams.items():
        if each.said is not None and task.answers_are_labels:
            pairs = zip(each.split.examples, each.said.predictions, strict=True)
            labelled = [task.as_label(example, prediction) for example, prediction in pairs]
            agreement[name] = task.metrics(student.evaluations[name].predictions, labelled)[task.main_metric]
    opened = TaskTeacher.open(str(folder), type(task), session.machine.device)
    asked = [encode_examples(each.task, dev.examples, each.tokenizer).encoded for each in session.teachers]
    return DistilResults(
        student=student,
        teacher={name: each.teacher for name, each in exams.items() if each.teacher},
        alone=alone,
        agreement=agreement,
        saving=measure_saving(session.teachers, opened, asked, dev.encoded),
        texts=len(session.data.texts),
        labels_of_teacher=session.data.dev_is_unlabelled,
    )


@dataclass(frozen=True)
class DistilResults:
    """`student`: its figures beside baselines. By evaluation (dev, test): the `teacher`'s figures, those of
    the student trained `alone` on the labels, and the `agreement`, the student's main metric with the
    teacher's answers for labels. Where nobody labelled anything, dev's labels are the teacher's.
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
        """The student's score as a share of the teacher's, in the evaluation of this name."""
        theirs = self.teacher.get(name, {}).get(self.metric)
        return self.student.evaluations[name].model[self.metric] / theirs if theirs else None

    def beside(self, name: str) -> dict[str, Metrics]:
        """By what tables call them, the figures of an evaluation: the student's, the teacher's, those without
        a teacher, and the baselines'.
        """
        evaluation = self.student.evaluations[name]
        found = {"the student": evaluation.model, "its teacher": self.teacher.get(name)}
        found["without the teacher"] = self.alone.get(name)
        return {who: figures for who, figures in found.items() if figures} | evaluation.baselines

    def sentences(self) -> list[str]:
        """What was kept, and what is saved, in words."""
        found, saving = [], self.saving
        for name in self.student.evaluations:
            kept, agreement = self.share_kept(name), self.agreement.get(name)
            parts = [] if kept is None else [f"{kept:.1%} of the teacher's {self.metric}"]
            parts += [] if agreement is None else [f"agreement with it {agreement:.4f} ({self.metric})"]
            found += [f"{name}: {', '.join(parts)}"] if parts else []
        student, teacher = saving.student, saving.teacher
        if teacher is None:
            millis = f"{1e3 * student.seconds:.2f} ms, alone {1e3 * student.alone:.2f} ms"
            return [*found, f"parameters {student.parameters / 1e6:.1f} M, time of a text {millis}"]
        return [
            *found,
            f"parameters {student.parameters / 1e6:.1f} M of {teacher.parameters / 1e6:.1f} M, "
            f"{formatting.bytes(student.bytes)} of {formatting.bytes(teacher.bytes)}",
            f"time of a text {1e3 * student.seconds:.2f} ms of {1e3 * teacher.seconds:.2f} ms "
            f"({saving.share:.2f}); alone {1e3 * student.alone:.2f} ms of {1e3 * teacher.alone:.2f} ms "
            f"({saving.share_alone:.2f})",
        ]

    @property
    def warnings(self) -> list[str]:
        """Sentences on what to mistrust."""
        found = list(self.student.warnings)
        for name, alone in self.alone.items():
            ours, theirs = self.student.evaluations[name].model[self.metric], alone[self.metric]
            if theirs >= ours:
                found.append(
                    f"on {name} the same student without a teacher has {self.metric} {theirs:.4f}, with one "
                    f"{ours:.4f}: the teacher brings nothing here. More texts would help it most"
                )
        return found

    def record(self) -> dict[str, Any]:
        """results.json."""
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
        return cast(dict[str, Any], json_value(self.student.record() | own))


def write_distil_results(out: Path, results: DistilResults) -> None:
    """results.json and the predictions of each evaluation."""
    write_json(out / "results.json", results.record())
    (out / "predictions").mkdir(exist_ok=True)
    task = results.student.task
    for name, evaluation in results.student.evaluations.items():
        pairs = zip(evaluation.split.examples, evaluation.predictions, strict=True)
        write_jsonl((task.line(*pair) for pair in pairs), out / "predictions" / f"{name}.jsonl")
