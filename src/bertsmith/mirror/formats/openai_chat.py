"""OpenAI's chat completions, which most servers of LLMs speak: json_schema, json_object, and tools; and what
clients of old send in their place: functions, and vLLM's guided_json.

Source: the API's reference, and openai-python's types/chat/.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from bertsmith.mirror.call import (
    OWN_ID_PREFIX,
    STUDENT_ANSWER,
    ChatMessage,
    Completion,
    CompletionRequest,
    Json,
    NotMirrored,
)
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
    WireFormat,
    data,
    whole,
)

# Parameters of a request that are stored with its call.
_PARAMETERS = (
    "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens", "frequency_penalty",
    "presence_penalty", "logit_bias", "stop", "reasoning_effort", "verbosity", "logprobs", "top_logprobs",
    "response_format", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call",
    "guided_json",
)  # fmt: skip
# Limits on an answer that some servers know (vLLM, SGLang, llama.cpp) and no student keeps.
_OTHER_CONSTRAINTS = (
    "guided_choice", "guided_regex", "guided_grammar", "guided_decoding", "structured_outputs",
    "structural_tag", "json_schema", "grammar", "regex", "ebnf",
)  # fmt: skip
_FINISHED_EARLY = {"length": "truncated", "content_filter": "content-filter"}
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


class OpenAIFormat(WireFormat):
    """What all of OpenAI's wire formats have in common."""

    PROVIDER = "openai"
    BASE_HAS_VERSION = True

    def error_body(self, message: str, code: str) -> Json:
        """The error in the form that OpenAI's clients read."""
        return {"error": {"message": message, "type": "upstream_error", "param": None, "code": code}}


class OpenAIChat(OpenAIFormat):
    """The chat completions API, which most servers of LLMs offer."""

    NAME = "openai-chat"
    PATH = "/chat/completions"
    KEY = "OPENAI_API_KEY"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        if (body.get("n") or 1) != 1 or (body.get("best_of") or 1) != 1:
            raise NotMirrored("several-choices")
        way, name, schema = _read_schema(body)
        messages = tuple(map(read_message, list_of(body.get("messages"), "malformed-request")))
        return CompletionRequest(
            self.NAME,
            model_of(body),
            messages,
            name,
            schema,
            way,
            chosen(body, _PARAMETERS),
            users_of(body),
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        # A student's answer, even if a gateway has changed its id and headers; also one of version 0.3.0.
        if word(body.get("system_fingerprint")).startswith(OWN_ID_PREFIX):
            raise NotMirrored(STUDENT_ANSWER)
        choices = list_of(body.get("choices"), "malformed-answer")
        if len(choices) != 1:
            raise NotMirrored("several-choices" if choices else "no-answer")
        choice = object_of(choices[0], "malformed-answer")
        finish_reason = word(choice.get("finish_reason"))
        message = object_of(choice.get("message"), "malformed-answer")
        if message.get("refusal"):
            raise NotMirrored("refusal")
        if finish_reason in _FINISHED_EARLY:
            raise NotMirrored(_FINISHED_EARLY[finish_reason])
        logprobs = choice.get("logprobs")
        return Completion(
            _read_value(request, message),
            word(body.get("model")),
            finish_reason,
            word(body.get("id")),
            *self.tokens_of(body),
            logprobs=logprobs_of(logprobs.get("content")) if isinstance(logprobs, dict) else None,
        )

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """Joins the chunks of a streamed chat completion."""
        joined: dict[str, Json] = {}
        choices: dict[int, dict[str, Any]] = {}
        for chunk in objects_of(events):
            if chunk.get("error"):
                raise NotMirrored("upstream-error")
            for key in ("id", "model", "created", "system_fingerprint", "usage"):
                if chunk.get(key) is not None:
                    joined[key] = chunk[key]
            for piece in chunk.get("choices") or ():
                choice = choices.setdefault(
                    piece.get("index") or 0,
                    {"message": {"content": None, "refusal": None, "tool_calls": {}}, "logprobs": []},
                )
                _add_piece(choice, piece)
        if not choices or any(not choice.get("finish_reason") for choice in choices.values()):
            raise NotMirrored("cut")
        joined["choices"] = [_finish_choice(index, choices[index]) for index in sorted(choices)]
        return joined

    def write(self, answer: StudentCompletion) -> ResponseBody:
        """Writes a chat completion. Raises NotMirrored if the client asks for log probabilities or wants the
        completion to be stored.
        """
        if answer.body.get("logprobs"):
            raise NotMirrored("logprobs-wanted")
        if answer.body.get("store"):
            raise NotMirrored("store-wanted")
        if answer.is_streamed:
            return ResponseBody(EVENTS, list(_write_chunks(answer)))
        is_call = answer.request.way == "tool"
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if is_call:
            call = {
                "id": _call_id(answer),
                "type": "function",
                "function": _function_call(answer, answer.text),
            }
            message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
        if _is_of_old(answer):
            call_of_old = _function_call(answer, answer.text)
            message = {"role": "assistant", "content": None, "refusal": None, "function_call": call_of_old}
        message["annotations"] = []
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
        return whole(_completion_head(answer, "chat.completion") | {"choices": [choice], "usage": _USAGE})

    def tokens_of(self, body: Mapping[str, Json]) -> Tokens:
        """The prompt's and the completion's tokens."""
        usage = body.get("usage")
        return count(usage, "prompt_tokens"), count(usage, "completion_tokens")

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        is_other = "questions" in request or answer.get("type") == "message"
        return "messages" in request and not is_other

    def write_request(self, request: CompletionRequest) -> dict[str, Json]:
        messages = [{"role": message.role, "content": write_content(message)} for message in request.messages]
        return {**request.parameters, "model": request.model, "messages": messages}


def _read_schema(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    """How the request asks for JSON (CompletionRequest.way), the schema's name, and the schema."""
    if any(body.get(name) is not None for name in _OTHER_CONSTRAINTS):
        raise NotMirrored("other-constraint")
    response_format = body.get("response_format")
    response_format = response_format if isinstance(response_format, dict) else {}
    format_type = response_format.get("type")
    if format_type == "json_schema":
        json_schema = object_of(response_format.get("json_schema"), "malformed-request")
        return "json-schema", word(json_schema.get("name")), object_of(json_schema.get("schema"), "no-schema")
    if format_type == "json_object":
        return "json-object", "", {"type": "object"}
    if (guided := body.get("guided_json")) is not None:
        schema = orjson.loads(guided) if isinstance(guided, str) else guided
        return "json-schema", "", object_of(schema, "malformed-request")
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        if body.get("functions"):
            functions = list_of(body["functions"], "malformed-request")
            return find_required_tool(functions, body.get("function_call"), "parameters")
        raise NotMirrored("no-schema")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = object_of(choice.get("allowed_tools"), "malformed-request")
        tools, choice = select_allowed_tools(tools, allowed.get("tools")), allowed.get("mode")
    functions = [
        object_of(tool, "malformed-request").get("function") for tool in list_of(tools, "malformed-request")
    ]
    return find_required_tool(functions, choice, "parameters")


def select_allowed_tools(tools: Json, allowed: Json) -> list[Json]:
    """The tools of a request to which its tool_choice restricts the model."""
    names = [_tool_name(tool) for tool in list_of(allowed, "malformed-request")]
    return [tool for tool in list_of(tools, "malformed-request") if _tool_name(tool) in names]


def _tool_name(tool: Json) -> Json:
    tool = object_of(tool, "malformed-request")
    return object_of(tool.get("function", tool), "malformed-request").get("name")


def find_required_tool(
    functions: list[Json], choice: Json, schema_key: str
) -> tuple[str, str, Mapping[str, Json]]:
    """The tool that the model has to call: the one named by `choice`, or the only one if a call is required.

    Returns ("tool", its name, the schema of its arguments, which is under `schema_key`). Raises NotMirrored
    if the model may choose between tools, or not to call any.
    """
    if isinstance(choice, dict):
        named = choice.get("function", choice)
        name = named.get("name") if isinstance(named, dict) else None
        functions = [
            function for function in functions if isinstance(function, dict) and function.get("name") == name
        ]
    elif choice not in ("required", "any"):  # "any" is Mistral's word
        raise NotMirrored("tool-not-required")
    if len(functions) != 1 or not isinstance(functions[0], dict):
        raise NotMirrored("several-tools")
    schema = functions[0].get(schema_key) or {"type": "object"}
    return "tool", text_of(functions[0].get("name")), object_of(schema, "malformed-request")


def read_message(item: Json) -> ChatMessage:
    """Reads a message of a request; its tool calls become parts. Raises NotMirrored if it is malformed."""
    message = object_of(item, "malformed-request")
    parts = texts_of(message.get("content"))
    calls = [call.get("function") for call in message.get("tool_calls") or ()]
    if (call_of_old := message.get("function_call")) is not None:
        calls.append(call_of_old)
    return ChatMessage(text_of(message.get("role")), (*parts, *map(as_json, calls)))


def _read_value(request: CompletionRequest, message: Mapping[str, Json]) -> Json:
    """The JSON of an answer: the message's content, or the arguments of the requested tool."""
    calls = message.get("tool_calls") or []
    if (call_of_old := message.get("function_call")) is not None:
        calls = [*calls, {"function": call_of_old}]
    if request.way != "tool":
        if calls:
            raise NotMirrored("tool-call")
        return parsed("".join(texts_of(message.get("content"))))
    if len(calls) != 1:
        raise NotMirrored("several-tool-calls" if calls else "no-tool-call")
    function = object_of(calls[0].get("function"), "malformed-answer")
    if function.get("name") != request.schema_name:
        raise NotMirrored("other-tool")
    return parsed(text_of(function.get("arguments"), "malformed-answer"))


def _add_piece(choice: dict[str, Any], piece: Mapping[str, Json]) -> None:
    """Adds a chunk's choice to the choice that is being joined."""
    message, delta = choice["message"], piece.get("delta") or {}
    for key in ("content", "refusal"):
        if delta.get(key) is not None:
            message[key] = (message[key] or "") + delta[key]
    for position, call in enumerate(delta.get("tool_calls") or ()):
        # Some servers send whole calls without an index.
        joined_call = message["tool_calls"].setdefault(
            call.get("index", position),
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        joined_call["id"] = call.get("id") or joined_call["id"]
        function = call.get("function") or {}
        joined_call["function"]["name"] += function.get("name") or ""
        joined_call["function"]["arguments"] += function.get("arguments") or ""
    if (call_of_old := delta.get("function_call")) is not None:
        joined_call = message.setdefault("function_call", {"name": "", "arguments": ""})
        for key in joined_call:
            joined_call[key] += call_of_old.get(key) or ""
    choice["logprobs"] += (piece.get("logprobs") or {}).get("content") or []
    choice["finish_reason"] = piece.get("finish_reason") or choice.get("finish_reason")


def _finish_choice(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    calls = choice["message"]["tool_calls"]
    tool_calls = [calls[position] for position in sorted(calls)] or None
    return {
        "index": index,
        "finish_reason": choice["finish_reason"],
        "message": {"role": "assistant", **choice["message"], "tool_calls": tool_calls},
        "logprobs": {"content": choice["logprobs"]} if choice["logprobs"] else None,
    }


def _write_chunks(answer: StudentCompletion) -> Iterator[bytes]:
    head = _completion_head(answer, "chat.completion.chunk")
    includes_usage = bool((answer.body.get("stream_options") or {}).get("include_usage"))
    if includes_usage:
        head["usage"] = None

    def chunk(delta: dict[str, Json], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return data(head | {"choices": [choice]})

    if _is_of_old(answer):
        call_of_old = _function_call(answer, "")
        yield chunk({"role": "assistant", "content": None, "function_call": call_of_old, "refusal": None})
        for text_chunk in answer.text_pieces():
            yield chunk({"function_call": {"arguments": text_chunk}})
    elif answer.request.way == "tool":
        call = {
            "index": 0,
            "id": _call_id(answer),
            "type": "function",
            "function": _function_call(answer, ""),
        }
        yield chunk({"role": "assistant", "content": None, "tool_calls": [call], "refusal": None})
        for text_chunk in answer.text_pieces():
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": text_chunk}}]})
    else:
        yield chunk({"role": "assistant", "content": "", "refusal": None})
        for text_chunk in answer.text_pieces():
            yield chunk({"content": text_chunk})
    yield chunk({}, _finish_reason(answer))
    if includes_usage:
        yield data(head | {"choices": [], "usage": _USAGE})
    yield b"data: [DONE]\n\n"


def _completion_head(answer: StudentCompletion, kind: str) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": kind,
        "created": answer.at,
        "model": answer.request.model,
        "service_tier": "default",
        "system_fingerprint": f"bertsmith_{answer.student}",
    }


def _is_of_old(answer: StudentCompletion) -> bool:
    """Whether the client reads a function_call, as it was before there were tools."""
    return answer.request.way == "tool" and not answer.body.get("tools")


def _finish_reason(answer: StudentCompletion) -> str:
    """OpenAI's finish reason: stop, also for a tool that the request names; tool_calls for a required one,
    also of those that it allows.
    """
    choice = answer.body.get("tool_choice") or answer.body.get("function_call")
    is_named = isinstance(choice, dict) and choice.get("type") != "allowed_tools"
    return "stop" if answer.request.way != "tool" or is_named else "tool_calls"


def _function_call(answer: StudentCompletion, arguments: str) -> dict[str, str]:
    return {"name": answer.request.schema_name, "arguments": arguments}


def _call_id(answer: StudentCompletion) -> str:
    return f"call_{answer.number[:24]}"


def write_content(message: ChatMessage) -> Json:
    """A message's content for a request: its text, or a list of its texts."""
    if len(message.parts) == 1:
        return message.parts[0]
    return [{"type": "text", "text": part} for part in message.parts]
