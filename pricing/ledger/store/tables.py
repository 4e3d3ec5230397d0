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
    SmallInteger,
    Table,
    Text,
)

REVISIONS: Final = ("0001",)
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
