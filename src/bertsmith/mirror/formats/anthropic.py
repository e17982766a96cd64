"""Anthropic's messages: output_config.format, and tools.

Source: the API's reference, and anthropic-sdk-python's types/.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest, Json, NotMirrored
from bertsmith.mirror.formats.openai_chat import find_required_tool, write_content
from bertsmith.mirror.formats.reading import (
    TEXT_TYPES,
    Event,
    as_json,
    chosen,
    count,
    list_of,
    model_of,
    object_of,
    objects_of,
    parsed,
    text_of,
    texts_of,
    users_of,
    word,
)
from bertsmith.mirror.formats.wire_format import (
    EVENTS,
    ResponseBody,
    StudentCompletion,
    Tokens,
    WireFormat,
    named_event,
    whole,
)

# Parameters of a request that are stored with its call.
_PARAMETERS = (
    "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "thinking", "tools", "tool_choice",
    "output_config", "output_format",
)  # fmt: skip
_STOPPED_EARLY = {
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "refusal": "refusal",
    "pause_turn": "unfinished",
}
# Types of tool_choice with which the model has to call a tool.
_REQUIRING_CHOICES = frozenset(("any", "tool"))
_USAGE = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
    "service_tier": "standard",
}
_DEFAULT_MAX_TOKENS = 1024  # for the mirror's own requests: the API requires a limit


class Anthropic(WireFormat):
    """The Messages API. The path /messages counts only as a whole: OpenAI has other paths that end in it."""

    NAME = "anthropic"
    PATH = "/v1/messages"
    WHOLE_PATHS = ("/messages",)
    PROVIDER = "anthropic"
    HEADER = b"anthropic-version"
    KEY = "ANTHROPIC_API_KEY"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        way, name, schema = _read_schema(body)
        messages = [ChatMessage("system", texts_of(body["system"]))] if body.get("system") else []
        messages += map(read_message, list_of(body.get("messages"), "malformed-request"))
        return CompletionRequest(
            self.NAME,
            model_of(body),
            tuple(messages),
            name,
            schema,
            way,
            chosen(body, _PARAMETERS),
            users_of(body),
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        stop_reason = word(body.get("stop_reason"))
        if stop_reason in _STOPPED_EARLY:
            raise NotMirrored(_STOPPED_EARLY[stop_reason])
        content = list_of(body.get("content"), "malformed-answer")
        blocks = [object_of(block, "malformed-answer") for block in content]
        return Completion(
            _read_value(request, blocks),
            word(body.get("model")),
            stop_reason,
            word(body.get("id")),
            *self.tokens_of(body),
        )

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """Joins the events of a streamed message."""
        joined: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        for event in objects_of(events):
            event_type = event.get("type")
            if event_type == "error":
                raise NotMirrored("upstream-error")
            if event_type == "message_start":
                joined = dict(event.get("message") or {})
            elif event_type == "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "pieces": ""}
            elif event_type == "content_block_delta":
                delta = event.get("delta") or {}
                block = blocks[event["index"]]
                if delta.get("type") == "text_delta":
                    block["text"] = (block.get("text") or "") + delta["text"]
                elif delta.get("type") == "input_json_delta":
                    block["pieces"] += delta["partial_json"]
            elif event_type == "message_delta":
                joined |= event.get("delta") or {}
                joined["usage"] = {**(joined.get("usage") or {}), **(event.get("usage") or {})}
            elif event_type == "message_stop":
                joined["content"] = [_finish_block(blocks[index]) for index in sorted(blocks)]
                return joined
        raise NotMirrored("cut")

    def write(self, answer: StudentCompletion) -> ResponseBody:
        """Writes a message. Raises NotMirrored if the client asks for thinking."""
        thinking = answer.body.get("thinking")
        if isinstance(thinking, dict) and thinking.get("type") != "disabled":
            raise NotMirrored("thinking-wanted")
        is_call = answer.request.way == "tool"
        block: dict[str, Any] = {"type": "text", "text": answer.text, "citations": None}
        if is_call:
            block = {
                "type": "tool_use",
                "id": f"toolu_{answer.number[:24]}",
                "name": answer.request.schema_name,
                "input": answer.value,
            }
        message = {
            "id": f"msg_{answer.number[:24]}",
            "type": "message",
            "role": "assistant",
            "model": answer.request.model,
            "content": [block],
            "stop_reason": "tool_use" if is_call else "end_turn",
            "stop_sequence": None,
            "usage": _USAGE,
        }
        if answer.is_streamed:
            return ResponseBody(EVENTS, list(_write_events(answer, message, block)))
        return whole(message)

    def error_body(self, message: str, code: str) -> Json:
        """The error in the form that Anthropic's clients read."""
        return {"type": "error", "error": {"type": "api_error", "message": f"{message} ({code})"}}

    def tokens_of(self, body: Mapping[str, Json]) -> Tokens:
        """The input's tokens, including those written to and read from the cache, and the output's."""
        usage = body.get("usage")
        input_tokens = count(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return input_tokens, count(usage, "output_tokens")

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        return "messages" in request and "questions" not in request and answer.get("type") == "message"

    def write_request(self, request: CompletionRequest) -> dict[str, Json]:
        messages = [{"role": message.role, "content": write_content(message)} for message in request.inputs]
        system = [{"type": "text", "text": part} for message in request.system for part in message.parts]
        body = {
            "max_tokens": _DEFAULT_MAX_TOKENS,
            **request.parameters,
            "model": request.model,
            "messages": messages,
        }
        return {**body, "system": system} if system else body

    def headers(self, key: str) -> Mapping[str, str]:
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}


def _read_schema(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    """How the request asks for JSON (CompletionRequest.way), the schema's name, and the schema."""
    config = body.get("output_config")
    output_format = config.get("format") if isinstance(config, dict) else None
    output_format = output_format or body.get("output_format")
    if isinstance(output_format, dict) and output_format.get("type") == "json_schema":
        return "json-schema", "", object_of(output_format.get("schema"), "no-schema")
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        raise NotMirrored("no-schema")
    choice_type = choice.get("type") if isinstance(choice, dict) else None
    if choice_type not in _REQUIRING_CHOICES:
        raise NotMirrored("tool-not-required")
    return find_required_tool(
        list_of(tools, "malformed-request"), choice if choice_type == "tool" else "required", "input_schema"
    )


def read_message(item: Json) -> ChatMessage:
    """Reads a message of a request; calls of tools and their results become parts. Raises NotMirrored if it
    is malformed or contains something else than text.
    """
    message = object_of(item, "malformed-request")
    role, content = text_of(message.get("role")), message.get("content")
    if not isinstance(content, list):
        return ChatMessage(role, texts_of(content))
    parts: list[str] = []
    for content_block in content:
        block = object_of(content_block, "malformed-request")
        if block.get("type") == "tool_use":
            parts.append(as_json({"name": block.get("name"), "input": block.get("input")}))
        elif block.get("type") == "tool_result":
            parts += texts_of(block.get("content"))
        else:
            parts += texts_of([block])
    return ChatMessage(role, tuple(parts))


def _read_value(request: CompletionRequest, blocks: list[Mapping[str, Json]]) -> Json:
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if request.way != "tool":
        if calls:
            raise NotMirrored("tool-call")
        texts = [
            text_of(block.get("text"), "malformed-answer")
            for block in blocks
            if block.get("type") in TEXT_TYPES
        ]
        if not texts:
            raise NotMirrored("no-answer")
        return parsed("".join(texts))
    if len(calls) != 1:
        raise NotMirrored("several-tool-calls" if calls else "no-tool-call")
    if calls[0].get("name") != request.schema_name:
        raise NotMirrored("other-tool")
    return calls[0].get("input")


def _finish_block(block: dict[str, Any]) -> dict[str, Any]:
    """Parses the input of a joined block for a tool's call."""
    pieces = block.pop("pieces")
    if pieces:
        try:
            block["input"] = orjson.loads(pieces)
        except ValueError:
            raise NotMirrored("answer-not-json") from None
    return block


def _write_events(
    answer: StudentCompletion, message: dict[str, Any], block: dict[str, Any]
) -> Iterator[bytes]:
    yield named_event("message_start", message={**message, "content": [], "stop_reason": None})
    is_call = block["type"] == "tool_use"
    first_block = {**block, "input": {}} if is_call else {**block, "text": ""}
    yield named_event("content_block_start", index=0, content_block=first_block)
    yield named_event("ping")
    for text_chunk in answer.text_pieces():
        delta = (
            {"type": "input_json_delta", "partial_json": text_chunk}
            if is_call
            else {"type": "text_delta", "text": text_chunk}
        )
        yield named_event("content_block_delta", index=0, delta=delta)
    yield named_event("content_block_stop", index=0)
    last_delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield named_event("message_delta", delta=last_delta, usage={"output_tokens": 0})
    yield named_event("message_stop")
