"""What is written: an answer of ours, and the bytes that it becomes."""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from bertsmith.mirror.call import OWN_NUMBER, Asked, Json, NotMirrored, Probabilities

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
_PIECE = 24  # characters of a streamed answer that come at once


class Written(NamedTuple):
    """`pieces` of the body, each sent as soon as it can be."""

    content_type: str
    pieces: list[bytes]


@dataclass(frozen=True)
class OwnAnswer:
    """`body` is the parsed request, `value` what the student says of it. `probabilities` may be empty where
    the protocol doesn't ask for them.
    """

    asked: Asked
    body: Mapping[str, Json]
    value: Json
    student: str
    probabilities: Probabilities = field(default_factory=dict)
    number: str = field(default_factory=lambda: OWN_NUMBER + uuid.uuid4().hex)
    at: int = field(default_factory=lambda: int(time.time()))

    @property
    def text(self) -> str:
        """The value as an LLM would write it."""
        return orjson.dumps(self.value).decode()

    @property
    def is_streamed(self) -> bool:
        """As the client asked."""
        return bool(self.body.get("stream"))

    def spread(self, name: str) -> list[tuple[Json, float]]:
        """The probabilities of a field's values. Raises NotMirrored where the student gives none."""
        found = self.probabilities.get(f"$.{name}")
        if not found:
            raise NotMirrored("no-probabilities")
        return found

    def text_pieces(self) -> Iterator[str]:
        """The text, as a stream has it."""
        text = self.text
        for begin in range(0, len(text), _PIECE):
            yield text[begin : begin + _PIECE]


def whole(body: Json) -> Written:
    """An answer that comes at once."""
    return Written(JSON, [orjson.dumps(body)])


def data(value: Json) -> bytes:
    """One event without a name."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(kind: str, **more: Any) -> bytes:
    """One event that is called as its type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **more}))
