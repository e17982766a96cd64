"""One call of an LLM, whatever wire format it came in: what was asked, what was answered, who answered and
why; and when the LLM has answered, though not as a student would have.

Refusals hold alike for calls that were relayed, in shadow and in canary, and for audits: else what one of
them finds could not be added to what another does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SYSTEM_ROLES = ("system", "developer")
# Sources of calls of ours: those that asked a recorded input once more, which are no traffic, and those that
# had a file labelled.
AGAIN, LABELLED = "again", "label"
IMPORTED, UNDATED = "import", "undated"  # sources of calls that were recorded elsewhere
STUDENT_ANSWER = "student-answer"  # why a call isn't recorded whose answer is no LLM's
OWN_ID_PREFIX = "bertsmith"  # so begins the number in the id of an answer of ours
QUEUE_FULL = "queue-full"  # why a call isn't recorded while the store can't be written
Json = Any  # what json.loads gives
Probabilities = Mapping[str, list[tuple[Json, float]]]  # of a field's values, by the field's JSON path
# Of an answer with status 200.
_ANSWERED_OTHERWISE = (
    "refusal", "truncated", "content-filter", "answer-not-json", "no-tool-call", "other-tool", "tool-call",
    "several-tool-calls", "no-answer", "malformed-answer", "content-type", "too-large",
)  # fmt: skip
_STATUS = "status-"
_OF_THE_CALL = (400, 403, 413, 422, 451)  # others are of the key, the bill or the address, whatever was asked
_LATER = (408, 409, 425, 429, *range(500, 600))


class NotMirrored(Exception):
    """Why a call can't be mirrored, as a word or two with hyphens: no-schema, truncated, input-not-text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class ChatMessage:
    """`parts` are texts; what the model called, and what a tool answered, as JSON."""

    role: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class CompletionRequest:
    """A request whose answer has a schema. `way` is how it was asked for: json-schema, json-object, tool or
    questions. `parameters` are the rest of the request that decides what comes back; `subjects` are those
    whom the request says it is about.
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
        """What the application says in every call, as far as its place tells."""
        return tuple(each for each in self.messages if each.role in SYSTEM_ROLES)

    @property
    def inputs(self) -> tuple[ChatMessage, ...]:
        """The other messages."""
        return tuple(each for each in self.messages if each.role not in SYSTEM_ROLES)


@dataclass(frozen=True)
class Completion:
    """`value` is the parsed JSON. `probabilities` are what the model said of a field's values, `logprobs` of
    its tokens: [token, log probability, [[other token, log probability], …]].
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
    """`id` is its own, `content` the same for equal calls. Times: `began` in seconds since 1970, `seconds` to
    the answer's last byte and `first_seconds` to its first, None where nobody measured. `site` is the place
    in the application, `version` one prompt, schema and model of it. `source`: relay or import; undated for
    an import of which nobody knows when it was; audit for one that a student answered; label for a file's
    text, again for a recorded input that was asked once more. `weight`, where a student answers at this site,
    is least / probability of being put to the LLM, as they were when the call was answered; `site_weight` has
    the least over all versions of the site.
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
    """`reason` says why the LLM answers; with none, the student does, by `answer`. `values` and `confidence`
    are the student's, None and NaN where it was not asked. Of a call that it `is_sure` of, the LLM is asked
    with `probability`, and of any call at that moment with `least` or more, of any version of the site with
    `site_least`. `audit` names the audit, where the LLM is asked although the student answered.
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
        """What the call counts for among all that the LLM was asked at that moment: those that were sure to
        be asked are more than their share of the traffic.
        """
        return self.least / self.probability

    @property
    def site_weight(self) -> float:
        """The same among the calls of all versions of the site, as if they had been merged."""
        return self.site_least / self.probability

    @property
    def is_ours(self) -> bool:
        """The student answers."""
        return not self.reason


@dataclass(frozen=True)
class CallOutcome:
    """A call whose answer is known: the LLM's `taught`, or None with the `reason` why there is none. `cause`
    is why nobody knows, of an audit that is void.
    """

    version: str
    request: CompletionRequest | None
    routing: CallRouting | None
    taught: Json = None
    reason: str = ""
    cause: str = ""


def status_reason(status: int) -> str:
    """status-404"""
    return f"{_STATUS}{status}"


def may_answer_later(status: int) -> bool:
    """Another try may have another status."""
    return status in _LATER


def refuses_the_call(status: int) -> bool:
    """The LLM won't answer this call, now or later, whoever asks."""
    return status in _OF_THE_CALL


def is_refusal(reason: str) -> bool:
    """Of what is known of an answer, `reason` says why a student's can't agree with it."""
    return reason in _ANSWERED_OTHERWISE or reason.startswith(_STATUS)


# The former names, which wire formats of one's own may import (docs/add-a-wire-format.md).
Message = ChatMessage
Asked = CompletionRequest
Answered = Completion
