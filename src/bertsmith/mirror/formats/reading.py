"""What several wire formats share: reading parts of a JSON body, with a reason not to mirror the call if a
part has another type, and splitting a stream into events.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from bertsmith.mirror.call import Json, NotMirrored

DONE = "[DONE]"
TEXT_TYPES = ("text", "input_text", "output_text")
_REFUSED_TYPES = ("refusal",)
# Thoughts are no part of the conversation: clients send them back for the provider's own use.
_THOUGHT_TYPES = ("thinking", "redacted_thinking", "reasoning")


def object_of(value: Json, reason: str) -> Mapping[str, Json]:
    """Returns `value` if it is a JSON object, and raises NotMirrored(reason) otherwise."""
    if not isinstance(value, dict):
        raise NotMirrored(reason)
    return value


def list_of(value: Json, reason: str) -> list[Any]:
    """Returns `value` if it is a list, and raises NotMirrored(reason) otherwise."""
    if not isinstance(value, list):
        raise NotMirrored(reason)
    return value


def text_of(value: Json, reason: str = "malformed-request") -> str:
    """Returns `value` if it is a text, and raises NotMirrored(reason) otherwise."""
    if not isinstance(value, str):
        raise NotMirrored(reason)
    return value


def model_of(body: Mapping[str, Json]) -> str:
    """The model that a request's body names, or its path did. Raises NotMirrored if there is none."""
    return text_of(body.get("model") or None, "no-model" if not body.get("model") else "malformed-request")


def texts_of(content: Json) -> tuple[str, ...]:
    """The texts of a message's content, which is a text or a list of parts. Thoughts are left out. Raises
    NotMirrored("input-not-text") for images, sound and files.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    texts = []
    for part in list_of(content, "malformed-request"):
        if isinstance(part, str):
            texts.append(part)
            continue
        part = object_of(part, "malformed-request")
        part_type = part.get("type")
        if part_type in TEXT_TYPES:
            texts.append(text_of(part.get("text")))
        elif part_type in _REFUSED_TYPES:
            texts.append(text_of(part.get("refusal")))
        elif part_type not in _THOUGHT_TYPES:
            raise NotMirrored("input-not-text")
    return tuple(texts)


def as_json(value: Json) -> str:
    """A JSON value as text, to become a part of a message."""
    return orjson.dumps(value).decode()


def parsed(text: str) -> Json:
    """Parses the text of an answer as JSON. Raises NotMirrored("answer-not-json")."""
    try:
        return orjson.loads(text)
    except ValueError:
        raise NotMirrored("answer-not-json") from None


def chosen(body: Mapping[str, Json], names: Iterable[str]) -> dict[str, Json]:
    """The entries of the body under `names`, without those that are missing or null. All parameters to store
    are named, so that no other is stored by mistake.
    """
    return {name: body[name] for name in names if body.get(name) is not None}


def count(usage: Json, *names: str) -> int | None:
    """The sum of the token counts under `names`; None if `usage` has none of them."""
    if not isinstance(usage, dict):
        return None
    counts = [usage[name] for name in names if type(usage.get(name)) is int]
    return sum(counts) if counts else None


def word(value: Json) -> str:
    """Returns `value` if it is a text, and an empty text otherwise."""
    return value if isinstance(value, str) else ""


def users_of(body: Mapping[str, Json]) -> tuple[str, ...]:
    """The users whom a request names, by any of the usual keys: the people whom it is about."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    users = (
        body.get("user"),
        metadata.get("user"),
        metadata.get("user_id"),
        body.get("safety_identifier"),
    )
    return tuple(dict.fromkeys(name for user in users for name in names_in(user)))


def names_in(value: Json) -> Iterator[str]:
    """Yields all texts and numbers in a JSON value as texts; 7, 7.0 and "7" are the same name."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from names_in(part)
    elif isinstance(value, float) and value.is_integer():
        yield str(int(value))
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
        yield str(value)


def logprobs_of(tokens: Json) -> list[Json] | None:
    """Converts OpenAI's log probabilities to [token, log probability, [[alternative token, log probability],
    …]] for each token. None if there are none, or if they have another form.
    """
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
        return None  # the server writes them in a form of its own


@dataclass(frozen=True)
class Event:
    """A server-sent event. `name` is empty if the stream gives none."""

    name: str
    data: str


def events_of(content: bytes) -> Iterator[Event]:
    """Splits a stream into server-sent events (HTML standard, section 9.2.6). An event at the end that is not
    followed by an empty line is dropped.
    """
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
    """Parses the data of each event up to [DONE]. Raises NotMirrored for data that is no JSON object."""
    for event in events:
        if event.data == DONE:
            return
        try:
            value = orjson.loads(event.data)
        except ValueError:
            raise NotMirrored("malformed-answer") from None
        if not isinstance(value, dict):
            raise NotMirrored("malformed-answer")
        yield value
