"""The tables of a store, the same in SQLite and PostgreSQL.

meta      the layout's number, and the salt of subjects' fingerprints
sites     places in the application
versions  of a site: one prompt, schema and model; what its calls share stands here once
fields    JSON paths that the answers of a version have had, with their types
calls     what was asked and answered
passed    how many calls could not be mirrored, and why
"""

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text

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
