"""Parts of a body that a format looks for, and events of a stream; other kinds of them are not mirrored."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from bertsmith.mirror.call import Json, NotMirrored

DONE = "[DONE]"
TEXT_TYPES = ("text", "input_text", "output_text")
_REFUSED_TYPES = ("refusal",)
# Thoughts aren't what was asked, and come back only for the provider's own use.
_THOUGHT_TYPES = ("thinking", "redacted_thinking", "reasoning")


def object_of(value: Json, reason: str) -> Mapping[str, Json]:
    """Raises NotMirrored(reason) for anything but an object."""
    if not isinstance(value, dict):
        raise NotMirrored(reason)
    return value


def list_of(value: Json, reason: str) -> list[Any]:
    """Raises NotMirrored(reason) for anything but a list."""
    if not isinstance(value, list):
        raise NotMirrored(reason)
    return value


def text_of(value: Json, reason: str = "malformed-request") -> str:
    """Raises NotMirrored(reason) for anything but a text."""
    if not isinstance(value, str):
        raise NotMirrored(reason)
    return value


def model_of(body: Mapping[str, Json]) -> str:
    """Raises NotMirrored where the body names none, and no path did."""
    return text_of(body.get("model") or None, "no-model" if not body.get("model") else "malformed-request")


def texts_of(content: Json) -> tuple[str, ...]:
    """A message's content: a text, or parts of text. Raises NotMirrored for images, sound and files."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    found = []
    for part in list_of(content, "malformed-request"):
        if isinstance(part, str):
            found.append(part)
            continue
        part = object_of(part, "malformed-request")
        kind = part.get("type")
        if kind in TEXT_TYPES:
            found.append(text_of(part.get("text")))
        elif kind in _REFUSED_TYPES:
            found.append(text_of(part.get("refusal")))
        elif kind not in _THOUGHT_TYPES:
            raise NotMirrored("input-not-text")
    return tuple(found)


def as_json(value: Json) -> str:
    """Anything as a part of a message."""
    return orjson.dumps(value).decode()


def parsed(text: str) -> Json:
    """An answer's JSON. Raises NotMirrored."""
    try:
        return orjson.loads(text)
    except ValueError:
        raise NotMirrored("answer-not-json") from None


def chosen(body: Mapping[str, Json], names: Iterable[str]) -> dict[str, Json]:
    """Those keys of the body that it has. What is kept is named, so that nothing else is kept by mistake."""
    return {name: body[name] for name in names if body.get(name) is not None}


def count(usage: Json, *names: str) -> int | None:
    """Tokens: the sum of what is there under these names."""
    if not isinstance(usage, dict):
        return None
    found = [usage[name] for name in names if type(usage.get(name)) is int]
    return sum(found) if found else None


def word(value: Json) -> str:
    """A text, or nothing."""
    return value if isinstance(value, str) else ""


def subjects_of(body: Mapping[str, Json]) -> tuple[str, ...]:
    """All whom the request says it is about."""
    metadata = body.get("metadata")
    of_metadata = metadata if isinstance(metadata, dict) else {}
    given = (
        body.get("user"),
        of_metadata.get("user"),
        of_metadata.get("user_id"),
        body.get("safety_identifier"),
    )
    return tuple(dict.fromkeys(name for value in given for name in names_in(value)))


def names_in(value: Json) -> Iterator[str]:
    """Each text and number as a text: 7 and 7.0 are who "7" is. Of objects and lists, what they hold."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from names_in(each)
    elif isinstance(value, float) and value.is_integer():
        yield str(int(value))
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
        yield str(value)


def logprobs_of(tokens: Json) -> list[Json] | None:
    """Tokens with their log probabilities, and those of the others that might have come."""
    if not isinstance(tokens, list) or not tokens:
        return None
    try:
        return [
            [
                token["token"],
                token["logprob"],
                [[other["token"], other["logprob"]] for other in token.get("top_logprobs") or ()],
            ]
            for token in tokens
        ]
    except (KeyError, TypeError, AttributeError):
        return None  # a server's own way of writing them


@dataclass(frozen=True)
class Event:
    """`name` is empty where the stream doesn't say one."""

    name: str
    data: str


def events_of(content: bytes) -> Iterator[Event]:
    """By the HTML standard, section 9.2.6: an event that isn't ended by an empty line is none."""
    text = content.decode("utf-8", "replace").removeprefix("\ufeff")
    name, data = "", list[str]()
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        if not line:
            if data:
                yield Event(name, "\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value


def objects_of(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """The data of each event up to [DONE]. Raises NotMirrored for what isn't an object."""
    for event in events:
        if event.data == DONE:
            return
        try:
            found = orjson.loads(event.data)
        except ValueError:
            raise NotMirrored("malformed-answer") from None
        if not isinstance(found, dict):
            raise NotMirrored("malformed-answer")
        yield found
