"""What an LLM would answer, in every wire format: an intent, by a rule, whole or as a stream."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scripted_upstream import Reply, Seen

INTENTS = ["card", "transfer", "other"]
SCHEMA = {
    "type": "object",
    "properties": {"intent": {"type": "string", "enum": INTENTS}, "urgent": {"type": "boolean"}},
    "required": ["intent", "urgent"],
    "additionalProperties": False,
}
SYSTEM = "Which intent has the customer's message?"
_NUMBERS = itertools.count(1)


def value_for(text: str) -> dict[str, Any]:
    """The rule."""
    intent = next((each for each in INTENTS if each in text), "other")
    return {"intent": intent, "urgent": "!" in text}


def script(seen: Seen) -> Reply:
    """Answers by path."""
    path = seen.target.partition("?")[0]
    for ending, answer in _ANSWERS.items():
        if path.endswith(ending) and seen.method == "POST":
            return answer(seen.json())
    if path.endswith("/models"):
        return Reply([b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'])
    return Reply([b'{"error":{"message":"no such path"}}'], 404)


def _whole(body: Mapping[str, Any]) -> Reply:
    return Reply([json.dumps(body, separators=(",", ":")).encode()])


def _stream(events: Iterator[str]) -> Reply:
    return Reply(
        [each.encode() for each in events], headers={"content-type": "text/event-stream"}, is_stream=True
    )


def _pieces(text: str) -> list[str]:
    return re.findall(r".{1,7}", text, re.DOTALL)


def _id(kind: str) -> str:
    return f"{kind}_{next(_NUMBERS)}"


def chat(body: Mapping[str, Any]) -> Reply:
    """Chat completions: text, json_schema, or a tool."""
    value = json.dumps(value_for(str(body["messages"][-1]["content"])))
    named = body["tools"][0]["function"]["name"] if body.get("tools") else None
    if body.get("stream"):
        return _stream(_chat_chunks(body, value, named))
    called = body["function_call"]["name"] if body.get("functions") else None
    message: dict[str, Any] = {"role": "assistant", "content": value, "refusal": None}
    if named:
        call = {"id": "call_1", "type": "function", "function": {"name": named, "arguments": value}}
        message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    if called:
        call = {"name": called, "arguments": value}
        message = {"role": "assistant", "content": None, "refusal": None, "function_call": call}
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if named else "stop",
        "logprobs": None,
    }
    if body.get("logprobs"):
        top = [{"token": "a", "logprob": -0.1, "bytes": None}, {"token": "b", "logprob": -2.5, "bytes": None}]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}], "refusal": None}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    return _whole(_chat_head(body) | {"object": "chat.completion", "choices": [choice], "usage": usage})


def _chat_head(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": _id("chatcmpl"), "created": 1_760_000_000, "model": f"{body['model']}-2026-01-01"}


def _chat_chunks(body: Mapping[str, Any], value: str, named: str | None) -> Iterator[str]:
    head = _chat_head(body) | {"object": "chat.completion.chunk"}

    def chunk(delta: dict[str, Any], finished: str | None = None, **more: Any) -> str:
        choices = [{"index": 0, "delta": delta, "finish_reason": finished, "logprobs": None}]
        return f"data: {json.dumps(head | {'choices': choices} | more)}\n\n"

    if body.get("functions"):
        function = {"name": body["function_call"]["name"], "arguments": ""}
        yield chunk({"role": "assistant", "content": None, "function_call": function})
        for piece in _pieces(value):
            yield chunk({"function_call": {"arguments": piece}})
        yield chunk({}, "stop")
        yield "data: [DONE]\n\n"
        return
    yield chunk({"role": "assistant", "content": None if named else ""})
    if named:
        function = {"name": named, "arguments": ""}
        yield chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})
    for piece in _pieces(value):
        in_call = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        yield chunk(in_call if named else {"content": piece})
    yield chunk({}, "tool_calls" if named else "stop")
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        yield chunk({}, choices=[], usage=usage)
    yield "data: [DONE]\n\n"


def responses(body: Mapping[str, Any]) -> Reply:
    """The Responses API."""
    given = body["input"] if isinstance(body["input"], str) else body["input"][-1]["content"]
    value = json.dumps(value_for(str(given)))
    response = _id("resp")
    item: dict[str, Any]
    if body.get("tools"):
        name = body["tools"][0]["name"]
        item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": name, "arguments": value}
    else:
        part = {"type": "output_text", "text": value, "annotations": [], "logprobs": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
    item["status"] = "completed"
    whole = {
        "id": response,
        "object": "response",
        "created_at": 1_760_000_000,
        "model": body["model"],
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 18,
        },
    }
    return _stream(_response_events(whole, item, value)) if body.get("stream") else _whole(whole)


def _response_events(whole: dict[str, Any], item: dict[str, Any], value: str) -> Iterator[str]:
    numbers = itertools.count()

    def event(kind: str, **more: Any) -> str:
        return (
            f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': next(numbers), **more})}\n\n"
        )

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    place = {"output_index": 0, "item_id": item["id"]}
    if item["type"] == "message":
        started = {**item, "content": [], "status": "in_progress"}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield event("response.output_item.added", output_index=0, item=started)
        yield event("response.content_part.added", **place, content_index=0, part=empty)
        for piece in _pieces(value):
            yield event("response.output_text.delta", **place, content_index=0, delta=piece, logprobs=[])
        yield event("response.output_text.done", **place, content_index=0, text=value, logprobs=[])
        yield event("response.content_part.done", **place, content_index=0, part=item["content"][0])
    else:
        started = {**item, "arguments": "", "status": "in_progress"}
        yield event("response.output_item.added", output_index=0, item=started)
        for piece in _pieces(value):
            yield event("response.function_call_arguments.delta", **place, delta=piece)
        yield event("response.function_call_arguments.done", **place, name=item["name"], arguments=value)
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=whole)


def messages(body: Mapping[str, Any]) -> Reply:
    """Anthropic's messages."""
    content = body["messages"][-1]["content"]
    value = value_for(str(content))
    if body.get("tools"):
        name = body["tools"][0]["name"]
        block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": value}
    else:
        block = {"type": "text", "text": json.dumps(value), "citations": None}
    whole = {
        "id": _id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [block],
        "stop_reason": "tool_use" if body.get("tools") else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }
    return _stream(_message_events(whole, block, value)) if body.get("stream") else _whole(whole)


def _message_events(whole: dict[str, Any], block: dict[str, Any], value: Any) -> Iterator[str]:
    def event(kind: str, **more: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n"

    yield event("message_start", message={**whole, "content": [], "stop_reason": None})
    is_tool = block["type"] == "tool_use"
    begun = {**block, "input": {}} if is_tool else {**block, "text": ""}
    yield event("content_block_start", index=0, content_block=begun)
    yield event("ping")
    for piece in _pieces(json.dumps(value)):
        kinds = (
            {"type": "input_json_delta", "partial_json": piece}
            if is_tool
            else {"type": "text_delta", "text": piece}
        )
        yield event("content_block_delta", index=0, delta=kinds)
    yield event("content_block_stop", index=0)
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=ended, usage={"output_tokens": 7})
    yield event("message_stop")


def systemone(body: Mapping[str, Any]) -> Reply:
    """Each option its share, the first the most."""
    answers: dict[str, Any] = {}
    for name, question in body["questions"].items():
        if question["type"] == "noul":
            answers[name] = {"type": "noul", "noul": 0.9}
        elif question["type"] == "choice":
            options = list(question["criteria"])
            shares = {each: 0.1 / (len(options) - 1) for each in options} | {options[0]: 0.9}
            answers[name] = {
                "type": "choice", "choice": options[0], "probabilities": shares, "confidence": 0.8,
            }  # fmt: skip
        else:
            levels = {str(number): 0.0 for number in range(len(question["criteria"]))} | {"1": 0.7, "0": 0.3}
            legend = {str(number): each for number, each in enumerate(question["criteria"])}
            answers[name] = {
                "type": "score", "score": 0.7, "legend": legend, "probabilities": levels, "confidence": 0.5,
            }  # fmt: skip
    usage = {"input_tokens": 20, "output_tokens": 0}
    return _whole({"model": body.get("model", "jev"), "answers": answers, "usage": usage})


def decisions(body: Mapping[str, Any]) -> Reply:
    """As `systemone`, and a question of name 'refused' is."""
    answers: list[dict[str, Any]] = []
    for question in body["questions"]:
        name = question.get("name")
        if name == "refused":
            answers.append({"type": "refusal", "name": name})
        elif question["type"] == "predicate":
            answers.append({"type": "predicate", "name": name, "probability": 0.25})
        elif question["type"] == "choice":
            values = [each["value"] for each in question["choices"]]
            spread = [
                {"value": each, "probability": 0.9 if each is values[0] else 0.1 / (len(values) - 1)}
                for each in values
            ]
            answers.append(
                {
                    "type": "choice",
                    "name": name,
                    "choice": values[0],
                    "confidence": 0.8,
                    "probabilities": spread,
                }
            )
        else:
            spread = [
                {"value": number, "label": each["label"], "probability": 0.8 if number == 1 else 0.2}
                for number, each in enumerate(question["levels"])
            ]
            answers.append(
                {"type": "score", "name": name, "score": 0.8, "confidence": 0.6, "probabilities": spread}
            )
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 20,
    }
    return _whole({"model": body["model"], "answers": answers, "usage": usage})


_ANSWERS = {
    "/chat/completions": chat,
    "/responses": responses,
    "/messages": messages,
    "/systemone": systemone,
    "/decisions": decisions,
}
