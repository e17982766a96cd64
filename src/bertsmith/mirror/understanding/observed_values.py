"""What a schema leaves open and answers tell: few values that recur, numbers, quotes of the input."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bertsmith.mirror.fields import ABSENT, is_number, plain

MOST_VALUES = 100  # of a field whose values are those that were seen
_EACH = 10  # answers for each of them on average: fewer, and there are more values than were seen
_MOST_NUMBERS = 20  # values of a number that are learned one by one
_QUOTED = 0.95  # of the texts of a field, to be taken for quotes
_TOLERANCE = 0.05  # of the middle 90 % of the numbers seen


class Seen(NamedTuple):
    """A value of a field, and the input of its call, "" where it isn't known."""

    value: Any
    text: str


def values_seen(seen: Sequence[Seen], most: int = MOST_VALUES) -> tuple[Any, ...] | None:
    """The different texts or numbers, in order; None where there are too many to have seen them all."""
    counts = Counter(each.value for each in seen if each.value is not None and each.value is not ABSENT)
    if len(counts) > most or counts.total() < _EACH * len(counts):
        return None
    return tuple(sorted(counts))


def numbers_seen(seen: Sequence[Seen]) -> tuple[Any, ...] | None:
    """The same of few numbers, whole ones as integers."""
    numbers = [plain(each.value) for each in seen if is_number(each.value)]
    return values_seen([Seen(number, "") for number in numbers], _MOST_NUMBERS)


def tolerance_of(seen: Sequence[Seen], low: Any, high: Any) -> float:
    """How far two numbers may be apart to count as the same: a twentieth of what nine in ten of the numbers
    seen span, and of the schema's range where that is smaller. A schema's range may be far wider than what is
    said: of amounts up to a million that all are below a hundred, any would be the same.
    """
    numbers = [float(each.value) for each in seen if is_number(each.value)]
    spans = [float(high - low)] if is_number(low) and is_number(high) and high > low else []
    if len(numbers) > 1:
        bottom, top = np.quantile(numbers, [0.05, 0.95])
        spans.append(float(top - bottom))
    return _TOLERANCE * min(spans, default=0.0)


def are_quotes(seen: Sequence[Seen]) -> bool:
    """Whether nearly all of these texts stand in their inputs word for word, where these are known."""
    texts = [each for each in seen if isinstance(each.value, str) and each.value.strip() and each.text]
    return bool(texts) and sum(each.value in each.text for each in texts) >= _QUOTED * len(texts)
