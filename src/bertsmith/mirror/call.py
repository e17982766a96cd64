"""The mirror's records, the same for every wire format: an LLM call with its request and completion, how it
was routed, and its outcome. Read `Call` first.

The rules at the end tell which HTTP statuses and reasons count as a refusal by the LLM. Relayed calls,
shadow, canary and audits all use them, so that their counts can be added up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SYSTEM_ROLES = ("system", "developer")
# Sources of calls that the mirror made itself: a recorded input asked again (not part of the traffic), a text
# of a file that was to be labelled, and a recorded input that was asked under another version (drawn like the
# traffic).
AGAIN, LABELLED, REPLAYED = "again", "label", "replay"
OWN_SOURCES = (AGAIN, LABELLED, REPLAYED)
IMPORTED, UNDATED = "import", "undated"  # sources of calls that were recorded elsewhere
STUDENT_ANSWER = "student-answer"  # reason not to record a call: a student answered it, not the LLM
OWN_ID_PREFIX = "bertsmith"  # begins the number in the id of every answer by a student
QUEUE_FULL = "queue-full"  # reason not to record a call: the store can't be written and the queue is full
Json = Any  # a value as json.loads returns it
# JSON path of a field -> its values with their probabilities.
Probabilities = Mapping[str, list[tuple[Json, float]]]
# Reasons why an answer with status 200 is one that no student could agree with.
_REFUSAL_REASONS = (
    "refusal", "truncated", "content-filter", "answer-not-json", "no-tool-call", "other-tool", "tool-call",
    "several-tool-calls", "no-answer", "malformed-answer", "content-type", "too-large",
)  # fmt: skip
_STATUS_PREFIX = "status-"
_CALL_REFUSED = (400, 403, 413, 422, 451)  # other statuses are about the key, the bill or the address
_RETRYABLE = (408, 409, 425, 429, *range(500, 600))


class SubjectFingerprint(str):
    """The keyed hash that stands for a subject in a store: what is read there isn't hashed once more."""


class NotMirrored(Exception):
    """A call can't be mirrored. `reason` is a code such as no-schema, truncated or input-not-text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation. `parts` are its texts, with tool calls and their results as JSON."""

    role: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class CompletionRequest:
    """A request for an answer with a schema.

    `way` is how the request asks for the schema: json-schema, json-object, tool or questions. `parameters`
    holds the other settings that influence the answer, such as the temperature. `subjects` are the people
    whom the call is about, as far as the request names them.
    """

    protocol: str
    model: str
    messages: tuple[ChatMessage, ...]
    schema_name: str
    schema: Mapping[str, Json]
    way: str
    parameters: Mapping[str, Json] = field(default_factory=dict)
    subjects: tuple[str, ...] = ()

    @property
    def system(self) -> tuple[ChatMessage, ...]:
        """The system messages, which an application usually sends with every call."""
        return tuple(message for message in self.messages if message.role in SYSTEM_ROLES)

    @property
    def inputs(self) -> tuple[ChatMessage, ...]:
        """All messages that are not system messages: they carry the input of this call."""
        return tuple(message for message in self.messages if message.role not in SYSTEM_ROLES)


@dataclass(frozen=True)
class Completion:
    """The LLM's answer: `value` is its parsed JSON.

    `probabilities` are those that the model gave for a field's values. `logprobs` is a list of tokens, each
    [token, log probability, [[alternative token, log probability], …]].
    """

    value: Json
    model: str = ""
    finish_reason: str = ""
    response_id: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    probabilities: Probabilities = field(default_factory=dict)
    logprobs: list[Json] | None = None


@dataclass(frozen=True)
class Call:
    """A request with its completion, as the store keeps it.

    id              unique to this call
    content         a hash of request and answer: equal for equal calls
    site            the place in the application that makes the call
    version         one prompt, schema and model of that site
    began           seconds since 1970
    source          relay, import, undated (an import whose time is unknown), audit (a student had answered),
                    label (a text of a file), again (a recorded input that was asked once more), replay (one
                    of another version, asked under this one)
    seconds         from the request to the answer's last byte; first_seconds to its first; None if unknown
    weight          where a student serves: the least probability of asking the LLM at that moment divided by
                    this call's probability; site_weight takes the least over all versions of the site
    """

    id: str
    content: str
    site: str
    version: str
    began: float
    request: CompletionRequest
    completion: Completion
    source: str
    seconds: float | None = None
    first_seconds: float | None = None
    weight: float | None = None
    site_weight: float | None = None


@dataclass(frozen=True)
class CallRouting:
    """Who answers a call, and why.

    `reason` says why the LLM answers; if it is empty, the student does, with `answer`. `values` and
    `confidence` are the student's prediction: None and NaN where it was not run. A call that the student
    `is_sure` of goes to the LLM with `probability`. No call of the version goes there with less than `least`
    at that moment, none of the site with less than `site_least`. `audit` is the id of the audit where the LLM
    is asked although the student has answered.
    """

    version: str
    student: str
    reason: str = ""
    confidence: float = float("nan")
    values: Mapping[str, Any] | None = None
    answer: Any = None
    probabilities: Mapping[str, list[tuple[Any, float]]] | None = None
    is_sure: bool = False
    probability: float = 1.0
    least: float = 1.0
    site_least: float = 1.0
    audit: str = ""

    @property
    def weight(self) -> float:
        """The call's weight among the version's calls to the LLM at that moment, in (0, 1].

        Calls that were certain to go to the LLM are over-represented there; their weight is below 1.
        """
        return self.least / self.probability

    @property
    def site_weight(self) -> float:
        """As `weight`, among the calls of all versions of the site, as if they were merged."""
        return self.site_least / self.probability

    @property
    def is_ours(self) -> bool:
        """Whether the student answers the call rather than the LLM."""
        return not self.reason


@dataclass(frozen=True)
class CallOutcome:
    """How a call ended: with the LLM's answer in `teacher_answer`, or None and the `reason` why there is
    none. `began` is in seconds since 1970.

    `cause` says why an audit is void, so that its answer will never be known.
    """

    version: str
    request: CompletionRequest | None
    routing: CallRouting | None
    teacher_answer: Json = None
    reason: str = ""
    cause: str = ""
    began: float = 0.0


def status_reason(status: int) -> str:
    """The reason for a status other than 200: `status-404`."""
    return f"{_STATUS_PREFIX}{status}"


def may_answer_later(status: int) -> bool:
    """Whether the same request may succeed later: 408, 409, 425, 429 and 5xx."""
    return status in _RETRYABLE


def refuses_the_call(status: int) -> bool:
    """Whether the status is about this call's content: asking again, with any key, would not help."""
    return status in _CALL_REFUSED


def is_refusal(reason: str) -> bool:
    """Whether `reason` means that the LLM answered, but in a way that no student's answer can agree with."""
    return reason in _REFUSAL_REASONS or reason.startswith(_STATUS_PREFIX)


# The former names, which wire formats of one's own may import (docs/add-a-format-or-route.md).
Message = ChatMessage
Asked = CompletionRequest
Answered = Completion
