"""OpenAI's chat completions, which most servers of LLMs speak: json_schema, json_object, and tools.

Source: the API's reference, and openai-python's types/chat/.
"""

from collections.abc import Mapping

from bertsmith.mirror.call import (
    OWN_NUMBER,
    STUDENT_ANSWER,
    Answered,
    Asked,
    Json,
    Message,
    NotMirrored,
)
from bertsmith.mirror.formats.reading import (
    as_json,
    chosen,
    count,
    list_of,
    logprobs_of,
    model_of,
    object_of,
    parsed,
    subjects_of,
    text_of,
    texts_of,
    word,
)
from bertsmith.mirror.streams import join_chat

NAME, PATH = "openai-chat", "/chat/completions"
_KEPT = (
    "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens", "frequency_penalty",
    "presence_penalty", "logit_bias", "stop", "reasoning_effort", "verbosity", "logprobs", "top_logprobs",
    "response_format", "tools", "tool_choice", "parallel_tool_calls",
)  # fmt: skip
_FINISHED_EARLY = {"length": "truncated", "content_filter": "content-filter"}
join = join_chat


def read_request(body: Mapping[str, Json]) -> Asked:
    """Raises NotMirrored saying why."""
    if (body.get("n") or 1) != 1:
        raise NotMirrored("several-choices")
    way, name, schema = _schema(body)
    messages = tuple(message_of(each) for each in list_of(body.get("messages"), "malformed-request"))
    return Asked(NAME, model_of(body), messages, name, schema, way, chosen(body, _KEPT), subjects_of(body))


def _schema(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    wanted = body.get("response_format")
    wanted = wanted if isinstance(wanted, dict) else {}
    kind = wanted.get("type")
    if kind == "json_schema":
        described = object_of(wanted.get("json_schema"), "malformed-request")
        return "json-schema", word(described.get("name")), object_of(described.get("schema"), "no-schema")
    if kind == "json_object":
        return "json-object", "", {"type": "object"}
    return _tool(body)


def _tool(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    """The one tool that the model has to call."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        raise NotMirrored("no-schema")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = object_of(choice.get("allowed_tools"), "malformed-request")
        tools, choice = allowed_of(tools, allowed.get("tools")), allowed.get("mode")
    functions = [
        object_of(each, "malformed-request").get("function") for each in list_of(tools, "malformed-request")
    ]
    return required_tool(functions, choice, "parameters")


def allowed_of(tools: Json, allowed: Json) -> list[Json]:
    """Those tools that a request's tool_choice leaves."""
    names = [_name_of(each) for each in list_of(allowed, "malformed-request")]
    return [each for each in list_of(tools, "malformed-request") if _name_of(each) in names]


def _name_of(tool: Json) -> Json:
    tool = object_of(tool, "malformed-request")
    return object_of(tool.get("function", tool), "malformed-request").get("name")


def required_tool(
    functions: list[Json], choice: Json, schema_key: str
) -> tuple[str, str, Mapping[str, Json]]:
    """The one that `choice` names, or the only one where one is required."""
    if isinstance(choice, dict):
        named = choice.get("function", choice)
        name = named.get("name") if isinstance(named, dict) else None
        functions = [each for each in functions if isinstance(each, dict) and each.get("name") == name]
    elif choice not in ("required", "any"):  # as Mistral's clients call it
        raise NotMirrored("tool-not-required")
    if len(functions) != 1 or not isinstance(functions[0], dict):
        raise NotMirrored("several-tools")
    schema = functions[0].get(schema_key) or {"type": "object"}
    return "tool", text_of(functions[0].get("name")), object_of(schema, "malformed-request")


def message_of(given: Json) -> Message:
    """One of a request. Raises NotMirrored."""
    message = object_of(given, "malformed-request")
    parts = texts_of(message.get("content"))
    calls = message.get("tool_calls") or ()
    return Message(text_of(message.get("role")), (*parts, *(as_json(each.get("function")) for each in calls)))


def read_answer(asked: Asked, body: Mapping[str, Json]) -> Answered:
    """Raises NotMirrored saying why."""
    # A student's, of 0.3.0 too, whatever a gateway before it has made of the answer's id and its headers.
    if word(body.get("system_fingerprint")).startswith(OWN_NUMBER):
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
    return Answered(
        value_of(asked, message),
        word(body.get("model")),
        finished,
        word(body.get("id")),
        *tokens_of(body),
        logprobs=logprobs_of(logprobs.get("content")) if isinstance(logprobs, dict) else None,
    )


def tokens_of(body: Mapping[str, Json]) -> tuple[int | None, int | None]:
    """Read and written."""
    usage = body.get("usage")
    return count(usage, "prompt_tokens"), count(usage, "completion_tokens")


def value_of(asked: Asked, message: Mapping[str, Json]) -> Json:
    """What the message says, as JSON: its content, or the arguments of the tool that was asked for."""
    calls = message.get("tool_calls") or []
    if asked.way != "tool":
        if calls:
            raise NotMirrored("tool-call")
        return parsed("".join(texts_of(message.get("content"))))
    if len(calls) != 1:
        raise NotMirrored("several-tool-calls" if calls else "no-tool-call")
    function = object_of(calls[0].get("function"), "malformed-answer")
    if function.get("name") != asked.schema_name:
        raise NotMirrored("other-tool")
    return parsed(text_of(function.get("arguments"), "malformed-answer"))


def error_body(message: str, code: str) -> Json:
    """OpenAI's envelope."""
    return {"error": {"message": message, "type": "upstream_error", "param": None, "code": code}}
