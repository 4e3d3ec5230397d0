"""The ledger in SQL: SQLite, or PostgreSQL by URL. The one door to SQLAlchemy.

A row only ever climbs: open, unsettled, settled. So every write may be repeated after a crash, and writers that
see the records of one request in different orders end with the same row.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, delete, select, update

from pricing.ledger.records import decode_row
from pricing.ledger.row import LedgerRow
from pricing.ledger.store.engine import Database
from pricing.ledger.store.report import ReportRow, read_report
from pricing.ledger.store.tables import (
    RANK_OPEN,
    RANK_SETTLED,
    RANK_UNSETTLED,
    journal_offsets,
    requests,
)
from pricing.ledger.store.writes import Writes

__all__ = ["ReportRow", "Store"]

_IDS_PER_QUERY: Final = 500


class Store:
    """One ledger. Safe to use from several threads.

    `create=True` makes or migrates it, and only a gateway does that. Raises `LedgerMissing`, `LedgerOutdated`,
    `LedgerTooNew`, `LedgerDown`, `StoreError`.
    """

    def __init__(
        self, url: str, *, create: bool = False, durable: bool = False, busy_timeout_ms: int = 5000
    ) -> None:
        self._database = Database(url, create=create, durable=durable, busy_timeout_ms=busy_timeout_ms)
        self._writes = Writes(self._database.dialect)
        self.name = self._database.name

    def upsert(self, rows: Sequence[LedgerRow]) -> None:
        """Books rows by request id. Repeating it, or coming late with an older state, changes nothing."""
        self.book(rows, {})

    def book(self, rows: Sequence[LedgerRow], drained: Mapping[str, int]) -> None:
        """Books rows and remembers how many bytes of which journal files are drained, in one transaction."""
        with self._database.writing() as connection:
            self._writes.book(connection, rows)
            self._writes.remember(connection, drained)

    def drained_bytes(self, file: str) -> int:
        """How many bytes of a journal file are in the ledger."""
        with self._database.reading() as connection:
            found = connection.execute(
                select(journal_offsets.c.drained_bytes).where(journal_offsets.c.file == file)
            ).scalar()
        return found or 0

    def forget(self, files: Iterable[str]) -> None:
        """Forgets journal files that are about to be deleted."""
        names = list(files)
        if names:
            with self._database.writing() as connection:
                connection.execute(delete(journal_offsets).where(journal_offsets.c.file.in_(names)))

    def renew(self, owner: str, *, lease_until: float) -> None:
        """Moves the end of the lease (Unix seconds) of everything the owner has under way."""
        with self._database.writing() as connection:
            connection.execute(
                update(requests)
                .where(requests.c.rank == RANK_OPEN, requests.c.owner == owner)
                .values(lease_until=lease_until)
            )

    def unsettle_owner(self, owner: str) -> int:
        """Turns what a dead process had under way into unsettled rows; says how many."""
        return self._unsettle(requests.c.owner == owner)

    def unsettle_expired(self, *, now: float) -> int:
        """Turns open rows whose lease ended before now (Unix seconds) into unsettled ones; says how many."""
        return self._unsettle(requests.c.lease_until < now)

    def get(self, request_id: str) -> LedgerRow | None:
        """One row, as it was booked."""
        columns = (requests.c.data, requests.c.status, requests.c.owner, requests.c.lease_until)
        with self._database.reading() as connection:
            found = connection.execute(select(*columns).where(requests.c.request_id == request_id)).one_or_none()
        if found is None:
            return None
        row = decode_row(found.data)
        row.status, row.owner, row.lease_until = found.status, found.owner, found.lease_until
        return row

    def settled_state(self, request_ids: Sequence[str]) -> dict[str, bool]:
        """Of these requests, the ones in the ledger, and whether each is settled."""
        states: dict[str, bool] = {}
        with self._database.reading() as connection:
            for first in range(0, len(request_ids), _IDS_PER_QUERY):
                some = request_ids[first : first + _IDS_PER_QUERY]
                query = select(requests.c.request_id, requests.c.rank).where(requests.c.request_id.in_(some))
                for request_id, rank in connection.execute(query):
                    states[request_id] = rank == RANK_SETTLED
        return states

    def report(
        self,
        by: Sequence[str],
        *,
        since: float | None = None,
        until: float | None = None,
        where: Mapping[str, str] | None = None,
    ) -> list[ReportRow]:
        """Sums over the requests that began in [since, until), Unix seconds, grouped by the names in `by`.

        Raises `ValueError` for a name that no report can be grouped by.
        """
        with self._database.reading() as connection:
            return read_report(connection, by, since=since, until=until, where=where or {})

    def close(self) -> None:
        """Closes every connection."""
        self._database.close()

    def _unsettle(self, condition: ColumnElement[bool]) -> int:
        with self._database.writing() as connection:
            return connection.execute(
                update(requests)
                .where(requests.c.rank == RANK_OPEN, condition)
                .values(rank=RANK_UNSETTLED, status="unsettled")
            ).rowcount
