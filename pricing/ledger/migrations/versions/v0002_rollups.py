"""Why a cache was lost; hourly sums that the database keeps itself; refusals; how far back rows are kept.

The sums are kept by triggers, in the transaction of the row: whoever changes a row, an older gateway beside newer
ones included, changes them with it. Deleting a row leaves them: that is what retention is. Sums by day are made of
those by hour once a day is over; a change of one of its rows takes the day's mark away, and they count no more.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_GROUP = ("hour", "key", "target", "model", "tier", "effort", "route", "status", "cache_loss")
_TOKENS = (
    "prompt_tokens",
    "cached_tokens",
    "write_5m_tokens",
    "write_1h_tokens",
    "completion_tokens",
    "reasoning_tokens",
)


def _measures(row: str) -> dict[str, str]:
    """What one row adds to the sums of its group; `row` is the prefix of its columns."""
    cost = f"COALESCE({row}cost_nano, 0)"
    return {
        "requests": "1",
        **{name: f"COALESCE({row}{name}, 0)" for name in _TOKENS},
        **{f"known_{name}": f"CASE WHEN {row}{name} IS NULL THEN 0 ELSE 1 END" for name in _TOKENS},
        "without_use": f"CASE WHEN {row}cost_source = 'none' AND {row}rank = 2 THEN 1 ELSE 0 END",
        "cost_nano": cost,
        "known_cost_nano": f"CASE WHEN {row}cost_nano IS NULL THEN 0 ELSE 1 END",
        "estimated_nano": f"CASE WHEN {row}estimated THEN {cost} ELSE 0 END",
        "assumed_nano": f"CASE WHEN {row}assumed AND NOT {row}estimated THEN {cost} ELSE 0 END",
        "unpriced_requests": f"CASE WHEN {row}cost_source = 'unpriced' THEN 1 ELSE 0 END",
    }


_MONEY = ("cost_nano", "estimated_nano", "assumed_nano")
_NAMES = tuple(_measures(""))
_WATCHED = (*_GROUP, *_TOKENS, "rank", "cost_nano", "cost_source", "estimated", "assumed")


def upgrade() -> None:
    """Adds the column and the tables, adds up the rows that are there, and sets the triggers."""
    op.add_column("kimi_requests", sa.Column("cache_loss", sa.Text, nullable=False, server_default=""))
    _create_tables()
    op.execute(
        f"INSERT INTO kimi_rollups ({_list((*_GROUP, *_NAMES))}) "
        f"SELECT {_list(_GROUP)}, {_list(f'SUM({value})' for value in _measures('').values())} "
        f"FROM kimi_requests GROUP BY {_list(_GROUP)}"
    )
    triggers = {"sqlite": _sqlite_triggers, "postgresql": _postgresql_triggers}
    for statement in triggers[op.get_bind().dialect.name]():
        op.get_bind().exec_driver_sql(statement)


def _create_tables() -> None:
    # Sums of money have no end on PostgreSQL, where a sum that does not fit would refuse the row.
    money = sa.BigInteger().with_variant(sa.Numeric(38, 0), "postgresql")
    for table, time in (("kimi_rollups", "hour"), ("kimi_daily_rollups", "day")):
        op.create_table(
            table,
            sa.Column(time, sa.Integer, primary_key=True, autoincrement=False),
            *(sa.Column(name, sa.Text, primary_key=True) for name in _GROUP[1:]),
            *(sa.Column(name, money if name in _MONEY else sa.BigInteger, nullable=False) for name in _NAMES),
            sqlite_with_rowid=False,
        )
    op.create_table("kimi_summed_days", sa.Column("day", sa.Integer, primary_key=True, autoincrement=False))
    op.create_table(
        "kimi_refusals",
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("code", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "kimi_ledger_state",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _add(row: str) -> str:
    values = _list((*(row + name for name in _GROUP), *_measures(row).values()))
    sums = _list(f"{name} = kimi_rollups.{name} + excluded.{name}" for name in _NAMES)
    return (
        f"INSERT INTO kimi_rollups ({_list((*_GROUP, *_NAMES))}) VALUES ({values}) "
        f"ON CONFLICT ({_list(_GROUP)}) DO UPDATE SET {sums}; "
        f"DELETE FROM kimi_summed_days WHERE day = {row}hour / 24;"
    )


def _subtract(row: str) -> str:
    group = " AND ".join(f"{name} = {row}{name}" for name in _GROUP)
    sums = _list(f"{name} = {name} - {value}" for name, value in _measures(row).items())
    return (
        f"UPDATE kimi_rollups SET {sums} WHERE {group}; "
        f"DELETE FROM kimi_rollups WHERE {group} AND requests = 0; "
        f"DELETE FROM kimi_summed_days WHERE day = {row}hour / 24;"
    )


def _sqlite_triggers() -> tuple[str, ...]:
    return (
        f"CREATE TRIGGER kimi_requests_added AFTER INSERT ON kimi_requests BEGIN {_add('NEW.')} END",
        f"CREATE TRIGGER kimi_requests_changed AFTER UPDATE OF {_list(_WATCHED)} ON kimi_requests "
        f"BEGIN {_subtract('OLD.')} {_add('NEW.')} END",
    )


def _postgresql_triggers() -> tuple[str, ...]:
    return (
        _function("kimi_request_added", _add("NEW.")),
        _function("kimi_request_changed", f"{_subtract('OLD.')} {_add('NEW.')}"),
        "CREATE TRIGGER kimi_requests_added AFTER INSERT ON kimi_requests "
        "FOR EACH ROW EXECUTE FUNCTION kimi_request_added()",
        f"CREATE TRIGGER kimi_requests_changed AFTER UPDATE OF {_list(_WATCHED)} ON kimi_requests "
        "FOR EACH ROW EXECUTE FUNCTION kimi_request_changed()",
    )


def _function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$"
