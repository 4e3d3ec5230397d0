"""Booking rows: the statements, and what of a row stands in which column.

Everything is bound by the driver itself (`exec_driver_sql`), and on SQLite many rows by one statement: the thread
that books shares its interpreter lock with the requests. The generic way spends 20 microseconds a row on preparing
parameters, and one statement a row hands the lock to and fro once a row. The hourly sums are the triggers' work:
4.6 microseconds a row without the lock. Adding them up in here takes 1 with it, and asking in the trigger whether
that was done 1.9, so little would be won.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Dialect, Insert, Table, and_, literal_column, or_

from pricing.ledger.records import encode
from pricing.ledger.row import Bookable, StoredRow
from pricing.ledger.store.dialect import UpsertInsert, upsert_into
from pricing.ledger.store.tables import (
    RANK_OPEN,
    RANK_SETTLED,
    RANK_UNSETTLED,
    journal_offsets,
    refusals,
    request_tags,
    requests,
)

_RANKS: Final = {"open": RANK_OPEN, "unsettled": RANK_UNSETTLED}
_TOKENS_MAX: Final = 10**12
_NANO_MAX: Final = 10**16
"""Ten million dollars. What one request cannot have used is taken as unknown: hourly sums must fit into 64 bits,
and one absurd report must not hold up the rest."""
_AT_ONCE: Final = (64, 8)
"""Rows by one statement: as many as fit, the rest by the smaller one, the last few one by one."""
_NUL: Final = "\\u0000"


class Writes:
    """The statements for one kind of database."""

    def __init__(self, dialect: Dialect) -> None:
        name = dialect.name
        self._rows = _Statement(requests, _row_upsert(upsert_into(requests, name)), dialect)
        self._tags = _Statement(request_tags, upsert_into(request_tags, name).on_conflict_do_nothing(), dialect)
        self._offsets = _Statement(journal_offsets, _offset_upsert(upsert_into(journal_offsets, name)), dialect)
        self._refusals = _Statement(refusals, _refusal_upsert(upsert_into(refusals, name)), dialect)

    def book(self, connection: Connection, rows: Sequence[Bookable]) -> None:
        """Upserts rows and their tags. Of two rows of one request the later in the sequence counts last."""
        self._rows.run(connection, [_values(row) for row in rows])
        self._tags.run(
            connection,
            [
                (row.request_id, _text(tag), _text(value))
                for row in rows
                if row.tags
                for tag, value in row.tags.items()
            ],
        )

    def count_refusals(self, connection: Connection, counts: Mapping[tuple[int, str, str], int]) -> None:
        """Adds to the refused requests by hour, key and code."""
        found = sorted(counts.items())
        self._refusals.run(connection, [(hour, _text(key), _text(code), n) for (hour, key, code), n in found])

    def remember(self, connection: Connection, drained: Mapping[str, int]) -> None:
        """Remembers how many bytes of which journal files are drained."""
        self._offsets.run(connection, list(drained.items()))


class _Statement:
    """An upsert of whole rows of a table, compiled once."""

    def __init__(self, table: Table, upsert: Insert, dialect: Dialect) -> None:
        self._columns = tuple(column.name for column in table.columns)
        self.sql = str(upsert.compile(dialect=dialect))
        self._wide = [(count, self._widened(count)) for count in _AT_ONCE if dialect.name == "sqlite"]
        self._positional = dialect.positional

    def run(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Executes it for rows of values in the order of the table's columns, one row after another."""
        for count, sql in self._wide:
            while len(rows) >= count:
                connection.exec_driver_sql(sql, tuple(chain.from_iterable(rows[:count])))
                rows = rows[count:]
        bound: list[Any] = list(rows)
        if not self._positional:
            bound = [dict(zip(self._columns, values, strict=True)) for values in rows]
        if bound:
            connection.exec_driver_sql(self.sql, bound)

    def _widened(self, count: int) -> str:
        """The statement for one row, for so many of them."""
        one = "(" + ", ".join("?" * len(self._columns)) + ")"
        return self.sql.replace(f"VALUES {one}", f"VALUES {', '.join([one] * count)}", 1)


def _values(row: Bookable) -> tuple[Any, ...]:
    """The columns of a row, in the order of the table."""
    data = row.data if type(row) is StoredRow else encode(row).decode()
    names = (row.key, row.route, row.target, row.model)
    if _NUL in data:  # JSON's way of writing it; one look spares four
        names = (_text(row.key), _text(row.route), _text(row.target), _text(row.model))
    prompt, cached, output, cost = row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano
    write_5m, write_1h, reasoning = row.write_5m_tokens, row.write_1h_tokens, row.reasoning_tokens
    return (
        row.request_id,
        row.started_at,
        int(row.started_at // 3600),
        *names,
        row.tier,
        row.effort,
        row.ttl,
        row.status,
        _RANKS.get(row.status, RANK_SETTLED),
        row.owner,
        row.lease_until,
        # Beyond what one request can have used is unknown. Written out: seven calls would be a microsecond.
        None if prompt is None or abs(prompt) > _TOKENS_MAX else prompt,
        None if cached is None or abs(cached) > _TOKENS_MAX else cached,
        None if write_5m is None or abs(write_5m) > _TOKENS_MAX else write_5m,
        None if write_1h is None or abs(write_1h) > _TOKENS_MAX else write_1h,
        None if output is None or abs(output) > _TOKENS_MAX else output,
        None if reasoning is None or abs(reasoning) > _TOKENS_MAX else reasoning,
        None if cost is None or abs(cost) > _NANO_MAX else cost,
        row.cost_source,
        row.estimated,
        row.assumed,
        row.prefix,
        data,
        row.cache_loss,
    )


def _text(value: str) -> str:
    """The text without NUL, which PostgreSQL cannot hold; an upstream's model name may have one."""
    return value.replace("\0", "\ufffd")


def _row_upsert(insert: UpsertInsert) -> Insert:
    new, old = insert.excluded, requests.c
    is_open: ColumnElement[int] = literal_column(str(RANK_OPEN))
    is_unsettled: ColumnElement[int] = literal_column(str(RANK_UNSETTLED))
    from_owner = and_(new.rank == is_open, new.owner == old.owner)
    changes = or_(
        new.rank > old.rank,
        # Progress; the lease tells newer from older.
        and_(from_owner, old.rank == is_open, new.lease_until >= old.lease_until),
        # A process that was cut off longer than its lease, and lives.
        and_(from_owner, old.rank == is_unsettled, new.lease_until > old.lease_until),
    )
    return insert.on_conflict_do_update(
        index_elements=[old.request_id],
        set_={column.name: new[column.name] for column in requests.columns if not column.primary_key},
        where=changes,
    )


def _offset_upsert(insert: UpsertInsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=[journal_offsets.c.file], set_={"drained_bytes": insert.excluded.drained_bytes}
    )


def _refusal_upsert(insert: UpsertInsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=[refusals.c.hour, refusals.c.key, refusals.c.code],
        set_={"requests": refusals.c.requests + insert.excluded.requests},
    )
