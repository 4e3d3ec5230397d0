"""The columns of an export: the names of the row object, each with what it holds. An interface; only added to.

Unknown is empty in CSV and null in Parquet, never 0. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pricing.ledger.row import LedgerRow
from pricing.ledger.shown import shown

Kind = Literal["text", "count", "flag", "usd", "time", "texts", "tags", "usd_by_meter", "json"]
"""`usd` is exact dollars, `time` RFC 3339 in UTC; the last four are JSON in CSV, and only `json` in Parquet."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `outside` texts come from clients or upstreams, so a spreadsheet must not run them."""

    name: str
    kind: Kind
    outside: bool = False


COLUMNS: Final[tuple[Column, ...]] = (
    Column("request_id", "text"),
    Column("started_at", "time"),
    Column("key", "text", outside=True),
    Column("tags", "tags"),
    Column("route", "text", outside=True),
    Column("target", "text", outside=True),
    Column("model", "text", outside=True),
    Column("tier", "text"),
    Column("effort", "text", outside=True),
    Column("ttl", "text"),
    Column("stream", "flag"),
    Column("status", "text"),
    Column("outcome", "text"),
    Column("attempts", "count"),
    Column("prompt_tokens", "count"),
    Column("cached_tokens", "count"),
    Column("write_5m_tokens", "count"),
    Column("write_1h_tokens", "count"),
    Column("completion_tokens", "count"),
    Column("reasoning_tokens", "count"),
    Column("cost_usd", "usd"),
    Column("table_cost_usd", "usd"),
    Column("cost_source", "text"),
    Column("lines", "usd_by_meter"),
    Column("estimated", "flag"),
    Column("assumed", "flag"),
    Column("anomaly", "text", outside=True),
    Column("adjusted", "texts"),
    Column("thinking", "text"),
    Column("prefix", "text", outside=True),
    Column("cache_loss", "text"),
    Column("wait_ms", "count"),
    Column("ttft_ms", "count"),
    Column("total_ms", "count"),
    Column("upstream_model", "text", outside=True),
    Column("http_status", "count"),
    Column("error_type", "text", outside=True),
    Column("error_code", "text", outside=True),
    Column("message", "text", outside=True),
    Column("search_calls", "count"),
    Column("card", "text", outside=True),
    Column("estimate_bound_usd", "usd"),
    Column("cache_lost_tokens", "count"),
    Column("cache_lost_usd", "usd"),
    Column("allocated_usd", "usd"),
    Column("attempt_log", "json"),
    Column("raw_usage", "json"),
    Column("owner", "text", outside=True),
    Column("lease_until", "time"),
)

NAMES: Final[tuple[str, ...]] = tuple(column.name for column in COLUMNS)


def values(row: LedgerRow) -> Sequence[object]:
    """The row's values in the order of the columns, as `show --format json` has them."""
    found = shown(row)
    return [found[name] for name in NAMES]
