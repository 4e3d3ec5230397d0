"""What a key has spent in a period, as a budget needs it: the sum, and what may still change about it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, literal_column, select

from pricing.ledger.store.dialect import upsert_into
from pricing.ledger.store.engine import Database
from pricing.ledger.store.report import Period, read_report
from pricing.ledger.store.tables import RANK_OPEN, RANK_SETTLED, budget_alerts, requests

State = Literal["open", "unsettled", "settled"]

_IDS_PER_QUERY: Final = 500
_COLUMNS: Final = (
    requests.c.request_id,
    requests.c.rank,
    requests.c.tier,
    requests.c.cost_nano,
    requests.c.data,
)


@dataclass(frozen=True, slots=True)
class BookedRow:
    """What the ledger has of one request. `nano` is its cost so far, 0 where none is known; of one that ended
    without a price it is what was reserved for it.

    `reserved_nano` is what was held for it when it began, 0 where the row does not say.
    """

    state: State
    nano: int
    highspeed: bool = False
    reserved_nano: int = 0

    @property
    def bound_nano(self) -> int:
        """The most that it can have cost: the truth once settled, else the larger of cost and reservation."""
        return self.nano if self.state == "settled" else max(self.nano, self.reserved_nano)


@dataclass(frozen=True, slots=True)
class Booked:
    """The cost of a key's requests that began in a period, all of them, and of those at Highspeed.

    One that ended without a price counts what was reserved for it.
    `rows` are the requests that were asked for by id, as far as they are there, and all that are not settled.
    """

    total_nano: int = 0
    highspeed_nano: int = 0
    rows: Mapping[str, BookedRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlertName:
    """One alert: a share of a budget was reached in a period."""

    key: str
    period: str
    budget: str
    budget_nano: int
    percent: int


class _Reserved(msgspec.Struct):
    """The one field of a row that no column has."""

    reserved_nano: int | None = None


_reserved: Final = msgspec.json.Decoder(_Reserved)


class Spending:
    """Reads spend from one ledger, and notes alerts there. Safe to use from several threads; every call blocks.

    Opens the ledger at the first call and creates none. Calls raise `StoreError`.
    """

    def __init__(self, url: str, *, busy_timeout_ms: int = 5000) -> None:
        self._url = url
        self._busy_timeout_ms = busy_timeout_ms
        self._opened: Database | None = None

    def booked(self, key: str, *, since: float, until: float | None, ids: Iterable[str] = ()) -> Booked:
        """A key's spend in [since, until), Unix seconds on whole hours, and the rows of these requests.

        All of it is one view of the ledger.
        """
        began = [requests.c.key == key, requests.c.started_at >= since]
        if until is not None:
            began.append(requests.c.started_at < until)
        # Without a bound parameter, else the index over unfinished rows cannot be used.
        unfinished = and_(*began, requests.c.rank < literal_column(str(RANK_SETTLED)))
        with self._database().reading() as connection:
            groups = read_report(connection, ["tier"], Period(since, until), {"key": key}, from_rows=False)
            rows = _rows(connection, unfinished) | _by_id(connection, list(ids))
            unpriced = _held(connection, began) if any(group.unpriced_requests for group in groups) else {}
        by_tier = {group.by["tier"]: group.cost_nano or 0 for group in groups}
        return Booked(
            sum(by_tier.values()) + sum(unpriced.values()),
            by_tier.get("highspeed", 0) + unpriced.get("highspeed", 0),
            rows,
        )

    def rows(self, ids: Sequence[str]) -> dict[str, BookedRow]:
        """Of these requests the ones in the ledger."""
        if not ids:
            return {}
        with self._database().reading() as connection:
            return _by_id(connection, ids)

    def take_alert(self, alert: AlertName, *, at_s: float) -> bool:
        """Notes that an alert is about to be sent; false where somebody has noted it before."""
        database = self._database()
        with database.writing() as connection:
            insert = upsert_into(budget_alerts, database.dialect.name).values(
                key=alert.key,
                period=alert.period,
                budget=alert.budget,
                budget_nano=alert.budget_nano,
                percent=alert.percent,
                at=at_s,
            )
            is_new = insert.on_conflict_do_nothing().returning(budget_alerts.c.key)
            return connection.execute(is_new).first() is not None

    def close(self) -> None:
        """Closes every connection."""
        if self._opened is not None:
            self._opened.close()

    def _database(self) -> Database:
        # Two threads at once may open two; one of them is let go.
        if self._opened is None:
            self._opened = Database(self._url, create=False, durable=False, busy_timeout_ms=self._busy_timeout_ms)
        return self._opened


def _by_id(connection: Connection, ids: Sequence[str]) -> dict[str, BookedRow]:
    found: dict[str, BookedRow] = {}
    for first in range(0, len(ids), _IDS_PER_QUERY):
        found |= _rows(connection, requests.c.request_id.in_(ids[first : first + _IDS_PER_QUERY]))
    return found


def _rows(connection: Connection, condition: ColumnElement[bool]) -> dict[str, BookedRow]:
    found = connection.execute(select(*_COLUMNS).where(condition))
    return {name: _booked_row(rank, tier, nano, data) for name, rank, tier, nano, data in found}


def _held(connection: Connection, began: Sequence[ColumnElement[bool]]) -> dict[str, int]:
    """What was reserved for answers that ended without a price, by tier: unknown is not free, so a budget counts
    the most that they can have cost."""
    ended = and_(*began, requests.c.rank == RANK_SETTLED, requests.c.cost_nano.is_(None))
    held: dict[str, int] = {}
    for tier, data in connection.execute(select(requests.c.tier, requests.c.data).where(ended)):
        held[tier] = held.get(tier, 0) + (_reserved.decode(data).reserved_nano or 0)
    return held


def _booked_row(rank: int, tier: str, cost_nano: int | None, data: str) -> BookedRow:
    state: State = "settled" if rank == RANK_SETTLED else "open" if rank == RANK_OPEN else "unsettled"
    if state == "settled" and cost_nano is not None:
        return BookedRow(state, cost_nano, tier == "highspeed")
    reserved = _reserved.decode(data).reserved_nano or 0
    if state == "settled":
        return BookedRow(state, reserved, tier == "highspeed")
    return BookedRow(state, cost_nano or 0, tier == "highspeed", reserved)
