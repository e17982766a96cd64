"""Providers' own clients through the mirror: they see what they see without it, and are recorded."""

import http.client
import json
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

import anthropic
import openai
import pytest
from llm_answers import SCHEMA, SYSTEM
from pydantic import BaseModel
from running_mirror import RunningMirror, wait_until
from scripted_upstream import Upstream
from systemone import Choice, Noul, Score
from systemone import Client as SystemOneClient

KEY = "sk-test-0123456789abcdef"
TEXTS = ["my card is gone!", "a transfer please", "hello"]
VALUES = [
    {"intent": "card", "urgent": True},
    {"intent": "transfer", "urgent": False},
    {"intent": "other", "urgent": False},
]
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "message", "schema": SCHEMA, "strict": True}}
RESPONSE_FORMAT = {"type": "json_schema", "name": "message", "schema": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": {"name": "message", "description": "It.", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "message"}}


class Message(BaseModel):
    """As SCHEMA."""

    intent: Literal["card", "transfer", "other"]
    urgent: bool


def messages(text: str) -> list[Any]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def without_ids(answer: Any) -> Any:
    """The upstream numbers its answers."""
    found = answer.model_dump(warnings=False) if isinstance(answer, BaseModel) else answer
    return {key: value for key, value in found.items() if key not in ("id", "_request_id")}


def openai_at(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def chat_whole(url: str, text: str) -> Any:
    with openai_at(url) as client:
        answer = client.chat.completions.create(
            model="m",
            messages=messages(text),
            response_format=JSON_SCHEMA,  # type: ignore[call-overload]
        )
        return without_ids(answer)


def chat_parsed(url: str, text: str) -> Any:
    with openai_at(url) as client:
        answer = client.chat.completions.parse(model="m", messages=messages(text), response_format=Message)
        assert isinstance(answer.choices[0].message.parsed, Message)
        return without_ids(answer)


def chat_streamed(url: str, text: str) -> Any:
    with openai_at(url) as client:
        pieces = client.chat.completions.create(
            model="m", messages=messages(text), response_format=JSON_SCHEMA, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        return [without_ids(each) for each in pieces]


def chat_stream_parsed(url: str, text: str) -> Any:
    with (
        openai_at(url) as client,
        client.chat.completions.stream(model="m", messages=messages(text), response_format=Message) as stream,
    ):
        return without_ids(stream.get_final_completion())


def chat_tool(url: str, text: str) -> Any:
    with openai_at(url) as client:
        answer = client.chat.completions.create(
            model="m",
            messages=messages(text),
            tools=[TOOL],
            tool_choice=NAMED,  # type: ignore[call-overload]
        )
        return without_ids(answer)


def chat_tool_streamed(url: str, text: str) -> Any:
    with openai_at(url) as client:
        pieces = client.chat.completions.create(
            model="m", messages=messages(text), tools=[TOOL], tool_choice="required", stream=True
        )  # type: ignore[call-overload]
        return [without_ids(each) for each in pieces]


FUNCTION: Any = {"name": "message", "parameters": SCHEMA}


def chat_function(url: str, text: str) -> Any:
    """As clients of 2023 ask, who have no tools yet."""
    with openai_at(url) as client:
        answer = client.chat.completions.create(
            model="m", messages=messages(text), functions=[FUNCTION], function_call={"name": "message"}
        )
        return without_ids(answer)


def chat_function_streamed(url: str, text: str) -> Any:
    with openai_at(url) as client:
        pieces = client.chat.completions.create(
            model="m", messages=messages(text), functions=[FUNCTION], function_call={"name": "message"},
            stream=True,
        )  # fmt: skip
        return [without_ids(each) for each in pieces]


def chat_guided_json(url: str, text: str) -> Any:
    """As vLLM's clients ask."""
    with openai_at(url) as client:
        more = {"guided_json": SCHEMA}
        return without_ids(
            client.chat.completions.create(model="m", messages=messages(text), extra_body=more)
        )


def chat_of_azure(url: str, text: str) -> Any:
    """By a deployment's path and the header api-key."""
    with openai.AzureOpenAI(
        azure_endpoint=url, api_key=KEY, api_version="2024-10-21", max_retries=0
    ) as client:
        answer = client.chat.completions.create(
            model="m",
            messages=messages(text),
            response_format=JSON_SCHEMA,  # type: ignore[call-overload]
        )
        return without_ids(answer)


def responses_parsed(url: str, text: str) -> Any:
    with openai_at(url) as client:
        answer = client.responses.parse(model="m", instructions=SYSTEM, input=text, text_format=Message)
        assert isinstance(answer.output_parsed, Message)
        return without_ids(answer)


def responses_streamed(url: str, text: str) -> Any:
    with openai_at(url) as client:
        shape: Any = {"format": RESPONSE_FORMAT}
        events = client.responses.create(model="m", instructions=SYSTEM, input=text, text=shape, stream=True)
        found = [each.model_dump() for each in events]
        for each in found:
            each.get("response", {}).pop("id", None)
        return found


def responses_tool_streamed(url: str, text: str) -> Any:
    tool: Any = {"type": "function", "name": "message", "parameters": SCHEMA, "strict": True}
    with openai_at(url) as client, client.responses.stream(
        model="m", instructions=SYSTEM, input=[{"role": "user", "content": text}], tools=[tool],
        tool_choice="required",
    ) as stream:  # fmt: skip
        return without_ids(stream.get_final_response())


def anthropic_tool(url: str, text: str) -> Any:
    tool: Any = {"name": "message", "input_schema": SCHEMA}
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        answer = client.messages.create(
            model="claude", max_tokens=100, system=SYSTEM, messages=[{"role": "user", "content": text}],
            tools=[tool], tool_choice={"type": "tool", "name": "message"},
        )  # fmt: skip
        return without_ids(answer)


def anthropic_tool_streamed(url: str, text: str) -> Any:
    tool: Any = {"name": "message", "input_schema": SCHEMA}
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client, client.messages.stream(
        model="claude", max_tokens=100, system=SYSTEM, messages=[{"role": "user", "content": text}],
        tools=[tool], tool_choice={"type": "any"},
    ) as stream:  # fmt: skip
        return without_ids(stream.get_final_message())


def anthropic_format(url: str, text: str) -> Any:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        answer = client.messages.create(
            model="claude", max_tokens=100, system=[{"type": "text", "text": SYSTEM}],
            messages=[{"role": "user", "content": [{"type": "text", "text": text}]}],
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        )  # fmt: skip
        return without_ids(answer)


CALLS = [
    (chat_whole, "openai-chat", "json-schema"),
    (chat_parsed, "openai-chat", "json-schema"),
    (chat_streamed, "openai-chat", "json-schema"),
    (chat_stream_parsed, "openai-chat", "json-schema"),
    (chat_tool, "openai-chat", "tool"),
    (chat_tool_streamed, "openai-chat", "tool"),
    (chat_function, "openai-chat", "tool"),
    (chat_function_streamed, "openai-chat", "tool"),
    (chat_guided_json, "openai-chat", "json-schema"),
    (chat_of_azure, "openai-chat", "json-schema"),
    (responses_parsed, "openai-responses", "json-schema"),
    (responses_streamed, "openai-responses", "json-schema"),
    (responses_tool_streamed, "openai-responses", "tool"),
    (anthropic_tool, "anthropic", "tool"),
    (anthropic_tool_streamed, "anthropic", "tool"),
    (anthropic_format, "anthropic", "json-schema"),
]


STREAMED = [
    ("/v1/chat/completions", {"model": "m", "messages": messages(TEXTS[0]), "response_format": JSON_SCHEMA}),
    ("/v1/responses", {"model": "m", "input": TEXTS[0], "text": {"format": RESPONSE_FORMAT}}),
    (
        "/v1/messages",
        {
            "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": TEXTS[0]}],
            "tools": [{"name": "message", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "message"},
        },
    ),
]  # fmt: skip
LAST_EVENTS = [b"[DONE]", b'"type": "response.completed"', b'"type": "message_stop"']


@pytest.mark.parametrize(("asked", "last"), list(zip(STREAMED, LAST_EVENTS, strict=True)))
def test_a_client_may_hang_up_at_a_streams_last_event(
    upstream: Upstream, mirror: RunningMirror, asked: tuple[str, dict[str, Any]], last: bytes
) -> None:
    """Before HTTP's own end of the answer, as OpenAI's client does."""
    script = upstream.script
    upstream.script = lambda seen: replace(script(seen), pause=0.2)
    with closing(http.client.HTTPConnection("127.0.0.1", mirror.port, timeout=60)) as connection:
        connection.request("POST", asked[0], json.dumps(asked[1] | {"stream": True}))
        answer, came = connection.getresponse(), b""
        while not (last in came and came.endswith(b"\n\n")):
            came += answer.read1()
    wait_until(mirror.calls)  # a busy upstream may end before it sees that the client is gone
    assert [each.completion.value for each in mirror.calls()] == VALUES[:1]
    assert mirror.skipped() == {}


@pytest.mark.parametrize(("call", "protocol", "way"), CALLS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_client_sees_the_same_and_its_call_is_recorded(
    upstream: Upstream, mirror: RunningMirror, call: Any, protocol: str, way: str
) -> None:
    for text in TEXTS:
        assert call(mirror.url, text) == call(upstream.url, text)
    through, direct = upstream.seen[::2], upstream.seen[1::2]
    assert [each.body for each in through] == [each.body for each in direct]
    found = mirror.calls()
    assert [each.completion.value for each in found] == VALUES
    assert [each.request.messages[-1].parts[-1] for each in found] == TEXTS
    assert {(each.request.protocol, each.request.way) for each in found} == {(protocol, way)}
    assert [each.parts for each in found[0].request.system] == [(SYSTEM,)]
    assert found[0].request.schema["properties"]["intent"]["enum"] == SCHEMA["properties"]["intent"]["enum"]  # type: ignore[index]
    assert (found[0].completion.output_tokens or 7) == 7
    assert len({each.version for each in found}) == 1
    assert 0 < found[0].first_seconds <= found[0].seconds


def test_pydantic_ai_gets_its_output(upstream: Upstream, mirror: RunningMirror) -> None:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def ask(url: str) -> list[Message]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, output_type=Message, instructions=SYSTEM)
            return [(await agent.run(text)).output for text in TEXTS]

    import asyncio

    assert (
        asyncio.run(ask(mirror.url)) == asyncio.run(ask(upstream.url)) == [Message(**each) for each in VALUES]
    )
    found = mirror.calls()
    assert [each.completion.value for each in found] == VALUES
    assert {each.request.schema_name for each in found} == {"final_result"}


def test_system_one_is_recorded_with_its_probabilities(upstream: Upstream, mirror: RunningMirror) -> None:
    questions = {
        "billing": Noul("Is this about billing?"),
        "team": Choice("Which team?", {"payments": "money", "support": None}),
        "anger": Score("How angry?", ["calm", "annoyed", "furious"]),
    }

    def ask(url: str) -> Any:
        with SystemOneClient(url, api_key=KEY) as client:
            return client.system_one({"ticket": "charged twice"}, questions, model="jev")

    assert ask(mirror.url) == ask(upstream.url)
    (call,) = mirror.calls()
    assert call.completion.value == {"billing": True, "team": "payments", "anger": 1}
    assert call.completion.probabilities["$.billing"] == [(True, 0.9), (False, pytest.approx(0.1))]
    assert call.completion.probabilities["$.team"] == [("payments", 0.9), ("support", 0.1)]
    assert dict(call.completion.probabilities["$.anger"]) == {0: 0.3, 1: 0.7, 2: 0.0}
    assert json.loads(call.request.messages[0].parts[0]) == {"ticket": "charged twice"}
    assert call.request.schema["properties"]["team"]["enum"] == ["payments", "support"]


def test_decisions_are_recorded_and_a_refused_question_has_no_field(
    upstream: Upstream, mirror: RunningMirror
) -> None:
    questions: Any = [
        {"type": "predicate", "instructions": "Is it spam?"},
        {"type": "choice", "name": "kind", "choices": [{"value": True}, {"value": "true"}]},
        {"type": "score", "name": "grade", "levels": [{"label": "low"}, {"label": "high"}]},
        {"type": "predicate", "name": "refused", "instructions": "?"},
    ]  # fmt: skip

    def ask(url: str) -> Any:
        with openai_at(url) as client:
            return without_ids(client.decisions.create(model="m", input="a text", questions=questions))

    assert ask(mirror.url) == ask(upstream.url)
    (call,) = mirror.calls()
    assert call.completion.value == {"question_1": False, "kind": True, "grade": 1}
    assert call.completion.probabilities["$.kind"] == [(True, 0.9), ("true", 0.1)]
    assert list(call.request.schema["properties"]) == ["question_1", "kind", "grade", "refused"]


def test_what_has_no_schema_is_relayed_and_counted(upstream: Upstream, mirror: RunningMirror) -> None:
    with openai_at(mirror.url) as client:
        assert client.models.list().data[0].id == "m"
        raw = client.chat.completions.with_raw_response.create(model="m", messages=messages("hello"))
        assert raw.headers["x-bertsmith"] == "passthrough; reason=no-schema"
        assert raw.parse().choices[0].message.content == json.dumps(VALUES[2])
    assert mirror.skipped() == {("openai-chat", "no-schema"): 1}
    assert mirror.calls() == []
