"""The connection to the ledger's database: opened with care, its failures in our words."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from pricing.ledger.address import redacted, sqlite_path
from pricing.ledger.errors import LedgerDown, LedgerMissing, LedgerOutdated, LedgerTooNew, StoreError
from pricing.ledger.store.dialect import WRITES, for_reading, open_engine
from pricing.ledger.store.tables import REVISIONS, VERSION_TABLE

_log: Final = logging.getLogger("pricing.ledger")
_MIGRATION_WAIT_MS: Final = 600_000
"""How long one waits for another's migration: adding up a year of rows takes minutes."""


class Database:
    """One ledger's database. Safe to use from several threads; `close` when done.

    With `create` the database and its schema are made or migrated, without it they must be there. Of several that
    start at once one migrates and the others wait. With `durable` a commit survives a power loss, not only the
    death of a process. `busy_timeout_ms` is how long a write waits for its turn.
    """

    def __init__(self, url: str, *, create: bool, durable: bool, busy_timeout_ms: int) -> None:
        self.name = redacted(url)
        self._create = create
        self._path = sqlite_path(url)
        self._engine = open_engine(url, self._path, durable=durable, busy_timeout_ms=busy_timeout_ms)
        self._reading = for_reading(self._engine)
        self._writing = self._engine.execution_options(**{WRITES: busy_timeout_ms})
        self.dialect = self._engine.dialect
        self._inode: int | None = None
        try:
            self._prepare()
        except BaseException:
            self._engine.dispose()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a transaction that sees one moment of the database. Raises `StoreError`."""
        with self._translated(), self._reading.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection in a transaction that commits at the end, the only one that writes. Raises `StoreError`."""
        if self._path is not None and _inode(self._path) != self._inode:
            # The file was deleted or replaced under us: writing on would fill a file nobody can see.
            self._engine.dispose()
            self._prepare()
        with self._translated(), self._writing.begin() as connection:
            yield connection

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()

    def _prepare(self) -> None:
        if self._path is not None:
            self._prepare_file(self._path)
        with self.reading() as connection:
            revision = _revision(connection)
        self._admit(revision)
        if revision != REVISIONS[-1]:
            self._migrate()
        self._inode = None if self._path is None else _inode(self._path)

    def _migrate(self) -> None:
        # Inside the function: Alembic takes a fifth of a second to load, and most starts have nothing to migrate.
        from pricing.ledger.migrations.upgrade import upgrade

        engine = self._engine.execution_options(**{WRITES: _MIGRATION_WAIT_MS})
        with self._translated(), engine.begin() as connection:
            revision = _revision(connection)  # another may have migrated while we waited for our turn
            self._admit(revision)
            if revision != REVISIONS[-1]:
                if revision is not None:
                    _log.warning(
                        "migrating the ledger %s from schema %s to %s", self.name, revision, REVISIONS[-1]
                    )
                upgrade(connection)
        self._engine.dispose()  # the connection that waited long must not be used again for waiting briefly

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
            raise LedgerDown(f"the ledger {self.name} does not answer: {_said(err)}") from err
        except PoolTimeout as err:
            raise LedgerDown(f"the ledger {self.name} does not answer: all connections are in use") from err
        except DBAPIError as err:
            raise StoreError(f"the ledger {self.name} refused: {_said(err)}") from err


def _said(err: DBAPIError) -> str:
    """What the database said, in one line: further lines can cite a row."""
    lines = str(err.orig).splitlines()
    return lines[0] if lines else type(err.orig).__name__


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
