"""What requests would cost at other cards than those they were booked at. The booked cost is never touched.

One repricing a request, the last one; it goes with its row. A report takes them as differences from what was
booked, so that the sums kept by the hour serve both kinds of report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    Label,
    Table,
    Text,
    and_,
    case,
    delete,
    func,
    literal_column,
    not_,
    select,
)

from pricing.ledger.store.dialect import upsert_into
from pricing.ledger.store.engine import Database
from pricing.ledger.store.sums import NAMES
from pricing.ledger.store.tables import metadata, requests

repricings: Final = Table(
    "kimi_repricings",
    metadata,
    Column("request_id", Text, ForeignKey("kimi_requests.request_id", ondelete="CASCADE"), primary_key=True),
    Column("card", Text, nullable=False),
    Column("cost_nano", BigInteger, nullable=False),
    Column("at", Double, nullable=False),  # Unix seconds
)

REPRICED: Final = requests.join(repricings, repricings.c.request_id == requests.c.request_id)
"""The requests that were repriced."""

_IDS_PER_STATEMENT: Final = 500
_ZERO: Final[ColumnElement[Any]] = literal_column("0")
_ONE: Final[ColumnElement[Any]] = literal_column("1")
_MORE: Final = repricings.c.cost_nano - func.coalesce(requests.c.cost_nano, _ZERO)
_OF_ROW: Final[dict[str, ColumnElement[Any]]] = {
    "cost_nano": _MORE,
    "known_cost_nano": case((requests.c.cost_nano.is_(None), _ONE), else_=_ZERO),
    "estimated_nano": case((requests.c.estimated, _MORE), else_=_ZERO),
    "assumed_nano": case((and_(requests.c.assumed, not_(requests.c.estimated)), _MORE), else_=_ZERO),
    "unpriced_requests": case((requests.c.cost_source == "unpriced", literal_column("-1")), else_=_ZERO),
}

DIFFERENCES: Final[list[Label[Any]]] = [
    (func.coalesce(func.sum(_OF_ROW[name]), _ZERO) if name in _OF_ROW else _ZERO).label(name) for name in NAMES
]
"""What repricing changes in each sum of a report."""


@dataclass(frozen=True, slots=True)
class Repricing:
    """What one request costs at another card. `at` is when that was reckoned, Unix seconds."""

    request_id: str
    card: str
    cost_nano: int
    at: float


class RepricingTable:
    """The repricings of one ledger. Every call blocks and raises `StoreError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, found: Sequence[Repricing], withdrawn: Sequence[str]) -> None:
        """Keeps these and forgets those of the requests in `withdrawn`, in one transaction.

        A request that is no longer in the ledger is passed over.
        """
        with self._database.writing() as connection:
            for first in range(0, len(withdrawn), _IDS_PER_STATEMENT):
                some = withdrawn[first : first + _IDS_PER_STATEMENT]
                connection.execute(delete(repricings).where(repricings.c.request_id.in_(some)))
            present: set[str] = set()
            for first in range(0, len(found), _IDS_PER_STATEMENT):
                ids = [one.request_id for one in found[first : first + _IDS_PER_STATEMENT]]
                query = select(requests.c.request_id).where(requests.c.request_id.in_(ids))
                present.update(connection.scalars(query))
            values = [
                {"request_id": one.request_id, "card": one.card, "cost_nano": one.cost_nano, "at": one.at}
                for one in found
                if one.request_id in present
            ]
            if values:
                insert = upsert_into(repricings, self._database.dialect.name)
                changes = {name: insert.excluded[name] for name in ("card", "cost_nano", "at")}
                connection.execute(
                    insert.on_conflict_do_update(index_elements=[repricings.c.request_id], set_=changes), values
                )

    def get(self, request_id: str) -> Repricing | None:
        """The repricing of a request; None where there is none."""
        query = select(repricings).where(repricings.c.request_id == request_id)
        with self._database.reading() as connection:
            found = connection.execute(query).one_or_none()
        return None if found is None else Repricing(found.request_id, found.card, found.cost_nano, found.at)

    def count(self) -> int:
        """How many requests of the ledger are repriced."""
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(repricings)).scalar_one()
