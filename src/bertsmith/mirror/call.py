"""One call of an LLM, whatever wire format it came in: what was asked, what was answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SYSTEM_ROLES = ("system", "developer")
# Sources of calls of ours: those that asked a recorded input once more, which are no traffic, and those that
# had a file labelled.
AGAIN, LABELLED = "again", "label"
IMPORTED, UNDATED = "import", "undated"  # sources of calls that were recorded elsewhere
STUDENT_ANSWER = "student-answer"  # why a call isn't recorded whose answer is no LLM's
OWN_NUMBER = "bertsmith"  # so begins the number in the id of an answer of ours
QUEUE_FULL = "queue-full"  # why a call isn't recorded while the store can't be written
Json = Any  # what json.loads gives
Probabilities = Mapping[str, list[tuple[Json, float]]]  # of a field's values, by the field's JSON path


class NotMirrored(Exception):
    """Why a call can't be mirrored, as a word or two with hyphens: no-schema, truncated, input-not-text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Message:
    """`parts` are texts; what the model called, and what a tool answered, as JSON."""

    role: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A request whose answer has a schema. `way` is how it was asked for: json-schema, json-object, tool or
    questions. `parameters` are the rest of the request that decides what comes back; `subjects` are those
    whom the request says it is about.
    """

    protocol: str
    model: str
    messages: tuple[Message, ...]
    schema_name: str
    schema: Mapping[str, Json]
    way: str
    parameters: Mapping[str, Json] = field(default_factory=dict)
    subjects: tuple[str, ...] = ()

    @property
    def system(self) -> tuple[Message, ...]:
        """What the application says in every call, as far as its place tells."""
        return tuple(each for each in self.messages if each.role in SYSTEM_ROLES)

    @property
    def inputs(self) -> tuple[Message, ...]:
        """The other messages."""
        return tuple(each for each in self.messages if each.role not in SYSTEM_ROLES)


@dataclass(frozen=True)
class Answered:
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
    asked: Asked
    answered: Answered
    source: str
    seconds: float | None = None
    first_seconds: float | None = None
    weight: float | None = None
    site_weight: float | None = None
