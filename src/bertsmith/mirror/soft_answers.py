"""How sure the teacher was of a field: from the probabilities that it gave, or from those of its tokens.

A token's probability tells of the values that begin like it: of {"intent": "card"} the token `card` had 0.8,
and `transfer` 0.15 beside it. What tokens had that begin none of the values is left out.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

import orjson

from bertsmith.mirror.call import Answered, Json
from bertsmith.mirror.fields import AnswerShape, Field, path_of, written

Spread = list[tuple[Any, float]]  # values with probabilities that add up to 1
_LIKELY = 0.5  # of all probability has to be that of the field's values
_BLANKS = " \t\n\r"


def spreads_of(answered: Answered, shape: AnswerShape) -> dict[str, Spread]:
    """By path, for fields of one value of several; empty where the teacher said nothing of it."""
    single = [each for each in shape.fields if each.kind in ("enum", "boolean", "ordinal")]
    if answered.probabilities:
        return _given(answered.probabilities, single)
    if answered.logprobs:
        return _of_tokens(answered.logprobs, single)
    return {}


def _given(probabilities: Mapping[str, list[tuple[Json, float]]], fields: list[Field]) -> dict[str, Spread]:
    found = {}
    for field in fields:
        given = probabilities.get(field.path, ())
        known = {written(value) for value in field.classes}
        shares = [(value, share) for value, share in given if written(value) in known]
        is_likely = sum(share for _, share in shares) >= _LIKELY * sum(share for _, share in given)
        if is_likely and (spread := _normalised(shares)):
            found[field.path] = spread
    return found


def _of_tokens(logprobs: list[Json], fields: list[Field]) -> dict[str, Spread]:
    """Where the tokens' texts are the answer's JSON, and each has a number."""
    text = "".join(str(token) for token, *_ in logprobs)
    try:
        places = dict(_places(text))
        shares = {
            field.path: _shares(field, text, places[field.path], logprobs)
            for field in fields
            if field.path in places
        }
    except (JSONDecodeError, IndexError, RecursionError, TypeError, ValueError):
        return {}
    return {path: spread for path, each in shares.items() if (spread := _normalised(each))}


def _shares(field: Field, text: str, place: int, logprobs: list[Json]) -> Spread:
    """Along the tokens of the value that was answered, by the chain rule: at each what its rivals had is that
    of the values which they go on to, until one value alone begins like the answer.

    Values often share their first tokens (card_arrival, card_lost): the first tells nothing of which it is.
    """
    starts = [0, *accumulate(len(token) for token, *_ in logprobs)]
    contents = [(value, _content(value)) for value in field.classes]
    sums: dict[bytes, tuple[Any, float]] = {}
    answered, left = "", 1.0  # letters of the value so far, and their probability

    def add(letters: str, share: float) -> None:
        values = _beginning(contents, letters)
        for value in values:
            key = written(value)
            sums[key] = value, sums.get(key, (value, 0.0))[1] + share / len(values)

    for number in range(bisect_right(starts, place) - 1, len(logprobs)):
        token, logprob, others = logprobs[number]
        before = text[starts[number] : max(place, starts[number])]
        for other, own in others:
            if other != token and str(other).startswith(before) and len(other) > len(before):
                add(answered + str(other)[len(before) :], left * math.exp(min(float(own), 0.0)))
        answered += str(token)[len(before) :]
        left *= math.exp(min(float(logprob), 0.0))
        if len(_beginning(contents, answered)) < 2:
            break
    add(answered, left)
    return list(sums.values()) if sum(share for _, share in sums.values()) >= _LIKELY else []


def _beginning(contents: Sequence[tuple[Any, str]], letters: str) -> list[Any]:
    """The values that begin with these letters; where letters go beyond a value, the longest such."""
    if values := [value for value, content in contents if content.startswith(letters)]:
        return values
    ended = [(len(content), value) for value, content in contents if content and letters.startswith(content)]
    return [max(ended, key=lambda pair: pair[0])[1]] if ended else []


def _content(value: Any) -> str:
    """As it stands in JSON. By its marks a text differs from null, and `card` from the beginning of
    `card_lost`.
    """
    if not isinstance(value, str | bool | int | float) and value is not None:
        return ""
    return orjson.dumps(value).decode()


def _normalised(shares: Spread) -> Spread:
    total = sum(share for _, share in shares)
    return [(value, share / total) for value, share in shares] if total > 0 else []


def _places(text: str) -> Iterator[tuple[str, int]]:
    """Paths of the values in objects, with the place of each one's first letter."""
    yield from _values(text, _skipped(text, 0), ())[0]


def _values(text: str, at: int, keys: tuple[str, ...]) -> tuple[list[tuple[str, int]], int]:
    """Those of the value at this place, and where it ends. Raises IndexError and JSONDecodeError."""
    if text[at] == '"':
        _, end = scanstring(text, at + 1, True)
        return [(path_of(keys), at)], end
    if text[at] == "{":
        return _object(text, _skipped(text, at + 1), keys)
    if text[at] == "[":
        end = _end_of_list(text, at)
        return [], end
    end = at
    while end < len(text) and text[end] not in ",}]" + _BLANKS:
        end += 1
    return [(path_of(keys), at)], end


def _object(text: str, at: int, keys: tuple[str, ...]) -> tuple[list[tuple[str, int]], int]:
    found: list[tuple[str, int]] = []
    while text[at] != "}":
        name, at = scanstring(text, at + 1, True)
        at = _skipped(text, _skipped(text, at) + 1)
        inner, at = _values(text, at, (*keys, name))
        found += inner
        at = _skipped(text, at)
        if text[at] == ",":
            at = _skipped(text, at + 1)
    return found, at + 1


def _end_of_list(text: str, at: int) -> int:
    depth = 0
    while True:
        if text[at] == '"':
            _, at = scanstring(text, at + 1, True)
            continue
        depth += (text[at] in "[{") - (text[at] in "]}")
        at += 1
        if not depth:
            return at


def _skipped(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at
