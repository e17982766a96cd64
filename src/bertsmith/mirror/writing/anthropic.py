"""A message of Anthropic's, and its events.

Source: the API's reference, and anthropic-sdk-python's types/.
"""

from collections.abc import Iterator
from typing import Any

from bertsmith.mirror.call import NotMirrored
from bertsmith.mirror.writing.own_answer import (
    EVENTS,
    OwnAnswer,
    Written,
    named_event,
    whole,
)

_USAGE = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
    "service_tier": "standard",
}


def write(answer: OwnAnswer) -> Written:
    """Raises NotMirrored where the client wants what only an LLM has."""
    thinking = answer.body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") != "disabled":
        raise NotMirrored("thinking-wanted")
    is_call = answer.asked.way == "tool"
    block: dict[str, Any] = {"type": "text", "text": answer.text, "citations": None}
    if is_call:
        block = {
            "type": "tool_use",
            "id": f"toolu_{answer.number[:24]}",
            "name": answer.asked.schema_name,
            "input": answer.value,
        }
    message = {
        "id": f"msg_{answer.number[:24]}",
        "type": "message",
        "role": "assistant",
        "model": answer.asked.model,
        "content": [block],
        "stop_reason": "tool_use" if is_call else "end_turn",
        "stop_sequence": None,
        "usage": _USAGE,
    }
    return Written(EVENTS, list(_events(answer, message, block))) if answer.is_streamed else whole(message)


def _events(answer: OwnAnswer, message: dict[str, Any], block: dict[str, Any]) -> Iterator[bytes]:
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
