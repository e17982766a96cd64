"""Opens a store's database, in SQLite or PostgreSQL: creates its tables, or upgrades those of an earlier
layout, and explains in words what is wrong with it. Read `open_database` first.

SQLite accepts any value in any column, so a store that was edited by hand opens like any other. If reading it
fails later, `find_odd_row` looks for values that Bertsmith doesn't write, to name them.
"""

import math
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
from bertsmith.mirror.tables import CALLS, EVIDENCE, LAYOUT, META, METADATA, OLDER, OPTIONAL, STAGES

_LOCK = 0x62657274  # the number of our advisory lock in PostgreSQL: "bert"
READING = {"mirror_reads": True}  # execution options of a connection that only reads
_NO_PRIVILEGE = "42501"  # PostgreSQL's code
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MISSING = ("no such table", "no such column")  # the beginnings of SQLite's messages
_FILES = "mirror_files"  # an execution option of an engine: its _OpenedFiles
_LOG_SUFFIXES = ("-wal", "-shm")
_HIDDEN = "***"  # in place of a password, as SQLAlchemy has it
_WAIT_MS = 5000  # how long to wait for another process that writes
_LARGEST = 2.5e11  # seconds: the last year that a date can have is 9999
_JSON_TYPES: dict[tuple[str, str], type] = {  # of the columns with JSON; object: any
    ("mirror_calls", "answer"): object,
    ("mirror_calls", "logprobs"): list,
    ("mirror_calls", "messages"): list,
    ("mirror_calls", "probabilities"): dict,
    ("mirror_evidence", "audits"): dict,
    ("mirror_evidence", "drift"): dict,
    ("mirror_evidence", "proof"): dict,
    ("mirror_learned", "found"): dict,
    ("mirror_versions", "parameters"): dict,
    ("mirror_versions", "schema"): dict,
    ("mirror_versions", "system"): list,
}
_MESSAGE_COLUMNS = ("messages", "system")


def open_database(address: str, *, create: bool, reads: bool = False) -> Engine:
    """Opens the store at `address`: a file, or postgresql://user:password@host/name.

    With `reads` a file is opened for reading only: this needs no permission to write and doesn't wait for
    processes that write. Raises InputError if the database can't be opened, is no store, or has another
    layout, and if it doesn't exist and `create` is False.
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
        cause = getattr(error, "orig", error)
        if is_damaged(error) and getattr(cause, "sqlite_errorcode", 0) != sqlite3.SQLITE_NOTADB:
            raise damaged_error(engine, cause) from None
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise InputError(locked_message(mask_password(address))) from None
        raise InputError(
            f"The store {mask_password(address)} can't be opened: {str(cause).strip().splitlines()[0]}. "
            "Expected a SQLite file, or a PostgreSQL database that may be written to."
        ) from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def mask_password(address: str) -> str:
    """A store's address as it may be shown: without its password, also where its query has one."""
    if "://" not in address:
        return address
    url = _url(address).set(drivername=address.partition("://")[0])
    query = {name: _HIDDEN if "password" in name.lower() else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True).replace(quote(_HIDDEN), _HIDDEN)


def locked_message(name: str) -> str:
    """The message for a store that another process has locked, with what to do."""
    return (
        f"The store {name} is locked: another process has been writing to it for {_WAIT_MS / 1000:g} s. "
        "Wait until that has ended, or end it, and run this again. What was done before it stays."
    )


def explain_refusal(error: DBAPIError) -> str | None:
    """The database's own message if it is locked, full, unreachable or refuses this user; None for any other
    error, which is a bug.
    """
    if not isinstance(error, OperationalError) and getattr(error.orig, "sqlstate", "") != _NO_PRIVILEGE:
        return None
    return str(error.orig).strip().splitlines()[0]


def is_damaged(error: BaseException) -> bool:
    """Whether an error of SQLite or SQLAlchemy means that the file isn't as SQLite wrote it."""
    cause = getattr(error, "orig", error)
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the other bits say where SQLite noticed it
    is_corrupt = code in _DAMAGED or "Could not decode to UTF-8" in str(cause)
    return isinstance(cause, sqlite3.Error) and is_corrupt


def damaged_error(engine: Engine, error: object) -> InputError:
    """The error for a store whose file is damaged, with what to do."""
    name = engine.url.database
    cause = str(error).partition(" with text ")[0].splitlines()[0]  # a call's text follows
    return InputError(
        f"The store {name} is damaged ({cause}). Stop the mirror, set {name}, {name}-wal and "
        f"{name}-shm aside, and put a copy in its place, or what sqlite3's .dump can still read of it "
        "(docs/mirror.md, Limits). Then run this again."
    )


def explain_failure(error: Exception, engine: Engine, address: str) -> InputError | None:
    """The error, with what to do, after work with the store failed with `error` because the store is damaged,
    locked, unreachable, incomplete, or contains values that Bertsmith never writes. None for a bug.
    """
    if isinstance(error, DBAPIError):
        if is_damaged(error):
            return damaged_error(engine, error.orig)
        if (why := explain_refusal(error)) is None:
            return None
        if why.startswith(_MISSING):
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
    """Whether the database is a SQLite file; otherwise it is in PostgreSQL."""
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
    scheme = url.drivername.partition("+")[0]
    if scheme == "sqlite":
        return url.set(drivername="sqlite")
    if scheme not in ("postgresql", "postgres"):
        raise InputError(f"A store is a SQLite file or postgresql://host/name; found {scheme}://.")
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
    # Threads hand connections on to each other; SQLAlchemy ensures that only one thread uses a connection.
    options: dict[str, Any] = {"connect_args": {"check_same_thread": False}}
    if reads and path.exists():
        address = f"{path.absolute().as_uri()}?mode=ro"
        options = {"creator": lambda: sqlite3.connect(address, uri=True, check_same_thread=False)}
    engine = create_engine(url, hide_parameters=True, execution_options={_FILES: file}, **options)

    @event.listens_for(engine, "do_connect")
    def _check_files(*_: Any) -> None:
        file.require_store()  # otherwise SQLite would create a new file
        if file.connections and file.has_lost_log:  # the new connection would not see what the old log holds
            raise sqlite3.OperationalError(file.removed)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # Python begins no transactions by itself
        file.add_connection()
        if reads:
            connection.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
            return
        _enable_write_ahead_log(connection)
        for pragma in (
            "synchronous=FULL",  # stored calls survive a power cut; the relay doesn't wait for the disk
            "secure_delete=ON",  # deleted calls are overwritten
            "foreign_keys=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")
        file.note_files()

    @event.listens_for(engine, "close")
    def _remove_connection(*_: Any) -> None:
        file.connections -= 1

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # Writers lock at once: a transaction that begins by reading can't wait for its turn to write.
        reads = connection.get_execution_options().get("mirror_reads")
        if not reads:
            try:
                file.require_store()
                if file.has_lost_log:
                    _save_removed_log(engine, connection, file)
            except sqlite3.OperationalError as error:
                raise OperationalError("BEGIN", {}, error) from None
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
        if not reads:
            file.note_files()  # from now on the log exists

    return engine


def _save_removed_log(engine: Engine, connection: Connection, file: "_OpenedFiles") -> None:
    """Writes the content of a log that was removed to the store, which works while the log is still open, and
    closes all connections, so that new ones get a new log that other processes can find.

    Always raises OperationalError, so that the caller tries again; also while another connection of this
    process reads, which would keep the old log.
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
    """The files that SQLite has open: the store, its log and the log's index, by device and inode.

    If one of them is removed or replaced, SQLite goes on writing to the file that it has open, and the data
    is lost when the file is closed. So the files are checked before each transaction that writes.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.connections = path, 0
        self.removed = f"{path}-wal or -shm was removed while the store was open"
        self._opened: dict[str, tuple[int, int]] = {}

    def _identify(self, suffix: str) -> tuple[int, int] | None:
        """Device and inode of the file that is at the path now; None if there is none."""
        try:
            status = Path(f"{self.path}{suffix}").stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def add_connection(self) -> None:
        """Counts a new connection. The first one creates the log, and the last one has removed it."""
        if self.connections == 0:
            for suffix in _LOG_SUFFIXES:
                self._opened.pop(suffix, None)
        self.connections += 1

    def note_files(self) -> None:
        """Remembers which files exist, as far as none is remembered for their path."""
        for suffix in ("", *_LOG_SUFFIXES):
            if suffix not in self._opened and (identity := self._identify(suffix)) is not None:
                self._opened[suffix] = identity

    @property
    def has_lost_log(self) -> bool:
        """Whether the log or its index was removed or replaced."""
        return any(
            self._identify(suffix) != self._opened[suffix]
            for suffix in _LOG_SUFFIXES
            if suffix in self._opened
        )

    def require_store(self) -> None:
        """Raises sqlite3.OperationalError, as if SQLite couldn't write, if the store was removed or
        replaced.
        """
        if "" in self._opened and (identity := self._identify("")) != self._opened[""]:
            problem = "is gone" if identity is None else "is another file by now"
            raise sqlite3.OperationalError(
                f"{self.path} {problem}: put back the one that was opened, or start again"
            )


def _enable_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Turns on the write-ahead log. While another process does the same with a new file, SQLite fails at once
    instead of waiting, so it is tried again for a while.
    """
    connection.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
    deadline = time.monotonic() + _WAIT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
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
    """Whether the store has this layout, so that nothing must be created. Raises InputError if it lacks a
    table.
    """
    existing = set(inspect(connection).get_table_names())
    if META.name not in existing:
        return False
    layout = connection.execute(select(META.c.value).where(META.c.name == "layout")).scalar()
    if layout != str(LAYOUT):
        return False
    if missing := {table.name for table in METADATA.sorted_tables if table not in OPTIONAL} - existing:
        raise InputError(missing_message(name, f"table {min(missing)}"))
    return True


def missing_message(name: str, what: str) -> str:
    """The message for a store that lacks a table or a column, `what`, with what to do."""
    return (
        f"The store {name} lacks the {what}: it isn't as Bertsmith made it. Put a copy of yours in its place "
        "(docs/mirror.md, Limits), or name another --store."
    )


def find_file_problem(engine: Engine) -> str:
    """What is wrong with the files of an open SQLite store, in a sentence; empty if nothing is wrong."""
    files = engine.get_execution_options().get(_FILES)
    if files is None:
        return ""
    try:
        files.require_store()
    except sqlite3.OperationalError as error:
        return str(error)
    return files.removed if files.has_lost_log else ""


def _prepare(connection: Connection, name: str, *, create: bool) -> None:
    """Creates the tables of a new store, or upgrades a store of an earlier layout. If two processes start at
    the same time, only one of them does it. Raises InputError if the database is no store or a newer one.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    existing = set(inspect(connection).get_table_names())
    if META.name not in existing:
        if not create:
            raise InputError(f"{name} has no records of a mirror. Name the mirror's --store.")
        if connection.dialect.name == "sqlite" and existing:
            raise InputError(
                f"{name} is a database of something else (table {min(existing)}). Name another --store."
            )
        METADATA.create_all(connection)
        for key, value in (("layout", str(LAYOUT)), ("salt", secrets.token_hex(16))):
            connection.execute(META.insert().values(name=key, value=value))
    is_layout = META.c.name == "layout"
    layout = connection.execute(select(META.c.value).where(is_layout)).scalar()
    if layout is not None and layout in map(str, OLDER):
        METADATA.create_all(connection)
        for column in {"weight", "site_weight"} - _columns(connection, CALLS):
            connection.execute(text(f"ALTER TABLE {CALLS.name} ADD COLUMN {column} FLOAT"))
        added = {"proof": "TEXT", "sure": "FLOAT", "seen": "FLOAT"}
        for column in added.keys() - _columns(connection, EVIDENCE):
            connection.execute(text(f"ALTER TABLE {EVIDENCE.name} ADD COLUMN {column} {added[column]}"))
        if "is_held" not in _columns(connection, STAGES):  # replaces a column that was never used
            connection.execute(text(f"ALTER TABLE {STAGES.name} RENAME COLUMN is_automatic TO is_held"))
            connection.execute(update(STAGES).values(is_held=0))
        layout = str(LAYOUT)
        connection.execute(update(META).where(is_layout).values(value=layout))
    if layout != str(LAYOUT):
        raise InputError(
            f"{name} has layout {layout}, and this version of Bertsmith reads and writes {LAYOUT}. "
            "Use the version that made it, or another --store."
        )


def _columns(connection: Connection, table: Table) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table.name)}


def find_odd_row(engine: Engine) -> str:
    """Describes the first value that Bertsmith would never write, by its table, row and column, with what was
    expected; empty if there is none.
    """
    with engine.connect().execution_options(**READING) as connection:
        existing = set(inspect(connection).get_table_names())
        for table in METADATA.sorted_tables:
            if table.name not in existing:
                continue
            for row in connection.exec_driver_sql(f"SELECT * FROM {table.name}").mappings():
                for column in table.columns:
                    if column.name in row and (expected := _expected_value(table, column, row[column.name])):
                        key = next(iter(table.primary_key.columns)).name
                        name = str(row[key])[:60]
                        return f"{table.name}, {key} {name!r}: {column.name} is not {expected}"
    return ""


def _expected_value(table: Table, column: Column[Any], value: Any) -> str:
    """What the column should contain, in words; empty if `value` is that."""
    if value is None and column.nullable:
        return ""
    if isinstance(column.type, Float):
        is_number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST
        return "" if is_number else f"a number below {_LARGEST:g}"
    if isinstance(column.type, Integer):
        return "" if isinstance(value, int) else "a whole number"
    if not isinstance(value, str):
        return "a text"
    json_type = _JSON_TYPES.get((table.name, column.name))
    if json_type is None:
        return ""
    try:
        content = orjson.loads(value)
    except ValueError:
        return "JSON"
    if json_type is not object and type(content) is not json_type:
        return "a JSON object" if json_type is dict else "a JSON array"
    for message in content if column.name in _MESSAGE_COLUMNS else ():
        if not (isinstance(message, list) and message and all(isinstance(part, str) for part in message)):
            return "a JSON array of messages, each [role, text, …]"
    return ""
