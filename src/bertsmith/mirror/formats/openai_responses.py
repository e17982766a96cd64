"""OpenAI's Responses: text.format, and function tools.

Source: the API's reference, and openai-python's types/responses/.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest, Json, NotMirrored
from bertsmith.mirror.formats.openai_chat import OpenAIFormat, find_required_tool, select_allowed_tools
from bertsmith.mirror.formats.reading import (
    Event,
    as_json,
    chosen,
    count,
    list_of,
    logprobs_of,
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
    named_event,
    whole,
)

# Parameters of a request that are stored with its call.
_PARAMETERS = (
    "temperature", "top_p", "top_logprobs", "max_output_tokens", "reasoning", "text", "tools", "tool_choice",
    "parallel_tool_calls", "truncation", "include",
)  # fmt: skip
# Keys of a request whose input is partly on the provider's machines.
_SERVER_STATE_KEYS = ("previous_response_id", "conversation", "prompt")
_INCOMPLETE = {"max_output_tokens": "truncated", "content_filter": "content-filter"}
_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
# Keys of a request that its response repeats, with their default values.
_ECHOED: dict[str, Json] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "store": False,
    "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_p": 1.0, "truncation": "disabled", "user": None,
}  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"


class OpenAIResponses(OpenAIFormat):
    """The Responses API. A part of the input may be on the provider's machines: then nothing is mirrored."""

    NAME = "openai-responses"
    PATH = "/responses"
    INPUT = "input"
    KEY = "OPENAI_API_KEY"
    NO_INPUT = "server-state"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        if any(body.get(name) for name in _SERVER_STATE_KEYS):
            raise NotMirrored("server-state")
        if body.get("background"):
            raise NotMirrored("background")
        way, name, schema = _read_schema(body)
        messages = []
        if body.get("instructions"):
            messages.append(ChatMessage("system", texts_of(body["instructions"])))
        content = body.get("input")
        if isinstance(content, str):
            messages.append(ChatMessage("user", (content,)))
        else:
            messages += [
                message for item in list_of(content, "malformed-request") for message in _read_messages(item)
            ]
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
        status = body.get("status")
        if status == "incomplete":
            details = body.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            raise NotMirrored(_INCOMPLETE.get(word(reason), "unfinished"))
        if status not in (None, "completed"):
            raise NotMirrored("upstream-error" if status == "failed" else "unfinished")
        texts, calls, logprobs = list[str](), list[Mapping[str, Json]](), list[Json]()
        for output in list_of(body.get("output"), "malformed-answer"):
            item = object_of(output, "malformed-answer")
            if item.get("type") == "function_call":
                calls.append(item)
            elif item.get("type") == "message":
                for part in item.get("content") or ():
                    if part.get("type") == "refusal":
                        raise NotMirrored("refusal")
                    texts.append(text_of(part.get("text"), "malformed-answer"))
                    logprobs += part.get("logprobs") or []
        usage = body.get("usage")
        return Completion(
            _read_value(request, texts, calls),
            word(body.get("model")),
            word(status),
            word(body.get("id")),
            count(usage, "input_tokens"),
            count(usage, "output_tokens"),
            logprobs=logprobs_of(logprobs),
        )

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """Returns the response that the last event contains."""
        items: dict[int, Json] = {}
        for event in objects_of(events):
            event_type = event.get("type")
            if event_type == "error":
                raise NotMirrored("upstream-error")
            if event_type == "response.output_item.done":
                items[event.get("output_index") or 0] = event.get("item")
            if event_type in ("response.completed", "response.incomplete", "response.failed"):
                response = event.get("response")
                if not isinstance(response, dict):
                    raise NotMirrored("malformed-answer")
                # Some servers leave the output out of their last event.
                output = response.get("output") or [items[index] for index in sorted(items)]
                return {**response, "output": output}
        raise NotMirrored("cut")

    def write(self, answer: StudentCompletion) -> ResponseBody:
        """Writes a response. Raises NotMirrored if the client asks for log probabilities or wants the
        response to be stored.
        """
        if answer.body.get("top_logprobs") or _LOGPROBS in (answer.body.get("include") or ()):
            raise NotMirrored("logprobs-wanted")
        if answer.body.get("store"):
            raise NotMirrored("store-wanted")
        item = _write_item(answer)
        echoed = {name: answer.body.get(name, default) for name, default in _ECHOED.items()}
        response = {
            "id": f"resp_{answer.number}",
            "object": "response",
            "created_at": answer.at,
            "completed_at": answer.at,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "model": answer.request.model,
            "output": [item],
            "usage": _USAGE,
            **echoed,
        }
        return (
            ResponseBody(EVENTS, list(_write_events(answer, response, item)))
            if answer.is_streamed
            else whole(response)
        )

    def tokens_of(self, body: Mapping[str, Json]) -> Tokens:
        usage = body.get("usage")
        return count(usage, "input_tokens"), count(usage, "output_tokens")

    def write_request(self, request: CompletionRequest) -> dict[str, Json]:
        messages = list(request.messages)
        body: dict[str, Json] = {**request.parameters, "model": request.model, "store": False}
        if messages and messages[0].role == "system" and len(messages[0].parts) == 1:
            body["instructions"] = messages.pop(0).parts[0]
        body["input"] = [{"role": message.role, "content": _write_parts(message)} for message in messages]
        return body

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        """Whether a logged call is one of Responses. Requests of decisions and systemone have "questions",
        those of chats "messages".
        """
        is_other = "questions" in request or "messages" in request
        return "input" in request and "output" in answer and not is_other


def _read_schema(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    """How the request asks for JSON (CompletionRequest.way), the schema's name, and the schema."""
    text = body.get("text")
    text_format = text.get("format") if isinstance(text, dict) else None
    text_format = text_format if isinstance(text_format, dict) else {}
    format_type = text_format.get("type")
    if format_type == "json_schema":
        schema = object_of(text_format.get("schema"), "no-schema")
        return "json-schema", word(text_format.get("name")), schema
    if format_type == "json_object":
        return "json-object", "", {"type": "object"}
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        raise NotMirrored("no-schema")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = select_allowed_tools(tools, choice.get("tools")), choice.get("mode")
    return find_required_tool(list_of(tools, "malformed-request"), choice, "parameters")


def _read_messages(input_item: Json) -> list[ChatMessage]:
    """Reads an item of the input as a message; a reasoning item gives none. Raises NotMirrored for an item
    that is on the provider's machines, or that is no text.
    """
    item = object_of(input_item, "malformed-request")
    item_type = item.get("type") or "message"
    if item_type == "message":
        return [ChatMessage(text_of(item.get("role")), texts_of(item.get("content")))]
    if item_type == "function_call":
        return [
            ChatMessage(
                "assistant", (as_json({"name": item.get("name"), "arguments": item.get("arguments")}),)
            )
        ]
    if item_type == "function_call_output":
        return [ChatMessage("tool", texts_of(item.get("output")))]
    if item_type == "reasoning":
        return []
    raise NotMirrored("server-state" if item_type == "item_reference" else "input-not-text")


def _write_parts(message: ChatMessage) -> Json:
    """A message's content for a request: its text, or a list of its texts."""
    if len(message.parts) == 1:
        return message.parts[0]
    kind = "output_text" if message.role == "assistant" else "input_text"
    return [{"type": kind, "text": part} for part in message.parts]


def _read_value(request: CompletionRequest, texts: list[str], calls: list[Mapping[str, Json]]) -> Json:
    if request.way != "tool":
        if calls:
            raise NotMirrored("tool-call")
        if not texts:
            raise NotMirrored("no-answer")
        return parsed("".join(texts))
    if len(calls) != 1:
        raise NotMirrored("several-tool-calls" if calls else "no-tool-call")
    if calls[0].get("name") != request.schema_name:
        raise NotMirrored("other-tool")
    return parsed(text_of(calls[0].get("arguments"), "malformed-answer"))


def _write_item(answer: StudentCompletion) -> dict[str, Any]:
    """The only item of the response's output: a function call or a message."""
    id_suffix = answer.number[:24]
    if answer.request.way == "tool":
        return {
            "id": f"fc_{id_suffix}",
            "type": "function_call",
            "status": "completed",
            "arguments": answer.text,
            "call_id": f"call_{id_suffix}",
            "name": answer.request.schema_name,
        }
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": answer.text}
    return {
        "id": f"msg_{id_suffix}",
        "type": "message",
        "status": "completed",
        "content": [part],
        "role": "assistant",
    }


def _write_events(
    answer: StudentCompletion, response: dict[str, Any], item: dict[str, Any]
) -> Iterator[bytes]:
    sequence_numbers = itertools.count()

    def event(kind: str, **more: Any) -> bytes:
        return named_event(kind, sequence_number=next(sequence_numbers), **more)

    started = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    yield event("response.created", response=started)
    yield event("response.in_progress", response=started)
    address = {"item_id": item["id"], "output_index": 0}
    if answer.request.way == "tool":
        yield event(
            "response.output_item.added",
            output_index=0,
            item={**item, "arguments": "", "status": "in_progress"},
        )
        for chunk in answer.text_pieces():
            yield event("response.function_call_arguments.delta", **address, delta=chunk)
        yield event(
            "response.function_call_arguments.done", **address, name=item["name"], arguments=answer.text
        )
    else:
        yield event(
            "response.output_item.added",
            output_index=0,
            item={**item, "content": [], "status": "in_progress"},
        )
        part = item["content"][0]
        address["content_index"] = 0
        yield event("response.content_part.added", **address, part={**part, "text": ""})
        for chunk in answer.text_pieces():
            yield event("response.output_text.delta", **address, delta=chunk, logprobs=[])
        yield event("response.output_text.done", **address, text=answer.text, logprobs=[])
        yield event("response.content_part.done", **address, part=part)
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=response)
