"""Answers to the same texts compared, stage by stage: where the first difference is, and how large it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.tasks.golden.records import GoldenRecord, ModelAnswers

SETTINGS, READING, HEAD, ANSWER = "settings", "reading", "head", "answer"
_SMALL = 1e-6  # below which numbers are not compared by how large they are
_SHOWN = 40  # characters of a text


@dataclass(frozen=True)
class GoldenDifference:
    """At which stage an answer differs, and for which text; neither a text nor a size where a setting does.
    `size` is that of the numbers' difference, as a share of how large the numbers of this stage are.
    """

    stage: str
    text: str = ""
    size: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        where = f" of {self.text}" if self.text else ""
        size = f" by {self.size:.1e} of their size" if self.size else ""
        return f"{self.stage}{where}{size}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True)
class GoldenComparison:
    """`differences`: of each text the first stage that differs by more than the tolerance, and of settings
    each. `largest` is the largest difference of numbers, tolerated or not.
    """

    texts: int
    differences: tuple[GoldenDifference, ...]
    largest: GoldenDifference
    tolerance: float

    @property
    def agrees(self) -> bool:
        return not self.differences


def compare_settings(
    expected: Mapping[str, Mapping[str, str]], found: Mapping[str, Mapping[str, str]]
) -> list[GoldenDifference]:
    """Which keys of which files aren't as they were."""
    names = [(file, key) for file, keys in {**expected, **found}.items() for key in keys]
    names += [(file, key) for file in expected.keys() & found.keys() for key in expected[file]]
    return [
        GoldenDifference(SETTINGS, detail=f"{file}: {key or 'its content'} is not what it was")
        for file, key in dict.fromkeys(names)
        if expected.get(file, {}).get(key) != found.get(file, {}).get(key)
    ]


def compare(
    expected: ModelAnswers, found: ModelAnswers, tolerance: float, *, told: bool = True
) -> GoldenComparison:
    """Of the same texts, those that were expected. `told` says to compare what users are told as well, which
    near a tie tells less than the numbers.
    """
    by_input = {record.input: record for record in found.records}
    rows = [_numbers(record, expected.stages) for record in expected.records]
    scales = {
        stage: _scale([row[stage] for row in rows if stage in row]) for stage in (*expected.stages, HEAD)
    }
    differences, largest = [], GoldenDifference(HEAD)
    for before, then in zip(expected.records, rows, strict=True):
        text, record = shown(before), by_input.get(before.input)
        if record is None:
            differences.append(
                GoldenDifference(READING, text, detail="the model doesn't read such a text any more")
            )
            continue
        first = _of_reading(before, record, text)
        now = {} if first is not None else _numbers(record, found.stages)
        of_numbers = [
            GoldenDifference(stage, text, _distance(numbers, now[stage]) / scales[stage])
            for stage, numbers in then.items()
            if stage in now
        ]
        largest = max([largest, *of_numbers], key=lambda difference: difference.size)
        first = first or next((d for d in of_numbers if d.size > tolerance), None)
        if first is None and told:
            first = _of_answer(before, record, text, tolerance)
        if first is not None:
            differences.append(first)
    return GoldenComparison(len(rows), tuple(differences), largest, tolerance)


def shown(record: GoldenRecord) -> str:
    """A record's text in few characters."""
    text = record.text if isinstance(record.text, str) else " / ".join(record.text)
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return repr(text) + (f", {record.times} times" if record.times > 1 else "")


def _numbers(record: GoldenRecord, stages: Sequence[str]) -> dict[str, Sequence[float]]:
    """By stage; of a long text those of the head alone."""
    states: dict[str, Sequence[float]] = dict(zip(stages, record.states, strict=False))
    return {**states, HEAD: record.outputs} if record.outputs else states


def _scale(rows: Sequence[Sequence[float]]) -> float:
    """How large the numbers are: the root of their mean square."""
    numbers = np.array([number for row in rows for number in row])
    return max(float(np.sqrt(np.mean(np.square(numbers)))), _SMALL) if len(numbers) else 1.0


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Infinite between vectors of unlike length, and where one isn't finite."""
    if len(one) != len(other):
        return float("inf")
    distance = float(np.abs(np.subtract(one, other)).max(initial=0.0))
    return distance if np.isfinite(distance) else float("inf")


def _of_reading(before: GoldenRecord, now: GoldenRecord, text: str) -> GoldenDifference | None:
    """What the tokenizer makes of the text, up to segments. A normal form that leads to the same pieces is
    none of the model's business.
    """
    if before.pieces != now.pieces or before.ids != now.ids:
        stage = "pieces" if before.normalised == now.normalised else "normalised text"
        stage = "token ids" if before.pieces == now.pieces else stage
        return GoldenDifference(stage, text, detail=_first_other(before.ids, now.ids))
    return GoldenDifference("segments", text) if before.segments != now.segments else None


def _first_other(before: Sequence[int] | str, now: Sequence[int] | str) -> str:
    if isinstance(before, str) or isinstance(now, str):
        return ""
    for place, (one, other) in enumerate(zip(before, now, strict=False)):
        if one != other:
            return f"token {place} has the id {other}, and had {one}"
    return "" if len(before) == len(now) else f"{len(now)} tokens, and there were {len(before)}"


def _of_answer(
    before: GoldenRecord, now: GoldenRecord, text: str, tolerance: float
) -> GoldenDifference | None:
    if before.answer is None or now.answer is None:
        return None
    if before.answer.words != now.answer.words:
        return GoldenDifference(ANSWER, text, detail=f"{now.answer.words}, and it was {before.answer.words}")
    size = _distance(before.answer.numbers, now.answer.numbers) / max(1.0, _scale([before.answer.numbers]))
    return None if size <= tolerance else GoldenDifference(ANSWER, text, size)
