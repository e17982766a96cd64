"""What opens a new version of a site: all that tells the model what to answer, and nothing else."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from bertsmith.serving.mirror.formats import anthropic, openai_chat, openai_responses
from bertsmith.serving.mirror.identity import site_of, version_of

SCHEMA = {"type": "object", "properties": {"intent": {"enum": ["card", "other"]}}}
FUNCTION = {"name": "answer", "description": "Card is about cards.", "parameters": SCHEMA}
SAID = [{"role": "system", "content": "Classify."}, {"role": "user", "content": "my card"}]
BY_SCHEMA = {
    "model": "m",
    "messages": SAID,
    "temperature": 0.0,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "description": "Card is about cards.", "schema": SCHEMA},
    },
}
BY_TOOL = {
    "model": "m",
    "messages": SAID,
    "tools": [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "b"}}],
    "tool_choice": {"type": "function", "function": {"name": "answer"}},
}
RESPONSES = {
    "model": "m",
    "input": SAID,
    "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}},
}
ANTHROPIC = {
    "model": "m",
    "max_tokens": 100,
    "system": "Classify.",
    "messages": SAID[1:],
    "tools": [{"name": "answer", "description": "Card is about cards.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "answer"},
}


def version(form: Any, body: dict[str, Any]) -> str:
    asked = form.read_request(body)
    return version_of(asked, site_of(asked, "named"))


def described(body: dict[str, Any]) -> None:
    body["response_format"]["json_schema"]["description"] = "Card is about payments."


def named(body: dict[str, Any]) -> None:
    body["response_format"]["json_schema"]["name"] = "payments_only"


def tool_described(body: dict[str, Any]) -> None:
    body["tools"][0]["function"]["description"] = "Card is about payments."


def other_tool(body: dict[str, Any]) -> None:
    body["tools"][1]["function"]["description"] = "Anything else goes here."


def required(body: dict[str, Any]) -> None:
    del body["tools"][1]
    body["tool_choice"] = "required"


def text_described(body: dict[str, Any]) -> None:
    body["text"]["format"]["description"] = "Card is about payments."


def input_described(body: dict[str, Any]) -> None:
    body["tools"][0]["description"] = "Card is about payments."


@pytest.mark.parametrize(
    ("form", "body", "change"),
    [
        (openai_chat, BY_SCHEMA, described),
        (openai_chat, BY_SCHEMA, named),
        (openai_chat, BY_TOOL, tool_described),
        (openai_chat, BY_TOOL, other_tool),
        (openai_chat, BY_TOOL, required),
        (openai_responses, RESPONSES, text_described),
        (anthropic, ANTHROPIC, input_described),
    ],
    ids=lambda each: getattr(each, "__name__", "").rpartition(".")[2],
)
def test_another_description_or_choice_of_tools_is_another_version(
    form: Any, body: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    changed = copy.deepcopy(body)
    change(changed)
    assert version(form, changed) != version(form, body)


@pytest.mark.parametrize(
    ("form", "body", "setting"),
    [
        (openai_chat, BY_SCHEMA, {"temperature": 0.7}),
        (openai_responses, RESPONSES, {"text": {**RESPONSES["text"], "verbosity": "high"}}),  # type: ignore[dict-item]
        (anthropic, ANTHROPIC, {"max_tokens": 200}),
        (anthropic, ANTHROPIC, {"messages": [{"role": "user", "content": "another"}]}),
    ],
)
def test_settings_and_inputs_open_no_version(form: Any, body: dict[str, Any], setting: Any) -> None:
    assert version(form, body | setting) == version(form, body)
