"""Which values the answers of a version had, and how often: counted, and shown where they are no texts."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertsmith.mirror.call import Call, Json
from bertsmith.mirror.fields import plain
from bertsmith.mirror.rows import values_of

_SHOWN = 12  # values of a field
_MOST, _AGAIN = 100, 10  # different ones of a field, and how often each came: then they are no free text


def seen_values(calls: Sequence[Call]) -> dict[str, dict[str, Any]]:
    """By JSON path: `calls` looked at, how many `different` values there are, the most frequent `values` with
    their counts or the `range` of numbers, and whether it `is_text`: a value might then be about somebody,
    and none is given.
    """
    counts: dict[str, Counter[Any]] = {}
    for call in calls:
        for path, value in values_of(call.answered.value):
            shown = _plain(value)
            counts.setdefault(path, Counter())[type(shown), shown] += 1
    named = set(_named(calls[0].asked.schema)) if calls else set[str]()
    return {path: _of_field(of, len(calls), named) for path, of in sorted(counts.items())}


def _plain(value: Json) -> Json:
    """What can be counted: 1.0 is 1."""
    return plain(value) if isinstance(value, str | bool | int | float | None) else "…"


def _of_field(counts: Counter[Any], calls: int, named: set[str]) -> dict[str, Any]:
    texts = [key for kind, key in counts if kind is str and key not in named]
    is_text = bool(texts) and (len(counts) > _MOST or counts.total() < _AGAIN * len(counts))
    numbers = [key for kind, key in counts if kind in (int, float)]
    is_number = len(numbers) == len(counts) and len(numbers) > _SHOWN
    found: dict[str, Any] = {"calls": calls, "different": len(counts), "is_text": is_text, "values": []}
    if is_number:
        found["range"] = [min(numbers), max(numbers)]
    elif not is_text:
        found["values"] = [[_shown(key), count] for (_, key), count in counts.most_common(_SHOWN)]
    return found


def _shown(value: Json) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _named(schema: Json) -> Iterator[str]:
    """Texts that the schema itself names as values."""
    if isinstance(schema, Mapping):
        for key, each in schema.items():
            given = each if key == "enum" and isinstance(each, list) else [each] if key == "const" else []
            yield from (value for value in given if isinstance(value, str))
            yield from _named(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _named(each)
