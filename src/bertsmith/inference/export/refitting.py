"""The temperature of a graph whose logits are not quite the model's, and what both are worth on labels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.inference.export.gate_file import GateFile
from bertsmith.inference.export.source import Answer, Source
from bertsmith.tasks.task import Task


def refitted(
    source: Source, file: GateFile, ours: Sequence[Answer], theirs: Sequence[Answer]
) -> Task[Any] | None:
    """The task that decodes the graph, with a temperature of its own; None for an encoder alone."""
    task = source.task
    if task is None:
        return None
    return task.recalibrated(*(file.outputs(answers, source) for answers in (ours, theirs)))


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
    targets = [each.target for each in file.encoded]
    errors = {
        name: by.calibration_error(file.outputs(answers, source), targets)
        for name, by, answers in (("model", source.task, ours), ("graph", task, theirs))
    }
    if None not in errors.values():
        figures["calibration_error"] = errors
        figures["temperature"] = {"model": source.task.temperature, "graph": task.temperature}
    return figures


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """None where there is no figure, as for the correlation of equal numbers."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
