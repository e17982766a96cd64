"""Which requests can be mirrored, which answers say something, and why the others don't."""

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import llm_answers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest, NotMirrored
from bertsmith.mirror.exchange import (
    Exchange,
    decode_content,
    parse_completion,
    parse_request,
    read_call,
    read_completion,
    read_request,
)
from bertsmith.mirror.formats.reading import Event, events_of
from bertsmith.mirror.formats.registry import FORMATS, FORMATS_BY_NAME, find_format
from bertsmith.mirror.formats.wire_format import StudentCompletion
from bertsmith.mirror.identity import version_id
from bertsmith.mirror.redaction import Redactor

SCHEMA = llm_answers.SCHEMA
SHAPE = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
CHAT, RESPONSES, ANTHROPIC = "openai-chat", "openai-responses", "anthropic"
R_FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
A_TOOL = {"name": "f", "input_schema": SCHEMA}
NAMED, R_NAMED = {"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}


def asked(name: str, **body: Any) -> CompletionRequest:
    usual: dict[str, Any] = {"model": "m"}
    if name == RESPONSES:
        usual["input"] = "a text"
    else:
        usual["messages"] = [{"role": "user", "content": "a text"}]
    return read_request(FORMATS_BY_NAME[name], usual | body)


MIRRORED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"response_format": SHAPE}, "json-schema"),
    (CHAT, {"response_format": {"type": "json_object"}}, "json-object"),
    (CHAT, {"tools": [FUNCTION], "tool_choice": "required"}, "tool"),
    (CHAT, {"tools": [FUNCTION], "tool_choice": "any"}, "tool"),  # Mistral's
    (CHAT, {"tools": [OTHER, FUNCTION], "tool_choice": NAMED}, "tool"),
    (CHAT, {"tools": [OTHER, FUNCTION], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}}, "tool"),
    (CHAT, {"functions": [OTHER["function"], FUNCTION["function"]], "function_call": {"name": "f"}}, "tool"),
    (CHAT, {"guided_json": SCHEMA}, "json-schema"),
    (CHAT, {"guided_json": json.dumps(SCHEMA)}, "json-schema"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}, "json-schema"),
    (RESPONSES, {"tools": [R_FUNCTION, {"type": "web_search"}], "tool_choice": R_NAMED}, "tool"),
    (ANTHROPIC, {"tools": [A_TOOL], "tool_choice": {"type": "any"}}, "tool"),
    (ANTHROPIC, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "json-schema"),
]  # fmt: skip

NOT_MIRRORED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {}, "no-schema"),
    (CHAT, {"response_format": {"type": "text"}}, "no-schema"),
    (CHAT, {"response_format": SHAPE, "n": 2}, "several-choices"),
    (CHAT, {"tools": [FUNCTION]}, "tool-not-required"),
    (CHAT, {"tools": [FUNCTION], "tool_choice": "auto"}, "tool-not-required"),
    (CHAT, {"tools": [FUNCTION, OTHER], "tool_choice": "required"}, "several-tools"),
    (CHAT, {"response_format": SHAPE, "messages": [{"role": "user", "content": [IMAGE]}]}, "input-not-text"),
    (CHAT, {"response_format": SHAPE, "messages": "x"}, "malformed-request"),
    (CHAT, {"response_format": SHAPE, "messages": [{"content": "x"}]}, "malformed-request"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, "no-schema"),
    (CHAT, {"response_format": SHAPE, "model": 5}, "malformed-request"),
    (CHAT, {"functions": [FUNCTION["function"]]}, "tool-not-required"),
    (CHAT, {"functions": [FUNCTION["function"]], "function_call": "auto"}, "tool-not-required"),
    (CHAT, {"functions": [FUNCTION["function"]], "function_call": "none"}, "tool-not-required"),
    (CHAT, {"functions": [FUNCTION["function"]], "function_call": {"name": "g"}}, "several-tools"),
    (CHAT, {"functions": "f", "function_call": {"name": "f"}}, "malformed-request"),
    (CHAT, {"response_format": SHAPE, "best_of": 2}, "several-choices"),
    (CHAT, {"guided_json": "no JSON"}, "malformed-request"),
    *((CHAT, {"response_format": SHAPE, name: ["card"]}, "other-constraint") for name in (
        "guided_choice", "guided_regex", "guided_grammar", "structured_outputs", "grammar", "regex", "ebnf")),
    (CHAT, {"guided_choice": ["card", "loan"]}, "other-constraint"),
    (RESPONSES, {}, "no-schema"),
    (RESPONSES, {"tools": [R_FUNCTION], "previous_response_id": "r"}, "server-state"),
    (RESPONSES, {"tools": [R_FUNCTION], "tool_choice": "required", "input": [
        {"type": "item_reference"}]}, "server-state"),
    (RESPONSES, {"tools": [R_FUNCTION], "tool_choice": "required", "background": True}, "background"),
    (RESPONSES, {"tools": [R_FUNCTION], "tool_choice": "required", "input": [
        {"role": "user", "content": [{"type": "input_image"}]}]}, "input-not-text"),
    (ANTHROPIC, {}, "no-schema"),
    (ANTHROPIC, {"tools": [A_TOOL]}, "tool-not-required"),
    (ANTHROPIC, {"tools": [A_TOOL], "tool_choice": {"type": "any"}, "messages": [
        {"role": "user", "content": [{"type": "image"}]}]}, "input-not-text"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "way"), MIRRORED)
def test_requests_whose_answer_has_a_schema(name: str, body: dict[str, Any], way: str) -> None:
    found = asked(name, **body)
    assert found.way == way
    assert found.schema == ({"type": "object"} if way == "json-object" else SCHEMA)
    assert found.messages[-1].parts == ("a text",)


@pytest.mark.parametrize(("name", "body", "way"), MIRRORED)
def test_a_request_that_is_asked_again_is_read_as_the_same(name: str, body: dict[str, Any], way: str) -> None:
    request, form, draw = asked(name, **body, temperature=0.5), FORMATS_BY_NAME[name], random.Random(way)
    leading = ["system"] if name == ANTHROPIC else ["system", "developer"]  # of which Anthropic has one
    for _ in range(20):
        roles = [*leading[: draw.randrange(3)], *draw.choices(["user", "assistant"], k=draw.randrange(1, 5))]
        messages = tuple(
            ChatMessage(role, tuple(f"text {draw.random()}" for _ in range(draw.randrange(1, 4))))
            for role in roles
        )
        request = replace(request, messages=messages)
        written = form.write_request(request)
        again = read_request(form, written)
        assert again.messages == messages and version_id(again, "desk") == version_id(request, "desk")
        assert again == replace(request, parameters=again.parameters)
        assert request.parameters.items() <= again.parameters.items()  # Anthropic needs a limit
    assert name != RESPONSES or written["store"] is False  # the provider would keep it


@pytest.mark.parametrize(("name", "body", "reason"), NOT_MIRRORED)
def test_requests_that_cannot_be_mirrored_say_why(name: str, body: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotMirrored) as found:
        asked(name, **body)
    assert found.value.reason == reason


def choice(**more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "{}"}} | more]}


def called(*names: str) -> dict[str, Any]:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in names]
    return choice(finish_reason="tool_calls", message={"content": None, "tool_calls": calls})


FORMATTED = asked(CHAT, response_format=SHAPE)
WITH_TOOL = asked(CHAT, tools=[FUNCTION], tool_choice="required")
R_FORMATTED = asked(RESPONSES, text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}})
A_WITH_TOOL = asked(ANTHROPIC, tools=[A_TOOL], tool_choice={"type": "any"})


@pytest.mark.parametrize(
    ("request_", "body", "reason"),
    [
        (FORMATTED, {"choices": []}, "no-answer"),
        (FORMATTED, {"choices": choice()["choices"] * 2}, "several-choices"),
        (FORMATTED, choice(finish_reason="content_filter"), "content-filter"),
        (FORMATTED, called("f"), "tool-call"),
        (WITH_TOOL, choice(), "no-tool-call"),
        (WITH_TOOL, called("f", "f"), "several-tool-calls"),
        (WITH_TOOL, called("g"), "other-tool"),
        (R_FORMATTED, {"status": "incomplete", "incomplete_details": {
            "reason": "max_output_tokens"}}, "truncated"),
        (R_FORMATTED, {"status": "failed"}, "upstream-error"),
        (R_FORMATTED, {"status": "in_progress"}, "unfinished"),
        (R_FORMATTED, {"status": "completed", "output": []}, "no-answer"),
        (R_FORMATTED, {"output": [{"type": "message", "content": [{"type": "refusal"}]}]}, "refusal"),
        (A_WITH_TOOL, {"stop_reason": "max_tokens", "content": []}, "truncated"),
        (A_WITH_TOOL, {"stop_reason": "refusal", "content": []}, "refusal"),
        (A_WITH_TOOL, {"stop_reason": "end_turn", "content": [{"type": "text"}]}, "no-tool-call"),
    ],
)  # fmt: skip
def test_answers_that_say_nothing_say_why(
    request_: CompletionRequest, body: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotMirrored) as found:
        read_completion(FORMATS_BY_NAME[request_.protocol], request_, body)
    assert found.value.reason == reason


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_events_are_read_whatever_ends_their_lines(newline: str) -> None:
    text = "\ufeff: a comment\n\nevent: one\ndata: a\ndata:b\nid: 4\n\ndata: ü\n\n\ndata: cut".replace(
        "\n", newline
    )
    assert list(events_of(text.encode())) == [Event("one", "a\nb"), Event("", "ü")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from([
            "type", "model", "messages", "role", "content", "input", "questions", "state", "tools",
            "tool_choice", "response_format", "json_schema", "schema", "name", "function", "choices",
            "message", "output", "answers", "criteria", "instructions", "text", "format", "index", "delta",
            "item", "content_block",
        ]),
        inner, max_size=5,
    ),
    max_leaves=25,
)  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.NAME)
@given(body=JSON, pieces=st.lists(JSON, max_size=4))
def test_no_body_meets_a_bug(form: Any, body: Any, pieces: list[Any]) -> None:
    """Whatever comes is read or has a reason."""
    for request in (FORMATTED, WITH_TOOL, A_WITH_TOOL, R_FORMATTED):
        for content, is_stream in (
            (json.dumps(body), False),
            ("".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces), True),
        ):
            found = read_or_reason(parse_request, form, content.encode())
            assert isinstance(found, CompletionRequest) or found
            answered = read_or_reason(parse_completion, form, request, content.encode(), is_stream)
            assert isinstance(answered, Completion) or answered


def read_or_reason(
    read: Callable[..., CompletionRequest | Completion], *arguments: Any
) -> CompletionRequest | Completion | str:
    """What was read, or why it was not."""
    try:
        return read(*arguments)
    except NotMirrored as refused:
        return str(refused)


def test_a_bomb_is_not_unpacked() -> None:
    import gzip

    with pytest.raises(NotMirrored, match="too-large"):
        decode_content(gzip.compress(bytes(70_000_000), 1), "gzip")
    with pytest.raises(NotMirrored, match="encoding"):
        decode_content(b"x", "br")


def test_only_what_is_posted_to_a_known_path_is_looked_at() -> None:
    assert find_format("GET", "/v1/responses") is None
    assert find_format("POST", "/v1/messages/count_tokens") is None
    assert find_format("POST", "/v1/embeddings") is None
    assert find_format("POST", "/v1/threads/thread_1/messages") is None  # OpenAI's
    assert find_format("POST", "/messages") is FORMATS_BY_NAME["anthropic"]
    found = [find_format("POST", f"/any/prefix{each.PATH}") for each in FORMATS]
    assert found == list(FORMATS)


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_stream_whose_client_hangs_up_at_the_last_event_is_read_compressed_too(encoding: str) -> None:
    asked_for = asked(CHAT, response_format=SHAPE)
    chunk = {"choices": [{"delta": {"content": '{"intent": "card"}'}, "finish_reason": "stop"}]}
    sent = f"data: {json.dumps(chunk)}\n\n".encode()
    if encoding:
        packing = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)  # as a proxy does: each event goes out, no end
        sent = packing.compress(sent) + packing.flush(zlib.Z_SYNC_FLUSH)
    exchange = Exchange(
        FORMATS_BY_NAME[CHAT], asked_for, 9, "text/event-stream", encoding, [sent], False, 0.0, 0.1, 0.2
    )  # fmt: skip
    assert read_call(exchange, Redactor((), {})).completion.value == {"intent": "card"}
    with pytest.raises(NotMirrored, match="cut"):
        read_call(replace(exchange, answer=[sent[:-8]]), Redactor((), {}))


def test_levels_with_the_same_label_are_not_mirrored() -> None:
    # Answers name levels by their labels: with two of one label, the wrong level would be learned.
    levels = [{"label": "low"}, {"label": "low"}, {"label": "high"}]
    body = {"model": "m", "input": "x", "questions": [{"type": "score", "name": "s", "levels": levels}]}
    with pytest.raises(NotMirrored, match="malformed-request"):
        FORMATS_BY_NAME["openai-decisions"].read_request(body)
    del levels[1]
    FORMATS_BY_NAME["openai-decisions"].read_request(body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("required", "tool_calls"),
        (NAMED, "stop"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [FUNCTION]}}, "tool_calls"),
    ],
)
def test_a_student_ends_a_call_as_openai_does(choice: Any, reason: str, stream: bool) -> None:
    """With stop where the tool is named; with tool_calls where one is required, also of those allowed."""
    body = {"model": "m", "messages": [], "tools": [FUNCTION], "tool_choice": choice, "stream": stream}
    form = FORMATS_BY_NAME[CHAT]
    written = form.write(StudentCompletion(read_request(form, body), body, {"intent": "card"}, "x"))
    content = b"".join(written.chunks)
    answer = form.join(events_of(content)) if stream else json.loads(content)
    assert answer["choices"][0]["finish_reason"] == reason
