"""Where a student and its teacher differ: what is taken for what, how often, and the surest example."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith.mirroring.candidate import Judged
from bertsmith.mirroring.learned_calls import LearnedCall
from bertsmith.serving.mirror.fields import ABSENT, AnswerShape, as_text


@dataclass(frozen=True)
class Confusion:
    """Of the field at `path` the teacher said `taught` and the student `ours` in `calls` calls; `example` is
    the one that the student was surest of.
    """

    path: str
    taught: str
    ours: str
    calls: int
    confidence: float
    example: LearnedCall


def confusions_of(shape: AnswerShape, judged: Judged, calls: Sequence[LearnedCall]) -> list[Confusion]:
    """The most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    surest: dict[tuple[str, str, str], tuple[float, LearnedCall]] = {}
    for ours, call, confidence in zip(judged.answers, calls, judged.confidence, strict=True):
        for path in shape.differing(ours, call.values):
            key = path, as_text(call.values.get(path, ABSENT)), as_text(ours.get(path, ABSENT))
            counts[key] += 1
            if key not in surest or confidence > surest[key][0]:
                surest[key] = max(float(confidence), 0.0), call
    return [Confusion(*key, count, *surest[key]) for key, count in counts.most_common()]
