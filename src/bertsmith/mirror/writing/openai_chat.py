"""A chat completion, and its chunks. Source: the API's reference, and openai-python's types/chat/."""

from collections.abc import Iterator
from typing import Any

from bertsmith.mirror.call import Json, NotMirrored
from bertsmith.mirror.writing.own_answer import EVENTS, OwnAnswer, Written, data, whole

_USAGE = {
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "total_tokens": 0,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}


def write(answer: OwnAnswer) -> Written:
    """Raises NotMirrored where the client wants what only an LLM has."""
    if answer.body.get("logprobs"):
        raise NotMirrored("logprobs-wanted")
    if answer.body.get("store"):
        raise NotMirrored("store-wanted")
    if answer.is_streamed:
        return Written(EVENTS, list(_chunks(answer)))
    is_call = answer.asked.way == "tool"
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if is_call:
        call = {"id": _call_id(answer), "type": "function", "function": _function(answer, answer.text)}
        message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    message["annotations"] = []
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finished(answer)}
    return whole(_head(answer, "chat.completion") | {"choices": [choice], "usage": _USAGE})


def _chunks(answer: OwnAnswer) -> Iterator[bytes]:
    head = _head(answer, "chat.completion.chunk")
    counts = bool((answer.body.get("stream_options") or {}).get("include_usage"))
    if counts:
        head["usage"] = None

    def chunk(delta: dict[str, Json], finished: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finished}
        return data(head | {"choices": [choice]})

    if answer.asked.way == "tool":
        begun = {"index": 0, "id": _call_id(answer), "type": "function", "function": _function(answer, "")}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [begun], "refusal": None})
        for piece in answer.text_pieces():
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    else:
        yield chunk({"role": "assistant", "content": "", "refusal": None})
        for piece in answer.text_pieces():
            yield chunk({"content": piece})
    yield chunk({}, _finished(answer))
    if counts:
        yield data(head | {"choices": [], "usage": _USAGE})
    yield b"data: [DONE]\n\n"


def _head(answer: OwnAnswer, kind: str) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": kind,
        "created": answer.at,
        "model": answer.asked.model,
        "service_tier": "default",
        "system_fingerprint": f"bertsmith_{answer.student}",
    }


def _finished(answer: OwnAnswer) -> str:
    """A tool that the request names is answered with stop, one that it requires with tool_calls."""
    if answer.asked.way != "tool":
        return "stop"
    return "stop" if isinstance(answer.body.get("tool_choice"), dict) else "tool_calls"


def _function(answer: OwnAnswer, arguments: str) -> dict[str, str]:
    return {"name": answer.asked.schema_name, "arguments": arguments}


def _call_id(answer: OwnAnswer) -> str:
    return f"call_{answer.number[:24]}"
