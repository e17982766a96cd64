"""Anthropic's messages: output_config.format, and tools.

Source: the API's reference, and anthropic-sdk-python's types/.
"""

from collections.abc import Mapping

from bertsmith.mirror.call import Answered, Asked, Json, Message, NotMirrored
from bertsmith.mirror.formats.openai_chat import required_tool
from bertsmith.mirror.formats.reading import (
    TEXT_TYPES,
    as_json,
    chosen,
    count,
    list_of,
    model_of,
    object_of,
    parsed,
    subjects_of,
    text_of,
    texts_of,
    word,
)
from bertsmith.mirror.streams import join_anthropic

NAME, PATH = "anthropic", "/v1/messages"  # OpenAI has paths of its own that end in /messages
_KEPT = (
    "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "thinking", "tools", "tool_choice",
    "output_config", "output_format",
)  # fmt: skip
_STOPPED_EARLY = {
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "refusal": "refusal",
    "pause_turn": "unfinished",
}
_CHOICES = {"any": "required", "tool": "tool"}
join = join_anthropic


def read_request(body: Mapping[str, Json]) -> Asked:
    """Raises NotMirrored saying why."""
    way, name, schema = _schema(body)
    messages = [Message("system", texts_of(body["system"]))] if body.get("system") else []
    for given in list_of(body.get("messages"), "malformed-request"):
        messages.append(message_of(given))
    return Asked(
        NAME,
        model_of(body),
        tuple(messages),
        name,
        schema,
        way,
        chosen(body, _KEPT),
        subjects_of(body),
    )


def _schema(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    config = body.get("output_config")
    described = config.get("format") if isinstance(config, dict) else None
    described = described or body.get("output_format")
    if isinstance(described, dict) and described.get("type") == "json_schema":
        return "json-schema", "", object_of(described.get("schema"), "no-schema")
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        raise NotMirrored("no-schema")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in _CHOICES:
        raise NotMirrored("tool-not-required")
    return required_tool(
        list_of(tools, "malformed-request"), choice if kind == "tool" else "required", "input_schema"
    )


def message_of(given: Json) -> Message:
    """One of a request. Raises NotMirrored."""
    message = object_of(given, "malformed-request")
    return Message(text_of(message.get("role")), _parts(message.get("content")))


def _parts(content: Json) -> tuple[str, ...]:
    """What a tool was called with, and what it answered, are parts too."""
    if not isinstance(content, list):
        return texts_of(content)
    found: list[str] = []
    for given in content:
        block = object_of(given, "malformed-request")
        if block.get("type") == "tool_use":
            found.append(as_json({"name": block.get("name"), "input": block.get("input")}))
        elif block.get("type") == "tool_result":
            found += texts_of(block.get("content"))
        else:
            found += texts_of([block])
    return tuple(found)


def read_answer(asked: Asked, body: Mapping[str, Json]) -> Answered:
    """Raises NotMirrored saying why."""
    stopped = word(body.get("stop_reason"))
    if stopped in _STOPPED_EARLY:
        raise NotMirrored(_STOPPED_EARLY[stopped])
    blocks = [
        object_of(each, "malformed-answer") for each in list_of(body.get("content"), "malformed-answer")
    ]
    return Answered(
        _value(asked, blocks),
        word(body.get("model")),
        stopped,
        word(body.get("id")),
        *tokens_of(body),
    )


def tokens_of(body: Mapping[str, Json]) -> tuple[int | None, int | None]:
    """Read, from the cache too, and written."""
    usage = body.get("usage")
    read = count(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return read, count(usage, "output_tokens")


def _value(asked: Asked, blocks: list[Mapping[str, Json]]) -> Json:
    calls = [each for each in blocks if each.get("type") == "tool_use"]
    if asked.way != "tool":
        if calls:
            raise NotMirrored("tool-call")
        texts = [
            text_of(each.get("text"), "malformed-answer") for each in blocks if each.get("type") in TEXT_TYPES
        ]
        if not texts:
            raise NotMirrored("no-answer")
        return parsed("".join(texts))
    if len(calls) != 1:
        raise NotMirrored("several-tool-calls" if calls else "no-tool-call")
    if calls[0].get("name") != asked.schema_name:
        raise NotMirrored("other-tool")
    return calls[0].get("input")


def error_body(message: str, code: str) -> Json:
    """Anthropic's envelope."""
    return {"type": "error", "error": {"type": "api_error", "message": f"{message} ({code})"}}
