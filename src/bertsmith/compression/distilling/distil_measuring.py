"""A student measured: on dev and test beside its baselines, and in size and time beside its teacher."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.distil_results import Saving, measure_saving
from bertsmith.compression.distilling.distil_session import Heard, Work
from bertsmith.compression.distilling.teacher import Teacher
from bertsmith.tasks.evaluating.evaluation import evaluate
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetuning.results import Restart, Results


def measure(work: Work, model: TaskModel, restart: Restart, splits: Mapping[str, Heard]) -> Results:
    """Calibrates the student on dev, and measures it there and, once, on test."""
    session = work.session
    task, data, dev = session.task, session.data, splits["dev"].split
    figures = task.calibrate(outputs_of(model, dev.encoded), dev.examples, dev.encoded)
    evaluations = {
        name: evaluate(task, outputs_of(model, each.split.encoded), data.labelled or None, each.split)
        for name, each in splits.items()
    }
    return Results(task, (restart,), 0, evaluations, figures, data.warnings, len(data.labelled))


def agreements(task: Task[Any], results: Results, splits: Mapping[str, Heard]) -> dict[str, float]:
    """By evaluation, the student's main metric with the teacher's answers for labels."""
    found = {}
    for name, each in splits.items():
        if each.said is not None and task.answers_are_labels:
            pairs = zip(each.split.examples, each.said.predictions, strict=True)
            labelled = [task.as_label(example, prediction) for example, prediction in pairs]
            found[name] = task.metrics(results.evaluations[name].predictions, labelled)[task.main_metric]
    return found


def saving_of(work: Work, folder: Path, split: EncodedExamples) -> Saving:
    """The finished student beside its teachers, on these examples."""
    session = work.session
    student = Teacher.open(str(folder), type(session.task), work.machine.device)
    asked = [encode_examples(each.task, split.examples, each.tokenizer).encoded for each in session.teachers]
    return measure_saving(session.teachers, student, asked, split.encoded)
