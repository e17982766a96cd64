"""The contract of a wire format: all that the mirror and the guard need to know about one provider's API.

Each provider has a subclass of `WireFormat` in a file of its own and an instance in registry.py; users name
theirs as `module:Class` (docs/add-a-format-or-route.md). No other code depends on which format a call is in.
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
_CHUNK_LENGTH = 24  # characters in each chunk of a streamed answer
# Keys of a request, beside its messages, with which the application steers the model or the provider.
_APPLICATION_KEYS = frozenset((
    "audio", "betas", "billing_policy", "compaction", "container", "context_management", "conversation",
    "fallback_credit_token", "fallbacks", "function_call", "functions", "include", "instructions",
    "mcp_servers", "metadata", "modalities", "model", "moderation", "output_config", "output_format",
    "prediction", "previous_response_id", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "questions", "reasoning", "reasoning_effort", "response_format",
    "safety_identifier", "service_tier", "stop", "stop_sequences", "stream_options", "system", "text",
    "thinking", "tool_choice", "tools", "truncation", "user", "verbosity", "web_search_options",
))  # fmt: skip
# Types of input items that the model wrote, beside those that end in _call. An item_reference names an
# earlier item of the model by its id.
_MODEL_ITEM_TYPES = (
    "compaction", "item_reference", "mcp_approval_request", "mcp_list_tools", "program", "reasoning",
)  # fmt: skip

Tokens = tuple[int | None, int | None]  # input and output tokens; None if unknown


class ResponseBody(NamedTuple):
    """The body of an HTTP response: one chunk, or the chunks of a stream in their order."""

    content_type: str
    chunks: list[bytes]


@dataclass(frozen=True)
class StudentCompletion:
    """A student's answer, to be written in a wire format.

    `body` is the client's parsed request and `path` its path with the query; `value` is the student's answer.
    `probabilities` are those of each field's values by path, and may be empty if the wire format has no use
    for them. `number` isn't a number but the unique part of the answer's id, such as bertsmith4f2c…, to
    which a format adds its prefix ("chatcmpl-"). `at` is the answer's time in seconds since 1970.
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
        """The value as JSON, the way an LLM would write it."""
        return orjson.dumps(self.value).decode()

    @property
    def is_streamed(self) -> bool:
        """Whether the client asked for a stream."""
        return bool(self.body.get("stream"))

    def spread(self, name: str) -> list[tuple[Json, float]]:
        """The probability distribution over the values of the field `name`: each value with its probability.
        Raises NotMirrored if the student has none.
        """
        probabilities = self.probabilities.get(f"$.{name}")
        if not probabilities:
            raise NotMirrored("no-probabilities")
        return probabilities

    def text_pieces(self) -> Iterator[str]:
        """The text in chunks of some characters, for a stream. They aren't tokens or word pieces."""
        text = self.text
        for begin in range(0, len(text), _CHUNK_LENGTH):
            yield text[begin : begin + _CHUNK_LENGTH]


class WireFormat(ABC):
    """How one provider's requests and answers are recognised, read and written.

    NAME                the format's name in the store and in the log
    PATH, WHOLE_PATHS   a request is in this format if its path ends in PATH or is one of WHOLE_PATHS
    PROVIDER            chooses the upstream: with "openai" it is --openai-base-url if that option is set; for
                        a provider without such an option it is --upstream
    BASE_HAS_VERSION    whether the base URLs of its clients end in /v1
    HEADER              a header that marks its requests on paths that other providers have too
    KEY                 the usual environment variable of its API key; without one, the mirror can't send
                        requests of its own in this format
    """

    NAME: ClassVar[str]
    PATH: ClassVar[str]
    WHOLE_PATHS: ClassVar[tuple[str, ...]] = ()
    PROVIDER: ClassVar[str] = ""
    BASE_HAS_VERSION: ClassVar[bool] = False
    HEADER: ClassVar[bytes] = b""
    KEY: ClassVar[str] = ""

    # For the guard:
    # INPUT           the request's key with the input
    # NO_INPUT        the reason that is given if there is no input to judge
    # MODEL_ROLE      the role of the model in the input
    # OF_APPLICATION  keys of a request with the application's own words: they aren't judged, and an answer
    #                 may repeat them unjudged
    # WORDS           keys whose value isn't judged if it is a single word, such as an id; beside those that
    #                 all formats share
    # MEDIA           keys and types of media, which have no text to judge; beside those that all formats have
    INPUT: ClassVar[str] = "messages"
    NO_INPUT: ClassVar[str] = "malformed-request"
    MODEL_ROLE: ClassVar[str] = "assistant"
    OF_APPLICATION: ClassVar[frozenset[str]] = _APPLICATION_KEYS
    WORDS: ClassVar[frozenset[str]] = frozenset()
    MEDIA: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def read_request(self, body: Mapping[str, Json]) -> CompletionRequest:
        """Reads the JSON body of a request. Raises NotMirrored with the reason if it can't be mirrored."""

    @abstractmethod
    def read_answer(self, request: CompletionRequest, body: Mapping[str, Json]) -> Completion:
        """Reads the JSON body of an answer with status 200, or a joined stream. Raises NotMirrored."""

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """Joins a stream's events to the body that the answer would have without streaming. Raises
        NotMirrored if the stream ends too early, and in a format that has no streams.
        """
        raise NotMirrored("streamed")

    @abstractmethod
    def write(self, answer: StudentCompletion) -> ResponseBody:
        """Writes a student's answer, at once or as a stream. Raises NotMirrored if the student can't give
        what the client asked for, such as log probabilities.
        """

    @abstractmethod
    def error_body(self, message: str, code: str) -> Json:
        """The JSON body of an error, for the format's clients, where there is no answer to relay."""

    def is_at(self, path: str) -> bool:
        """Whether a request for this path is in this format."""
        return path in self.WHOLE_PATHS or path.endswith(self.PATH)

    def model_of_path(self, path: str) -> str:
        """The model that a path names, as Azure's paths do; empty if it names none.

        /openai/deployments/intents/chat/completions    intents
        /models/org/name/v1/chat/completions            org/name
        """
        match = self._model_path.search(path.partition("?")[0])
        return unquote(match["model"]) if match else ""

    @cached_property
    def _model_path(self) -> re.Pattern[str]:
        ends = "|".join(map(re.escape, (self.PATH, *self.WHOLE_PATHS)))
        return re.compile(rf"/(?:deployments|engines|models)/(?P<model>.+?)(?:/v\d+)?(?:{ends})$")

    def fits(self, request: Mapping[str, Json], answer: Mapping[str, Json]) -> bool:
        """Whether a logged call whose path is unknown is in this format, by keys that no other format has."""
        return False

    def new_items(self, body: Mapping[str, Json]) -> list[Json]:
        """The items of the request's input since the model's last turn, without system messages. If the last
        item is the model's (a prefill, the beginning of its answer), all items. Raises NotMirrored if there
        is no input.
        """
        content = body.get(self.INPUT)
        if isinstance(content, str):
            return [content]
        if not isinstance(content, list):
            raise NotMirrored(self.NO_INPUT)
        items = [item for item in content if _field(item, "role") not in SYSTEM_ROLES]
        # An item of the Responses API that changes settings and has no text.
        items = [item for item in items if _field(item, "type") != "configuration_update"]
        since = 0
        for position, item in enumerate(items, 1):
            item_type, role = _field(item, "type"), _field(item, "role")
            by_type = item_type in _MODEL_ITEM_TYPES or str(item_type).endswith("_call")
            if role == self.MODEL_ROLE or (role is None and by_type):
                since = position
        return items[since:] or items

    def write_request(self, request: CompletionRequest) -> dict[str, Json]:
        """The JSON body of a request that the mirror itself sends, without a stream: a recorded one again, or
        one for a text of a file. Needed only by formats with a KEY.
        """
        raise NotImplementedError

    def headers(self, key: str) -> Mapping[str, str]:
        """The headers of a request that the mirror sends itself; `key` is the provider's API key or empty."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def tokens_of(self, body: Mapping[str, Json]) -> Tokens:
        """The token counts in an answer's body, also in one that `read_answer` refuses."""
        return None, None


def _field(item: Json, key: str) -> Json:
    return item.get(key) if isinstance(item, dict) else None


def whole(body: Json) -> ResponseBody:
    """A body that is sent at once, not as a stream."""
    return ResponseBody(JSON, [orjson.dumps(body)])


def data(value: Json) -> bytes:
    """One server-sent event without a name, `value` as its JSON data."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(kind: str, **more: Any) -> bytes:
    """One server-sent event whose name is its `type`, with the keys `more` beside it."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **more}))


# The former names, which wire formats of one's own may import (docs/add-a-format-or-route.md).
Written = ResponseBody
OwnAnswer = StudentCompletion
