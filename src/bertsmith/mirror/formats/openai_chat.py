"""OpenAI's chat completions, which most servers of LLMs speak: json_schema, json_object, and tools.

Source: the API's reference, and openai-python's types/chat/.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
    data,
    whole,
)

_PARAMETERS = (
    "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens", "frequency_penalty",
    "presence_penalty", "logit_bias", "stop", "reasoning_effort", "verbosity", "logprobs", "top_logprobs",
    "response_format", "tools", "tool_choice", "parallel_tool_calls",
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
    """What OpenAI's formats share."""

    PROVIDER = "openai"
    BASE_HAS_VERSION = True

    def error_body(self, message: str, code: str) -> Json:
        """OpenAI's envelope."""
        return {"error": {"message": message, "type": "upstream_error", "param": None, "code": code}}


class OpenAIChat(OpenAIFormat):
    """Chat completions."""

    NAME = "openai-chat"
    PATH = "/chat/completions"
    KEY = "OPENAI_API_KEY"

    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        """Raises NotMirrored saying why."""
        if (body.get("n") or 1) != 1:
            raise NotMirrored("several-choices")
        way, name, schema = _read_schema(body)
        messages = tuple(read_message(each) for each in list_of(body.get("messages"), "malformed-request"))
        return CompletionRequest(
            self.NAME,
            model_of(body),
            messages,
            name,
            schema,
            way,
            chosen(body, _PARAMETERS),
            subjects_of(body),
        )

    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        """Raises NotMirrored saying why."""
        # A student's, of 0.3.0 too, whatever a gateway before it has made of the answer's id and its headers.
        if word(body.get("system_fingerprint")).startswith(OWN_ID_PREFIX):
            raise NotMirrored(STUDENT_ANSWER)
        choices = list_of(body.get("choices"), "malformed-answer")
        if len(choices) != 1:
            raise NotMirrored("several-choices" if choices else "no-answer")
        choice = object_of(choices[0], "malformed-answer")
        finished = word(choice.get("finish_reason"))
        message = object_of(choice.get("message"), "malformed-answer")
        if message.get("refusal"):
            raise NotMirrored("refusal")
        if finished in _FINISHED_EARLY:
            raise NotMirrored(_FINISHED_EARLY[finished])
        logprobs = choice.get("logprobs")
        return Completion(
            _read_value(request, message),
            word(body.get("model")),
            finished,
            word(body.get("id")),
            *self.tokens_of(body),
            logprobs=logprobs_of(logprobs.get("content")) if isinstance(logprobs, dict) else None,
        )

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """Chunks of chat completions → the completion."""
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
        if not choices or any(not each.get("finish_reason") for each in choices.values()):
            raise NotMirrored("cut")
        joined["choices"] = [_finish_choice(index, choices[index]) for index in sorted(choices)]
        return joined

    def write(self, answer: StudentCompletion) -> ResponseBody:
        """Raises NotMirrored where the client wants what only an LLM has."""
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
        message["annotations"] = []
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
        return whole(_chunk_head(answer, "chat.completion") | {"choices": [choice], "usage": _USAGE})

    def tokens_of(self, body: Mapping[str, Json]) -> Tokens:
        """Read and written."""
        usage = body.get("usage")
        return count(usage, "prompt_tokens"), count(usage, "completion_tokens")

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        is_other = "questions" in request or answer.get("type") == "message"
        return "messages" in request and not is_other

    def write_request(self, request: CompletionRequest) -> dict[str, Json]:
        messages = [{"role": message.role, "content": write_content(message)} for message in request.messages]
        return {**request.parameters, "model": request.model, "messages": messages}


def _read_schema(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    wanted = body.get("response_format")
    wanted = wanted if isinstance(wanted, dict) else {}
    kind = wanted.get("type")
    if kind == "json_schema":
        described = object_of(wanted.get("json_schema"), "malformed-request")
        return "json-schema", word(described.get("name")), object_of(described.get("schema"), "no-schema")
    if kind == "json_object":
        return "json-object", "", {"type": "object"}
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        raise NotMirrored("no-schema")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = object_of(choice.get("allowed_tools"), "malformed-request")
        tools, choice = select_allowed_tools(tools, allowed.get("tools")), allowed.get("mode")
    functions = [
        object_of(each, "malformed-request").get("function") for each in list_of(tools, "malformed-request")
    ]
    return find_required_tool(functions, choice, "parameters")


def select_allowed_tools(tools: Json, allowed: Json) -> list[Json]:
    """Those tools that a request's tool_choice leaves."""
    names = [_tool_name(each) for each in list_of(allowed, "malformed-request")]
    return [each for each in list_of(tools, "malformed-request") if _tool_name(each) in names]


def _tool_name(tool: Json) -> Json:
    tool = object_of(tool, "malformed-request")
    return object_of(tool.get("function", tool), "malformed-request").get("name")


def find_required_tool(
    functions: list[Json], choice: Json, schema_key: str
) -> tuple[str, str, Mapping[str, Json]]:
    """The one that `choice` names, or the only one where one is required."""
    if isinstance(choice, dict):
        named = choice.get("function", choice)
        name = named.get("name") if isinstance(named, dict) else None
        functions = [
            function for function in functions if isinstance(function, dict) and function.get("name") == name
        ]
    elif choice not in ("required", "any"):  # as Mistral's clients call it
        raise NotMirrored("tool-not-required")
    if len(functions) != 1 or not isinstance(functions[0], dict):
        raise NotMirrored("several-tools")
    schema = functions[0].get(schema_key) or {"type": "object"}
    return "tool", text_of(functions[0].get("name")), object_of(schema, "malformed-request")


def read_message(given: Json) -> ChatMessage:
    """One of a request. Raises NotMirrored."""
    message = object_of(given, "malformed-request")
    parts = texts_of(message.get("content"))
    calls = message.get("tool_calls") or ()
    return ChatMessage(
        text_of(message.get("role")), (*parts, *(as_json(call.get("function")) for call in calls))
    )


def _read_value(request: CompletionRequest, message: Mapping[str, Json]) -> Json:
    """What the message says, as JSON: its content, or the arguments of the tool that was asked for."""
    calls = message.get("tool_calls") or []
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


def _finish_choice(index: int, choice: dict[str, Any]) -> dict[str, Any]:
    calls = choice["message"]["tool_calls"]
    tool_calls = [calls[place] for place in sorted(calls)] or None
    return {
        "index": index,
        "finish_reason": choice["finish_reason"],
        "message": {"role": "assistant", **choice["message"], "tool_calls": tool_calls},
        "logprobs": {"content": choice["logprobs"]} if choice["logprobs"] else None,
    }


def _write_chunks(answer: StudentCompletion) -> Iterator[bytes]:
    head = _chunk_head(answer, "chat.completion.chunk")
    counts = bool((answer.body.get("stream_options") or {}).get("include_usage"))
    if counts:
        head["usage"] = None

    def chunk(delta: dict[str, Json], finished: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finished}
        return data(head | {"choices": [choice]})

    if answer.request.way == "tool":
        begun = {
            "index": 0,
            "id": _call_id(answer),
            "type": "function",
            "function": _function_call(answer, ""),
        }
        yield chunk({"role": "assistant", "content": None, "tool_calls": [begun], "refusal": None})
        for piece in answer.text_pieces():
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    else:
        yield chunk({"role": "assistant", "content": "", "refusal": None})
        for piece in answer.text_pieces():
            yield chunk({"content": piece})
    yield chunk({}, _finish_reason(answer))
    if counts:
        yield data(head | {"choices": [], "usage": _USAGE})
    yield b"data: [DONE]\n\n"


def _chunk_head(answer: StudentCompletion, kind: str) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": kind,
        "created": answer.at,
        "model": answer.request.model,
        "service_tier": "default",
        "system_fingerprint": f"bertsmith_{answer.student}",
    }


def _finish_reason(answer: StudentCompletion) -> str:
    """A tool that the request names is answered with stop, one that it requires with tool_calls."""
    if answer.request.way != "tool":
        return "stop"
    return "stop" if isinstance(answer.body.get("tool_choice"), dict) else "tool_calls"


def _function_call(answer: StudentCompletion, arguments: str) -> dict[str, str]:
    return {"name": answer.request.schema_name, "arguments": arguments}


def _call_id(answer: StudentCompletion) -> str:
    return f"call_{answer.number[:24]}"


def write_content(message: ChatMessage) -> Json:
    """As a request of ours has it."""
    if len(message.parts) == 1:
        return message.parts[0]
    return [{"type": "text", "text": part} for part in message.parts]
