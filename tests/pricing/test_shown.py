"""The row object: the names that others script against, exact money, unknown as null."""

from pricing.ledger.row import AttemptRecord, LineRecord
from pricing.ledger.shown import shown
from support.ledger_rows import open_row, settled_row

NAMES = (
    "request_id",
    "started_at",
    "key",
    "tags",
    "route",
    "target",
    "model",
    "tier",
    "effort",
    "ttl",
    "stream",
    "status",
    "outcome",
    "attempts",
    "prompt_tokens",
    "cached_tokens",
    "write_5m_tokens",
    "write_1h_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_usd",
    "table_cost_usd",
    "cost_source",
    "lines",
    "estimated",
    "assumed",
    "anomaly",
    "adjusted",
    "thinking",
    "prefix",
    "cache_loss",
    "wait_ms",
    "ttft_ms",
    "total_ms",
)


def test_the_names_are_those_of_the_interface_in_order() -> None:
    assert list(shown(open_row("a")))[: len(NAMES)] == list(NAMES)


def test_money_is_exact_decimal_text_by_meter() -> None:
    # The check figure of the rate table: 5,000 fresh, 80,000 read, 15,000 written at 1h, 2,000 out.
    row = settled_row(
        "a",
        cost_nano=106_000_000,
        lines=[
            LineRecord("input", 5_000, 2_000, 10_000_000),
            LineRecord("cache_read", 80_000, 200, 16_000_000),
            LineRecord("write_1h", 15_000, 4_000, 60_000_000),
            LineRecord("output", 2_000, 10_000, 20_000_000),
        ],
    )
    values = shown(row)
    assert values["cost_usd"] == "0.106"
    assert values["lines"] == {"input": "0.01", "cache_read": "0.016", "write_1h": "0.06", "output": "0.02"}


def test_unknown_is_null_and_never_zero() -> None:
    row = settled_row(
        "a",
        cached_tokens=None,
        cost_nano=None,
        cost_source="unpriced",
        lines=[LineRecord("output", 2, None, 0)],
    )
    values = shown(row)
    assert values["cached_tokens"] is None
    assert values["cost_usd"] is None
    assert values["table_cost_usd"] is None
    assert values["lines"] == {"output": None}


def test_times_are_rfc_3339_in_utc() -> None:
    assert shown(open_row("a"))["started_at"] == "2026-11-30T12:00:00.250Z"


def test_attempts_are_counted_and_told() -> None:
    attempts = [
        AttemptRecord(target="a", dialect="vllm", model="m", start_ms=0, fault="connect", message="refused"),
        AttemptRecord(target="b", dialect="moonshot", model="m", start_ms=9, upstream_id="chatcmpl-1"),
    ]
    values = shown(settled_row("a", attempts=attempts))
    assert values["attempts"] == 2
    log = values["attempt_log"]
    assert isinstance(log, list)
    assert [entry["upstream_id"] for entry in log] == [None, "chatcmpl-1"]
    assert log[0]["message"] == "refused"


def test_a_lost_cache_is_told_by_reason_tokens_and_exact_money() -> None:
    values = shown(settled_row("a", cache_loss="effort", cache_lost_tokens=5_760, cache_lost_nano=10_368_000))
    assert (values["cache_loss"], values["cache_lost_tokens"]) == ("effort", 5_760)
    assert values["cache_lost_usd"] == "0.010368"


def test_where_nothing_was_lost_there_are_no_numbers() -> None:
    values = shown(settled_row("a"))
    assert (values["cache_loss"], values["cache_lost_tokens"], values["cache_lost_usd"]) == ("", None, None)
