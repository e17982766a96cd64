"""The tables of a store, the same in SQLite and PostgreSQL, and a call as rows of them.

Of what was recorded:

meta      the layout's number, and the salt of subjects' fingerprints
sites     places in the application
versions  of a site: one prompt, schema and model; what its calls share stands here once
fields    JSON paths that the answers of a version have had, with their types
calls     what was asked and answered
passed    how many calls could not be mirrored, and why

Of what answers, without any text of a call:

stages     of each version: its mode, and which students answer, answered before, and may answer next
changes    every change of a stage, in order: one row a revision, so that two replicas can't both make it
students   trained students by the hash of their folder's student.json
evidence   of each student: the audits' confidence sequence, and the test of drift
agreement  how that sequence ran: a point now and then
learned    what a training found: its learning curve, and where the student and the LLM differ
tallies    who answered how often, why, and how long it took
audits     calls drawn to be put to the LLM too, stored before it is asked
trainings  of each version: when one was begun, by whom, on how many calls, and what came of it
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text

from bertsmith.mirror.call import Call, ChatMessage, Completion, CompletionRequest, Json

LAYOUT = 6
OLDER = (1, 2, 3, 4, 5)  # layouts that lack only tables and columns: these are added
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
    Column("parameters", Text, nullable=False),  # JSON, of its first call
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
    # What the call counts for among those recorded beside it (CallRouting.weight); NULL where no student
    # answered at its site, or an earlier layout didn't know.
    Column("weight", Float),
    Column("site_weight", Float),  # the same among those of all versions of its site
    Column("subject", Text),  # fingerprints, a blank between them
    Column("messages", Text, nullable=False),  # JSON: [[role, part, …], …], without the system's
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
PASSED = Table(
    "mirror_passed",
    METADATA,
    Column("protocol", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("calls", BigInteger, nullable=False),
)
PASSED_IMPORTS = Table(  # what imports have counted there: fingerprints
    "mirror_passed_imports", METADATA, Column("id", Text, primary_key=True)
)
MERGED = Table(
    "mirror_merged",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("into", Text, nullable=False),  # the version that it counts as one with
)
# May be missing in a store that nothing was learned from, or imported into.
OPTIONAL = (MERGED, PASSED_IMPORTS)


STAGES = Table(
    "mirror_stages",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("site", Text, nullable=False),
    Column("mode", Text, nullable=False),  # record, shadow, canary, live
    Column("share", Float, nullable=False),  # of sure calls that are answered: 0 ... 1
    Column("student", Text, nullable=False),  # '' where there is none; so are the next two
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
    Column("compared", Integer, nullable=False),
    Column("in_stage", Integer, nullable=False),  # compared since the stage last changed
    Column("has_drifted", Integer, nullable=False),
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
    Column("id", Text, primary_key=True),  # the recorded call's too
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
    Column("until", Float, nullable=False),  # the owner's word holds so long; 0 where none trains
    Column("outcome", Text, nullable=False),
)
AGREEMENT = Table(
    "mirror_agreement",
    METADATA,
    Column("student", Text, primary_key=True),
    Column("compared", Integer, primary_key=True),  # comparisons so far
    Column("at", Float, nullable=False),  # seconds since 1970
    Column("differing", Float, nullable=False),  # of them
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


_DEEPEST = 8  # levels of an answer whose fields are told apart
_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array",
}  # fmt: skip


def walk_values(value: Json, path: str = "$", depth: int = _DEEPEST) -> Iterator[tuple[str, Json]]:
    """JSON paths of an answer's values with these; all of an array's have one path: $.tags[]."""
    if isinstance(value, dict) and depth:
        for name, each in value.items():
            yield from walk_values(each, f"{path}.{_remove_nul(name)}", depth - 1)
    elif isinstance(value, list) and depth:
        for each in value:
            yield from walk_values(each, f"{path}[]", depth - 1)
    else:
        yield path, value


def walk_field_types(value: Json) -> Iterator[tuple[str, str]]:
    """The same paths with the values' types."""
    for path, each in walk_values(value):
        yield path, _TYPES.get(type(each), "object")


def site_row(call: Call) -> dict[str, Any]:
    """Its place."""
    request = call.request
    return {
        "id": call.site,
        "protocol": request.protocol,
        "schema_name": _remove_nul(request.schema_name),
        "began": call.began,
    }


def version_row(call: Call) -> dict[str, Any]:
    """What it shares with others."""
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
    """`subjects` are fingerprints."""
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
    """None for a count that no column holds: PostgreSQL's integer has 32 bits, and it is a stranger's."""
    return count if count is not None and 0 <= count < 2**31 else None


def _remove_nul(text: str) -> str:
    """PostgreSQL has no NUL in a text. In JSON it is written as an escape."""
    return text.replace("\0", "")


def _message_rows(messages: Iterable[ChatMessage]) -> list[list[str]]:
    return [[message.role, *message.parts] for message in messages]


def _parse_messages(written: str) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(role, tuple(parts)) for role, *parts in orjson.loads(written))


def _to_json(value: Json) -> str:
    return orjson.dumps(value).decode()


def _parse_json(written: str | None) -> Json:
    return None if written is None else orjson.loads(written)


def read_call_row(row: Any) -> Call:
    """Of a row of calls joined with its version."""
    request = CompletionRequest(
        row.protocol,
        row.model,
        _parse_messages(row.system) + _parse_messages(row.messages),
        row.schema_name,
        _parse_json(row.schema),
        row.way,
        _parse_json(row.parameters),
        tuple((row.subject or "").split()),
    )
    probabilities = _parse_json(row.probabilities) or {}
    completion = Completion(
        _parse_json(row.answer),
        row.answer_model,
        row.finish_reason,
        row.response_id,
        row.input_tokens,
        row.output_tokens,
        {path: [(value, share) for value, share in spread] for path, spread in probabilities.items()},
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
