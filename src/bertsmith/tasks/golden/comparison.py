"""Compares a model's answers to the same texts, stage by stage: where the first difference is, and
how large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.tasks.golden.records import GoldenRecord, ModelAnswers

SETTINGS, READING, HEAD, ANSWER = "settings", "reading", "head", "answer"
_SMALL = 1e-6  # the least scale by which differences of numbers are divided
_SHOWN = 40  # characters of a text


@dataclass(frozen=True)
class GoldenDifference:
    """The stage at which an answer differs, and the text; a difference of settings has neither text nor size.
    `size` is the difference of the numbers relative to the scale of this stage's numbers.
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
    """`differences`: for each text, the first stage that differs by more than the tolerance; and each setting
    that differs. `largest` is the largest difference of numbers, tolerated or not.
    """

    texts: int
    differences: tuple[GoldenDifference, ...]
    largest: GoldenDifference
    tolerance: float

    @property
    def agrees(self) -> bool:
        return not self.differences


def compare_settings(
    expected: Mapping[str, Mapping[str, str]], actual: Mapping[str, Mapping[str, str]]
) -> list[GoldenDifference]:
    """One difference for each key of each file that isn't as it was."""
    names = [(file, key) for file, keys in {**expected, **actual}.items() for key in keys]
    names += [(file, key) for file in expected.keys() & actual.keys() for key in expected[file]]
    return [
        GoldenDifference(SETTINGS, detail=f"{file}: {key or 'its content'} is not what it was")
        for file, key in dict.fromkeys(names)
        if expected.get(file, {}).get(key) != actual.get(file, {}).get(key)
    ]


def compare(
    expected: ModelAnswers, actual: ModelAnswers, tolerance: float, *, told: bool = True
) -> GoldenComparison:
    """Compares the answers to the texts of `expected`. `told` also compares what users are told, which near a
    tie says less than the numbers.
    """
    records = {record.input: record for record in actual.records}
    expected_rows = [_numbers(record, expected.stages) for record in expected.records]
    scales = {
        stage: _scale([row[stage] for row in expected_rows if stage in row])
        for stage in (*expected.stages, HEAD)
    }
    differences, largest = [], GoldenDifference(HEAD)
    for before, expected_numbers in zip(expected.records, expected_rows, strict=True):
        text, record = shown(before), records.get(before.input)
        if record is None:
            differences.append(
                GoldenDifference(READING, text, detail="the model doesn't read such a text any more")
            )
            continue
        first = _compare_tokens(before, record, text)
        actual_numbers = {} if first is not None else _numbers(record, actual.stages)
        number_differences = [
            GoldenDifference(stage, text, _distance(numbers, actual_numbers[stage]) / scales[stage])
            for stage, numbers in expected_numbers.items()
            if stage in actual_numbers
        ]
        largest = max([largest, *number_differences], key=lambda difference: difference.size)
        first = first or next((d for d in number_differences if d.size > tolerance), None)
        if first is None and told:
            first = _compare_answers(before, record, text, tolerance)
        if first is not None:
            differences.append(first)
    return GoldenComparison(len(expected_rows), tuple(differences), largest, tolerance)


def shown(record: GoldenRecord) -> str:
    """A record's text in at most 40 characters, and how often it is repeated."""
    text = record.text if isinstance(record.text, str) else " / ".join(record.text)
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return repr(text) + (f", {record.times} times" if record.times > 1 else "")


def _numbers(record: GoldenRecord, stages: Sequence[str]) -> dict[str, Sequence[float]]:
    """The numbers of each stage; a long text has only those of the head."""
    states: dict[str, Sequence[float]] = dict(zip(stages, record.states, strict=False))
    return {**states, HEAD: record.outputs} if record.outputs else states


def _scale(rows: Sequence[Sequence[float]]) -> float:
    """The root mean square of the numbers; 1 if there are none."""
    numbers = np.array([number for row in rows for number in row])
    return max(float(np.sqrt(np.mean(np.square(numbers)))), _SMALL) if len(numbers) else 1.0


def _distance(expected: Sequence[float], actual: Sequence[float]) -> float:
    """The largest difference. Infinite between vectors of different lengths, and if a number isn't finite."""
    if len(expected) != len(actual):
        return float("inf")
    distance = float(np.abs(np.subtract(expected, actual)).max(initial=0.0))
    return distance if np.isfinite(distance) else float("inf")


def _compare_tokens(before: GoldenRecord, now: GoldenRecord, text: str) -> GoldenDifference | None:
    """Compares what the tokenizer makes of the text, up to segments. A different normal form with the same
    tokens is no difference.
    """
    if before.pieces != now.pieces or before.ids != now.ids:
        stage = "pieces" if before.normalised == now.normalised else "normalised text"
        stage = "token ids" if before.pieces == now.pieces else stage
        return GoldenDifference(stage, text, detail=_first_different_id(before.ids, now.ids))
    return GoldenDifference("segments", text) if before.segments != now.segments else None


def _first_different_id(before: Sequence[int] | str, now: Sequence[int] | str) -> str:
    if isinstance(before, str) or isinstance(now, str):
        return ""
    for index, (old_id, new_id) in enumerate(zip(before, now, strict=False)):
        if old_id != new_id:
            return f"token {index} has the id {new_id}, and had {old_id}"
    return "" if len(before) == len(now) else f"{len(now)} tokens, and there were {len(before)}"


def _compare_answers(
    before: GoldenRecord, now: GoldenRecord, text: str, tolerance: float
) -> GoldenDifference | None:
    if before.answer is None or now.answer is None:
        return None
    if before.answer.words != now.answer.words:
        return GoldenDifference(ANSWER, text, detail=f"{now.answer.words}, and it was {before.answer.words}")
    size = _distance(before.answer.numbers, now.answer.numbers) / max(1.0, _scale([before.answer.numbers]))
    return None if size <= tolerance else GoldenDifference(ANSWER, text, size)
