"""A response of OpenAI's Responses, and its events. Source: the API's reference, and openai-python's
types/responses/.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from bertsmith.mirror.call import Json, NotMirrored
from bertsmith.mirror.writing.own_answer import (
    EVENTS,
    OwnAnswer,
    Written,
    named_event,
    whole,
)

_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
# What a response says again of its request, with the value of a request that doesn't say.
_REPEATED: dict[str, Json] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "store": False,
    "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_p": 1.0, "truncation": "disabled", "user": None,
}  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"


def write(answer: OwnAnswer) -> Written:
    """Raises NotMirrored where the client wants what only an LLM has."""
    if answer.body.get("top_logprobs") or _LOGPROBS in (answer.body.get("include") or ()):
        raise NotMirrored("logprobs-wanted")
    if answer.body.get("store"):
        raise NotMirrored("store-wanted")
    item = _item(answer)
    response = _response(answer, item)
    return Written(EVENTS, list(_events(answer, response, item))) if answer.is_streamed else whole(response)


def _item(answer: OwnAnswer) -> dict[str, Any]:
    number = answer.number[:24]
    if answer.asked.way == "tool":
        return {
            "id": f"fc_{number}",
            "type": "function_call",
            "status": "completed",
            "arguments": answer.text,
            "call_id": f"call_{number}",
            "name": answer.asked.schema_name,
        }
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": answer.text}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "status": "completed",
        "content": [part],
        "role": "assistant",
    }


def _response(answer: OwnAnswer, item: dict[str, Any]) -> dict[str, Any]:
    said = {name: answer.body.get(name, usual) for name, usual in _REPEATED.items()}
    return {
        "id": f"resp_{answer.number}",
        "object": "response",
        "created_at": answer.at,
        "completed_at": answer.at,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": answer.asked.model,
        "output": [item],
        "usage": _USAGE,
        **said,
    }


def _events(answer: OwnAnswer, response: dict[str, Any], item: dict[str, Any]) -> Iterator[bytes]:
    numbers = itertools.count()

    def event(kind: str, **more: Any) -> bytes:
        return named_event(kind, sequence_number=next(numbers), **more)

    begun = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    place = {"item_id": item["id"], "output_index": 0}
    if answer.asked.way == "tool":
        yield event(
            "response.output_item.added",
            output_index=0,
            item={**item, "arguments": "", "status": "in_progress"},
        )
        for piece in answer.text_pieces():
            yield event("response.function_call_arguments.delta", **place, delta=piece)
        yield event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=answer.text
        )
    else:
        yield event(
            "response.output_item.added",
            output_index=0,
            item={**item, "content": [], "status": "in_progress"},
        )
        part = item["content"][0]
        place["content_index"] = 0
        yield event("response.content_part.added", **place, part={**part, "text": ""})
        for piece in answer.text_pieces():
            yield event("response.output_text.delta", **place, delta=piece, logprobs=[])
        yield event("response.output_text.done", **place, text=answer.text, logprobs=[])
        yield event("response.content_part.done", **place, part=part)
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=response)
