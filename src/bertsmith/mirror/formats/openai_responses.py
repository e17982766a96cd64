"""OpenAI's Responses: text.format, and function tools.

Source: the API's reference, and openai-python's types/responses/.
"""

from collections.abc import Mapping

from bertsmith.mirror.call import Answered, Asked, Json, Message, NotMirrored
from bertsmith.mirror.formats.openai_chat import allowed_of, error_body, required_tool
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
from bertsmith.mirror.streams import join_responses

__all__ = ["NAME", "PATH", "error_body", "join", "messages_of", "read_answer", "read_request"]

NAME, PATH = "openai-responses", "/responses"
_KEPT = (
    "temperature", "top_p", "top_logprobs", "max_output_tokens", "reasoning", "text", "tools", "tool_choice",
    "parallel_tool_calls", "truncation", "include",
)  # fmt: skip
# With these a part of what is asked lies on the provider's machines.
_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
_INCOMPLETE = {"max_output_tokens": "truncated", "content_filter": "content-filter"}
join = join_responses


def read_request(body: Mapping[str, Json]) -> Asked:
    """Raises NotMirrored saying why."""
    if any(body.get(name) for name in _ELSEWHERE):
        raise NotMirrored("server-state")
    if body.get("background"):
        raise NotMirrored("background")
    way, name, schema = _schema(body)
    messages = []
    if body.get("instructions"):
        messages.append(Message("system", texts_of(body["instructions"])))
    given = body.get("input")
    if isinstance(given, str):
        messages.append(Message("user", (given,)))
    else:
        messages += [message for each in list_of(given, "malformed-request") for message in messages_of(each)]
    return Asked(
        NAME,
        model_of(body),
        tuple(messages),
        name,
        schema,
        way,
        chosen(body, _KEPT),
        subjects_of(body),
    )


def _schema(body: Mapping[str, Json]) -> tuple[str, str, Mapping[str, Json]]:
    wanted = body.get("text")
    described = wanted.get("format") if isinstance(wanted, dict) else None
    described = described if isinstance(described, dict) else {}
    kind = described.get("type")
    if kind == "json_schema":
        return "json-schema", word(described.get("name")), object_of(described.get("schema"), "no-schema")
    if kind == "json_object":
        return "json-object", "", {"type": "object"}
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        raise NotMirrored("no-schema")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = allowed_of(tools, choice.get("tools")), choice.get("mode")
    return required_tool(list_of(tools, "malformed-request"), choice, "parameters")


def messages_of(given: Json) -> list[Message]:
    """Of an item of the input: none for thoughts. Raises NotMirrored."""
    item = object_of(given, "malformed-request")
    kind = item.get("type") or "message"
    if kind == "message":
        return [Message(text_of(item.get("role")), texts_of(item.get("content")))]
    if kind == "function_call":
        return [
            Message("assistant", (as_json({"name": item.get("name"), "arguments": item.get("arguments")}),))
        ]
    if kind == "function_call_output":
        return [Message("tool", texts_of(item.get("output")))]
    if kind == "reasoning":
        return []
    raise NotMirrored("server-state" if kind == "item_reference" else "input-not-text")


def read_answer(asked: Asked, body: Mapping[str, Json]) -> Answered:
    """Raises NotMirrored saying why."""
    status = body.get("status")
    if status == "incomplete":
        details = body.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        raise NotMirrored(_INCOMPLETE.get(word(reason), "unfinished"))
    if status not in (None, "completed"):
        raise NotMirrored("upstream-error" if status == "failed" else "unfinished")
    texts, calls, logprobs = list[str](), list[Mapping[str, Json]](), list[Json]()
    for given in list_of(body.get("output"), "malformed-answer"):
        item = object_of(given, "malformed-answer")
        if item.get("type") == "function_call":
            calls.append(item)
        elif item.get("type") == "message":
            for part in item.get("content") or ():
                if part.get("type") == "refusal":
                    raise NotMirrored("refusal")
                texts.append(text_of(part.get("text"), "malformed-answer"))
                logprobs += part.get("logprobs") or []
    usage = body.get("usage")
    return Answered(
        _value(asked, texts, calls),
        word(body.get("model")),
        word(status),
        word(body.get("id")),
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        logprobs=logprobs_of(logprobs),
    )


def _value(asked: Asked, texts: list[str], calls: list[Mapping[str, Json]]) -> Json:
    if asked.way != "tool":
        if calls:
            raise NotMirrored("tool-call")
        if not texts:
            raise NotMirrored("no-answer")
        return parsed("".join(texts))
    if len(calls) != 1:
        raise NotMirrored("several-tool-calls" if calls else "no-tool-call")
    if calls[0].get("name") != asked.schema_name:
        raise NotMirrored("other-tool")
    return parsed(text_of(calls[0].get("arguments"), "malformed-answer"))
