"""What files of calls hold: JSON objects, each with its line, and OpenTelemetry's spans of GenAI.

Objects come one a line, several lines long, or in an array, and are read one by one, in time linear in the
file's length: a file may be larger than memory. What is compressed, or in UTF-16 or UTF-32 with a byte-order
mark, is read as everywhere else.

Spans have attributes (semantic conventions 1.38): gen_ai.input.messages, gen_ai.output.messages and
gen_ai.system_instructions hold JSON, as text or as values; each message has a role and parts. A schema isn't
recorded there: the answer's own JSON, or the tool that it called, stands for it.
"""

import codecs
import contextlib
import json
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

_LONGEST = 64_000_000  # bytes of an object, or of an array
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # with its end missing, to the text's end
_TOKEN = re.compile(rb"[][{}]|" + _STRING.pattern, re.DOTALL)
NAME = "otel"
_OPERATIONS = ("chat", "generate_content", "text_completion")
_FINISHED_EARLY = {"length": "truncated", "max_tokens": "truncated", "content_filter": "content-filter"}
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class LocatedObject:
    """An object, and where it is: `length` bytes from `begin`. `line` is that on which it, or its array,
    begins. `kept`: its bytes, of a file that can't be read again from a place in it.
    """

    path: Path
    line: int
    begin: int
    length: int
    value: Mapping[str, Any]
    kept: bytes = b""

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"

    def without_value(self) -> "LocatedObject":
        """To be read again later."""
        return replace(self, value={})

    def read(self) -> Mapping[str, Any]:
        """The object once more."""
        content = self.kept
        if not content:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                content = file.read(self.length)
        value: Mapping[str, Any] = orjson.loads(content)
        return value


def read_json_objects(path: Path) -> Iterator[LocatedObject]:
    """Raises InputError naming file and line."""
    parts, size, begin, first, place, depth = list[bytes](), 0, 0, 0, 0, 0
    with _opened(path) as (lines, is_plain):
        for line, raw in enumerate(lines, 1):
            place += len(raw)
            if line == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if not parts and not raw.strip():
                continue
            if not parts:
                begin, first, size, depth = place - len(raw), line, 0, 0
            parts.append(raw)
            size += len(raw)
            if size > _LONGEST:
                raise InputError(
                    f"{path}, line {first}: an object or array of more than {_LONGEST:,} bytes, or one that "
                    "was cut."
                )
            content, value = raw, _parsed(raw) if len(parts) == 1 else None
            if value is None:
                bare = _STRING.sub(b"", raw)
                depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
                if depth > 0 and bare.endswith(b"\n"):  # else it ends within a string, which can't go on
                    continue
                content = b"".join(parts)
                value = _parsed(content)
            if value is None:
                break
            for each in _placed(path, first, begin, content, value):
                yield each if is_plain else replace(each, kept=content[each.begin - begin :][: each.length])
            parts = []
    if len(parts) == 1:
        raise InputError(f"{path}, line {first}: expected an object of JSON on it; {_fault(parts[0])}")
    if parts:
        raise InputError(f"{path}, line {first}: what begins here is no JSON, or has been cut.")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Iterable[bytes], bool]]:
    """Its lines in UTF-8, and whether they stand in the file as they are."""
    with path.open("rb") as file:
        head = file.read(4)
        mark = next((name for begin, name in BYTE_ORDER_MARKS if head.startswith(begin)), "utf-8-sig")
        if path.suffix.lower() not in COMPRESSIONS and mark == "utf-8-sig":
            file.seek(0)
            yield file, True
            return
    with open_table(path, None, "utf-8", {}, "JSON", whole_name=True) as table:
        yield (f"{line}\n".encode() for line in table.stream.lines(_LONGEST)), False


def _placed(path: Path, line: int, begin: int, content: bytes, value: Any) -> Iterator[LocatedObject]:
    if isinstance(value, dict):
        yield LocatedObject(path, line, begin, len(content), value)
        return
    places = _places(content)
    for number, each in enumerate(value if isinstance(value, list) else [value], 1):
        if not isinstance(each, dict):
            raise InputError(f"{path}, line {line}: expected objects; item {number} is none.")
        first, end = next(places)
        yield LocatedObject(path, line, begin + first, end - first, each)


def _places(array: bytes) -> Iterator[tuple[int, int]]:
    """Where each of its objects begins and ends, to be read again without the others."""
    depth = begin = 0
    for token in _TOKEN.finditer(array):
        if token[0] in (b"{", b"["):
            depth += 1
            begin = token.start() if depth == 2 else begin
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == 1:
                yield begin, token.end()


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except ValueError:
        return None


def _fault(raw: bytes) -> str:
    """In words, without what stands there."""
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
    """`began` in seconds since 1970, None where the span doesn't say it."""

    request: CompletionRequest
    completion: Completion
    began: float | None
    seconds: float | None


def holds_spans(value: Mapping[str, Json]) -> bool:
    """Whether these are spans, of whatever."""
    return "resourceSpans" in value or ("attributes" in value and ("name" in value or "context" in value))


def read_span_calls(value: Mapping[str, Json]) -> Iterator[SpanCall | NotMirrored]:
    """Of an object that `holds_spans`, each, or why it can't be mirrored; spans of other things are passed
    over.
    """
    for span in _spans(value):
        try:
            attributes = span.get("attributes")
            if not isinstance(attributes, dict):  # OTLP has a list of keys with typed values
                attributes = {each["key"]: _value(each["value"]) for each in attributes or ()}
            if attributes.get("gen_ai.operation.name") in _OPERATIONS:
                yield _call(attributes, span)
        except NotMirrored as found:
            yield found
        except _MALFORMED:
            yield NotMirrored("malformed-answer")


def _spans(value: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    if "resourceSpans" not in value:
        yield value
        return
    for resource in value["resourceSpans"]:
        for scope in resource.get("scopeSpans") or ():
            yield from scope.get("spans") or ()


def _value(typed: Mapping[str, Json]) -> Json:
    if not typed:  # null
        return None
    kind, value = next(iter(typed.items()))
    if kind == "intValue":
        return int(value)
    if kind == "arrayValue":
        return [_value(each) for each in value.get("values") or ()]
    if kind == "kvlistValue":
        return {each["key"]: _value(each["value"]) for each in value.get("values") or ()}
    return value


def _call(attributes: Mapping[str, Json], span: Mapping[str, Json]) -> SpanCall:
    if (attributes.get("gen_ai.request.choice.count") or 1) != 1:
        raise NotMirrored("several-choices")
    if "gen_ai.input.messages" not in attributes or "gen_ai.output.messages" not in attributes:
        raise NotMirrored("no-content")  # it is recorded only where somebody switched it on
    messages = list[ChatMessage]()
    for given in _json(attributes["gen_ai.input.messages"]):
        message = object_of(given, "malformed-request")
        messages.append(ChatMessage(text_of(message.get("role")), _parts(message.get("parts"))))
    if instructions := attributes.get("gen_ai.system_instructions"):
        messages.insert(0, ChatMessage("system", _parts(_json(instructions))))
    way, name, value, finished = _answer(_json(attributes["gen_ai.output.messages"]))
    began, ended = _moment(span, "start"), _moment(span, "end")
    model = word(attributes.get("gen_ai.request.model"))
    users = attributes.get("user.id"), attributes.get("enduser.id")
    subjects = tuple(dict.fromkeys(name for each in users for name in names_in(each)))
    return SpanCall(
        CompletionRequest(NAME, model, tuple(messages), name, {"type": "object"}, way, {}, subjects),
        Completion(
            value,
            word(attributes.get("gen_ai.response.model")),
            finished,
            word(attributes.get("gen_ai.response.id")),
            _number(attributes.get("gen_ai.usage.input_tokens")),
            _number(attributes.get("gen_ai.usage.output_tokens")),
        ),
        began,
        None if began is None or ended is None else max(0.0, ended - began),
    )


def _json(value: Json) -> list[Any]:
    return list_of(parsed(value) if isinstance(value, str) else value, "malformed-request")


def _parts(given: Json) -> tuple[str, ...]:
    found = []
    for each in list_of(given, "malformed-request"):
        part = object_of(each, "malformed-request")
        kind = part.get("type")
        if kind == "text":
            found.append(text_of(part.get("content")))
        elif kind in ("tool_call", "tool_call_response"):
            found.append(as_json({key: value for key, value in part.items() if key not in ("type", "id")}))
        elif kind != "reasoning":
            raise NotMirrored("input-not-text")
    return tuple(found)


def _answer(messages: list[Any]) -> tuple[str, str, Json, str]:
    """How the answer came, the tool's name, its value, and why it ended."""
    if len(messages) != 1:
        raise NotMirrored("several-choices" if messages else "no-answer")
    message = object_of(messages[0], "malformed-answer")
    finished = word(message.get("finish_reason"))
    if finished in _FINISHED_EARLY:
        raise NotMirrored(_FINISHED_EARLY[finished])
    parts = [
        object_of(each, "malformed-answer") for each in list_of(message.get("parts"), "malformed-answer")
    ]
    calls = [each for each in parts if each.get("type") == "tool_call"]
    if len(calls) > 1:
        raise NotMirrored("several-tool-calls")
    if calls:
        value = calls[0].get("arguments")
        value = parsed(value) if isinstance(value, str) else value
        if value is None:  # the call was recorded without them
            raise NotMirrored("no-content")
        return "tool", text_of(calls[0].get("name"), "malformed-answer"), value, finished
    texts = [text_of(each.get("content"), "malformed-answer") for each in parts if each.get("type") == "text"]
    value = parsed("".join(texts))
    if not isinstance(value, dict | list):
        raise NotMirrored("no-schema")
    return "json-object", "", value, finished


def _moment(span: Mapping[str, Json], name: str) -> float | None:
    """Seconds since 1970; None where nothing is said, which OTLP writes as 0 too."""
    if (nanoseconds := span.get(f"{name}TimeUnixNano")) is not None:
        return int(nanoseconds) / 1e9 or None
    with suppress(ValueError):
        return parse_time(str(span.get(f"{name}_time")))
    return None


def parse_time(written: str) -> float:
    """Seconds since 1970 of ISO 8601; what names no zone is in UTC, on whatever machine it is read. Raises
    ValueError.
    """
    found = datetime.fromisoformat(written)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _number(value: Json) -> int | None:
    if isinstance(value, bool):
        return None
    with suppress(TypeError, ValueError):
        return int(orjson.loads(value) if isinstance(value, str) else value)
    return None
