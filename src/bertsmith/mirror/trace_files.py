"""Reads the exports of LangSmith and Langfuse: each record of an LLM call becomes a span as OpenTelemetry has
it, which `call_files.read_span_calls` reads.

    LangSmith    a run of run_type llm: inputs and outputs as OpenAI's or LangChain's messages, and child_runs
    Langfuse     an observation of type GENERATION: input and output; alone, in a trace's observations, in the
                 data of a page of its API, or a row of its export to blob storage

Other records, such as chains and events, are skipped. Read `holds_traces`, then `iterate_spans`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson

from bertsmith.mirror.call import OWN_ID_PREFIX, Json
from bertsmith.mirror.call_files import parse_time

_OBSERVATIONS = (
    "GENERATION",
    "SPAN",
    "EVENT",
    "AGENT",
    "TOOL",
    "CHAIN",
    "RETRIEVER",
    "EVALUATOR",
    "EMBEDDING",
    "GUARDRAIL",
)
_ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool", "function", "chat")},
    "human": "user",  # LangChain's
    "ai": "assistant",
    "model": "assistant",  # Gemini's
}
_OWN_ID = re.compile(f"{OWN_ID_PREFIX}[0-9a-f]{{32}}")  # of a student's answer
_MILLISECONDS = 1e11  # a time from here on is in milliseconds since 1970


def holds_traces(value: Mapping[str, Json]) -> bool:
    """Whether an object is a record of LangSmith or Langfuse, or holds such records."""
    if "run_type" in value and "inputs" in value:
        return True
    if value.get("type") in _OBSERVATIONS and ("startTime" in value or "start_time" in value):
        return True
    return any(
        isinstance(items := value.get(name), list)
        and bool(items)
        and isinstance(items[0], dict)
        and holds_traces(items[0])
        for name in ("observations", "data", "runs")
    )


def iterate_spans(value: Mapping[str, Json]) -> Iterator[dict[str, Any]]:
    """Yields a span for each LLM call of an object that `holds_traces`, at any depth."""
    for name in ("observations", "data", "runs", "child_runs"):
        for item in value.get(name) or ():
            if isinstance(item, dict):
                yield from iterate_spans(item)
    if value.get("run_type") == "llm":
        yield _read_run(value)
    elif value.get("type") == "GENERATION":
        yield _read_generation(value)


def _read_run(run: Mapping[str, Json]) -> dict[str, Any]:
    """The span of a run of LangSmith."""
    inputs, outputs = _as_dict(run.get("inputs")), _as_dict(run.get("outputs"))
    extra = _as_dict(run.get("extra"))
    settings, metadata = _as_dict(extra.get("invocation_params")), _as_dict(extra.get("metadata"))
    messages = inputs.get("messages", inputs.get("input", inputs.get("prompts")))
    if isinstance(messages, list) and messages and isinstance(messages[0], list):  # LangChain has batches
        messages = messages[0]
    model = settings.get("model") or settings.get("model_name") or metadata.get("ls_model_name")
    usage = _as_dict(outputs.get("usage")) | _as_dict(outputs.get("usage_metadata"))
    return _make_span(
        [*_system(inputs.get("system")), *_messages(messages)],
        _find_output(outputs),
        model=model or inputs.get("model"),
        answer_id=_find_students_id(outputs) or run.get("id"),
        tokens=(
            _first(run, "prompt_tokens") or _first(usage, "prompt_tokens", "input_tokens"),
            _first(run, "completion_tokens") or _first(usage, "completion_tokens", "output_tokens"),
        ),
        cost=run.get("total_cost"),
        user=metadata.get("user_id"),
        times=(run.get("start_time"), run.get("end_time")),
    )


def _read_generation(observation: Mapping[str, Json]) -> dict[str, Any]:
    """The span of a generation of Langfuse. Its exports hold input and output as JSON or as its text, and
    those to blob storage write start_time for startTime.
    """
    observation = {
        re.sub("_([a-z])", lambda letter: letter[1].upper(), name): value
        for name, value in observation.items()
    }
    given = _parse(observation.get("input"))
    messages = given.get("messages", given) if isinstance(given, dict) else given
    usage = _as_dict(_parse(observation.get("usageDetails"))) or _as_dict(_parse(observation.get("usage")))
    costs, output = _as_dict(_parse(observation.get("costDetails"))), _parse(observation.get("output"))
    system = given.get("system") if isinstance(given, dict) else None
    return _make_span(
        [*_system(system), *_messages(messages)],
        _find_output(output) if _holds_choices(output) else output,
        model=observation.get("model") or observation.get("providedModelName"),
        answer_id=_find_students_id(output) or observation.get("id"),
        tokens=(_first(usage, "input", "promptTokens"), _first(usage, "output", "completionTokens")),
        cost=_first(observation, "totalCost", "calculatedTotalCost") or _first(costs, "total"),
        user=observation.get("userId"),
        times=(observation.get("startTime"), observation.get("endTime")),
    )


def _find_students_id(output: Json) -> str:
    """The id of a student's answer, anywhere in what was logged of it; empty where an LLM gave it."""
    if isinstance(output, list):
        return next(filter(None, map(_find_students_id, output)), "")
    if not isinstance(output, dict):
        return ""
    name, fingerprint = output.get("id"), output.get("system_fingerprint")
    if isinstance(name, str) and _OWN_ID.search(name):
        return name
    if isinstance(fingerprint, str) and fingerprint.startswith(f"{OWN_ID_PREFIX}_"):
        return fingerprint
    return _find_students_id(list(output.values()))


def _find_output(outputs: Mapping[str, Json]) -> Json:
    """The answer in the outputs of a run: OpenAI's choices, LangChain's generations, or a message."""
    if _holds_choices(outputs):
        return outputs["choices"][0]["message"]
    generations = outputs.get("generations")
    while isinstance(generations, list) and generations:
        generations = generations[0]
    if generation := _as_dict(generations):
        return generation.get("message") or generation.get("text")
    if messages := outputs.get("messages"):
        return messages[-1]
    return outputs.get("output", outputs) if outputs else None


def _holds_choices(output: Json) -> bool:
    """Whether it is the whole body of OpenAI's answer, rather than what the LLM said."""
    choices = _as_dict(output).get("choices")
    return isinstance(choices, list) and bool(choices) and "message" in _as_dict(choices[0])


def _make_span(
    messages: list[dict[str, Any]],
    output: Json,
    *,
    model: Json,
    answer_id: Json,
    tokens: tuple[Json, Json],
    cost: Json,
    user: Json,
    times: tuple[Json, Json],
) -> dict[str, Any]:
    answers = _messages([output] if isinstance(output, dict) else output)
    for answer in answers:
        answer["role"] = "assistant"
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.response.id": answer_id,
        "gen_ai.usage.input_tokens": tokens[0],
        "gen_ai.usage.output_tokens": tokens[1],
        "gen_ai.usage.cost": cost,
        "user.id": user,
    }
    if messages and output is not None:  # else there is no content, which the reader of spans counts
        attributes |= {"gen_ai.input.messages": messages, "gen_ai.output.messages": answers}
    began, ended = map(_nanoseconds, times)
    return {"attributes": attributes, "startTimeUnixNano": began, "endTimeUnixNano": ended}


def _system(content: Json) -> list[dict[str, Any]]:
    """Anthropic's system prompt, which stands beside the messages."""
    return [] if not content else [{"role": "system", "parts": _parts(content)}]


def _messages(value: Json) -> list[dict[str, Any]]:
    """Messages of OpenAI's, Anthropic's or LangChain's kind as OpenTelemetry has them; a text is one of the
    user. An object that is no message is the answer itself.
    """
    if isinstance(value, str):
        return [{"role": "user", "parts": [{"type": "text", "content": value}]}]
    return [_message(item) for item in value] if isinstance(value, list) else []


def _message(item: Json) -> dict[str, Any]:
    if not isinstance(item, dict):
        return {"role": "user", "parts": [{"type": "text", "content": item}]}
    kind, body = item.get("role", item.get("type")), item
    if isinstance(item.get("kwargs"), dict) and isinstance(item.get("id"), list):  # LangChain's, serialised
        kind, body = (item["id"] or [""])[-1], item["kwargs"]
    elif isinstance(item.get("data"), dict):
        kind, body = item.get("type"), item["data"]
    extra = _as_dict(body.get("additional_kwargs"))
    tools = body.get("tool_calls") or extra.get("tool_calls")
    if tools is None and (function := body.get("function_call") or extra.get("function_call")):
        tools = [{"function": function}]
    content = body.get("content", body.get("parts"))
    name = "assistant" if kind is None and tools else str(kind).lower()
    role = _ROLES.get(name.removesuffix("chunk").removesuffix("message"))
    if role is None or (content is None and not tools and body.keys().isdisjoint(("content", "parts"))):
        return {"role": "assistant", "parts": [{"type": "text", "content": orjson.dumps(item).decode()}]}
    parts = _parts(content) + [
        {
            "type": "tool_call",
            "name": _as_dict(call.get("function")).get("name", call.get("name")),
            "arguments": _as_dict(call.get("function")).get("arguments", call.get("args")),
        }
        for call in tools or ()
        if isinstance(call, dict)
    ]
    reason = _as_dict(body.get("response_metadata")).get("finish_reason")
    return {"role": role, "parts": parts, "finish_reason": reason}


def _parts(content: Json) -> list[dict[str, Any]]:
    """A message's content as parts; what is no text keeps its type, and the reader of spans refuses it."""
    if not content:
        return []
    if not isinstance(content, list):
        text = content if isinstance(content, str) else orjson.dumps(content).decode()
        return [{"type": "text", "content": text}]
    parts = []
    for part in content:
        part = {"type": "text", "text": part} if isinstance(part, str) else _as_dict(part)
        if part.get("type") == "tool_use":
            parts.append({"type": "tool_call", "name": part.get("name"), "arguments": part.get("input")})
        elif "text" in part:
            parts.append({"type": "text", "content": part["text"]})
        else:
            parts.append({"type": part.get("type") or "unknown"})
    return parts


def _as_dict(value: Json) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse(value: Json) -> Json:
    """A value that an export may hold as JSON's text."""
    if isinstance(value, str):
        with suppress(ValueError):
            inner = orjson.loads(value)
            if isinstance(inner, dict | list):
                return inner
    return value


def _first(values: Mapping[str, Json], *names: str) -> Json:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _nanoseconds(time: Json) -> int | None:
    """A time in ISO 8601 or in seconds or milliseconds since 1970."""
    with suppress(TypeError, ValueError):
        seconds = parse_time(time) if isinstance(time, str) else float(time)
        return round(seconds * (1e6 if seconds >= _MILLISECONDS else 1e9))
    return None
