"""A store's address → a database that is opened, of our layout, and safe to write to.

SQLite keeps any value in any column, so that a store which was edited by hand opens like any other. Where a
reading failed, what Bertsmith doesn't write is looked for, to say what it is.
"""

import math
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    Table,
    create_engine,
    event,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.pool import QueuePool

from bertsmith.errors import InputError, require
from bertsmith.mirror.tables import CALLS, LAYOUT, META, METADATA, OLDER, OPTIONAL, STAGES

_LOCK = 0x62657274  # of PostgreSQL's advisory locks: "bert"
READING = {"mirror_reads": True}  # execution options of a connection that only reads
_NO_PRIVILEGE = "42501"  # PostgreSQL's code
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LACKING = ("no such table", "no such column")  # SQLite's words
_FILES = "mirror_files"  # an execution option of an engine: its _OpenedFiles
_LOG = ("-wal", "-shm")
_WAIT_MS = 5000  # for another process that writes
_LARGEST = 2.5e11  # seconds: the last year that a date can have is 9999
_JSON: dict[tuple[str, str], type] = {
    ("mirror_calls", "answer"): object,
    ("mirror_calls", "logprobs"): list,
    ("mirror_calls", "messages"): list,
    ("mirror_calls", "probabilities"): dict,
    ("mirror_evidence", "audits"): dict,
    ("mirror_evidence", "drift"): dict,
    ("mirror_learned", "found"): dict,
    ("mirror_versions", "parameters"): dict,
    ("mirror_versions", "schema"): dict,
    ("mirror_versions", "system"): list,
}
_OF_MESSAGES = ("messages", "system")


def open_database(address: str, *, create: bool, reads: bool = False) -> Engine:
    """`address` is a file, or postgresql://user:password@host/name. Raises InputError for what can't be
    opened, is no store of ours, or has another layout; where nothing is there and `create` is False. What
    only `reads` a file doesn't wait for who writes there, and needs no right to write.
    """
    url = _url(address)
    is_file = url.drivername == "sqlite"
    engine = _sqlite(url, create=create, reads=reads) if is_file else _postgresql(url)
    try:
        with engine.connect().execution_options(**READING) as connection:
            is_ready = _is_ready(connection, mask_password(address))
        if not is_ready and reads:
            engine.dispose()
            return open_database(address, create=create)
        if not is_ready:
            with engine.begin() as connection:
                _prepare(connection, mask_password(address), create=create)
    except (DBAPIError, sqlite3.DatabaseError) as error:
        engine.dispose()
        said = getattr(error, "orig", error)
        if is_damaged(error) and getattr(said, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB:
            raise damaged_error(engine, said) from None
        if getattr(said, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise InputError(locked_message(mask_password(address))) from None
        raise InputError(
            f"The store {mask_password(address)} can't be opened: {str(said).strip().splitlines()[0]}. "
            "Expected a SQLite file, or a PostgreSQL database that may be written to."
        ) from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def mask_password(address: str) -> str:
    """Without a password."""
    if "://" not in address:
        return address
    return _url(address).set(drivername=address.partition("://")[0]).render_as_string(hide_password=True)


def locked_message(name: str) -> str:
    """What to do about it."""
    return (
        f"The store {name} is locked: another process has been writing to it for {_WAIT_MS / 1000:g} s. "
        "Wait until that has ended, or end it, and run this again. What was done before it stays."
    )


def explain_refusal(error: DBAPIError) -> str | None:
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


def damaged_error(engine: Engine, error: object) -> InputError:
    """What to do about it."""
    name = engine.url.database
    said = str(error).partition(" with text ")[0].splitlines()[0]  # behind it stands what somebody said
    return InputError(
        f"The store {name} is damaged ({said}). Stop the mirror, set {name}, {name}-wal and "
        f"{name}-shm aside, and put a copy in its place, or what sqlite3's .dump can still read of it "
        "(docs/mirror.md, The store). Then run this again."
    )


def explain_failure(error: Exception, engine: Engine, address: str) -> InputError | None:
    """What to do where work with the store ended by `error`: it is damaged, locked, away, lacks something, or
    holds what Bertsmith never wrote. None for a fault of ours.
    """
    if isinstance(error, DBAPIError):
        if is_damaged(error):
            return damaged_error(engine, error.orig)
        if (why := explain_refusal(error)) is None:
            return None
        if why.startswith(_LACKING):
            return InputError(missing_message(mask_password(address), why.removeprefix("no such ")))
        if "is locked" in why:
            return InputError(locked_message(mask_password(address)))
        return InputError(
            f"The store {mask_password(address)} can't be read or written just now: {why}. Run this again "
            "when that is mended; what was done before it stays."
        )
    if odd := find_odd_row(engine):
        return InputError(
            f"The store {mask_password(address)} holds what Bertsmith doesn't write: {odd}. Mend or "
            "delete that row, or put a copy of yours in its place. Then run this again."
        )
    return None


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


def _sqlite(url: URL, *, create: bool, reads: bool = False) -> Engine:
    path = Path(url.database or "")
    if not url.database or url.database == ":memory:" or path.is_dir():
        raise InputError(f"{url.database or 'The store'} is no file. Name one, such as mirror.sqlite.")
    if not path.exists() and not create:
        raise InputError(f"{path} is not there. Name the mirror's --store, or record something first.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path.absolute().parent} is no folder. The store {path} can't be made in it.")
    file = _OpenedFiles(path.absolute())
    # A connection that a thread leaves goes on in another; SQLAlchemy sees to it that only one has it.
    connecting: dict[str, Any] = {"connect_args": {"check_same_thread": False}}
    if reads and path.exists():
        address = f"{path.absolute().as_uri()}?mode=ro"
        connecting = {"creator": lambda: sqlite3.connect(address, uri=True, check_same_thread=False)}
    engine = create_engine(url, hide_parameters=True, execution_options={_FILES: file}, **connecting)

    @event.listens_for(engine, "do_connect")
    def _require(*_: Any) -> None:
        file.require()  # or SQLite would make a new one
        if file.connections and file.has_lost_log:  # one with another log would read what isn't there
            raise sqlite3.OperationalError(file.removed)

    @event.listens_for(engine, "connect")
    def _settle(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say so
        file.connected()
        if reads:
            connection.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
            return
        _enable_write_ahead_log(connection)
        for pragma in (
            "synchronous=FULL",  # what counts as stored outlives a power cut; the relay doesn't wait for it
            "secure_delete=ON",  # what is forgotten is written over
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")
        file.note()

    @event.listens_for(engine, "close")
    def _closed(*_: Any) -> None:
        file.connections -= 1

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer at once: a transaction that began by reading could not wait for its turn to write.
        reads = connection.get_execution_options().get("mirror_reads")
        if not reads:
            try:
                file.require()
                if file.has_lost_log:
                    _save_removed_log(engine, connection, file)
            except sqlite3.OperationalError as error:
                raise OperationalError("BEGIN", {}, error) from None
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
        if not reads:
            file.note()  # the log is there from now on

    return engine


def _save_removed_log(engine: Engine, connection: Connection, file: "_OpenedFiles") -> None:
    """What a log holds that was removed is written to the store, as long as it is open; then all connections
    are begun anew, with a log that others find. Raises OperationalError: it is to be tried again, also
    while somebody reads, whose connection would stay behind with the old log.
    """
    raw = connection.connection.dbapi_connection
    (is_busy, *_) = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() if raw else (0,)
    is_alone = isinstance(engine.pool, QueuePool) and engine.pool.checkedout() == 1
    if is_busy or not is_alone:
        raise sqlite3.OperationalError(file.removed)
    engine.dispose()
    connection.invalidate()
    raise sqlite3.OperationalError(f"{file.removed}. What it held is saved")


class _OpenedFiles:
    """The files that SQLite opened: the store, its log and the log's index. Where a path names another, or
    none, SQLite goes on writing to what it has open, which nobody finds again.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.connections = path, 0
        self.removed = f"{path}-wal or -shm was removed while the store was open"
        self._opened: dict[str, tuple[int, int]] = {}

    def _now(self, suffix: str) -> tuple[int, int] | None:
        try:
            found = Path(f"{self.path}{suffix}").stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def connected(self) -> None:
        """One more. The log goes with the last connection, and comes with the first."""
        if self.connections == 0:
            for suffix in _LOG:
                self._opened.pop(suffix, None)
        self.connections += 1

    def note(self) -> None:
        """What is there, if it is there for the first time."""
        for suffix in ("", *_LOG):
            if suffix not in self._opened and (now := self._now(suffix)) is not None:
                self._opened[suffix] = now

    @property
    def has_lost_log(self) -> bool:
        """It was removed, or another is in its place."""
        return any(self._now(suffix) != self._opened[suffix] for suffix in _LOG if suffix in self._opened)

    def require(self) -> None:
        """Raises what SQLite raises when it can't write."""
        if "" in self._opened and (now := self._now("")) != self._opened[""]:
            what = "is gone" if now is None else "is another file by now"
            raise sqlite3.OperationalError(
                f"{self.path} {what}: put back the one that was opened, or start again"
            )


def _enable_write_ahead_log(connection: sqlite3.Connection) -> None:
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


def _is_ready(connection: Connection, name: str) -> bool:
    """Whether there is nothing to be made. Raises InputError where a table is missing."""
    there = set(inspect(connection).get_table_names())
    if META.name not in there:
        return False
    found = connection.execute(select(META.c.value).where(META.c.name == "layout")).scalar()
    if found != str(LAYOUT):
        return False
    if missing := {table.name for table in METADATA.sorted_tables if table not in OPTIONAL} - there:
        raise InputError(missing_message(name, f"table {min(missing)}"))
    return True


def missing_message(name: str, what: str) -> str:
    """What to do about a store from which something was taken."""
    return (
        f"The store {name} lacks the {what}: it isn't as Bertsmith made it. Put a copy of yours in its place "
        "(docs/mirror.md, The store), or name another --store."
    )


def find_file_problem(engine: Engine) -> str:
    """What is wrong with the files of a SQLite store that is open, in a sentence; empty for nothing."""
    files = engine.get_execution_options().get(_FILES)
    if files is None:
        return ""
    try:
        files.require()
    except sqlite3.OperationalError as error:
        return str(error)
    return files.removed if files.has_lost_log else ""


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
        for column in {"weight", "site_weight"} - _columns(connection, CALLS):
            connection.execute(text(f"ALTER TABLE {CALLS.name} ADD COLUMN {column} FLOAT"))
        if "is_held" not in _columns(connection, STAGES):  # in the place of one that nobody read
            connection.execute(text(f"ALTER TABLE {STAGES.name} RENAME COLUMN is_automatic TO is_held"))
            connection.execute(update(STAGES).values(is_held=0))
        found = str(LAYOUT)
        connection.execute(update(META).where(layout).values(value=found))
    if found != str(LAYOUT):
        raise InputError(
            f"{name} has layout {found}, and this version of Bertsmith reads and writes {LAYOUT}. "
            "Use the version that made it, or another --store."
        )


def _columns(connection: Connection, table: Table) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table.name)}


def find_odd_row(engine: Engine) -> str:
    """Where the first of them stands, and what was expected there; empty where there is none."""
    with engine.connect().execution_options(**READING) as connection:
        there = set(inspect(connection).get_table_names())
        for table in METADATA.sorted_tables:
            if table.name not in there:
                continue
            for row in connection.exec_driver_sql(f"SELECT * FROM {table.name}").mappings():
                for column in table.columns:
                    if column.name in row and (expected := _expected_value(table, column, row[column.name])):
                        key = next(iter(table.primary_key.columns)).name
                        name = str(row[key])[:60]
                        return f"{table.name}, {key} {name!r}: {column.name} is not {expected}"
    return ""


def _expected_value(table: Table, column: Column[Any], value: Any) -> str:
    """What should stand there; empty where it does."""
    if value is None and column.nullable:
        return ""
    if isinstance(column.type, Float):
        is_number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST
        return "" if is_number else f"a number below {_LARGEST:g}"
    if isinstance(column.type, Integer):
        return "" if isinstance(value, int) else "a whole number"
    if not isinstance(value, str):
        return "a text"
    kind = _JSON.get((table.name, column.name))
    if kind is None:
        return ""
    try:
        read = orjson.loads(value)
    except ValueError:
        return "JSON"
    if kind is not object and type(read) is not kind:
        return "a JSON object" if kind is dict else "a JSON array"
    for each in read if column.name in _OF_MESSAGES else ():
        if not (isinstance(each, list) and each and all(isinstance(part, str) for part in each)):
            return "a JSON array of messages, each [role, text, …]"
    return ""
