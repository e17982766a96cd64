"""Where calls are kept: each whole or not at all, each once."""

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
from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, inspect, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite

from bertsmith.errors import InputError
from bertsmith.files import atomic_file, refuse_existing
from bertsmith.mirror.call import AGAIN, IMPORTED, UNDATED, Call
from bertsmith.mirror.database import (
    READING,
    damaged,
    is_damaged,
    is_sqlite,
    lacking,
    log_problem,
    open_database,
    shown,
)
from bertsmith.mirror.tables import (
    CALLS,
    FIELDS,
    META,
    PASSED,
    PASSED_IMPORTS,
    SITES,
    VERSIONS,
    call_of_row,
    call_row,
    fields_of,
    site_row,
    version_row,
)

_IMPORTS = (IMPORTED, UNDATED)
_PathType = tuple[str, str]  # a JSON path, and the type of a value there
_AT_ONCE = 500  # rows that are looked up or read together
_WHOLE = (  # calls with what their version knows of them
    select(CALLS, VERSIONS.c.site, VERSIONS.c.protocol, VERSIONS.c.model, VERSIONS.c.way,
           VERSIONS.c.schema_name, VERSIONS.c.schema, VERSIONS.c.system, VERSIONS.c.parameters)
    .join(VERSIONS, CALLS.c.version == VERSIONS.c.id)
)  # fmt: skip


@dataclass(frozen=True)
class VersionCount:
    """A version of a site with how many calls it has; `began` and `ended` in seconds since 1970."""

    site: str
    version: str
    protocol: str
    schema_name: str
    model: str
    calls: int
    began: float
    ended: float
    fields: tuple[tuple[str, str], ...]


class Store:
    """One thread writes at a time."""

    def __init__(self, address: str, *, create: bool = True, reads: bool = False) -> None:
        """As `open_database`. Raises InputError for a store without its salt too."""
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
                lacking(shown(address), "salt of its subjects' fingerprints (table mirror_meta)")
            )
        self._is_left = False  # deleted calls may still be in SQLite's log

    def close(self) -> None:
        """Ends the connections."""
        self.engine.dispose()

    @property
    def problem(self) -> str:
        """What is wrong with its files while it is open; empty for nothing."""
        return log_problem(self.engine)

    def back_up(self, out: Path) -> None:
        """A copy of a SQLite store as it is now, whoever writes meanwhile. Raises InputError for a store in
        PostgreSQL, and where `out` is there.
        """
        if not is_sqlite(self.engine):
            raise InputError("The store is in PostgreSQL: pg_dump makes a copy of it.")
        refuse_existing(out)
        with (
            atomic_file(out) as file,
            closing(sqlite3.connect(file.name)) as copy,
            self._reading() as connection,
        ):
            opened: Any = connection.connection.dbapi_connection
            opened.backup(copy)
        out.chmod(0o600)  # as private as the store

    def add(
        self,
        calls: Sequence[Call],
        passed: Mapping[tuple[str, str], int] | None = None,
        imports: Mapping[str, tuple[str, str]] | None = None,
    ) -> int:
        """In one transaction; gives how many were new. `passed` counts (protocol, reason). `imports` has the
        same of what is counted once, however often it is read, by its content. Raises SQLAlchemy's
        OperationalError where the database is locked, full or away: then nothing is stored.
        """
        with self.engine.begin() as connection:
            known = self._known(connection, calls)  # may be of another site, by a header that a log lacks
            new = list({each.id: each for each in calls if each.id not in known}.values())
            # What calls share is written once, as the first of them has it.
            latest_first = sorted(new, key=lambda each: each.began, reverse=True)
            sites = {each.site: each for each in latest_first}.values()
            self._insert(connection, SITES, map(site_row, sites))
            versions = {each.version: each for each in latest_first}.values()
            self._insert(connection, VERSIONS, map(version_row, versions))
            fields = {
                (each.version, path, kind) for each in new for path, kind in fields_of(each.completion.value)
            }
            self._insert(
                connection,
                FIELDS,
                ({"version": version, "path": path, "type": kind} for version, path, kind in fields),
            )
            rows = []
            for each in new:
                subjects: Iterable[str] = each.request.subjects
                if each.source != AGAIN:  # such a one was read from here, and has the fingerprints already
                    subjects = dict.fromkeys(map(self.fingerprint, subjects))
                rows.append(call_row(each, subjects))
            added = len(self._insert(connection, CALLS, rows))
            self._count(connection, passed or {})
            self._count(connection, Counter(self._new_imports(connection, imports or {})))
        return added

    def _known(self, connection: Connection, calls: Sequence[Call]) -> set[str]:
        """Ids of imported calls that were recorded, or imported before."""
        imports = [each for each in calls if each.source in _IMPORTS]
        contents = sorted({each.content for each in imports})
        found: dict[str, list[tuple[str, float]]] = {}
        for begin in range(0, len(contents), _AT_ONCE):
            part = contents[begin : begin + _AT_ONCE]
            asking = select(CALLS.c.content, CALLS.c.source, CALLS.c.began).where(CALLS.c.content.in_(part))
            for content, source, began in connection.execute(asking):
                found.setdefault(content, []).append((source, began))
        known = set[str]()
        for each in imports:
            for source, began in found.get(each.content, ()):
                # Where the provider names no answer, equal calls of two times are two.
                has_time = each.source == source == IMPORTED and not each.completion.response_id
                if not has_time or each.began == began:
                    known.add(each.id)
        return known

    def _new_imports(
        self, connection: Connection, imports: Mapping[str, tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Those that no import has counted before."""
        if not imports:
            return
        if not inspect(connection).has_table(PASSED_IMPORTS.name):
            self._lock(connection)
            PASSED_IMPORTS.create(connection, checkfirst=True)
        named = {self.fingerprint(content): each for content, each in imports.items()}
        for name in self._insert(connection, PASSED_IMPORTS, ({"id": name} for name in named)):
            yield named[name]

    def _insert(self, connection: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> list[Any]:
        """Those that aren't there, in the order of their keys: two replicas then wait, and no more. Gives the
        first column of their keys.
        """
        keys = [column.name for column in table.primary_key]
        once = {tuple(row[key] for key in keys): row for row in rows}
        if not once:
            return []
        inserting = self._insertion(table).on_conflict_do_nothing().returning(table.c[keys[0]])
        return list(connection.execute(inserting, [once[key] for key in sorted(once)]).scalars())

    def _insertion(self, table: Table) -> Any:
        return sqlite.insert(table) if is_sqlite(self.engine) else postgresql.insert(table)

    def _count(self, connection: Connection, passed: Mapping[tuple[str, str], int]) -> None:
        for (protocol, reason), calls in sorted(passed.items()):
            adding = self._insertion(PASSED).values(protocol=protocol, reason=reason, calls=calls)
            connection.execute(
                adding.on_conflict_do_update(
                    index_elements=[PASSED.c.protocol, PASSED.c.reason],
                    set_={"calls": PASSED.c.calls + adding.excluded.calls},
                )
            )

    def fingerprint(self, subject: str) -> str:
        """What stands for a subject in this store, however its name is composed and padded. Without the salt,
        trying names tells nothing.
        """
        return self._hash(unicodedata.normalize("NFC", subject).strip())

    def _hash(self, subject: str) -> str:
        return hmac.new(self._salt, subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def forget(self, subject: str) -> int:
        """Deletes the subject's calls, down to the bytes in the file; gives how many there were. Raises
        InputError where another process's reading keeps them in SQLite's log, or the file is damaged.
        """
        # Earlier versions took a name as it was written.
        names = {self.fingerprint(subject), self._hash(subject)}
        deleted = self._delete(or_(*(CALLS.c.subject.contains(each) for each in sorted(names))))
        self._write_over(anew=True)
        return deleted

    def expire(self, before: float) -> int:
        """Deletes calls that began earlier, in seconds since 1970; gives how many. Single rows may stay
        readable in a SQLite file's unused bytes until the next `forget`. Raises as `forget`.
        """
        deleted = self._delete(CALLS.c.began < before)
        self._is_left = self._is_left or bool(deleted)
        if self._is_left:
            self._write_over()
        return deleted

    def _delete(self, which: ColumnElement[bool]) -> int:
        """With the versions that no call is left of: a prompt may be about somebody."""
        used = select(CALLS.c.version)
        left = select(VERSIONS.c.id).where(VERSIONS.c.id.in_(used))
        with self.engine.begin() as connection:
            # Writers begin with their calls' sites, and wait: else one could add a call to a version that is
            # going.
            self._lock(connection)
            fields: dict[str, set[_PathType]] = {}  # by version, what these calls have in their answers
            asking = select(CALLS.c.version, CALLS.c.answer).where(which)
            for version, answer in connection.execute(asking, execution_options={"yield_per": _AT_ONCE}):
                fields.setdefault(version, set()).update(_fields_in(answer))
            deleted = connection.execute(delete(CALLS).where(which)).rowcount
            if deleted:
                self._delete_fields(connection, fields)
                connection.execute(delete(FIELDS).where(FIELDS.c.version.not_in(left)))
                connection.execute(delete(VERSIONS).where(VERSIONS.c.id.not_in(used)))
                connection.execute(delete(SITES).where(SITES.c.id.not_in(select(VERSIONS.c.site))))
        return int(deleted)

    def _lock(self, connection: Connection) -> None:
        """Until the transaction ends; SQLite lets nobody else write anyway."""
        if not is_sqlite(self.engine):
            connection.execute(text(f"LOCK TABLE {SITES.name} IN SHARE ROW EXCLUSIVE MODE"))

    def _delete_fields(self, connection: Connection, gone: Mapping[str, set[_PathType]]) -> None:
        """Those that no call that is left has: the key of an answer may be somebody's name."""
        for version, unseen in gone.items():
            asking = select(CALLS.c.answer).where(CALLS.c.version == version).order_by(CALLS.c.began.desc())
            left = connection.execute(asking, execution_options={"yield_per": _AT_ONCE}).scalars()
            for answer in left:
                unseen.difference_update(_fields_in(answer))
                if not unseen:
                    break
            left.close()
            for path, kind in unseen:
                here = and_(FIELDS.c.version == version, FIELDS.c.path == path, FIELDS.c.type == kind)
                connection.execute(delete(FIELDS).where(here))

    def _write_over(self, *, anew: bool = False) -> None:
        """What a log or a dead row still has of it. SQLite zeroes deleted rows (secure_delete), but
        not over the copy that stays behind where a page's rows were laid out again: it goes when the file is
        written `anew`, which takes as long as copying it.
        """
        if not is_sqlite(self.engine):
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(f"VACUUM {CALLS.name}, {VERSIONS.name}")
            self._is_left = False
            return
        raw = self.engine.raw_connection()
        try:
            cursor = raw.cursor()
            if anew:
                cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (is_busy, *_) = cursor.fetchone() or (1,)
        except DatabaseError as error:
            if is_damaged(error):
                raise damaged(self.engine, error) from None
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
        """For a transaction that keeps nobody from writing."""
        return self.engine.connect().execution_options(**READING)

    def versions(self) -> list[VersionCount]:
        """The oldest site first."""
        counted = (
            select(CALLS.c.version, func.count(), func.min(CALLS.c.began), func.max(CALLS.c.began))
            .group_by(CALLS.c.version)
        )  # fmt: skip
        with self._reading() as connection:
            counts = {row[0]: tuple(row) for row in connection.execute(counted)}
            fields: dict[str, list[tuple[str, str]]] = {}
            for version, path, kind in connection.execute(
                select(FIELDS).order_by(FIELDS.c.path, FIELDS.c.type)
            ):
                fields.setdefault(version, []).append((path, kind))
            rows = connection.execute(
                select(VERSIONS, SITES.c.began.label("first"))
                .join(SITES, VERSIONS.c.site == SITES.c.id)
                .order_by(SITES.c.began, VERSIONS.c.began)
            ).all()
        found: list[VersionCount] = []
        for row in rows:
            _, calls, began, ended = counts.get(row.id, (row.id, 0, row.began, row.began))
            own = tuple(fields.get(row.id, ()))
            found.append(
                VersionCount(
                    row.site, row.id, row.protocol, row.schema_name, row.model, calls, began, ended, own
                )
            )
        return found

    def passed(self) -> dict[tuple[str, str], int]:
        """Calls that could not be mirrored, by (protocol, reason)."""
        with self._reading() as connection:
            return {(row.protocol, row.reason): row.calls for row in connection.execute(select(PASSED))}

    def count(self) -> int:
        """All calls."""
        with self._reading() as connection:
            return connection.execute(select(func.count()).select_from(CALLS)).scalar_one()

    def calls(self, version: str) -> Iterator[Call]:
        """Of one version, the oldest first. Their subjects are fingerprints."""
        asking = _WHOLE.where(CALLS.c.version == version).order_by(CALLS.c.began, CALLS.c.id)
        with self._reading() as connection:
            for row in connection.execution_options(yield_per=_AT_ONCE).execute(asking):
                yield call_of_row(row)

    def latest(self, version: str, count: int) -> list[Call]:
        """The last `count` of them, the latest first."""
        asking = _WHOLE.where(CALLS.c.version == version).order_by(CALLS.c.began.desc(), CALLS.c.id)
        with self._reading() as connection:
            return [call_of_row(row) for row in connection.execute(asking.limit(count))]

    def calls_named(self, names: Iterable[str]) -> dict[str, Call]:
        """By id, those that are there."""
        asking = _WHOLE.where(CALLS.c.id.in_(sorted(names)))
        with self._reading() as connection:
            return {row.id: call_of_row(row) for row in connection.execute(asking)}


def _fields_in(answer: str) -> Iterator[_PathType]:
    """None where somebody edited the answer so that it is no JSON: such a call can be deleted too."""
    try:
        value = orjson.loads(answer)
    except (TypeError, ValueError):
        return iter(())
    return fields_of(value)
