"""Compares a graph's answers with the model's, in figures that a user can judge.

| answers | change of a sequence | agreement of an example |
| --- | --- | --- |
| classes, labels | the largest change of a probability | the same class, the same labels |
| relevance | the change of the probability | |
| a number | its change in deviations of the file's numbers | |
| tags | the largest change of a tag's probability, before any CRF | the same tag for every word |
| answers in a passage | the largest change of a start's or an end's probability | the same characters |
| vectors, hidden states | 1 - cosine, of hidden states the largest | |

W sequences, E examples, R rows that a head reads, C outputs, H hidden size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from bertsmith.arrays import Bools, Floats
from bertsmith.inference.export.gate_file import GateFile
from bertsmith.inference.export.source import Answer, ExportSource
from bertsmith.tasks.task import Task

_TIED = 1e-5  # cosines that differ by no more are tied
ChangeFunction = Callable[[Answer, Answer], float]


@dataclass(frozen=True)
class GraphComparison:
    """A graph in one arrangement beside the model: the change of each sequence (W,), and whether each
    example's answers agree (E,), None for answers that only have a distance.
    """

    changes: Floats
    agrees: Bools | None


def change_of(
    source: ExportSource, decoding: Task[Any] | None, reference: Sequence[Answer]
) -> ChangeFunction:
    """The function that measures the change between two answers to a sequence: the model's and the graph's,
    which `decoding` decodes. `reference` are all answers of the model.
    """
    task = source.task
    if source.by_angle or task is None or decoding is None:
        return _cosine_distance
    spread = float(np.concatenate([answer.ravel() for answer in reference]).astype(np.float64).std()) or 1.0
    return partial(task.change_of, decoding=decoding, spread=spread)


def compare(
    source: ExportSource,
    decoding: Task[Any] | None,
    file: GateFile,
    ours: Sequence[Answer],
    theirs: Sequence[Answer],
) -> GraphComparison:
    """Compares answers to all sequences of a file: `ours` are the model's, `theirs` the graph's, which
    `decoding` decodes.
    """
    change = change_of(source, decoding, ours)
    changes = np.array([change(*both) for both in zip(ours, theirs, strict=True)])
    if source.task is None or decoding is None or not source.decided:
        return GraphComparison(changes, None)
    first, second = (
        file.predictions(task, answers, source) for task, answers in ((source.task, ours), (decoding, theirs))
    )
    same = [all(a[key] == b[key] for key in source.decided) for a, b in zip(first, second, strict=True)]
    return GraphComparison(changes, np.array(same))


def lower_bound(agreeing: int, total: int, error: float) -> float:
    """Clopper and Pearson's (1934) one-sided lower bound of a share, from `agreeing` of `total` examples. The
    true share is lower with a probability of at most `error`.
    """
    return 0.0 if agreeing == 0 else float(beta.ppf(error, agreeing, total - agreeing + 1))


def fewest_examples(agreement: float, error: float) -> int:
    """The smallest number of examples that prove a lower bound of `agreement`, if all of them agree."""
    return int(np.ceil(np.log(error) / np.log(agreement)))


def neighbour_count(vectors: int) -> int:
    """How many neighbours of a vector are compared: a tenth of the others, from one to ten."""
    return min(max((vectors - 1) // 10, 1), 10)


def neighbours_kept(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    """The share of each vector's nearest neighbours among the graph's vectors (W, H) that are nearest among
    the model's too. Tied neighbours are interchangeable.
    """
    if len(ours) < 2:
        return 1.0
    count = neighbour_count(len(ours))
    model_cosines, graph_cosines = (_cosines(vectors) for vectors in (ours, theirs))
    lowest_near = np.partition(model_cosines, len(ours) - count, axis=1)[
        :, -count
    ]  # the last neighbour's cosine
    chosen = np.argpartition(-graph_cosines, count - 1, axis=1)[:, :count]
    is_kept = np.take_along_axis(model_cosines, chosen, axis=1) >= lowest_near[:, None] - _TIED
    return float(is_kept.mean())


def as_vectors(source: ExportSource, answers: Sequence[Answer]) -> npt.NDArray[Any]:
    """One vector for each sequence, (W, H): the answer itself, or the mean of its hidden states."""
    return np.stack([answer if source.kind == "vectors" else answer.mean(0) for answer in answers])


def _cosines(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The cosines of all pairs, (W, W); -inf on the diagonal, because no vector is its own neighbour."""
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines: npt.NDArray[Any] = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines


def _cosine_distance(ours: Answer, theirs: Answer) -> float:
    """1 - cosine, in float64; of several rows the largest."""
    first, second = (np.atleast_2d(answer).astype(np.float64) for answer in (ours, theirs))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float((1 - (first * second).sum(1) / np.maximum(norms, 1e-12)).max())


def figures_on_labels(
    source: ExportSource,
    task: Task[Any] | None,
    file: GateFile,
    ours: Sequence[Answer],
    theirs: Sequence[Answer],
) -> dict[str, Any]:
    """Metrics on the file's labels, as JSON, of the model and of the graph, which `task` decodes. Empty if
    the file has no labels.
    """
    if source.task is None or task is None or not file.labelled:
        return {}
    targets = [example.target for example in file.encoded]
    metrics, errors = dict[str, Any](), dict[str, float | None]()
    for name, decoding_task, answers in (("model", source.task, ours), ("graph", task, theirs)):
        measured = decoding_task.metrics(file.predictions(decoding_task, answers, source), file.examples)
        # None where there is no figure, as for the correlation of equal numbers.
        metrics[name] = {key: value if math.isfinite(value) else None for key, value in measured.items()}
        errors[name] = decoding_task.calibration_error(file.outputs(answers, source), targets)
    figures: dict[str, Any] = {"metrics": metrics}
    if None not in errors.values():
        figures["calibration_error"] = errors
        figures["temperature"] = {"model": source.task.temperature, "graph": task.temperature}
    return figures
