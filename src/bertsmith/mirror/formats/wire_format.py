"""The contract of a wire format: all that a mirror and a guard have to know of one provider's calls.

A subclass a provider, in one file, and an instance of it in registry.py; or a file of one's own, named as
`module:Class` (see docs/add-a-wire-format.md). Nobody else asks which format a call is in.
"""

import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

import orjson

from bertsmith.mirror.call import (
    OWN_ID_PREFIX,
    SYSTEM_ROLES,
    Completion,
    CompletionRequest,
    Json,
    NotMirrored,
    Probabilities,
)
from bertsmith.mirror.formats.reading import Event

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
_PIECE = 24  # characters of a streamed answer that come at once
# What a request says beside its messages, by which the application steers the model or the provider.
_OF_APPLICATION = frozenset((
    "audio", "betas", "billing_policy", "compaction", "container", "context_management", "conversation",
    "fallback_credit_token", "fallbacks", "function_call", "functions", "include", "instructions",
    "mcp_servers", "metadata", "modalities", "model", "moderation", "output_config", "output_format",
    "prediction", "previous_response_id", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "questions", "reasoning", "reasoning_effort", "response_format",
    "safety_identifier", "service_tier", "stop", "stop_sequences", "stream_options", "system", "text",
    "thinking", "tool_choice", "tools", "truncation", "user", "verbosity", "web_search_options",
))  # fmt: skip
_OF_MODEL = (  # types of items, as …_call; what a client refers to by its id is what the model said
    "compaction", "item_reference", "mcp_approval_request", "mcp_list_tools", "program", "reasoning",
)  # fmt: skip

Tokens = tuple[int | None, int | None]  # read and written; None where nobody says it


class ResponseBody(NamedTuple):
    """`pieces` of the body, each sent as soon as it can be."""

    content_type: str
    pieces: list[bytes]


@dataclass(frozen=True)
class StudentCompletion:
    """`body` is the parsed request and `path` what it asked for, with its query; `value` is what the student
    says of it. `probabilities` may be empty where the protocol doesn't ask for them.
    """

    request: CompletionRequest
    body: Mapping[str, Json]
    value: Json
    student: str
    probabilities: Probabilities = field(default_factory=dict)
    number: str = field(default_factory=lambda: OWN_ID_PREFIX + uuid.uuid4().hex)
    at: int = field(default_factory=lambda: int(time.time()))
    path: str = ""

    @property
    def asked(self) -> CompletionRequest:
        """The former name of `request`, for wire formats of one's own."""
        return self.request

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


class WireFormat(ABC):
    """`NAME` is in the store and in the log. Requests are told by the end of their path, `PATH`, or by one of
    `WHOLE_PATHS`. `PROVIDER` names the mirror's address for it: openai is --openai-base-url, one without an
    option of its own is --upstream; `BASE_HAS_VERSION` where its clients' base URLs end in /v1, and `HEADER`
    marks its requests on paths that other providers have too. `KEY` is the usual variable of the environment
    with its key; without one, the mirror can't ask in this format by itself.
    """

    NAME: ClassVar[str]
    PATH: ClassVar[str]
    WHOLE_PATHS: ClassVar[tuple[str, ...]] = ()
    PROVIDER: ClassVar[str] = ""
    BASE_HAS_VERSION: ClassVar[bool] = False
    HEADER: ClassVar[bytes] = b""
    KEY: ClassVar[str] = ""

    # What the guard asks: the request's key with the input, why nothing can be judged where it holds none,
    # who the model is in it, and the keys of the application's own words, which an answer may repeat; beside
    # those of all protocols, keys whose single words are the protocol's, and keys and types of what is no
    # text.
    INPUT: ClassVar[str] = "messages"
    NO_INPUT: ClassVar[str] = "malformed-request"
    MODEL_ROLE: ClassVar[str] = "assistant"
    OF_APPLICATION: ClassVar[frozenset[str]] = _OF_APPLICATION
    WORDS: ClassVar[frozenset[str]] = frozenset()
    MEDIA: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        """Raises NotMirrored saying why."""

    @abstractmethod
    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        """Of a body with status 200, or of a joined stream. Raises NotMirrored saying why."""

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """A stream's events as the body that would have come without streaming. Raises NotMirrored where
        they end too early, and in a format that has no streams.
        """
        raise NotMirrored("streamed")

    @abstractmethod
    def write(self, answer: StudentCompletion) -> ResponseBody:
        """An answer of ours, whole or as a stream. Raises NotMirrored where the student can't give what the
        client asked for.
        """

    @abstractmethod
    def error_body(self, message: str, code: str) -> Json:
        """What the format's clients read where there is no answer to relay."""

    def is_at(self, path: str) -> bool:
        """Whether a request for this path is in this format."""
        return path in self.WHOLE_PATHS or path.endswith(self.PATH)

    def model_of_path(self, path: str) -> str:
        """What a path names, as those of Azure do; empty for none.

        /openai/deployments/intents/chat/completions    intents
        /models/org/name/v1/chat/completions            org/name
        """
        found = self._named.search(path.partition("?")[0])
        return unquote(found["model"]) if found else ""

    @cached_property
    def _named(self) -> re.Pattern[str]:
        ends = "|".join(map(re.escape, (self.PATH, *self.WHOLE_PATHS)))
        return re.compile(rf"/(?:deployments|engines|models)/(?P<model>.+?)(?:/v\d+)?(?:{ends})$")

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        """Whether a logged call without its path is in this format: by keys that no other has."""
        return False

    def new_items(self, body: Mapping[str, Json]) -> list[Json]:
        """Of the request's input, what came since the model last spoke, without the application's own words.
        Raises NotMirrored.
        """
        given = body.get(self.INPUT)
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list):
            raise NotMirrored(self.NO_INPUT)
        items = [item for item in given if _field(item, "role") not in SYSTEM_ROLES]
        items = [item for item in items if _field(item, "type") != "configuration_update"]
        since = 0
        for place, item in enumerate(items, 1):
            kind, role = _field(item, "type"), _field(item, "role")
            by_type = kind in _OF_MODEL or str(kind).endswith("_call")
            if role == self.MODEL_ROLE or (role is None and by_type):
                since = place
        return items[since:] or items  # it begins the model's answer

    def write_request(self, request: CompletionRequest) -> dict[str, Json]:
        """What was asked, to be asked again by ourselves."""
        raise NotImplementedError

    def headers(self, key: str) -> Mapping[str, str]:
        """Of a request of ours, with the provider's key where there is one."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def tokens_of(self, body: Mapping[str, Json]) -> Tokens:
        """What an answer says that it cost, whether or not it can be read."""
        return None, None


def _field(item: Json, key: str) -> Json:
    return item.get(key) if isinstance(item, dict) else None


def whole(body: Json) -> ResponseBody:
    """An answer that comes at once."""
    return ResponseBody(JSON, [orjson.dumps(body)])


def data(value: Json) -> bytes:
    """One event without a name."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(kind: str, **more: Any) -> bytes:
    """One event that is called as its type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **more}))


# The former names, which wire formats of one's own may import (docs/add-a-wire-format.md).
Written = ResponseBody
OwnAnswer = StudentCompletion
