"""Where a student and its teacher differ: what is taken for what, how often, and the surest example."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertsmith.mirror.candidate import Judged
from bertsmith.mirror.fields import ABSENT, AnswerShape, as_text
from bertsmith.mirror.learned_calls import LearnedCall


@dataclass(frozen=True)
class Confusion:
    """Of the field at `path` the teacher said `taught` and the student `ours` in `calls` calls; `example` is
    the one that the student was surest of, and `values` are the two as they were read there.
    """

    path: str
    taught: str
    ours: str
    calls: int
    confidence: float
    example: LearnedCall
    values: tuple[Any, Any]


def confusions_of(shape: AnswerShape, judged: Judged, calls: Sequence[LearnedCall]) -> list[Confusion]:
    """The most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    surest: dict[tuple[str, str, str], tuple[float, LearnedCall, tuple[Any, Any]]] = {}
    for ours, call, confidence in zip(judged.answers, calls, judged.confidence, strict=True):
        for path in shape.differing(ours, call.values):
            values = call.values.get(path, ABSENT), ours.get(path, ABSENT)
            key = path, as_text(values[0]), as_text(values[1])
            counts[key] += 1
            if key not in surest or confidence > surest[key][0]:
                surest[key] = max(float(confidence), 0.0), call, values
    return [Confusion(*key, count, *surest[key]) for key, count in counts.most_common()]
