"""The ledger's rows one after another, in the order of their start, without holding them all in memory."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import and_, literal, select

from pricing.ledger.records import decode_row
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.tables import requests

_ROWS_AT_ONCE: Final = 1000


def scan_rows(store: Store, *, since: float | None = None, until: float | None = None) -> Iterator[LedgerRow]:
    """The rows that began in [since, until), Unix seconds, in the order of their start, then of their id.

    It is one reading transaction: what is booked meanwhile is not in it. Raises `StoreError`.
    """
    filters = []
    if since is not None:
        filters.append(requests.c.started_at >= since)
    if until is not None:
        filters.append(requests.c.started_at < until)
    columns = (requests.c.data, requests.c.status, requests.c.owner, requests.c.lease_until)
    query = (
        select(*columns)
        .where(and_(literal(True), *filters))
        .order_by(requests.c.started_at, requests.c.request_id)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    with store._database.reading() as connection:
        for data, status, owner, lease_until in connection.execute(query):
            row = decode_row(data)
            row.status, row.owner, row.lease_until = status, owner, lease_until
            yield row
