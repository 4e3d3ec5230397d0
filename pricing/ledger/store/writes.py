"""Booking rows: the statements, and what of a row stands in which column.

Rows are bound by the driver itself (`exec_driver_sql`), and on SQLite many by one statement: the thread that
books shares its interpreter lock with the requests. The generic way spends 20 microseconds a row on preparing
parameters, and one statement a row hands the lock to and fro once a row.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Dialect, Insert, and_, literal_column, or_

from pricing.ledger.records import encode
from pricing.ledger.row import LedgerRow
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
_MANY: Final = 64
_COLUMNS: Final = tuple(column.name for column in requests.columns)


class Writes:
    """The statements for one kind of database."""

    def __init__(self, dialect: Dialect) -> None:
        name = dialect.name
        self.row_sql = str(_row_upsert(upsert_into(requests, name)).compile(dialect=dialect))
        self._many_sql = _for_many(self.row_sql) if dialect.name == "sqlite" else None
        self._positional = dialect.positional
        self._tags: Insert = upsert_into(request_tags, name).on_conflict_do_nothing()
        self._offsets: Insert = _offset_upsert(upsert_into(journal_offsets, name))
        self._refusals: Insert = _refusal_upsert(upsert_into(refusals, name))

    def book(self, connection: Connection, rows: Sequence[LedgerRow]) -> None:
        """Upserts rows and their tags. Of two rows of one request the later in the sequence counts last."""
        if not rows:
            return
        self._book_rows(connection, [_values(row) for row in rows])
        self._book_tags(connection, rows)

    def count_refusals(self, connection: Connection, counts: Mapping[tuple[int, str, str], int]) -> None:
        """Adds to the refused requests by hour, key and code."""
        if counts:
            values = [
                {"hour": hour, "key": _text(key), "code": _text(code), "requests": count}
                for (hour, key, code), count in sorted(counts.items())
            ]
            connection.execute(self._refusals, values)

    def _book_tags(self, connection: Connection, rows: Sequence[LedgerRow]) -> None:
        tags = [
            {"request_id": row.request_id, "tag": _text(tag), "value": _text(value)}
            for row in rows
            for tag, value in row.tags.items()
        ]
        if tags:
            connection.execute(self._tags, tags)

    def _book_rows(self, connection: Connection, rows: list[tuple[object, ...]]) -> None:
        if self._many_sql is not None:
            while len(rows) >= _MANY:
                connection.exec_driver_sql(self._many_sql, tuple(chain.from_iterable(rows[:_MANY])))
                rows = rows[_MANY:]
        bound: list[Any] = rows
        if not self._positional:
            bound = [dict(zip(_COLUMNS, values, strict=True)) for values in rows]
        if bound:
            connection.exec_driver_sql(self.row_sql, bound)

    def remember(self, connection: Connection, drained: Mapping[str, int]) -> None:
        """Remembers how many bytes of which journal files are drained."""
        if drained:
            values = [{"file": file, "drained_bytes": drained_bytes} for file, drained_bytes in drained.items()]
            connection.execute(self._offsets, values)


def _for_many(row_sql: str) -> str:
    """The statement for one row, widened to `_MANY` of them."""
    one = "(" + ", ".join("?" * len(_COLUMNS)) + ")"
    return row_sql.replace(f"VALUES {one}", f"VALUES {', '.join([one] * _MANY)}", 1)


def _values(row: LedgerRow) -> tuple[object, ...]:
    """The columns of a row, in the order of the table."""
    return (
        row.request_id,
        row.started_at,
        int(row.started_at // 3600),
        _text(row.key),
        _text(row.route),
        _text(row.target),
        _text(row.model),
        row.tier,
        row.effort,
        row.ttl,
        row.status,
        _RANKS.get(row.status, RANK_SETTLED),
        row.owner,
        row.lease_until,
        _within(row.prompt_tokens, _TOKENS_MAX),
        _within(row.cached_tokens, _TOKENS_MAX),
        _within(row.write_5m_tokens, _TOKENS_MAX),
        _within(row.write_1h_tokens, _TOKENS_MAX),
        _within(row.completion_tokens, _TOKENS_MAX),
        _within(row.reasoning_tokens, _TOKENS_MAX),
        _within(row.cost_nano, _NANO_MAX),
        row.cost_source,
        row.estimated,
        row.assumed,
        row.prefix,
        encode(row).decode(),
        row.cache_loss,
    )


def _text(value: str) -> str:
    """The text without NUL, which PostgreSQL cannot hold; an upstream's model name may have one."""
    return value.replace("\0", "\ufffd")


def _within(value: int | None, limit: int) -> int | None:
    """The value, or None (unknown) where it is beyond the limit."""
    return value if value is None or abs(value) <= limit else None


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
