"""The tables of what answers, beside those of what was recorded. No text of a call is in them.

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

from sqlalchemy import BigInteger, Column, Float, Index, Integer, Table, Text

from bertsmith.mirror.tables import METADATA

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
