"""What a store keeps of learning: which versions count as one, which calls a training used for what,
and which questions of ours got no answer.

merged       version → the version that it was merged with (bertsmith.mirror.tables)
uses         training, call → train, dev or calibration
unanswered   fingerprints of questions

Calls that proved something are used up: another model, or another claim, needs calls that nothing was chosen
by. They may be learned from later.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    MetaData,
    Table,
    Text,
    delete,
    inspect,
    select,
    text,
)  # fmt: skip
from sqlalchemy.dialects import postgresql, sqlite

from bertsmith.errors import InputError, did_you_mean
from bertsmith.mirror.database import READING, is_sqlite
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.tables import CALLS, MERGED

Use = Literal["train", "dev", "calibration"]

_METADATA = MetaData()
USES = Table(
    "mirror_uses",
    _METADATA,
    Column("training", Text, primary_key=True),
    Column("call", Text, primary_key=True),
    Column("use", Text, nullable=False),
    Column("at", Float, nullable=False),  # seconds since 1970
    Index("mirror_uses_by_call", "call", "use"),
)
UNANSWERED = Table("mirror_unanswered", _METADATA, Column("question", Text, primary_key=True))
_LOCK = 0x6C6561  # of PostgreSQL's advisory locks: "lea"
_AT_ONCE = 500


class CallRecords:
    """Of one store. Its tables are made where they are missing, and it isn't opened to be read alone."""

    def __init__(self, store: Store) -> None:
        self.store = store
        if store.reads:
            return
        with store.engine.begin() as connection:
            self._lock(connection)
            MERGED.create(connection, checkfirst=True)
            _METADATA.create_all(connection)

    # -- versions ------------------------------------------------------------------------------------------

    def groups(self) -> list[tuple[VersionCount, ...]]:
        """Versions that count as one, each group oldest first; the group with the latest call last."""
        into = self._merged()
        groups: dict[str, list[VersionCount]] = {}
        for each in self.store.versions():
            groups.setdefault(into.get(each.version, each.version), []).append(each)
        ordered = [tuple(sorted(group, key=lambda each: each.began)) for group in groups.values()]
        return sorted(ordered, key=lambda group: max(each.ended for each in group))

    def group(self, site: str | None, version: str | None = None) -> tuple[VersionCount, ...]:
        """The group of the site that has the latest call, or the one that `version` is in. Without a site,
        the store's only one. Raises InputError saying what there is.
        """
        groups = self.groups()
        sites = list(dict.fromkeys(each.site for group in groups for each in group))
        if not sites:
            raise InputError("The store has no calls yet: bertsmith mirror serve records them.")
        if site is None and len(sites) > 1 and version is None:
            raise InputError(f"The store has several sites: name one with --site ({', '.join(sites[:12])}).")
        if site is not None and site not in sites:
            raise InputError(
                f"The store has no site {site!r}.{did_you_mean(site, sites)} "
                f"There are: {', '.join(sites[:12])}."
            )
        fitting = [group for group in groups if site is None or group[0].site == site]
        if version is not None:
            into = self._merged()
            target = into.get(version, version)  # of merged ones, the calls of this one may be deleted
            fitting = [group for group in fitting if target == into.get(group[0].version, group[0].version)]
            if not fitting:
                raise InputError(
                    f"There is no version {version!r}"
                    f"{f' of the site {site}' if site else ''}: bertsmith mirror status shows all."
                )
        return fitting[-1]

    def merge(self, site: str, versions: Sequence[str]) -> tuple[VersionCount, ...]:
        """From now on these versions of a site count as one. Raises InputError for what isn't a version of
        it, and for fewer than two.
        """
        known = {each.version for each in self.store.versions() if each.site == site}
        if len(set(versions)) < 2:
            raise InputError("Name the site, then at least two of its versions that are to count as one.")
        for version in versions:
            if version not in known:
                raise InputError(
                    f"The site {site!r} has no version {version!r}.{did_you_mean(version, known)} "
                    "bertsmith mirror status shows all."
                )
        into = self._merged()
        targets = {into.get(version, version) for version in versions}
        chosen = into.get(versions[0], versions[0])
        moved = {version for version, target in into.items() if target in targets} | set(versions) | targets
        rows = [{"version": version, "into": chosen} for version in sorted(moved)]
        with self.store.engine.begin() as connection:
            connection.execute(delete(MERGED).where(MERGED.c.version.in_(sorted(moved))))
            connection.execute(MERGED.insert(), rows)
        return self.group(site, versions[0])

    def _merged(self) -> dict[str, str]:
        with self.store.engine.connect().execution_options(**READING) as connection:
            if not inspect(connection).has_table(MERGED.name):
                return {}
            return {row.version: row.into for row in connection.execute(select(MERGED))}

    # -- uses ----------------------------------------------------------------------------------------------

    def calibrated(self) -> set[str]:
        """Calls that some training has proven something by, or tried to."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            return set(connection.scalars(select(USES.c.call).where(USES.c.use == "calibration")))

    def used(self) -> set[str]:
        """Calls that any training has used."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            return set(connection.scalars(select(USES.c.call).distinct()))

    def uses_of(self, training: str) -> dict[str, str]:
        """Call → use."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            found = connection.execute(select(USES).where(USES.c.training == training))
            return {row.call: row.use for row in found}

    def record(self, training: str, uses: Mapping[Use, Iterable[str]]) -> set[str]:
        """In one transaction, again without effect. Uses of calls that were deleted go with it.

        Nothing is recorded where another training has calls for calibration that are to be for it here too:
        those are given back, and none where it was recorded.
        """
        rows = [
            {"training": training, "call": call, "use": use, "at": time.time()}
            for use, calls in uses.items()
            for call in calls
        ]
        proving = [row["call"] for row in rows if row["use"] == "calibration"]
        insert = (sqlite if is_sqlite(self.store.engine) else postgresql).insert(USES)
        with self.store.engine.begin() as connection:
            self._lock(connection)
            taken = set[str]()
            others = select(USES.c.call).where(USES.c.use == "calibration", USES.c.training != training)
            for begin in range(0, len(proving), _AT_ONCE):
                some = proving[begin : begin + _AT_ONCE]
                taken |= set(connection.scalars(others.where(USES.c.call.in_(some))))
            if taken:
                return taken
            for begin in range(0, len(rows), _AT_ONCE):
                connection.execute(insert.on_conflict_do_nothing(), rows[begin : begin + _AT_ONCE])
            connection.execute(delete(USES).where(USES.c.call.not_in(select(CALLS.c.id))))
        return set()

    # -- questions of ours ---------------------------------------------------------------------------------

    def unanswered(self) -> set[str]:
        """Fingerprints of those that got no answer to learn from when they were asked."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            return set(connection.scalars(select(UNANSWERED.c.question)))

    def keep_unanswered(self, questions: Iterable[str]) -> None:
        """Adds some."""
        rows = [{"question": each} for each in sorted(set(questions))]
        insert = (sqlite if is_sqlite(self.store.engine) else postgresql).insert(UNANSWERED)
        if rows:
            with self.store.engine.begin() as connection:
                connection.execute(insert.on_conflict_do_nothing(), rows)

    def _lock(self, connection: Connection) -> None:
        """Until the transaction ends; in SQLite it is the only writer's already."""
        if not is_sqlite(self.store.engine):
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
