"""The tables of the mirror's store, the same in SQLite and PostgreSQL, and the conversion of calls to rows.

Tables of recorded calls:

meta      the layout's number, and the salt of the subjects' fingerprints
sites     the places in the application that make calls
versions  one prompt, schema and model of a site; what all its calls share is stored here once
fields    the JSON paths that occurred in a version's answers, with their types
calls     requests and answers
passed    how many calls could not be mirrored, by reason
replays   which recorded inputs are to be asked again, under which version, and what came of it

Tables about who answers; they contain no text of any call:

stages     for each version: its mode, and which students answer, answered before and may answer next
changes    every change of a stage: one row per revision, so that only one of two replicas can make it
students   trained students by the hash of their folder's student.json
evidence   for each student: the audits' confidence sequence, the drift test, and the proof that still grows
agreement  points of that confidence sequence over time
learned    results of a training: its learning curve, and where the student and the LLM differ
tallies    who answered how often, why, and how long it took
audits     calls that are put to the LLM although a student answered; stored before the LLM is asked
trainings  for each version: when training began, by whom, on how many calls, and how it ended
forecasts  for each version: what a student could answer, before the first is trained
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text

from bertsmith.mirror.call import Call, ChatMessage, Completion, CompletionRequest, Json, SubjectFingerprint

LAYOUT = 8
OLDER = (1, 2, 3, 4, 5, 6, 7)  # earlier layouts: opening a store adds the tables and columns that they lack
METADATA = MetaData()

META = Table(
    "mirror_meta", METADATA, Column("name", Text, primary_key=True), Column("value", Text, nullable=False)
)
SITES = Table(
    "mirror_sites",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("protocol", Text, nullable=False),
    Column("schema_name", Text, nullable=False),
    Column("began", Float, nullable=False),
)
VERSIONS = Table(
    "mirror_versions",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("site", Text, ForeignKey(SITES.c.id), nullable=False),
    Column("protocol", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("way", Text, nullable=False),
    Column("schema_name", Text, nullable=False),
    Column("schema", Text, nullable=False),  # JSON
    Column("system", Text, nullable=False),  # JSON: [[role, part, …], …]
    Column("parameters", Text, nullable=False),  # JSON, those of its first call
    Column("began", Float, nullable=False),
)
FIELDS = Table(
    "mirror_fields",
    METADATA,
    Column("version", Text, ForeignKey(VERSIONS.c.id), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("type", Text, primary_key=True),
)
CALLS = Table(
    "mirror_calls",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("version", Text, ForeignKey(VERSIONS.c.id), nullable=False),
    Column("began", Float, nullable=False),  # seconds since 1970
    Column("seconds", Float),
    Column("first_seconds", Float),
    Column("source", Text, nullable=False),
    # The call's weight among the version's recorded calls (CallRouting.weight); NULL if no student answered
    # at its site, or if an earlier layout recorded it.
    Column("weight", Float),
    Column("site_weight", Float),  # its weight among the recorded calls of all versions of its site
    Column("subject", Text),  # fingerprints, separated by blanks
    Column("messages", Text, nullable=False),  # JSON: [[role, part, …], …], without system messages
    Column("answer", Text, nullable=False),  # JSON
    Column("probabilities", Text),  # JSON: {path: [[value, probability], …]}
    Column("logprobs", Text),  # JSON
    Column("answer_model", Text, nullable=False),
    Column("response_id", Text, nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Index("mirror_calls_by_version", "version", "began"),
    Index("mirror_calls_by_time", "began"),
    Index("mirror_calls_by_subject", "subject"),
    Index("mirror_calls_by_content", "content"),
)
SKIPPED = Table(
    "mirror_passed",
    METADATA,
    Column("protocol", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("calls", BigInteger, nullable=False),
)
SKIPPED_IMPORTS = Table(  # fingerprints of imported calls that `mirror_passed` already counts
    "mirror_passed_imports", METADATA, Column("id", Text, primary_key=True)
)
MERGED = Table(
    "mirror_merged",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("into", Text, nullable=False),  # the version that it was merged into
)
REPLAYS = Table(  # recorded inputs that are to be asked again
    "mirror_replays",
    METADATA,
    Column("id", Text, primary_key=True),  # of the call in which the LLM answers
    Column("version", Text, nullable=False),  # of that call
    Column("source", Text, nullable=False),  # of that call
    Column("recorded", Text, nullable=False),  # the id of the call whose input is asked again
    Column("place", Integer, nullable=False),  # they are asked in this order
    Column("asked", Float, nullable=False),  # seconds since 1970; 0: not yet
    Column("is_drawn", Integer, nullable=False),  # 0: chosen for its answer, not drawn like the calls
    Column("outcome", Text),  # answered, or why there is no answer; NULL until it is known
    Index("mirror_replays_by_version", "version", "place"),
)
LEARNING = MetaData()  # tables that the first training creates
USES = Table(
    "mirror_uses",
    LEARNING,
    Column("training", Text, primary_key=True),  # its name
    Column("call", Text, primary_key=True),
    Column("use", Text, nullable=False),  # train, dev or calibration
    Column("at", Float, nullable=False),  # seconds since 1970
    Index("mirror_uses_by_call", "call", "use"),
)
UNANSWERED = Table("mirror_unanswered", LEARNING, Column("question", Text, primary_key=True))
FORECASTS = Table(
    "mirror_forecasts",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("calls", Integer, nullable=False),  # of which the forecast was made
    Column("at", Float, nullable=False),  # seconds since 1970: when it was begun
    Column("found", Text),  # JSON; NULL while it is being made
)
# A store may lack these if nothing was imported, merged, forecast or to be asked again.
OPTIONAL = (MERGED, SKIPPED_IMPORTS, REPLAYS, FORECASTS)


STAGES = Table(
    "mirror_stages",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("site", Text, nullable=False),
    Column("mode", Text, nullable=False),  # record, shadow, canary, live
    Column("share", Float, nullable=False),  # of the sure calls, how many the student answers: 0 ... 1
    Column("student", Text, nullable=False),  # '' for none, as in the next two columns
    Column("former", Text, nullable=False),
    Column("candidate", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("changed", Float, nullable=False),  # seconds since 1970
    Column("is_held", Integer, nullable=False),
)
CHANGES = Table(
    "mirror_changes",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("changed", Float, nullable=False),
    Column("mode_before", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("student", Text, nullable=False),
    Column("by", Text, nullable=False),  # hand or evidence
    Column("why", Text, nullable=False),
)
STUDENTS = Table(
    "mirror_students",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("epsilon", Float, nullable=False),
    Column("delta", Float, nullable=False),
    Column("added", Float, nullable=False),
)
EVIDENCE = Table(
    "mirror_evidence",
    METADATA,
    Column("student", Text, primary_key=True),
    Column("audits", Text, nullable=False),  # JSON, as Audits.as_json
    Column("drift", Text, nullable=False),  # JSON: {reference: […]} or {test: as Drift.as_json}
    Column("decision", Text, nullable=False),  # promote, keep, demote
    Column("compared", Integer, nullable=False),  # answers compared with the LLM's
    Column("in_stage", Integer, nullable=False),  # of these, since the stage last changed
    Column("has_drifted", Integer, nullable=False),
    Column("proof", Text),  # JSON, as ShadowProof.as_json; NULL if a claim was proven before it served
    Column("sure", Float),  # weight of the calls it was sure of, since the stage's candidate last changed
    Column("seen", Float),  # weight of all calls compared since then; NULL in an earlier layout
)
TALLIES = Table(
    "mirror_tallies",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("student", Text, primary_key=True),
    Column("outcome", Text, primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
)
AUDITS = Table(
    "mirror_audits",
    METADATA,
    Column("id", Text, primary_key=True),  # also the id of the recorded call
    Column("version", Text, nullable=False),
    Column("student", Text, nullable=False),
    Column("drawn", Float, nullable=False),
    Column("probability", Float, nullable=False),
    Column("least", Float, nullable=False),
    Column("outcome", Text),  # agrees, differs, failed; NULL until it is known
    Index("mirror_audits_open", "outcome", "drawn"),
)
TRAININGS = Table(
    "mirror_trainings",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("calls", Integer, nullable=False),
    Column("began", Float, nullable=False),
    Column("owner", Text, nullable=False),
    Column("until", Float, nullable=False),  # when the owner's lease ends; 0 if nobody trains
    Column("outcome", Text, nullable=False),
)
AGREEMENT = Table(
    "mirror_agreement",
    METADATA,
    Column("student", Text, primary_key=True),
    Column("compared", Integer, primary_key=True),  # comparisons so far
    Column("at", Float, nullable=False),  # seconds since 1970
    Column("differing", Float, nullable=False),  # of these, how many differed
    Column("rate", Float, nullable=False),
    Column("low", Float, nullable=False),
    Column("high", Float, nullable=False),
)
LEARNED = Table(
    "mirror_learned",
    METADATA,
    Column("student", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("found", Text, nullable=False),  # JSON
)


_MAX_DEPTH = 8  # levels of nesting; deeper parts count as one field
_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array",
}  # fmt: skip


def walk_values(value: Json, path: str = "$", depth: int = _MAX_DEPTH) -> Iterator[tuple[str, Json]]:
    """Yields each value in an answer after its JSON path; all items of an array share one: $.tags[]."""
    if isinstance(value, dict) and depth:
        for name, part in value.items():
            yield from walk_values(part, f"{path}.{_remove_nul(name)}", depth - 1)
    elif isinstance(value, list) and depth:
        for item in value:
            yield from walk_values(item, f"{path}[]", depth - 1)
    else:
        yield path, value


def walk_field_types(value: Json) -> Iterator[tuple[str, str]]:
    """Yields the JSON path and the type of each value in an answer, such as ("$.tags[]", "string")."""
    for path, part in walk_values(value):
        yield path, _TYPES.get(type(part), "object")


def site_row(call: Call) -> dict[str, Any]:
    """The row of `sites` for the call's site."""
    request = call.request
    return {
        "id": call.site,
        "protocol": request.protocol,
        "schema_name": _remove_nul(request.schema_name),
        "began": call.began,
    }


def version_row(call: Call) -> dict[str, Any]:
    """The row of `versions` for what the call shares with all others of its version."""
    request = call.request
    return {
        "id": call.version,
        "site": call.site,
        "protocol": request.protocol,
        "model": _remove_nul(request.model),
        "way": request.way,
        "schema_name": _remove_nul(request.schema_name),
        "schema": _to_json(request.schema),
        "system": _to_json(_message_rows(request.system)),
        "parameters": _to_json(request.parameters),
        "began": call.began,
    }


def call_row(call: Call, subjects: Iterable[str]) -> dict[str, Any]:
    """The row of `calls`; `subjects` are fingerprints."""
    completion = call.completion
    return {
        "id": call.id,
        "content": call.content,
        "version": call.version,
        "began": call.began,
        "seconds": call.seconds,
        "first_seconds": call.first_seconds,
        "source": call.source,
        "weight": call.weight,
        "site_weight": call.site_weight,
        "subject": " ".join(subjects) or None,
        "messages": _to_json(_message_rows(call.request.inputs)),
        "answer": _to_json(completion.value),
        "probabilities": _to_json(completion.probabilities) if completion.probabilities else None,
        "logprobs": _to_json(completion.logprobs) if completion.logprobs else None,
        "answer_model": _remove_nul(completion.model),
        "response_id": _remove_nul(completion.response_id),
        "finish_reason": _remove_nul(completion.finish_reason),
        "input_tokens": _storable_count(completion.input_tokens),
        "output_tokens": _storable_count(completion.output_tokens),
    }


def _storable_count(count: int | None) -> int | None:
    """The count, or None if it doesn't fit: the server may report anything, and PostgreSQL's integer has 32
    bits.
    """
    return count if count is not None and 0 <= count < 2**31 else None


def _remove_nul(text: str) -> str:
    """Removes NULs, which PostgreSQL's texts can't hold; in JSON columns they are escaped."""
    return text.replace("\0", "")


def _message_rows(messages: Iterable[ChatMessage]) -> list[list[str]]:
    return [[message.role, *message.parts] for message in messages]


def _parse_messages(text: str) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(role, tuple(parts)) for role, *parts in orjson.loads(text))


def _to_json(value: Json) -> str:
    return orjson.dumps(value).decode()


def _parse_json(text: str | None) -> Json:
    return None if text is None else orjson.loads(text)


def read_call_row(row: Any) -> Call:
    """Builds a Call from a row of `calls` joined with its version and site."""
    request = CompletionRequest(
        row.protocol,
        row.model,
        _parse_messages(row.system) + _parse_messages(row.messages),
        row.schema_name,
        _parse_json(row.schema),
        row.way,
        _parse_json(row.parameters),
        tuple(map(SubjectFingerprint, (row.subject or "").split())),
    )
    probabilities = _parse_json(row.probabilities) or {}
    completion = Completion(
        _parse_json(row.answer),
        row.answer_model,
        row.finish_reason,
        row.response_id,
        row.input_tokens,
        row.output_tokens,
        {path: [(value, share) for value, share in pairs] for path, pairs in probabilities.items()},
        _parse_json(row.logprobs),
    )
    return Call(
        row.id,
        row.content,
        row.site,
        row.version,
        row.began,
        request,
        completion,
        row.source,
        row.seconds,
        row.first_seconds,
        row.weight,
        row.site_weight,
    )
