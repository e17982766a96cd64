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
    subjects_of,
    text_of,
    texts_of,
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
_CHOICES = {"any": "required", "tool": "tool"}
_USAGE = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
    "service_tier": "standard",
}
_DEFAULT_MAX_TOKENS = 1024  # of a request of ours, which has to say it


class Anthropic(WireFormat):
    """Messages. OpenAI has paths of its own that end in /messages."""

    NAME = "anthropic"
    PATH = "/v1/messages"
    WHOLE_PATHS = ("/messages",)
    PROVIDER = "anthropic"
    HEADER = b"anthropic-version"
    KEY = "ANTHROPIC_API_KEY"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        """Raises NotMirrored saying why."""
        way, name, schema = _read_schema(body)
        messages = [ChatMessage("system", texts_of(body["system"]))] if body.get("system") else []
        for given in list_of(body.get("messages"), "malformed-request"):
            messages.append(read_message(given))
        return CompletionRequest(
            self.NAME,
            model_of(body),
            tuple(messages),
            name,
            schema,
            way,
            chosen(body, _PARAMETERS),
            subjects_of(body),
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        """Raises NotMirrored saying why."""
        stopped = word(body.get("stop_reason"))
        if stopped in _STOPPED_EARLY:
            raise NotMirrored(_STOPPED_EARLY[stopped])
        blocks = [
            object_of(each, "malformed-answer") for each in list_of(body.get("content"), "malformed-answer")
        ]
        return Completion(
            _read_value(request, blocks),
            word(body.get("model")),
            stopped,
            word(body.get("id")),
            *self.tokens_of(body),
        )

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """Events of Anthropic's messages → the message."""
        joined: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        for event in objects_of(events):
            kind = event.get("type")
            if kind == "error":
                raise NotMirrored("upstream-error")
            if kind == "message_start":
                joined = dict(event.get("message") or {})
            elif kind == "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "pieces": ""}
            elif kind == "content_block_delta":
                delta = event.get("delta") or {}
                block = blocks[event["index"]]
                if delta.get("type") == "text_delta":
                    block["text"] = (block.get("text") or "") + delta["text"]
                elif delta.get("type") == "input_json_delta":
                    block["pieces"] += delta["partial_json"]
            elif kind == "message_delta":
                joined |= event.get("delta") or {}
                joined["usage"] = {**(joined.get("usage") or {}), **(event.get("usage") or {})}
            elif kind == "message_stop":
                joined["content"] = [_finish_block(blocks[index]) for index in sorted(blocks)]
                return joined
        raise NotMirrored("cut")

    def write(self, answer: StudentCompletion) -> ResponseBody:
        """Raises NotMirrored where the client wants what only an LLM has."""
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
        return (
            ResponseBody(EVENTS, list(_write_events(answer, message, block)))
            if answer.is_streamed
            else whole(message)
        )

    def error_body(self, message: str, code: str) -> Json:
        """Anthropic's envelope."""
        return {"type": "error", "error": {"type": "api_error", "message": f"{message} ({code})"}}

    def tokens_of(self, body: Mapping[str, Json]) -> Tokens:
        """Read, from the cache too, and written."""
        usage = body.get("usage")
        read = count(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return read, count(usage, "output_tokens")

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        return "messages" in request and "questions" not in request and answer.get("type") == "message"

    def write_request(self, request: CompletionRequest) -> dict[str, Json]:
        messages = [{"role": each.role, "content": write_content(each)} for each in request.inputs]
        system = [{"type": "text", "text": part} for each in request.system for part in each.parts]
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
    return find_required_tool(
        list_of(tools, "malformed-request"), choice if kind == "tool" else "required", "input_schema"
    )


def read_message(given: Json) -> ChatMessage:
    """One of a request; what a tool was called with, and what it answered, are parts. Raises NotMirrored."""
    message = object_of(given, "malformed-request")
    role, content = text_of(message.get("role")), message.get("content")
    if not isinstance(content, list):
        return ChatMessage(role, texts_of(content))
    found: list[str] = []
    for given in content:
        block = object_of(given, "malformed-request")
        if block.get("type") == "tool_use":
            found.append(as_json({"name": block.get("name"), "input": block.get("input")}))
        elif block.get("type") == "tool_result":
            found += texts_of(block.get("content"))
        else:
            found += texts_of([block])
    return ChatMessage(role, tuple(found))


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
    begun = {**block, "input": {}} if is_call else {**block, "text": ""}
    yield named_event("content_block_start", index=0, content_block=begun)
    yield named_event("ping")
    for piece in answer.text_pieces():
        delta = (
            {"type": "input_json_delta", "partial_json": piece}
            if is_call
            else {"type": "text_delta", "text": piece}
        )
        yield named_event("content_block_delta", index=0, delta=delta)
    yield named_event("content_block_stop", index=0)
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield named_event("message_delta", delta=ended, usage={"output_tokens": 0})
    yield named_event("message_stop")
