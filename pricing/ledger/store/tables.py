"""The ledger's tables, as the migrations leave them; a test holds the two together.

Types are those that SQLite and PostgreSQL share. Money is `BigInteger` nano-dollars, so SQL sums are exact. The
columns of a request are what reports and look-ups need; `data` holds the whole row as JSON. Where both have a
value, the column is the truth (`status`, `owner` and `lease_until` change without the rest).
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
)

REVISIONS: Final = ("0001", "0002", "0003", "0004")
"""Every schema revision this version knows, oldest first; a test compares them with the migrations."""

VERSION_TABLE: Final = "kimi_ledger_version"

RANK_OPEN: Final = 0
RANK_UNSETTLED: Final = 1
RANK_SETTLED: Final = 2

metadata: Final = MetaData()

requests: Final = Table(
    "kimi_requests",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("started_at", Double, nullable=False),  # Unix seconds
    Column("hour", Integer, nullable=False),  # Unix hours: days and hours are integer arithmetic on any database
    Column("key", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("effort", Text, nullable=False),
    Column("ttl", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("rank", SmallInteger, nullable=False),  # open 0, unsettled 1, settled 2: a row only ever climbs
    Column("owner", Text, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("write_5m_tokens", BigInteger),
    Column("write_1h_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("cost_nano", BigInteger),
    Column("cost_source", Text, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("assumed", Boolean, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("cache_loss", Text, nullable=False, server_default=""),
)

Index("kimi_requests_started", requests.c.started_at)
Index("kimi_requests_key", requests.c.key, requests.c.started_at)
Index("kimi_requests_model", requests.c.model, requests.c.started_at)
# Few rows are open at any time, so the searches for leases read a small index of their own.
Index(
    "kimi_requests_open",
    requests.c.owner,
    requests.c.lease_until,
    sqlite_where=requests.c.rank == RANK_OPEN,
    postgresql_where=requests.c.rank == RANK_OPEN,
)

# What a budget has to ask about: what of a key has not ended well known.
Index(
    "kimi_requests_unfinished",
    requests.c.key,
    requests.c.started_at,
    sqlite_where=requests.c.rank < RANK_SETTLED,
    postgresql_where=requests.c.rank < RANK_SETTLED,
)

request_tags: Final = Table(
    "kimi_request_tags",
    metadata,
    Column("request_id", Text, ForeignKey("kimi_requests.request_id", ondelete="CASCADE"), primary_key=True),
    Column("tag", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

Index("kimi_request_tags_value", request_tags.c.tag, request_tags.c.value)

journal_offsets: Final = Table(
    "kimi_journal_offsets",
    metadata,
    Column("file", Text, primary_key=True),
    Column("drained_bytes", BigInteger, nullable=False),
)

TOKEN_COLUMNS: Final = (
    "prompt_tokens",
    "cached_tokens",
    "write_5m_tokens",
    "write_1h_tokens",
    "completion_tokens",
    "reasoning_tokens",
)
GROUP_COLUMNS: Final = ("hour", "key", "target", "model", "tier", "effort", "route", "status", "cache_loss")
"""What the hourly sums are kept by: the fixed dimensions of a report."""

MONEY_COLUMNS: Final = ("cost_nano", "estimated_nano", "assumed_nano")
SUM_COLUMNS: Final = (
    "requests",
    *TOKEN_COLUMNS,
    *(f"known_{name}" for name in TOKEN_COLUMNS),
    "without_use",
    "cost_nano",
    "known_cost_nano",
    "estimated_nano",
    "assumed_nano",
    "unpriced_requests",
)
"""What is summed up. `known_…` counts the requests that have a value, so that unknown is never taken for 0."""

# Sums of money have no end on PostgreSQL, where a sum that does not fit would refuse the row.
_MONEY: Final = BigInteger().with_variant(Numeric(38, 0), "postgresql")


def _sums(name: str, time: str) -> Table:
    return Table(
        name,
        metadata,
        Column(time, Integer, primary_key=True, autoincrement=False),
        *(Column(name, Text, primary_key=True) for name in GROUP_COLUMNS[1:]),
        *(Column(name, _MONEY if name in MONEY_COLUMNS else BigInteger, nullable=False) for name in SUM_COLUMNS),
        sqlite_with_rowid=False,
    )


rollups: Final = _sums("kimi_rollups", "hour")
"""Hourly sums over the requests. Triggers keep them with every row added or changed, and not with deletions."""

daily_rollups: Final = _sums("kimi_daily_rollups", "day")
"""The same by Unix days, for days that are over; they count only where `summed_days` has the day."""

summed_days: Final = Table(
    "kimi_summed_days", metadata, Column("day", Integer, primary_key=True, autoincrement=False)
)
"""Days whose daily sums are true. The triggers take a day out when one of its rows changes."""

refusals: Final = Table(
    "kimi_refusals",
    metadata,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("key", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Requests refused before they were planned: they have no row."""

state: Final = Table(
    "kimi_ledger_state",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""Facts about the ledger itself, by name."""

KEPT_SINCE_HOUR: Final = "kept_since_hour"
"""Unix hour: rows that began before it may have been deleted by retention; the hourly sums have them still."""

keys: Final = Table(
    "kimi_keys",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at", Double, nullable=False),  # Unix seconds, as the next
    Column("revoked_at", Double),
    Column("policy", Text, nullable=False),  # JSON with a version; the gateway's, and opaque here
)
"""Callers' keys that are not in a configuration file. A name outlives its secrets."""

key_secrets: Final = Table(
    "kimi_key_secrets",
    metadata,
    Column("sha256", Text, primary_key=True),  # 64 hexadecimal digits; the secret itself is nowhere
    Column("name", Text, ForeignKey("kimi_keys.name"), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),  # None: it works until it is replaced or the key is revoked
)

budget_alerts: Final = Table(
    "kimi_budget_alerts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("budget", Text, primary_key=True),  # budget | highspeed_budget
    Column("budget_nano", BigInteger, primary_key=True, autoincrement=False),
    Column("percent", SmallInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
)
"""Which alerts somebody has taken on to send, so that of all gateways one does."""
