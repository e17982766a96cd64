"""Reads files of recorded calls: JSON objects with their lines, and OpenTelemetry's GenAI spans. Read
`read_json_objects`, then `read_span_calls`.

Objects stand one on a line, over several lines, or in an array. They are read one by one, in time linear in
the file's length, so a file may be larger than memory. Compressed files, and UTF-16 or UTF-32 with a
byte-order mark, are read too.

A span has attributes (semantic conventions 1.38): gen_ai.input.messages, gen_ai.output.messages and
gen_ai.system_instructions hold JSON, as text or as values; every message has a role and parts. Spans don't
record a schema: the JSON of the answer, or the tool that it called, takes its place.
"""

import codecs
import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bertsmith.errors import InputError
from bertsmith.files import parse_json
from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest, Json, NotMirrored
from bertsmith.mirror.formats.reading import (
    as_json,
    list_of,
    names_in,
    object_of,
    parsed,
    text_of,
    word,
)
from bertsmith.text.files.streams import BYTE_ORDER_MARKS, COMPRESSIONS
from bertsmith.text.files.table_file import open_table

_LARGEST = 64_000_000  # of an object, or of an array
_STRING = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL
)  # one without its closing quote goes to the end of the text
_TOKEN = re.compile(rb"[][{}]|" + _STRING.pattern, re.DOTALL)
NAME = "otel"
_OPERATIONS = ("chat", "generate_content", "text_completion")
_FINISHED_EARLY = {"length": "truncated", "max_tokens": "truncated", "content_filter": "content-filter"}
_COSTS = ("gen_ai.usage.cost", "llm.cost.total")  # of OpenLIT and of OpenInference
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class LocatedObject:
    """A JSON object and where it stands in its file: `length` bytes from the offset `begin`.

    `line` is the line, from 1, on which it or its array begins. `content` holds its bytes where the file
    can't be read from an offset, because it is compressed or in another encoding.
    """

    path: Path
    line: int
    begin: int
    length: int
    value: Mapping[str, Any]
    content: bytes = b""

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"

    def without_value(self) -> "LocatedObject":
        """The same location without the object in memory; `read` reads it again."""
        return replace(self, value={})

    def read(self) -> Mapping[str, Any]:
        """Reads the object again from the file."""
        content = self.content
        if not content:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                content = file.read(self.length)
        value: Mapping[str, Any] = orjson.loads(content)
        return value


def read_json_objects(path: Path) -> Iterator[LocatedObject]:
    """Yields the objects of a file in their order. Raises InputError naming file and line for what is no
    JSON.
    """
    parts, size, begin, first, offset, depth = list[bytes](), 0, 0, 0, 0, 0
    with _open_lines(path) as (lines, is_plain):
        for line, raw in enumerate(lines, 1):
            offset += len(raw)
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if not parts and not raw.strip():
                continue
            if not parts:
                begin, first, size, depth = offset - len(raw), line, 0, 0
            parts.append(raw)
            size += len(raw)
            if size > _LARGEST:
                raise InputError(
                    f"{path}, line {first}: an object or array of more than {_LARGEST:,} bytes, or one that "
                    "was cut."
                )
            content, value = raw, _parse_or_none(raw) if len(parts) == 1 else None
            if value is None:
                bare = _STRING.sub(b"", raw)
                depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
                if depth > 0 and bare.endswith(
                    b"\n"
                ):  # else it ends inside a string, which no further line can close
                    continue
                content = b"".join(parts)
                value = _parse_or_none(content)
            if value is None:
                break
            for item in _locate_objects(path, first, begin, content, value):
                yield (
                    item if is_plain else replace(item, content=content[item.begin - begin :][: item.length])
                )
            parts = []
    if len(parts) == 1:
        raise InputError(
            f"{path}, line {first}: expected an object of JSON on it; {_describe_fault(parts[0])}"
        )
    if parts:
        raise InputError(f"{path}, line {first}: what begins here is no JSON, or has been cut.")


@contextlib.contextmanager
def _open_lines(path: Path) -> Iterator[tuple[Iterable[bytes], bool]]:
    """The file's lines in UTF-8, and whether their bytes stand in the file unchanged."""
    with path.open("rb") as file:
        head = file.read(4)
        mark = next((name for begin, name in BYTE_ORDER_MARKS if head.startswith(begin)), "utf-8-sig")
        if path.suffix.lower() not in COMPRESSIONS and mark == "utf-8-sig":
            file.seek(0)
            yield file, True
            return
    with open_table(path, None, "utf-8", {}, "JSON", whole_name=True) as table:
        yield (f"{line}\n".encode() for line in table.stream.lines(_LARGEST)), False


def _locate_objects(path: Path, line: int, begin: int, content: bytes, value: Any) -> Iterator[LocatedObject]:
    if isinstance(value, dict):
        yield LocatedObject(path, line, begin, len(content), value)
        return
    spans = _find_object_spans(content)
    for number, item in enumerate(value if isinstance(value, list) else [value], 1):
        if not isinstance(item, dict):
            raise InputError(f"{path}, line {line}: expected objects; item {number} is none.")
        first, end = next(spans)
        yield LocatedObject(path, line, begin + first, end - first, item)


def _find_object_spans(array: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each object in the bytes of an array, so that it can be read again alone."""
    depth = begin = 0
    for token in _TOKEN.finditer(array):
        if token[0] in (b"{", b"["):
            depth += 1
            begin = token.start() if depth == 2 else begin
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == 1:
                yield begin, token.end()


def _parse_or_none(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except ValueError:
        return None


def _describe_fault(raw: bytes) -> str:
    """What is wrong with a line, in words and without quoting it: it may hold users' texts."""
    try:
        parse_json(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return "it isn't UTF-8."
    except json.JSONDecodeError as error:
        return f"{error.msg[0].lower()}{error.msg[1:]}, column {error.colno}."
    except (ValueError, RecursionError):
        pass
    return "it can't be read."


@dataclass(frozen=True)
class SpanCall:
    """A call read from a span. `began` is in seconds since 1970; times are None if the span has none, and so
    is the `cost`.
    """

    request: CompletionRequest
    completion: Completion
    began: float | None
    seconds: float | None
    cost: float | None = None


def holds_spans(value: Mapping[str, Json]) -> bool:
    """Whether an object is a span, or holds OTLP's spans, of any kind."""
    return "resourceSpans" in value or ("attributes" in value and ("name" in value or "context" in value))


def read_span_calls(value: Mapping[str, Json]) -> Iterator[SpanCall | NotMirrored]:
    """Yields every LLM call of an object that `holds_spans`, or the reason why it can't be mirrored. Other
    spans are skipped.
    """
    for span in _iterate_spans(value):
        try:
            attributes = span.get("attributes")
            if not isinstance(attributes, dict):  # OTLP has a list of keys with typed values
                attributes = {item["key"]: _read_value(item["value"]) for item in attributes or ()}
            if attributes.get("gen_ai.operation.name") in _OPERATIONS:
                yield _read_call(attributes, span)
        except NotMirrored as refusal:
            yield refusal
        except _MALFORMED:
            yield NotMirrored("malformed-answer")


def _iterate_spans(value: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    if "resourceSpans" not in value:
        yield value
        return
    for resource in value["resourceSpans"]:
        for scope in resource.get("scopeSpans") or ():
            yield from scope.get("spans") or ()


def _read_value(typed: Mapping[str, Json]) -> Json:
    if not typed:  # null
        return None
    value_type, value = next(iter(typed.items()))
    if value_type == "intValue":
        return int(value)
    if value_type == "arrayValue":
        return [_read_value(item) for item in value.get("values") or ()]
    if value_type == "kvlistValue":
        return {item["key"]: _read_value(item["value"]) for item in value.get("values") or ()}
    return value


def _read_call(attributes: Mapping[str, Json], span: Mapping[str, Json]) -> SpanCall:
    if (attributes.get("gen_ai.request.choice.count") or 1) != 1:
        raise NotMirrored("several-choices")
    if "gen_ai.input.messages" not in attributes or "gen_ai.output.messages" not in attributes:
        raise NotMirrored("no-content")  # messages are recorded only where that is switched on
    messages = list[ChatMessage]()
    for item in _read_list(attributes["gen_ai.input.messages"]):
        message = object_of(item, "malformed-request")
        messages.append(ChatMessage(text_of(message.get("role")), _read_parts(message.get("parts"))))
    if instructions := attributes.get("gen_ai.system_instructions"):
        messages.insert(0, ChatMessage("system", _read_parts(_read_list(instructions))))
    way, name, value, finished = _read_answer(_read_list(attributes["gen_ai.output.messages"]))
    began, ended = _read_time(span, "start"), _read_time(span, "end")
    model = word(attributes.get("gen_ai.request.model"))
    users = attributes.get("user.id"), attributes.get("enduser.id")
    subjects = tuple(dict.fromkeys(name for user in users for name in names_in(user)))
    return SpanCall(
        CompletionRequest(NAME, model, tuple(messages), name, {"type": "object"}, way, {}, subjects),
        Completion(
            value,
            word(attributes.get("gen_ai.response.model")),
            finished,
            word(attributes.get("gen_ai.response.id")),
            _read_integer(attributes.get("gen_ai.usage.input_tokens")),
            _read_integer(attributes.get("gen_ai.usage.output_tokens")),
        ),
        began,
        None if began is None or ended is None else max(0.0, ended - began),
        read_cost(next((attributes[name] for name in _COSTS if name in attributes), None)),
    )


def _read_list(value: Json) -> list[Any]:
    return list_of(parsed(value) if isinstance(value, str) else value, "malformed-request")


def _read_parts(content: Json) -> tuple[str, ...]:
    texts = []
    for item in list_of(content, "malformed-request"):
        part = object_of(item, "malformed-request")
        part_type = part.get("type")
        if part_type == "text":
            texts.append(text_of(part.get("content")))
        elif part_type in ("tool_call", "tool_call_response"):
            texts.append(as_json({key: value for key, value in part.items() if key not in ("type", "id")}))
        elif part_type != "reasoning":
            raise NotMirrored("input-not-text")
    return tuple(texts)


def _read_answer(messages: list[Any]) -> tuple[str, str, Json, str]:
    """The way of the answer (see `CompletionRequest`), the tool's name, the value and the finish reason."""
    if len(messages) != 1:
        raise NotMirrored("several-choices" if messages else "no-answer")
    message = object_of(messages[0], "malformed-answer")
    finished = word(message.get("finish_reason"))
    if finished in _FINISHED_EARLY:
        raise NotMirrored(_FINISHED_EARLY[finished])
    parts = [
        object_of(part, "malformed-answer") for part in list_of(message.get("parts"), "malformed-answer")
    ]
    calls = [part for part in parts if part.get("type") == "tool_call"]
    if len(calls) > 1:
        raise NotMirrored("several-tool-calls")
    if calls:
        value = calls[0].get("arguments")
        value = parsed(value) if isinstance(value, str) else value
        if value is None:  # the call was recorded without them
            raise NotMirrored("no-content")
        return "tool", text_of(calls[0].get("name"), "malformed-answer"), value, finished
    texts = [text_of(part.get("content"), "malformed-answer") for part in parts if part.get("type") == "text"]
    value = parsed("".join(texts))
    if not isinstance(value, dict | list):
        raise NotMirrored("no-schema")
    return "json-object", "", value, finished


def _read_time(span: Mapping[str, Json], name: str) -> float | None:
    """The span's start or end in seconds since 1970; None if it has none, for which OTLP may write 0."""
    if (nanoseconds := span.get(f"{name}TimeUnixNano")) is not None:
        return int(nanoseconds) / 1e9 or None
    with suppress(ValueError):
        return parse_time(str(span.get(f"{name}_time")))
    return None


def parse_time(written: str) -> float:
    """Parses a time in ISO 8601 to seconds since 1970. A time without a zone is in UTC, whatever the
    machine's zone is. Raises ValueError.
    """
    time = datetime.fromisoformat(written)
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def read_cost(value: Json) -> float | None:
    """The cost of a call as a number or as its text; None for anything else."""
    with suppress(TypeError, ValueError):
        cost = float(value)
        return cost if 0 < cost < math.inf and not isinstance(value, bool) else None
    return None


def _read_integer(value: Json) -> int | None:
    if isinstance(value, bool):
        return None
    with suppress(TypeError, ValueError):
        return int(orjson.loads(value) if isinstance(value, str) else value)
    return None
