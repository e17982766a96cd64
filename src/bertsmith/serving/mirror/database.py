"""A store's address → a database that is opened, of our layout, and safe to write to."""

import secrets
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, inspect, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from bertsmith.errors import InputError, require
from bertsmith.serving.mirror.stage_tables import STAGES
from bertsmith.serving.mirror.tables import CALLS, LAYOUT, META, METADATA, OLDER

_LOCK = 0x62657274  # of PostgreSQL's advisory locks: "bert"
READING = {"mirror_reads": True}  # execution options of a connection that only reads
_NO_PRIVILEGE = "42501"  # PostgreSQL's code
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WAIT_MS = 5000  # for another process that writes


def open_database(address: str, *, create: bool) -> Engine:
    """`address` is a file, or postgresql://user:password@host/name. Raises InputError for what can't be
    opened, is no store of ours, or has another layout; where nothing is there and `create` is False.
    """
    url = _url(address)
    engine = _sqlite(url, create=create) if url.drivername == "sqlite" else _postgresql(url)
    try:
        with engine.begin() as connection:
            _prepare(connection, shown(address), create=create)
    except (DBAPIError, sqlite3.DatabaseError) as error:
        engine.dispose()
        said = getattr(error, "orig", error)
        if is_damaged(error) and getattr(said, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB:
            raise damaged(engine, said) from None
        raise InputError(
            f"The store {shown(address)} can't be opened: {str(said).strip().splitlines()[0]}. "
            "Expected a SQLite file, or a PostgreSQL database that may be written to."
        ) from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def shown(address: str) -> str:
    """Without a password."""
    if "://" not in address:
        return address
    return _url(address).set(drivername=address.partition("://")[0]).render_as_string(hide_password=True)


def why_refused(error: DBAPIError) -> str | None:
    """The database's own words where it is locked, full, away, or lets this user do no more; None for a fault
    of ours.
    """
    if not isinstance(error, OperationalError) and getattr(error.orig, "sqlstate", "") != _NO_PRIVILEGE:
        return None
    return str(error.orig).strip().splitlines()[0]


def is_damaged(error: BaseException) -> bool:
    """Whether a SQLite file's bytes aren't what SQLite wrote, by an error of its own or SQLAlchemy's."""
    said = getattr(error, "orig", error)
    code = getattr(said, "sqlite_errorcode", 0) & 0xFF  # the rest says where it was met
    is_said = code in _DAMAGED or "Could not decode to UTF-8" in str(said)
    return isinstance(said, sqlite3.Error) and is_said


def damaged(engine: Engine, error: object) -> InputError:
    """What to do about it."""
    name = engine.url.database
    said = str(error).partition(" with text ")[0].splitlines()[0]  # behind it stands what somebody said
    return InputError(
        f"The store {name} is damaged ({said}). Stop the mirror, set {name}, {name}-wal and "
        f"{name}-shm aside, and put a copy in its place, or what sqlite3's .dump can still read of it "
        "(docs/mirror.md, The store). Then run this again."
    )


def is_sqlite(engine: Engine) -> bool:
    """PostgreSQL otherwise."""
    return engine.dialect.name == "sqlite"


def _url(address: str) -> URL:
    if "://" not in address:
        return URL.create("sqlite", database=address)
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise InputError(
            "The store's address is no URL. Expected a file, or postgresql://host/name."
        ) from None
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite":
        return url.set(drivername="sqlite")
    if kind not in ("postgresql", "postgres"):
        raise InputError(f"A store is a SQLite file or postgresql://host/name; found {kind}://.")
    return url.set(drivername="postgresql+psycopg")


def _sqlite(url: URL, *, create: bool) -> Engine:
    path = Path(url.database or "")
    if not url.database or url.database == ":memory:" or path.is_dir():
        raise InputError(f"{url.database or 'The store'} is no file. Name one, such as mirror.sqlite.")
    if not path.exists() and not create:
        raise InputError(f"{path} is not there. Name the mirror's --store, or record something first.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path.absolute().parent} is no folder. The store {path} can't be made in it.")
    # A connection that a thread leaves goes on in another; SQLAlchemy sees to it that only one has it.
    engine = create_engine(url, hide_parameters=True, connect_args={"check_same_thread": False})
    file = _OpenedFile(path.absolute())

    @event.listens_for(engine, "do_connect")
    def _require(*_: Any) -> None:
        file.require()  # or SQLite would make a new one

    @event.listens_for(engine, "connect")
    def _settle(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say so
        _write_ahead(connection)
        for pragma in (
            "synchronous=FULL",  # what counts as stored outlives a power cut; the relay doesn't wait for it
            "secure_delete=ON",  # what is forgotten is written over
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")
        file.note()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer at once: a transaction that began by reading could not wait for its turn to write.
        reads = connection.get_execution_options().get("mirror_reads")
        if not reads:
            try:
                file.require()
            except sqlite3.OperationalError as error:
                raise OperationalError("BEGIN", {}, error) from None
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


class _OpenedFile:
    """The file that SQLite opened. Where the path names another, or none, SQLite goes on writing to what it
    has open, which nobody finds again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, int] | None = None

    def _now(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def note(self) -> None:
        """At the first connection."""
        self._opened = self._opened or self._now()

    def require(self) -> None:
        """Raises what SQLite raises when it can't write."""
        if self._opened is not None and (now := self._now()) != self._opened:
            what = "is gone" if now is None else "is another file by now"
            raise sqlite3.OperationalError(
                f"{self.path} {what}: put back the one that was opened, or start again"
            )


def _write_ahead(connection: sqlite3.Connection) -> None:
    """The first to open a new file turns its log on, and SQLite has nobody else wait for that."""
    connection.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
    end = time.monotonic() + _WAIT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _postgresql(url: URL) -> Engine:
    require("psycopg", "mirror", "A store in PostgreSQL")
    return create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=2,
        connect_args={"connect_timeout": 10, "application_name": "bertsmith-mirror"},
    )


def _prepare(connection: Connection, name: str, *, create: bool) -> None:
    """Makes the tables where there are none. Two processes that begin at once make them once."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    there = set(inspect(connection).get_table_names())
    if META.name not in there:
        if not create:
            raise InputError(f"{name} has no records of a mirror. Name the mirror's --store.")
        if connection.dialect.name == "sqlite" and there:
            raise InputError(
                f"{name} is a database of something else (table {min(there)}). Name another --store."
            )
        METADATA.create_all(connection)
        for key, value in (("layout", str(LAYOUT)), ("salt", secrets.token_hex(16))):
            connection.execute(META.insert().values(name=key, value=value))
    layout = META.c.name == "layout"
    found = connection.execute(select(META.c.value).where(layout)).scalar()
    if found is not None and found in map(str, OLDER):
        METADATA.create_all(connection)
        _add_columns(connection)
        found = str(LAYOUT)
        connection.execute(update(META).where(layout).values(value=found))
    if found != str(LAYOUT):
        raise InputError(
            f"{name} has layout {found}, and this version of Bertsmith reads and writes {LAYOUT}. "
            "Use the version that made it, or another --store."
        )


def _add_columns(connection: Connection) -> None:
    """Those that earlier layouts lack."""
    if "weight" not in _columns(connection, CALLS):
        connection.execute(text(f"ALTER TABLE {CALLS.name} ADD COLUMN weight FLOAT"))
    if "is_held" not in _columns(connection, STAGES):  # in the place of one that nobody read
        connection.execute(text(f"ALTER TABLE {STAGES.name} RENAME COLUMN is_automatic TO is_held"))
        connection.execute(update(STAGES).values(is_held=0))


def _columns(connection: Connection, table: Table) -> set[str]:
    return {each["name"] for each in inspect(connection).get_columns(table.name)}
