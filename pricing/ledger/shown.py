"""A ledger row as the outside sees it: `show --format json`, later export. The names are an interface.

Money is a decimal string in USD, times are RFC 3339 in UTC, None is unknown and never 0.
"""

from datetime import UTC, datetime

from pricing.ledger.row import AttemptRecord, LedgerRow
from pricing.money import usd_text


def shown(row: LedgerRow) -> dict[str, object]:
    """The row object: first the names that every place uses, then the details of this one request.

    `attempts` is how many there were; `attempt_log` tells each.
    """
    return {
        "request_id": row.request_id,
        "started_at": instant_text(row.started_at),
        "key": row.key,
        "tags": row.tags,
        "route": row.route,
        "target": row.target,
        "model": row.model,
        "tier": row.tier,
        "effort": row.effort,
        "ttl": row.ttl,
        "stream": row.stream,
        "status": row.status,
        "outcome": row.outcome,
        "attempts": len(row.attempts),
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "write_5m_tokens": row.write_5m_tokens,
        "write_1h_tokens": row.write_1h_tokens,
        "completion_tokens": row.completion_tokens,
        "reasoning_tokens": row.reasoning_tokens,
        "cost_usd": money_text(row.cost_nano),
        "table_cost_usd": money_text(row.table_cost_nano),
        "cost_source": row.cost_source,
        # A meter without a price costs an unknown amount, so it is null and not "0".
        "lines": {line.meter: None if line.rate is None else usd_text(line.nano) for line in row.lines},
        "estimated": row.estimated,
        "assumed": row.assumed,
        "anomaly": row.anomaly,
        "adjusted": row.adjusted,
        "thinking": row.thinking,
        "prefix": row.prefix,
        "cache_loss": row.cache_loss,
        "wait_ms": row.wait_ms,
        "ttft_ms": row.ttft_ms,
        "total_ms": row.total_ms,
        **_details(row),
    }


def _details(row: LedgerRow) -> dict[str, object]:
    return {
        "upstream_model": row.upstream_model,
        "http_status": row.http_status,
        "error_type": row.error_type,
        "error_code": row.error_code,
        "message": row.message,
        "search_calls": row.search_calls,
        "card": row.card,
        "estimate_bound_usd": money_text(row.estimate_bound_nano),
        "cache_lost_tokens": row.cache_lost_tokens,
        "cache_lost_usd": money_text(row.cache_lost_nano),
        "allocated_usd": money_text(row.allocated_nano),
        "attempt_log": [_attempt(attempt) for attempt in row.attempts],
        "raw_usage": row.raw_usage,
        "owner": row.owner,
        "lease_until": instant_text(row.lease_until) if row.lease_until else None,
    }


def _attempt(attempt: AttemptRecord) -> dict[str, object]:
    return {name: getattr(attempt, name) for name in attempt.__struct_fields__}


def money_text(nano: int | None) -> str | None:
    """Exact dollars as a decimal string; None where they are unknown."""
    return None if nano is None else usd_text(nano)


def instant_text(unix_s: float) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
