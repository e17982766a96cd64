"""Each string of the installed SDKs' types is judged, or known to be no text of a user, a model or a tool.

Oracle: the types themselves, around each string of which a body is built. What a later version adds and the
guard doesn't judge fails here, until somebody has said what it is.
"""

import importlib
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pydantic
import pytest
import typing_extensions

from bertsmith.mirror.formats.registry import FORMATS_BY_NAME
from bertsmith.mirror.guard.guarded_texts import collect_answer_texts, collect_request_texts

TYPES = [  # SDK, module, type, and as what the guard reads it
    ("openai", "chat", "ChatCompletion", "answer"),
    ("openai", "chat", "ChatCompletionChunk", "stream"),
    ("openai", "responses", "Response", "answer"),
    ("openai", "responses", "ResponseStreamEvent", "stream"),
    ("openai", "decision", "Decision", "answer"),
    ("openai", "chat.completion_create_params", "CompletionCreateParamsNonStreaming", "openai-chat"),
    ("openai", "responses.response_create_params", "ResponseCreateParamsNonStreaming", "openai-responses"),
    ("openai", "decision_create_params", "DecisionCreateParams", "openai-decisions"),
    ("anthropic", "beta", "BetaMessage", "answer"),
    ("anthropic", "beta", "BetaRawMessageStreamEvent", "stream"),
    ("anthropic", "beta_error_response", "BetaErrorResponse", "answer"),
    ("anthropic", "beta.message_create_params", "MessageCreateParamsNonStreaming", "anthropic"),
]
# Names, numbers, settings and sealed contents; an address of the web is one where it is one.
NO_TEXTS = frozenset((
    "approval_request_id", "background", "call_id", "caller_id", "categories", "comparison_response_id",
    "container_id", "continuation_id", "created_by", "download_id", "encrypted_content",
    "encrypted_index", "encrypted_stdout", "error_type", "fallback_credit_token", "file_data", "file_id",
    "file_url", "fingerprint", "id", "image_url", "inference_geo", "item_id", "mode", "model",
    "obfuscation", "output_format", "param", "partial_image_b64", "previous_message_id",
    "previous_response_id", "prompt_cache_key", "quality", "recommended_model", "remove_to_redeem",
    "request_id", "retrieved_at", "review_target", "signature", "size", "skill_id", "stop_reason",
    "system_fingerprint", "tab_id", "tool_call_id", "tool_id", "tool_use_id", "type", "url",
    "user_profile_id", "version", "workspace_id",
))  # fmt: skip
NO_TEXTS_OF_TYPES = {  # keys that hold texts in types of other names
    "code": "Error|SafetyCheck",
    "data": "Audio|Base64|RedactedThinking",
    "delta": "ResponseAudioDelta",
    "name": "FunctionMessage",
    "path": "Transformation",
    "result": "ImageGenerationCall",
}
LISTS = ("list", "Iterable", "Sequence", "SequenceNotStr")


class Field(NamedTuple):
    """`word` is one of the protocol; None where any may stand. `body` makes a value of the type around it."""

    path: tuple[str, ...]
    owner: str
    word: str | None
    body: Callable[[str], Any]


def fields_of(kind: Any, seen: set[Any], path: tuple[str, ...] = (), owner: str = "") -> Iterator[Field]:
    """Each string in a type, once below each two keys."""
    while get_origin(kind) in (typing.Annotated, typing.Required, typing_extensions.Required):
        kind = get_args(kind)[0]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        yield from (Field(path, owner, part, lambda word: word) for part in parts if isinstance(part, str))
    elif kind is str:
        yield Field(path, owner, None, lambda word: word)
    elif members := members_of(kind):
        if (kind, path[-2:]) in seen:
            return
        seen.add((kind, path[-2:]))
        words = {key: get_args(part)[0] for key, part in members.items() if get_origin(part) is Literal}
        for key, part in members.items():
            for field in fields_of(part, seen, (*path, key), kind.__name__):
                yield field._replace(body=lambda word, key=key, of=field.body: words | {key: of(word)})
    elif origin is dict:
        for field in fields_of(parts[1], seen, path, owner):
            yield field._replace(body=lambda word, of=field.body: {"key": of(word)})
    elif getattr(origin, "__name__", "") in LISTS:
        for field in fields_of(parts[0], seen, path, owner):
            yield field._replace(body=lambda word, of=field.body: [of(word)])
    else:  # a union's
        for part in parts:
            yield from fields_of(part, seen, path, owner)


def members_of(kind: Any) -> dict[str, Any]:
    if inspect.isclass(kind) and issubclass(kind, pydantic.BaseModel):
        return {field.alias or key: field.annotation for key, field in kind.model_fields.items()}
    if typing_extensions.is_typeddict(kind):
        return typing_extensions.get_type_hints(kind)
    return {}


def is_text(field: Field, read_as: str, body: Any) -> bool:
    *places, key = field.path or ("",)
    if field.word is not None or key in NO_TEXTS:
        return False
    if read_as in FORMATS_BY_NAME:
        if field.path[0] not in ("input", "messages", "prompt"):
            return False
        given = body[field.path[0]]
        item = given[0] if isinstance(given, list) and isinstance(given[0], dict) else {}
        if {item.get("role"), item.get("type")} & {"configuration_update", "developer", "system"}:
            return False
    if {"definition", "moderation", "tools"} & set(places):
        return key in ("description", "message")
    return not re.search(NO_TEXTS_OF_TYPES.get(key, "$^"), field.owner)


@pytest.mark.parametrize(("sdk", "module", "name", "read_as"), TYPES)
def test_each_string_is_judged_or_known_to_be_no_text(sdk: str, module: str, name: str, read_as: str) -> None:
    pytest.importorskip(sdk, reason=f"needs {sdk}'s client")
    kind = getattr(importlib.import_module(f"{sdk}.types.{module}"), name)
    wrong = []
    for field in fields_of(kind, set()):
        word = field.word or ("https://word.org/a?b=c%20d" if field.path[-1] == "url" else "word")
        body = field.body(word)
        sent = json.dumps(body).encode()
        if read_as in FORMATS_BY_NAME:
            found = collect_request_texts(
                FORMATS_BY_NAME[read_as], json.dumps({"messages": [], "input": []} | body).encode()
            )
        elif read_as == "stream":
            found = collect_answer_texts(b"{}", b"data: %b\n\n" % sent, "", is_stream=True)
        else:
            found = collect_answer_texts(b"{}", sent, "", is_stream=False)
        if (word in found.texts) != is_text(field, read_as, body):
            wrong.append((".".join(field.path), field.owner, word, found.texts))
    assert not wrong
