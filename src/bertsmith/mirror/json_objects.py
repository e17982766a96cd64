"""JSON objects of a file, each with its line: one a line, several lines long, or an array of them.

Read one by one, in time linear in the file's length: a file may be larger than memory. What is compressed, or
in UTF-16 or UTF-32 with a byte-order mark, is read as everywhere else.
"""

import codecs
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from bertsmith.errors import InputError
from bertsmith.files import parse_json
from bertsmith.text.files.streams import BYTE_ORDER_MARKS, COMPRESSIONS
from bertsmith.text.files.table_file import open_table

_LONGEST = 64_000_000  # bytes of an object, or of an array
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # with its end missing, to the text's end
_TOKEN = re.compile(rb"[][{}]|" + _STRING.pattern, re.DOTALL)


@dataclass(frozen=True)
class Placed:
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

    def without_value(self) -> "Placed":
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


def json_objects(path: Path) -> Iterator[Placed]:
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
                depth += _more_open(bare)
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


def _more_open(bare: bytes) -> int:
    """How many more brackets it opens than it closes, its strings left away."""
    return bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")


def _placed(path: Path, line: int, begin: int, content: bytes, value: Any) -> Iterator[Placed]:
    if isinstance(value, dict):
        yield Placed(path, line, begin, len(content), value)
        return
    places = _places(content)
    for number, each in enumerate(value if isinstance(value, list) else [value], 1):
        if not isinstance(each, dict):
            raise InputError(f"{path}, line {line}: expected objects; item {number} is none.")
        first, end = next(places)
        yield Placed(path, line, begin + first, end - first, each)


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
