"""Deleting old rows, a few at a time; the hourly sums keep what they said."""

from typing import Final

from sqlalchemy import Connection, Dialect, Select, case, delete, select

from pricing.ledger.store.dialect import upsert_into
from pricing.ledger.store.tables import KEPT_SINCE_HOUR, RANK_OPEN, requests, state

_HOUR_S: Final = 3600


def kept_since_hour(connection: Connection) -> int | None:
    """The Unix hour before which rows may have been deleted; None where none ever was."""
    found: int | None = connection.execute(select(state.c.value).where(state.c.name == KEPT_SINCE_HOUR)).scalar()
    return found


def has_before(connection: Connection, hour: int) -> bool:
    """Whether there is anything to delete."""
    return connection.execute(_old(hour, 1)).first() is not None


def delete_before(connection: Connection, dialect: Dialect, hour: int, limit: int) -> int:
    """Deletes at most `limit` rows that began before a Unix hour, the oldest first; says how many.

    Rows under way stay: their end would otherwise come as a new row.
    """
    _remember(connection, dialect, hour)
    return connection.execute(delete(requests).where(requests.c.request_id.in_(_old(hour, limit)))).rowcount


def _old(hour: int, limit: int) -> Select[tuple[str]]:
    return (
        select(requests.c.request_id)
        .where(requests.c.started_at < hour * _HOUR_S, requests.c.rank != RANK_OPEN)
        .order_by(requests.c.started_at)
        .limit(limit)
    )


def _remember(connection: Connection, dialect: Dialect, hour: int) -> None:
    insert = upsert_into(state, dialect.name).values(name=KEPT_SINCE_HOUR, value=hour)
    new, old = insert.excluded.value, state.c.value
    later = case((new > old, new), else_=old)
    connection.execute(insert.on_conflict_do_update(index_elements=[state.c.name], set_={"value": later}))
