"""The connection to the ledger's database: opened with care, its failures in our words.

Every transaction on SQLite begins aloud (`BEGIN`, or `BEGIN IMMEDIATE` for writing), because the driver's own
habits would leave schema changes outside of it and let two writers deadlock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from pricing.ledger.address import redacted, sqlite_path
from pricing.ledger.errors import LedgerDown, LedgerMissing, LedgerOutdated, LedgerTooNew, StoreError
from pricing.ledger.migrations.upgrade import upgrade
from pricing.ledger.store.tables import REVISIONS, VERSION_TABLE

_WRITES: Final = "kimi_writes"


class Database:
    """One ledger's database. Safe to use from several threads; `close` when done.

    With `create` the database and its schema are made or migrated, without it they must be there. With
    `durable` a commit survives a power loss, not only the death of a process.
    """

    def __init__(self, url: str, *, create: bool, durable: bool, busy_timeout_ms: int) -> None:
        self.name = redacted(url)
        self._create = create
        self._path = sqlite_path(url)
        self._engine = _engine(url, self._path, durable=durable, busy_timeout_ms=busy_timeout_ms)
        self.dialect = self._engine.dialect
        self._inode: int | None = None
        self._prepare()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a transaction of its own. Raises `StoreError`."""
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection in a transaction that commits at the end. Raises `StoreError`."""
        if self._path is not None and _inode(self._path) != self._inode:
            # The file was deleted or replaced under us: writing on would fill a file nobody can see.
            self._engine.dispose()
            self._prepare()
        with self._translated(), self._engine.execution_options(**{_WRITES: True}).begin() as connection:
            yield connection

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()

    def _prepare(self) -> None:
        if self._path is not None:
            self._prepare_file(self._path)
        options = {_WRITES: self._create}
        with self._translated(), self._engine.execution_options(**options).begin() as connection:
            revision = _revision(connection)
            self._admit(revision)
            if revision != REVISIONS[-1]:
                upgrade(connection)
        self._inode = None if self._path is None else _inode(self._path)

    def _prepare_file(self, path: Path) -> None:
        if self._create:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise LedgerDown(f"the directory of the ledger {self.name} cannot be made: {err}") from err
        elif not path.is_file():
            raise LedgerMissing(f"there is no ledger at {self.name}")

    def _admit(self, revision: str | None) -> None:
        if revision is None:
            if not self._create:
                raise LedgerMissing(f"the database {self.name} holds no ledger")
        elif revision not in REVISIONS:
            raise LedgerTooNew(
                f"the ledger {self.name} has schema {revision}, this version knows up to {REVISIONS[-1]}; "
                "use the version of kimi-gateway that last wrote to it, or a newer one"
            )
        elif revision != REVISIONS[-1] and not self._create:
            raise LedgerOutdated(
                f"the ledger {self.name} has schema {revision}, this version needs {REVISIONS[-1]}; "
                "start `kimi-gateway serve` of this version once: it migrates the ledger"
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError) as err:
            raise LedgerDown(f"the ledger {self.name} does not answer: {err.orig}") from err
        except DBAPIError as err:
            raise StoreError(f"the ledger {self.name} refused: {err.orig}") from err


def _engine(url: str, path: Path | None, *, durable: bool, busy_timeout_ms: int) -> Engine:
    address = _address(url, path)
    try:
        if path is None:
            return create_engine(address, pool_pre_ping=True)
        engine = create_engine(address)
    except ModuleNotFoundError as err:
        raise StoreError(
            f"the ledger {redacted(url)} needs the Python package {err.name}, which is not installed"
        ) from err
    except NoSuchModuleError as err:
        raise StoreError(
            f"the ledger {redacted(url)} is of an unknown kind; sqlite:///FILE and postgresql+psycopg://… work"
        ) from err

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
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _address(url: str, path: Path | None) -> URL:
    if path is not None:
        return URL.create("sqlite", database=str(path))
    try:
        address = make_url(url)
    except ArgumentError as err:
        raise StoreError(
            "the ledger's URL cannot be read; expected sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
        ) from err
    if address.get_backend_name() == "sqlite":
        raise StoreError("a ledger in memory would vanish with its process; name a file: sqlite:///FILE")
    return address


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return revision


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
