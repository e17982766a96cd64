"""The temperature of a graph whose logits are not quite the model's, and what both are worth on labels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertsmith.inference.export.gate_file import GateFile
from bertsmith.inference.export.source import Answer, Source
from bertsmith.metrics.calibration import (
    expected_calibration_error,
    fit_temperature_to,
    probabilities_of,
)
from bertsmith.tasks.examples.calibrated_task import CalibratedTask
from bertsmith.tasks.task import Task


def refitted(
    source: Source, file: GateFile, ours: Sequence[Answer], theirs: Sequence[Answer]
) -> Task[Any] | None:
    """The task that decodes the graph: the model's with the temperature that brings the graph's probabilities
    nearest to the model's own, for which it takes no labels. The thresholds stay: they were chosen on dev for
    probabilities, and these are the same ones again. A model that came without a temperature keeps doing
    without; None for an encoder alone.
    """
    task = source.task
    if not isinstance(task, CalibratedTask) or task.confidence is None:
        return task
    several = task.name == "multi-label"
    own, logits = (np.stack(file.outputs(answers, source)) for answers in (ours, theirs))
    wanted = probabilities_of(own, task.temperature, multi_label=several)
    temperature = fit_temperature_to(logits, wanted, multi_label=several)
    again = type(task).from_state(task.state(), "the exported model")
    again.confidence = task.confidence.model_copy(update={"temperature": temperature})
    return again


def figures_on_labels(
    source: Source,
    task: Task[Any] | None,
    file: GateFile,
    ours: Sequence[Answer],
    theirs: Sequence[Answer],
) -> dict[str, Any]:
    """As JSON, of the model and of the graph that `task` decodes; empty where the file has no labels."""
    if source.task is None or task is None or not file.labelled:
        return {}
    figures: dict[str, Any] = {
        "metrics": {
            name: _finite(by.metrics(file.predictions(by, answers, source), file.examples))
            for name, by, answers in (("model", source.task, ours), ("graph", task, theirs))
        }
    }
    if isinstance(task, CalibratedTask) and isinstance(source.task, CalibratedTask):
        figures["calibration_error"] = {
            "model": _calibration_error(source, file, ours, source.task.temperature),
            "graph": _calibration_error(source, file, theirs, task.temperature),
        }
        figures["temperature"] = {"model": source.task.temperature, "graph": task.temperature}
    return figures


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """None where there is no figure, as for the correlation of equal numbers."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _calibration_error(
    source: Source, file: GateFile, answers: Sequence[Answer], temperature: float
) -> float:
    gold = np.array([each.target for each in file.encoded])
    logits = np.stack(file.outputs(answers, source))
    probabilities = probabilities_of(logits, temperature, multi_label=gold.ndim == 2)
    if gold.ndim == 2:
        return expected_calibration_error(probabilities.ravel(), gold.ravel())
    return expected_calibration_error(probabilities.max(1), probabilities.argmax(1) == gold)
