"""What a student saves: parameters, bytes, and the time of a text, measured in turn with its teacher."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertsmith.compression.distilling.teacher import Teacher
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.task_model import outputs_of

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
class Saving:
    """Shares are the student's of the teacher's: of times the median over rounds that alternate. Without a
    teacher, whose answers came in a file, there are none.
    """

    student: Cost
    teacher: Cost | None = None
    share: float = math.nan
    share_alone: float = math.nan


def measure_saving(
    teachers: Sequence[Teacher],
    student: Teacher,
    asked: Sequence[Sequence[Encoded]],
    heard: Sequence[Encoded],
) -> Saving:
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
        return Saving(ours)
    return Saving(
        ours,
        _cost(teachers, [each[0] for each in together], [each[0] for each in alone]),
        statistics.median(student / teacher for teacher, student in together),
        statistics.median(student / teacher for teacher, student in alone),
    )


def _together(models: Sequence[Teacher], encoded: Sequence[Sequence[Encoded]], count: int) -> float:
    if not models:
        return 0.0
    begun = time.perf_counter()
    for model, texts in zip(models, encoded, strict=True):
        outputs_of(model.model, texts[:count])
    return time.perf_counter() - begun


def _alone(models: Sequence[Teacher], encoded: Sequence[Sequence[Encoded]], count: int) -> float:
    """Seconds of a text."""
    begun = time.perf_counter()
    for number in range(count):
        for model, texts in zip(models, encoded, strict=True):
            outputs_of(model.model, [texts[number]])
    return (time.perf_counter() - begun) / count


def _cost(models: Sequence[Teacher], seconds: Sequence[float], alone: Sequence[float]) -> Cost:
    return Cost(
        sum(parameters_of(each.folder) for each in models),
        sum(_bytes_of(each.folder) for each in models),
        statistics.median(seconds),
        statistics.median(alone),
    )


def parameters_of(folder: Path) -> int:
    """Numbers in a folder's weights."""
    from safetensors import safe_open

    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
            total += sum(int(np.prod(shape)) for shape in shapes)
    return total


def _bytes_of(folder: Path) -> int:
    return (
        sum(path.stat().st_size for path in folder.glob("*.safetensors")) or (folder / WEIGHTS).stat().st_size
    )
