"""JSON objects of a file, each with its line: one a line, several lines long, or an array of them.

Read one by one: a file may be larger than memory.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from bertsmith.errors import InputError

_LONGEST = 64_000_000  # bytes of an object
_OPENED = (b"{", b"[", b"[{")  # a line that others follow


@dataclass(frozen=True)
class Placed:
    """An object, and where it is: in `length` bytes from `begin`, as item `number` of an array there."""

    path: Path
    line: int
    begin: int
    length: int
    value: Mapping[str, Any]
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"

    def without_value(self) -> "Placed":
        """To be read again later."""
        return replace(self, value={})

    def read(self) -> Mapping[str, Any]:
        """The object once more."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            found = orjson.loads(file.read(self.length))
        value: Mapping[str, Any] = found if self.number is None else found[self.number]
        return value


def json_objects(path: Path) -> Iterator[Placed]:
    """Raises InputError naming file and line."""
    parts, size, begin, first, place = list[bytes](), 0, 0, 0, 0
    with path.open("rb") as file:
        for line, raw in enumerate(file, 1):
            place += len(raw)
            if not parts and not raw.strip():
                continue
            if not parts:
                begin, first, size = place - len(raw), line, 0
            parts.append(raw)
            size += len(raw)
            if size > _LONGEST:
                raise InputError(f"{path}, line {first}: an object of more than {_LONGEST:,} bytes.")
            if len(parts) > 1 and not _may_end(parts[0], raw):
                continue
            value = _parsed(b"".join(parts))
            if value is not None:
                yield from _placed(path, first, begin, size, value)
                parts = []
            elif len(parts) == 1 and raw.strip() not in _OPENED:
                raise InputError(f"{path}, line {line}: expected an object of JSON on it; {_fault(raw)}")
    if parts:
        raise InputError(f"{path}, line {first}: what begins here is no JSON, or has been cut.")


def _may_end(first: bytes, last: bytes) -> bool:
    """A bracket as far in as the object began, or else each line of a long one would be parsed from there."""
    indented = len(first) - len(first.lstrip())
    return last[indented : indented + 1] in (b"}", b"]")


def _placed(path: Path, line: int, begin: int, size: int, value: Any) -> Iterator[Placed]:
    if isinstance(value, dict):
        yield Placed(path, line, begin, size, value)
        return
    for number, each in enumerate(value if isinstance(value, list) else [value], 1):
        if not isinstance(each, dict):
            raise InputError(f"{path}, line {line}: expected objects; item {number} is none.")
        yield Placed(path, line, begin, size, each, number - 1 if isinstance(value, list) else None)


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except ValueError:
        return None


def _fault(raw: bytes) -> str:
    """In words, without what stands there."""
    try:
        json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return "it isn't UTF-8."
    except json.JSONDecodeError as error:
        return f"{error.msg[0].lower()}{error.msg[1:]}, column {error.colno}."
    except (ValueError, RecursionError):
        pass
    return "it can't be read."
