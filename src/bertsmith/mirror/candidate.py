"""A model that might become the student, and how its answers compare with the teacher's.

E calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from bertsmith.arrays import Bools, Floats
from bertsmith.mirror.field_heads import FieldHead, Guess
from bertsmith.mirror.fields import AnswerShape, Values
from bertsmith.mirror.learn_settings import Tier
from bertsmith.mirror.learned_calls import LearnedCall
from bertsmith.mirror.redaction import holds_placeholder

NEVER = -1.0  # the confidence of an answer that is never given
Guesses = Mapping[str, list[Guess]]


@dataclass(frozen=True)
class Candidate:
    """`guesses` answers texts by the field's path. `save` puts the model's files into a folder."""

    tier: Tier
    heads: tuple[FieldHead, ...]
    guesses: Callable[[Sequence[str]], Guesses]
    save: Callable[[Path], None]
    span_tags: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Judged:
    """A model's answers beside the teacher's: `confidence` (E,) and `differs` (E,) of the whole answer, and
    by path those of each field; `answers` are the model's. An answer that holds a placeholder of a redacted
    text, or has no confidence at all, is never given (bertsmith.mirror.student.Student), and has
    confidence -1.
    """

    confidence: Floats
    differs: Bools
    fields: dict[str, tuple[Floats, Bools]]
    answers: list[Values]

    @property
    def agreement(self) -> float:
        """The share of calls in which the whole answer is the teacher's."""
        return float(1 - self.differs.mean())


def judge(candidate: Candidate, calls: Sequence[LearnedCall], shape: AnswerShape) -> Judged:
    """Of at least one call."""
    guesses = candidate.guesses([call.text for call in calls])
    answers: list[Values] = [
        {path: of[number].value for path, of in guesses.items()} for number in range(len(calls))
    ]
    differing = [shape.differing(ours, call.values) for ours, call in zip(answers, calls, strict=True)]
    confidences = {path: np.array([guess.confidence for guess in of]) for path, of in guesses.items()}
    is_plain = np.array(
        [not holds_placeholder(orjson.dumps(shape.compose(ours)).decode()) for ours in answers], np.bool_
    )
    given = is_plain & (np.prod(list(confidences.values()), axis=0) > 0)
    confidences = {path: np.where(given, each, NEVER) for path, each in confidences.items()}
    return Judged(
        np.where(given, np.prod(list(confidences.values()), axis=0), NEVER),
        np.array([bool(paths) for paths in differing]),
        {
            path: (confidence, np.array([path in paths for paths in differing]))
            for path, confidence in confidences.items()
        },
        answers,
    )
