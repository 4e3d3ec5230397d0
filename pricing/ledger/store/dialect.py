"""What differs between SQLite and PostgreSQL: connecting, beginning, waiting. All of it, and nothing else.

On both there is one writer at a time. On SQLite `BEGIN IMMEDIATE` sees to that; on PostgreSQL a lock of the
database's own does (an advisory lock, given back with the transaction), because replicas that book into the same
hourly sums in different orders would otherwise deadlock, and two that start at once would both migrate.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from pricing.ledger.address import redacted
from pricing.ledger.errors import StoreError

WRITES: Final = "kimi_writes"
"""Execution option of a connection: how many milliseconds it waits for its turn to write; absent for reading."""

UpsertInsert = sqlite.Insert | postgresql.Insert

_KINDS: Final = "sqlite:///FILE and postgresql+psycopg://USER@HOST/DATABASE work"
_WRITE_LOCK: Final = 0x6B696D69  # "kimi"
_STALLED_WRITER_MS: Final = 60_000
_POSTGRESQL_DEFAULTS: Final[Mapping[str, object]] = {
    "application_name": "kimi",
    "connect_timeout": 5,  # seconds
    # A server that vanished without a word is noticed within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds
}


def upsert_into(table: Table, dialect_name: str) -> UpsertInsert:
    """An insert that can say what is done about a row that is there already."""
    return postgresql.insert(table) if dialect_name == "postgresql" else sqlite.insert(table)


def open_engine(url: str, path: Path | None, *, durable: bool, busy_timeout_ms: int) -> Engine:
    """An engine on the database; connects to nothing yet. `path` is the file of a SQLite URL.

    Raises `StoreError` for a URL that cannot work.
    """
    address = _address(url, path)
    try:
        if path is not None:
            return _sqlite(address, durable=durable, busy_timeout_ms=busy_timeout_ms)
        return _postgresql(address)
    except ModuleNotFoundError as err:
        raise StoreError(
            f"the ledger {redacted(url)} needs the Python package {err.name}, which is not installed"
        ) from err
    except NoSuchModuleError as err:
        raise StoreError(f"the ledger {redacted(url)} is of an unknown kind; {_KINDS}") from err


def for_reading(engine: Engine) -> Engine:
    """The engine whose transactions see the database as it was at one moment, over all their statements."""
    return (
        engine if engine.dialect.name == "sqlite" else engine.execution_options(isolation_level="REPEATABLE READ")
    )


def _address(url: str, path: Path | None) -> URL:
    if path is not None:
        return URL.create("sqlite", database=str(path))
    try:
        address = make_url(url)
        if "@" in (address.host or ""):
            raise ValueError  # the end of a password, which the driver would look up as a host and name
    except (ArgumentError, ValueError):
        # Without its cause, which may cite the part of a password that was taken for a port.
        raise StoreError(
            f"the ledger's URL cannot be read; {_KINDS}; a password's own @ : / ? # % are written as %40 and so on"
        ) from None
    if address.get_backend_name() == "sqlite":
        raise StoreError("a ledger in memory would vanish with its process; name a file: sqlite:///FILE")
    if address.drivername in ("postgres", "postgresql"):
        return address.set(drivername="postgresql+psycopg")
    return address


def _sqlite(address: URL, *, durable: bool, busy_timeout_ms: int) -> Engine:
    # Every transaction begins aloud, because the driver's own habits would leave schema changes outside of it and
    # let two writers deadlock.
    engine = create_engine(address, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        wait_ms = _wait_ms(connection)
        if wait_ms is None:
            connection.exec_driver_sql("BEGIN")
            return
        if wait_ms != busy_timeout_ms:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_ms}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgresql(address: URL) -> Engine:
    if address.get_backend_name() != "postgresql":
        create_engine(address)  # says which package is missing
        raise NoSuchModuleError
    defaults = {name: value for name, value in _POSTGRESQL_DEFAULTS.items() if name not in address.query}
    engine = create_engine(address, pool_pre_ping=True, hide_parameters=True, connect_args=defaults)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        wait_ms = _wait_ms(connection)
        if wait_ms is None:
            return
        # For this transaction only: a pooler between us and the server may give the connection to others.
        connection.exec_driver_sql(
            f"SELECT set_config('lock_timeout', '{wait_ms}ms', true), "
            f"set_config('idle_in_transaction_session_timeout', '{_STALLED_WRITER_MS}ms', true)"
        )
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITE_LOCK})")

    return engine


def _wait_ms(connection: Connection) -> int | None:
    wait_ms: int | None = connection.get_execution_options().get(WRITES)
    return wait_ms
