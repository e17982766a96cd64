"""Temperature and thresholds of a graph whose logits are not quite the model's, where the gate's file has
labels to fit them on; and the figures of both on these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertsmith.inference.export.comparison import predictions
from bertsmith.inference.export.gate_file import GateFile
from bertsmith.inference.export.source import Answer, Source
from bertsmith.metrics.calibration import expected_calibration_error, probabilities_of
from bertsmith.tasks.examples.calibrated_task import CalibratedTask
from bertsmith.tasks.question_answering import QuestionAnswering
from bertsmith.tasks.task import Task


@dataclass(frozen=True)
class Fitted:
    """The task that decodes the graph, None for an encoder alone; figures as JSON, empty without labels."""

    task: Task[Any] | None
    figures: dict[str, Any] = field(default_factory=dict)


def refitted(
    source: Source, file: GateFile, ours: Sequence[Answer], theirs: Sequence[Answer], *, refit: bool
) -> Fitted:
    """Without `refit` the task is the model's own."""
    if source.task is None or not file.labelled:
        return Fitted(source.task)
    task = source.task
    if refit and isinstance(task, CalibratedTask | QuestionAnswering) and _was_calibrated(task):
        task = type(task).from_state(task.state(), "the exported model")
        task.calibrate(file.outputs(theirs, source), file.examples, file.encoded)
    figures: dict[str, Any] = {
        "metrics": {
            "model": source.task.metrics(predictions(source, file, ours), file.examples),
            "graph": task.metrics(
                task.decode(file.outputs(theirs, source), file.examples, file.encoded), file.examples
            ),
        }
    }
    if isinstance(task, CalibratedTask) and isinstance(source.task, CalibratedTask):
        figures["calibration_error"] = {
            "model": _calibration_error(source, file, ours, source.task.temperature),
            "graph": _calibration_error(source, file, theirs, task.temperature),
        }
        figures["temperature"] = {"model": source.task.temperature, "graph": task.temperature}
    return Fitted(task, figures)


def _was_calibrated(task: CalibratedTask | QuestionAnswering) -> bool:
    """A model that came without temperature and thresholds keeps doing without."""
    return (task.confidence if isinstance(task, CalibratedTask) else task.threshold) is not None


def _calibration_error(
    source: Source, file: GateFile, answers: Sequence[Answer], temperature: float
) -> float:
    gold = np.array([each.target for each in file.encoded])
    logits = np.stack(file.outputs(answers, source))
    probabilities = probabilities_of(logits, temperature, multi_label=gold.ndim == 2)
    if gold.ndim == 2:
        return expected_calibration_error(probabilities.ravel(), gold.ravel())
    return expected_calibration_error(probabilities.max(1), probabilities.argmax(1) == gold)
