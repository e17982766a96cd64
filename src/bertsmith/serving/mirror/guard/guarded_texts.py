"""Which texts of a request and of an answer are judged, in every wire format.

Of a request: what came since the model last spoke, by users and by tools, whether it asks for a schema or
not. Of an answer: all that it says, calls of tools among it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from bertsmith.serving.mirror.call import SYSTEM_ROLES, Json, Message, NotMirrored
from bertsmith.serving.mirror.exchange import decoded
from bertsmith.serving.mirror.formats import anthropic, decisions, openai_chat, openai_responses, systemone
from bertsmith.serving.mirror.formats.reading import as_json, list_of, object_of, texts_of
from bertsmith.serving.mirror.formats.wire_format import WireFormat
from bertsmith.serving.mirror.streams import events_of

_MALFORMED = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)


def request_texts(form: WireFormat, content: bytes) -> list[str]:
    """Raises NotMirrored saying why it can't be judged: input-not-text, malformed-request."""
    try:
        body = orjson.loads(content)
        messages = list(_messages(form, object_of(body, "malformed-request")))
    except _MALFORMED:
        raise NotMirrored("malformed-request") from None
    since = max((n + 1 for n, each in enumerate(messages) if each.role == "assistant"), default=0)
    new = messages[since:] or messages
    texts = [part for each in new if each.role not in SYSTEM_ROLES for part in each.parts]
    return [text for text in texts if text.strip()]


def _messages(form: WireFormat, body: Mapping[str, Json]) -> Iterable[Message]:
    if form.NAME == systemone.NAME:
        state = body["state"]
        return [Message("user", (state if isinstance(state, str) else as_json(state),))]
    if form.NAME == openai_responses.NAME or form.NAME == decisions.NAME:
        given = body.get("input")
        if isinstance(given, str):
            return [Message("user", (given,))]
        if not isinstance(given, list):  # what is asked lies on the provider's machines
            raise NotMirrored("server-state")
        if form.NAME == decisions.NAME:
            return [decisions.message_of(item) for item in given]
        return [each for item in given for each in openai_responses.messages_of(item)]
    read = anthropic.message_of if form.NAME == anthropic.NAME else openai_chat.message_of
    return [read(each) for each in list_of(body.get("messages"), "malformed-request")]


def answer_texts(form: WireFormat, content: bytes, encoding: str, is_stream: bool) -> list[str]:
    """Of a body with status 200, or of a stream. Raises NotMirrored saying why it can't be judged."""
    content = decoded(content, encoding)
    try:
        body = form.join(events_of(content)) if is_stream else orjson.loads(content)
        texts = list(_said(form, object_of(body, "malformed-answer")))
    except _MALFORMED:
        raise NotMirrored("malformed-answer") from None
    return [text for text in texts if text.strip()]


def _said(form: WireFormat, body: Mapping[str, Json]) -> Iterable[str]:
    if form.NAME == openai_chat.NAME:
        for choice in list_of(body.get("choices"), "malformed-answer"):
            message = choice["message"]
            yield from texts_of(message.get("content"))
            yield message.get("refusal") or ""
            for call in message.get("tool_calls") or ():
                yield as_json(call.get("function") or call.get("custom"))
    elif form.NAME == openai_responses.NAME:
        for item in list_of(body.get("output"), "malformed-answer"):
            if item.get("type") == "message":
                yield from texts_of(item.get("content"))
            elif item.get("type") != "reasoning":
                yield as_json({key: item[key] for key in ("name", "arguments", "input") if key in item})
    elif form.NAME == anthropic.NAME:
        for block in list_of(body.get("content"), "malformed-answer"):
            yield from _block(block)
    else:  # probabilities of answers that the request itself names
        return


def _block(block: Mapping[str, Any]) -> Iterable[str]:
    if block.get("type") == "tool_use":
        yield as_json({"name": block.get("name"), "input": block.get("input")})
    else:
        yield from texts_of([block])
