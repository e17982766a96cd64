"""Recorded calls as what is learned from them: a text, the values of its answer, how sure the teacher was."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertsmith.mirror.call import AGAIN
from bertsmith.mirror.fields import AnswerShape, Field, Values, written
from bertsmith.mirror.soft_answers import Spread, spreads_of
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.understanding.understand import Understood

_LAST = 20  # calls of a version, by which its pace is told


@dataclass(frozen=True)
class LearnedCall:
    """`values` are those of the answer, as its shape reads them; `spreads` has for some fields the
    probability of each value, as the teacher said it. `weight` is what the call counts for among those
    that are learned together: `Call.weight`, or `Call.site_weight` at a time when several of their versions
    came: a prompt that took another's place is alone from then on.
    """

    id: str
    began: float
    source: str
    text: str
    values: Values
    spreads: Mapping[str, Spread]
    weight: float | None = None
    version: str = ""


@dataclass(frozen=True)
class ReadCalls:
    """`calls` by time. `strange` more stand in no template, and the LLM goes on answering their like. `again`
    were asked once more to see whether the teacher answers alike.
    """

    calls: list[LearnedCall]
    strange: int
    again: list[LearnedCall]


def read_calls(store: Store, understood: Understood) -> ReadCalls:
    """All calls of these versions."""
    calls, again, strange = list[LearnedCall](), list[LearnedCall](), 0
    shape = understood.shape
    came = {each.version: _came(store, each) for each in understood.versions}
    for version in understood.versions:
        template = understood.templates.get(version.version)
        for call in store.calls(version.version):
            text = None if template is None else template.input_of(call.asked)
            if text is None:
                strange += call.source != AGAIN
                continue
            answered = call.answered
            others = (times for name, times in came.items() if name != version.version)
            weight = call.weight
            if weight is not None and any(first <= call.began <= last for first, last in others):
                # An earlier layout of the store doesn't know it: then the call proves nothing.
                weight = call.site_weight or 0.0
            learned = LearnedCall(
                call.id,
                call.began,
                call.source,
                text,
                shape.read(answered.value),
                spreads_of(answered, shape),
                weight,
                version.version,
            )
            (again if call.source == AGAIN else calls).append(learned)
    return ReadCalls(sorted(calls, key=lambda each: (each.began, each.id)), strange, again)


def _came(store: Store, version: VersionCount) -> tuple[float, float]:
    """From when to when calls of the version came, in seconds since 1970. While a student answers, few of
    them are recorded: they have ended when none has come for as long as the last ones took.
    """
    latest = store.latest(version.version, _LAST)
    return version.began, version.ended + max((version.ended - each.began for each in latest), default=0.0)


def once_each(calls: Iterable[LearnedCall], shape: AnswerShape) -> list[LearnedCall]:
    """One a text, in the order in which texts came first. Where its calls were answered differently, the
    value is the one given most, of equals the latest, and the spread says how often each was.
    """
    by_text: dict[str, list[LearnedCall]] = {}
    for call in calls:
        by_text.setdefault(call.text, []).append(call)
    return [_joined(same, shape) if len(same) > 1 else same[0] for same in by_text.values()]


def _joined(same: Sequence[LearnedCall], shape: AnswerShape) -> LearnedCall:
    values, spreads = dict(same[-1].values), dict[str, Spread]()
    for field in shape.fields:
        given = [call.values[field.path] for call in same]
        counts = Counter(written(value) for value in given)
        most = max(counts.values())
        values[field.path] = next(v for v in reversed(given) if counts[written(v)] == most)
        if len(counts) > 1 or any(field.path in call.spreads for call in same):
            spreads[field.path] = _mean([_spread(call, field) for call in same])
    return replace(same[-1], values=values, spreads=spreads)


def _spread(call: LearnedCall, field: Field) -> Spread:
    return call.spreads.get(field.path) or [(call.values[field.path], 1.0)]


def _mean(spreads: Sequence[Spread]) -> Spread:
    sums: dict[bytes, tuple[Any, float]] = {}
    for spread in spreads:
        for value, share in spread:
            key = written(value)
            sums[key] = value, sums.get(key, (value, 0.0))[1] + share / len(spreads)
    return list(sums.values())


def part_of(text: str, seed: int) -> float:
    """A number from 0 to 1 that a text always gets: which part it falls into."""
    digest = hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
