"""The ledger in SQL: SQLite, or PostgreSQL by URL. The one door to SQLAlchemy.

A row only ever climbs: open, unsettled, settled. So every write may be repeated after a crash, and writers that
see the records of one request in different orders end with the same row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, delete, func, select, update

from pricing.ledger.records import decode_row
from pricing.ledger.row import Bookable, LedgerRow
from pricing.ledger.store.engine import Database
from pricing.ledger.store.report import Period, ReportRow, read_report
from pricing.ledger.store.repricings import RepricingTable
from pricing.ledger.store.retention import delete_before, has_before, kept_since_hour
from pricing.ledger.store.sums import Inconsistency, inconsistencies, next_day, sum_up_day
from pricing.ledger.store.tables import (
    RANK_OPEN,
    RANK_SETTLED,
    RANK_UNSETTLED,
    journal_offsets,
    refusals,
    requests,
)
from pricing.ledger.store.writes import Writes

__all__ = ["Inconsistency", "RefusedCount", "ReportRow", "Store"]

_IDS_PER_QUERY: Final = 500
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class RefusedCount:
    """How many requests of a key ("" where none was known) were refused with a code before they were planned."""

    key: str
    code: str
    requests: int


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

    def upsert(self, rows: Sequence[Bookable]) -> None:
        """Books rows by request id. Repeating it, or coming late with an older state, changes nothing."""
        self.book(rows, {})

    def book(self, rows: Sequence[Bookable], drained: Mapping[str, int]) -> None:
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
        from_rows: bool = False,
        repriced: bool = False,
    ) -> list[ReportRow]:
        """Sums over the requests that began in [since, until), Unix seconds, grouped by the names in `by`.

        Where rows were deleted (`kept_since`), whole hours by fixed dimensions are still complete. `repriced`
        takes what `repricings` has in place of what was booked. Raises `ValueError` for a name that no report can
        be grouped by.
        """
        with self._database.reading() as connection:
            return read_report(
                connection, by, Period(since, until), where or {}, from_rows=from_rows, repriced=repriced
            )

    @property
    def repricings(self) -> RepricingTable:
        """What requests would cost at other cards than those they were booked at."""
        return RepricingTable(self._database)

    def kept_since(self) -> float | None:
        """Unix seconds before which retention may have deleted rows; None where it never did.

        Reports by tags, and of parts of an hour, lack what is before it.
        """
        with self._database.reading() as connection:
            hour = kept_since_hour(connection)
        return None if hour is None else float(hour * _HOUR_S)

    def delete_before(self, before: float, *, limit: int = 500) -> int:
        """Deletes at most `limit` rows that began before the hour of `before` (Unix seconds); says how many.

        Rows under way stay, and so do the hourly sums. Call it until it deletes fewer than `limit`.
        """
        hour = int(before // _HOUR_S)
        with self._database.reading() as connection:
            if not has_before(connection, hour):
                return 0
        with self._database.writing() as connection:
            return delete_before(connection, self._database.dialect, hour, limit)

    def sum_up_day(self, *, before: float) -> bool:
        """Sums up one day that was over by `before` (Unix seconds), for quick reports; false where none is left.

        Reports are right without it: what is not summed up by day is read by the hour.
        """
        end_day = int(before // _DAY_S)
        with self._database.reading() as connection:
            if next_day(connection, end_day) is None:
                return False
        with self._database.writing() as connection:
            day = next_day(connection, end_day)
            if day is not None:
                sum_up_day(connection, day)
            return day is not None

    def inconsistencies(self, *, since: float | None = None, until: float | None = None) -> list[Inconsistency]:
        """Where the kept sums are not what they should be, at most twenty groups; empty where all is well.

        Hourly sums are compared with the rows in the hours that lie whole in [since, until), Unix seconds, and
        whose rows are still there (all of them are read); daily sums with the hourly ones, everywhere.
        """
        with self._database.reading() as connection:
            kept = kept_since_hour(connection)
            first = max(0 if since is None else -int(-since // _HOUR_S), kept or 0)
            end = None if until is None else int(until // _HOUR_S)
            return inconsistencies(connection, first_hour=first, end_hour=end)

    def count_refusals(self, counts: Mapping[tuple[int, str, str], int]) -> None:
        """Adds to the refused requests by Unix hour, key and code. Repeating it counts twice."""
        with self._database.writing() as connection:
            self._writes.count_refusals(connection, counts)

    def refused(self, *, since: float | None = None, until: float | None = None) -> list[RefusedCount]:
        """The requests refused before they were planned, by key and code, in the hours of [since, until)."""
        total = func.sum(refusals.c.requests)
        query = select(refusals.c.key, refusals.c.code, total).group_by(refusals.c.key, refusals.c.code)
        if since is not None:
            query = query.where(refusals.c.hour >= int(since // _HOUR_S))
        if until is not None:
            query = query.where(refusals.c.hour < until / _HOUR_S)
        with self._database.reading() as connection:
            found = connection.execute(query.order_by(refusals.c.key, refusals.c.code)).all()
        return [RefusedCount(key, code, int(count)) for key, code, count in found]

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
