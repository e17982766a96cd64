"""Server-sent events → the answer that they are pieces of, as it would have come whole."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from bertsmith.mirror.call import Json, NotMirrored

DONE = "[DONE]"


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


def join_chat(events: Iterable[Event]) -> Mapping[str, Json]:
    """Chunks of chat completions → the completion."""
    whole: dict[str, Json] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in objects_of(events):
        if chunk.get("error"):
            raise NotMirrored("upstream-error")
        for key in ("id", "model", "created", "system_fingerprint", "usage"):
            if chunk.get(key) is not None:
                whole[key] = chunk[key]
        for piece in chunk.get("choices") or ():
            choice = choices.setdefault(
                piece.get("index") or 0,
                {"message": {"content": None, "refusal": None, "tool_calls": {}}, "logprobs": []},
            )
            _add_piece(choice, piece)
    if not choices or any(not each.get("finish_reason") for each in choices.values()):
        raise NotMirrored("cut")
    whole["choices"] = [_finished(index, choices[index]) for index in sorted(choices)]
    return whole


def _add_piece(choice: dict[str, Any], piece: Mapping[str, Json]) -> None:
    message, delta = choice["message"], piece.get("delta") or {}
    for key in ("content", "refusal"):
        if delta.get(key) is not None:
            message[key] = (message[key] or "") + delta[key]
    for place, call in enumerate(delta.get("tool_calls") or ()):
        # Some servers send whole calls without an index.
        known = message["tool_calls"].setdefault(
            call.get("index", place),
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        known["id"] = call.get("id") or known["id"]
        function = call.get("function") or {}
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""
    choice["logprobs"] += (piece.get("logprobs") or {}).get("content") or []
    choice["finish_reason"] = piece.get("finish_reason") or choice.get("finish_reason")


def _finished(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    calls = choice["message"]["tool_calls"]
    tool_calls = [calls[place] for place in sorted(calls)] or None
    return {
        "index": index,
        "finish_reason": choice["finish_reason"],
        "message": {"role": "assistant", **choice["message"], "tool_calls": tool_calls},
        "logprobs": {"content": choice["logprobs"]} if choice["logprobs"] else None,
    }


def join_responses(events: Iterable[Event]) -> Mapping[str, Json]:
    """Events of the Responses API → the response, which the last one holds."""
    items: dict[int, Json] = {}
    for event in objects_of(events):
        kind = event.get("type")
        if kind == "error":
            raise NotMirrored("upstream-error")
        if kind == "response.output_item.done":
            items[event.get("output_index") or 0] = event.get("item")
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            response = event.get("response")
            if not isinstance(response, dict):
                raise NotMirrored("malformed-answer")
            # Some servers leave the output out of their last event.
            output = response.get("output") or [items[place] for place in sorted(items)]
            return {**response, "output": output}
    raise NotMirrored("cut")


def join_anthropic(events: Iterable[Event]) -> Mapping[str, Json]:
    """Events of Anthropic's messages → the message."""
    whole: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in objects_of(events):
        kind = event.get("type")
        if kind == "error":
            raise NotMirrored("upstream-error")
        if kind == "message_start":
            whole = dict(event.get("message") or {})
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
            whole |= event.get("delta") or {}
            whole["usage"] = {**(whole.get("usage") or {}), **(event.get("usage") or {})}
        elif kind == "message_stop":
            whole["content"] = [_whole_block(blocks[index]) for index in sorted(blocks)]
            return whole
    raise NotMirrored("cut")


def _whole_block(block: dict[str, Any]) -> dict[str, Any]:
    pieces = block.pop("pieces")
    if pieces:
        try:
            block["input"] = orjson.loads(pieces)
        except ValueError:
            raise NotMirrored("answer-not-json") from None
    return block
