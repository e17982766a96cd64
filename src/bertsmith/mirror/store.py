"""The store of recorded calls, in SQLite or PostgreSQL: adding, reading, and deleting them for good. A call
is stored completely or not at all, and only once.
"""

import hashlib
import hmac
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import DatabaseError, OperationalError
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Table, and_, case, delete, func, inspect, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite

from bertsmith.errors import InputError
from bertsmith.files import atomic_file, make_folder, refuse_existing
from bertsmith.mirror.call import IMPORTED, OWN_SOURCES, UNDATED, Call, SubjectFingerprint
from bertsmith.mirror.database import (
    READING,
    damaged_error,
    find_file_problem,
    is_damaged,
    is_sqlite,
    mask_password,
    missing_message,
    open_database,
)
from bertsmith.mirror.tables import (
    CALLS,
    FIELDS,
    META,
    SITES,
    SKIPPED,
    SKIPPED_IMPORTS,
    VERSIONS,
    call_row,
    read_call_row,
    site_row,
    version_row,
    walk_field_types,
)

_IMPORTS = (IMPORTED, UNDATED)
_PathType = tuple[str, str]  # a JSON path, and the type of a value there
_ROWS_AT_ONCE = 500  # that are looked up or read together
_JOINED_CALLS = (  # rows of calls with the columns of their version
    select(CALLS, VERSIONS.c.site, VERSIONS.c.protocol, VERSIONS.c.model, VERSIONS.c.way,
           VERSIONS.c.schema_name, VERSIONS.c.schema, VERSIONS.c.system, VERSIONS.c.parameters)
    .join(VERSIONS, CALLS.c.version == VERSIONS.c.id)
)  # fmt: skip


@dataclass(frozen=True)
class VersionCount:
    """A version of a site and the number of its calls. `began` and `ended` are the times of its first and
    last call, in seconds since 1970; `fields` the (JSON path, type) pairs of its answers. `traffic_ended` is
    the time of the last call that the application made; None where the mirror asked all of them itself.
    """

    site: str
    version: str
    protocol: str
    schema_name: str
    model: str
    calls: int
    began: float
    ended: float
    fields: tuple[tuple[str, str], ...]
    traffic_ended: float | None = None

    @property
    def recency(self) -> tuple[float, float]:
        """Orders versions by their latest traffic; those without any come first, by their latest call."""
        return self.traffic_ended or 0.0, self.ended


class Store:
    """A store of calls. Within a process, one thread at a time may write."""

    def __init__(self, address: str, *, create: bool = True, reads: bool = False) -> None:
        """Opens the store as `open_database` does. Raises InputError if it has lost its salt, too."""
        self.engine, self.reads = open_database(address, create=create, reads=reads), reads
        with self._reading() as connection:
            salt = connection.execute(select(META.c.value).where(META.c.name == "salt")).scalar()
        try:
            self._salt = bytes.fromhex(salt or "")
        except (TypeError, ValueError):
            self._salt = b""
        if not self._salt:
            self.close()
            raise InputError(
                missing_message(
                    mask_password(address), "salt of its subjects' fingerprints (table mirror_meta)"
                )
            )
        self._is_left = False  # deleted calls may still be in SQLite's log

    def close(self) -> None:
        """Closes the connections to the database."""
        self.engine.dispose()

    @property
    def problem(self) -> str:
        """What is wrong with the open store's files; empty if nothing is."""
        return find_file_problem(self.engine)

    def back_up(self, out: Path) -> None:
        """Writes a consistent copy of a SQLite store to `out`, while others may go on writing. Raises
        InputError for a store in PostgreSQL, and if `out` exists.
        """
        if not is_sqlite(self.engine):
            raise InputError("The store is in PostgreSQL: pg_dump makes a copy of it.")
        refuse_existing(out)
        make_folder(out.parent)
        with (
            atomic_file(out) as file,
            closing(sqlite3.connect(file.name)) as copy,
            self._reading() as connection,
        ):
            source: Any = connection.connection.dbapi_connection
            source.backup(copy)
        out.chmod(0o600)  # as private as the store

    def add(
        self,
        calls: Sequence[Call],
        skipped: Mapping[tuple[str, str], int] | None = None,
        imports: Mapping[str, tuple[str, str]] | None = None,
    ) -> int:
        """Adds calls in one transaction; returns how many were new.

        `skipped` counts calls that can't be mirrored, by (protocol, reason). `imports` holds those of an
        import, a hash of the content → (protocol, reason): each is counted once, however often it is
        imported. Raises SQLAlchemy's OperationalError if the database is locked, full or unreachable: then
        nothing is stored.
        """
        with self.engine.begin() as connection:
            known = self._find_known(connection, calls)  # of any site: logs lack the header that names it
            new = list({call.id: call for call in calls if call.id not in known}.values())
            # Sites and versions are written once each, with the time of their first call.
            latest_first = sorted(new, key=lambda call: call.began, reverse=True)
            sites = {call.site: call for call in latest_first}.values()
            self._insert(connection, SITES, map(site_row, sites))
            versions = {call.version: call for call in latest_first}.values()
            self._insert(connection, VERSIONS, map(version_row, versions))
            fields = {
                (call.version, path, type_name)
                for call in new
                for path, type_name in walk_field_types(call.completion.value)
            }
            self._insert(
                connection,
                FIELDS,
                (
                    {"version": version, "path": path, "type": type_name}
                    for version, path, type_name in fields
                ),
            )
            rows = []
            for call in new:
                names = call.request.subjects  # of a question that was read from this store, fingerprints
                subjects = [
                    name if isinstance(name, SubjectFingerprint) else self.fingerprint(name) for name in names
                ]
                rows.append(call_row(call, dict.fromkeys(subjects)))
            added = len(self._insert(connection, CALLS, rows))
            self._count(connection, skipped or {})
            self._count(connection, Counter(self._new_imports(connection, imports or {})))
        return added

    def _find_known(self, connection: Connection, calls: Sequence[Call]) -> set[str]:
        """The ids of those imported calls that were recorded or imported before."""
        imports = [call for call in calls if call.source in _IMPORTS]
        contents = sorted({call.content for call in imports})
        stored: dict[str, list[tuple[str, float]]] = {}  # by content, the sources and times of its calls
        for begin in range(0, len(contents), _ROWS_AT_ONCE):
            part = contents[begin : begin + _ROWS_AT_ONCE]
            query = select(CALLS.c.content, CALLS.c.source, CALLS.c.began).where(CALLS.c.content.in_(part))
            for content, source, began in connection.execute(query):
                stored.setdefault(content, []).append((source, began))
        known = set[str]()
        for call in imports:
            for source, began in stored.get(call.content, ()):
                # If the provider gives answers no id, equal calls at two times are two calls.
                has_time = call.source == source == IMPORTED and not call.completion.response_id
                if not has_time or call.began == began:
                    known.add(call.id)
        return known

    def _new_imports(
        self, connection: Connection, imports: Mapping[str, tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields the (protocol, reason) of those that no import has counted before."""
        if not imports:
            return
        if not inspect(connection).has_table(SKIPPED_IMPORTS.name):
            self.lock(connection)
            SKIPPED_IMPORTS.create(connection, checkfirst=True)
        reasons = {self.fingerprint(content): reason for content, reason in imports.items()}
        for name in self._insert(connection, SKIPPED_IMPORTS, ({"id": name} for name in reasons)):
            yield reasons[name]

    def _insert(self, connection: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> list[Any]:
        """Inserts the rows whose keys are new; returns the first column of their keys. Rows go in the order
        of their keys, so that two replicas wait for each other and don't deadlock.
        """
        keys = [column.name for column in table.primary_key]
        by_key = {tuple(row[key] for key in keys): row for row in rows}
        if not by_key:
            return []
        inserting = self._insertion(table).on_conflict_do_nothing().returning(table.c[keys[0]])
        return list(connection.execute(inserting, [by_key[key] for key in sorted(by_key)]).scalars())

    def _insertion(self, table: Table) -> Any:
        return sqlite.insert(table) if is_sqlite(self.engine) else postgresql.insert(table)

    def _count(self, connection: Connection, skipped: Mapping[tuple[str, str], int]) -> None:
        for (protocol, reason), calls in sorted(skipped.items()):
            adding = self._insertion(SKIPPED).values(protocol=protocol, reason=reason, calls=calls)
            connection.execute(
                adding.on_conflict_do_update(
                    index_elements=[SKIPPED.c.protocol, SKIPPED.c.reason],
                    set_={"calls": SKIPPED.c.calls + adding.excluded.calls},
                )
            )

    def fingerprint(self, subject: str) -> str:
        """The keyed hash that stands for a subject in this store, the same for any Unicode composition and
        padding of the name. Without the store's salt, guessed names can't be checked against it.
        """
        return self._hash(unicodedata.normalize("NFC", subject).strip())

    def _hash(self, subject: str) -> str:
        return hmac.new(self._salt, subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def forget(self, subject: str) -> int:
        """Deletes the subject's calls, down to the bytes in the file; returns how many there were. Raises
        InputError if another process's reading keeps them in SQLite's log, or the file is damaged.
        """
        # Earlier versions hashed a name as it was written.
        names = {self.fingerprint(subject), self._hash(subject)}
        deleted = self._delete(or_(*(CALLS.c.subject.contains(name) for name in sorted(names))))
        self._erase_remains(rewrite=True)
        return deleted

    def expire(self, before: float) -> int:
        """Deletes the calls that began before a time in seconds since 1970; returns how many there were.
        Single rows may stay readable in a SQLite file's unused bytes until the next `forget`. Raises as
        `forget` does.
        """
        deleted = self._delete(CALLS.c.began < before)
        self._is_left = self._is_left or bool(deleted)
        if self._is_left:
            self._erase_remains()
        return deleted

    def _delete(self, which: ColumnElement[bool]) -> int:
        """Deletes calls, and the versions, sites and fields of which no call is left: a prompt may be about a
        person.
        """
        used = select(CALLS.c.version)
        left = select(VERSIONS.c.id).where(VERSIONS.c.id.in_(used))
        with self.engine.begin() as connection:
            # Writers insert sites first and so wait for this lock: else one could add a call to a version
            # that is being deleted.
            self.lock(connection)
            fields: dict[str, set[_PathType]] = {}  # by version, the fields in the answers that are deleted
            query = select(CALLS.c.version, CALLS.c.answer).where(which)
            for version, answer in connection.execute(query, execution_options={"yield_per": _ROWS_AT_ONCE}):
                fields.setdefault(version, set()).update(_fields_in(answer))
            deleted = connection.execute(delete(CALLS).where(which)).rowcount
            if deleted:
                self._delete_fields(connection, fields)
                connection.execute(delete(FIELDS).where(FIELDS.c.version.not_in(left)))
                connection.execute(delete(VERSIONS).where(VERSIONS.c.id.not_in(used)))
                connection.execute(delete(SITES).where(SITES.c.id.not_in(select(VERSIONS.c.site))))
        return int(deleted)

    def lock(self, connection: Connection) -> None:
        """Keeps others from writing until the transaction ends, which SQLite does anyway."""
        if not is_sqlite(self.engine):
            connection.execute(text(f"LOCK TABLE {SITES.name} IN SHARE ROW EXCLUSIVE MODE"))

    def _delete_fields(self, connection: Connection, fields: Mapping[str, set[_PathType]]) -> None:
        """Deletes the fields that no remaining call has: a key in an answer may be a person's name."""
        for version, unseen in fields.items():
            query = select(CALLS.c.answer).where(CALLS.c.version == version).order_by(CALLS.c.began.desc())
            answers = connection.execute(query, execution_options={"yield_per": _ROWS_AT_ONCE}).scalars()
            for answer in answers:
                unseen.difference_update(_fields_in(answer))
                if not unseen:
                    break
            answers.close()
            for path, type_name in unseen:
                row = and_(FIELDS.c.version == version, FIELDS.c.path == path, FIELDS.c.type == type_name)
                connection.execute(delete(FIELDS).where(row))

    def _erase_remains(self, *, rewrite: bool = False) -> None:
        """Erases what the log and dead rows still hold of deleted calls.

        SQLite zeroes deleted rows (secure_delete), but not the copies that stay behind when a page's rows are
        rearranged. They go when the file is written anew (`rewrite`), which takes as long as copying it.
        """
        if not is_sqlite(self.engine):
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(f"VACUUM {CALLS.name}, {VERSIONS.name}")
            self._is_left = False
            return
        raw = self.engine.raw_connection()
        try:
            cursor = raw.cursor()
            if rewrite:
                cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (is_busy, *_) = cursor.fetchone() or (1,)
        except DatabaseError as error:
            if is_damaged(error):
                raise damaged_error(self.engine, error) from None
            if not isinstance(error, OperationalError):
                raise
            is_busy = 1  # locked, or no room for a copy
        finally:
            raw.close()
        if is_busy:
            raise InputError(
                "The calls are deleted, but the store's file or its log still has them: another process is "
                "at work there, or there is no room for a copy. Run this again when that has ended."
            )
        self._is_left = False

    def _reading(self) -> Connection:
        """A connection for reading, which keeps nobody from writing."""
        return self.engine.connect().execution_options(**READING)

    def versions(self) -> list[VersionCount]:
        """All versions with the counts of their calls, the oldest site first."""
        counted = (
            select(CALLS.c.version, func.count(), func.min(CALLS.c.began), func.max(CALLS.c.began),
                   func.max(case((CALLS.c.source.not_in(OWN_SOURCES), CALLS.c.began))))
            .group_by(CALLS.c.version)
        )  # fmt: skip
        with self._reading() as connection:
            counts = {row[0]: tuple(row) for row in connection.execute(counted)}
            fields: dict[str, list[tuple[str, str]]] = {}
            for version, path, type_name in connection.execute(
                select(FIELDS).order_by(FIELDS.c.path, FIELDS.c.type)
            ):
                fields.setdefault(version, []).append((path, type_name))
            rows = connection.execute(
                select(VERSIONS, SITES.c.began.label("first"))
                .join(SITES, VERSIONS.c.site == SITES.c.id)
                .order_by(SITES.c.began, VERSIONS.c.began)
            ).all()
        versions: list[VersionCount] = []
        for row in rows:
            of_none = (row.id, 0, row.began, row.began, None)
            _, calls, began, ended, traffic_ended = counts.get(row.id, of_none)
            versions.append(
                VersionCount(
                    row.site,
                    row.id,
                    row.protocol,
                    row.schema_name,
                    row.model,
                    calls,
                    began,
                    ended,
                    tuple(fields.get(row.id, ())),
                    traffic_ended,
                )
            )
        return versions

    def skipped(self) -> dict[tuple[str, str], int]:
        """Counts of the calls that could not be mirrored, by (protocol, reason)."""
        with self._reading() as connection:
            return {(row.protocol, row.reason): row.calls for row in connection.execute(select(SKIPPED))}

    def count(self) -> int:
        """The number of calls in the store."""
        with self._reading() as connection:
            return connection.execute(select(func.count()).select_from(CALLS)).scalar_one()

    def calls(self, version: str) -> Iterator[Call]:
        """Yields the calls of a version, the oldest first. Their subjects are fingerprints."""
        query = _JOINED_CALLS.where(CALLS.c.version == version).order_by(CALLS.c.began, CALLS.c.id)
        with self._reading() as connection:
            for row in connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query):
                yield read_call_row(row)

    def latest(self, version: str, count: int) -> list[Call]:
        """The last `count` calls of a version, the latest first."""
        query = _JOINED_CALLS.where(CALLS.c.version == version).order_by(CALLS.c.began.desc(), CALLS.c.id)
        with self._reading() as connection:
            return [read_call_row(row) for row in connection.execute(query.limit(count))]

    def calls_named(self, names: Iterable[str]) -> dict[str, Call]:
        """The calls with these ids, by id; those that aren't in the store are left out."""
        query = _JOINED_CALLS.where(CALLS.c.id.in_(sorted(names)))
        with self._reading() as connection:
            return {row.id: read_call_row(row) for row in connection.execute(query)}


def _fields_in(answer: str) -> Iterator[_PathType]:
    """The fields of a stored answer; none if it was edited and is no JSON, so that the call can still be
    deleted.
    """
    try:
        value = orjson.loads(answer)
    except (TypeError, ValueError):
        return iter(())
    return walk_field_types(value)
