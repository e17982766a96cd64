"""A call as rows of the tables, and back."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from bertsmith.mirror.call import Answered, Asked, Call, Json, Message

_DEEPEST = 8  # levels of an answer whose fields are told apart
_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array",
}  # fmt: skip


def values_of(value: Json, path: str = "$", depth: int = _DEEPEST) -> Iterator[tuple[str, Json]]:
    """JSON paths of an answer's values with these; all of an array's have one path: $.tags[]."""
    if isinstance(value, dict) and depth:
        for name, each in value.items():
            yield from values_of(each, f"{path}.{_plain(name)}", depth - 1)
    elif isinstance(value, list) and depth:
        for each in value:
            yield from values_of(each, f"{path}[]", depth - 1)
    else:
        yield path, value


def fields_of(value: Json) -> Iterator[tuple[str, str]]:
    """The same paths with the values' types."""
    for path, each in values_of(value):
        yield path, _TYPES.get(type(each), "object")


def site_row(call: Call) -> dict[str, Any]:
    """Its place."""
    asked = call.asked
    return {
        "id": call.site,
        "protocol": asked.protocol,
        "schema_name": _plain(asked.schema_name),
        "began": call.began,
    }


def version_row(call: Call) -> dict[str, Any]:
    """What it shares with others."""
    asked = call.asked
    return {
        "id": call.version,
        "site": call.site,
        "protocol": asked.protocol,
        "model": _plain(asked.model),
        "way": asked.way,
        "schema_name": _plain(asked.schema_name),
        "schema": _written(asked.schema),
        "system": _written(_rows(asked.system)),
        "parameters": _written(asked.parameters),
        "began": call.began,
    }


def call_row(call: Call, subjects: Iterable[str]) -> dict[str, Any]:
    """`subjects` are fingerprints."""
    answered = call.answered
    return {
        "id": call.id,
        "content": call.content,
        "version": call.version,
        "began": call.began,
        "seconds": call.seconds,
        "first_seconds": call.first_seconds,
        "source": call.source,
        "weight": call.weight,
        "site_weight": call.site_weight,
        "subject": " ".join(subjects) or None,
        "messages": _written(_rows(call.asked.inputs)),
        "answer": _written(answered.value),
        "probabilities": _written(answered.probabilities) if answered.probabilities else None,
        "logprobs": _written(answered.logprobs) if answered.logprobs else None,
        "answer_model": _plain(answered.model),
        "response_id": _plain(answered.response_id),
        "finish_reason": _plain(answered.finish_reason),
        "input_tokens": _tokens(answered.input_tokens),
        "output_tokens": _tokens(answered.output_tokens),
    }


def _tokens(count: int | None) -> int | None:
    """None for a count that no column holds: PostgreSQL's integer has 32 bits, and it is a stranger's."""
    return count if count is not None and 0 <= count < 2**31 else None


def _plain(text: str) -> str:
    """PostgreSQL has no NUL in a text. In JSON it is written as an escape."""
    return text.replace("\0", "")


def _rows(messages: Iterable[Message]) -> list[list[str]]:
    return [[each.role, *each.parts] for each in messages]


def _messages(written: str) -> tuple[Message, ...]:
    return tuple(Message(role, tuple(parts)) for role, *parts in orjson.loads(written))


def _written(value: Json) -> str:
    return orjson.dumps(value).decode()


def _read(written: str | None) -> Json:
    return None if written is None else orjson.loads(written)


def call_of_row(row: Any) -> Call:
    """Of a row of calls joined with its version."""
    asked = Asked(
        row.protocol,
        row.model,
        _messages(row.system) + _messages(row.messages),
        row.schema_name,
        _read(row.schema),
        row.way,
        _read(row.parameters),
        tuple((row.subject or "").split()),
    )
    probabilities = _read(row.probabilities) or {}
    answered = Answered(
        _read(row.answer),
        row.answer_model,
        row.finish_reason,
        row.response_id,
        row.input_tokens,
        row.output_tokens,
        {path: [(value, share) for value, share in spread] for path, spread in probabilities.items()},
        _read(row.logprobs),
    )
    return Call(
        row.id,
        row.content,
        row.site,
        row.version,
        row.began,
        asked,
        answered,
        row.source,
        row.seconds,
        row.first_seconds,
        row.weight,
        row.site_weight,
    )
