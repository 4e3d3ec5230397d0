"""Ledger rows for tests: small, and right in themselves."""

from pathlib import Path
from typing import Any

from pricing.ledger.row import AttemptRecord, LedgerRow, LineRecord

START = 1_796_040_000.25
"""2026-11-30T12:00:00.25Z."""

USD = 10**9


def open_row(request_id: str, **fields: Any) -> LedgerRow:
    """A request that is about to go upstream."""
    values: dict[str, Any] = {
        "started_at": START,
        "key": "team-a",
        "route": "kimi-k3.1-pro",
        "target": "moonshot",
        "model": "kimi-k3.1-pro",
        "effort": "high",
    }
    return LedgerRow(request_id=request_id, **(values | fields))


def settled_row(request_id: str, **fields: Any) -> LedgerRow:
    """A request of 7 cached and 1 output token at the standard rates: 11,400 nano-dollars."""
    values: dict[str, Any] = {
        "status": "ok",
        "http_status": 200,
        "attempts": [
            AttemptRecord(
                target="moonshot",
                dialect="moonshot",
                model="kimi-k3.1-pro",
                start_ms=2,
                end_ms=900,
                first_byte_ms=300,
                upstream_id=f"chatcmpl-{request_id}",
                status=200,
            )
        ],
        "prompt_tokens": 7,
        "cached_tokens": 7,
        "completion_tokens": 1,
        "cost_nano": 11_400,
        "cost_source": "card",
        "lines": [LineRecord("cache_read", 7, 200, 1400), LineRecord("output", 1, 10_000, 10_000)],
        "card": "moonshot/kimi-k3.1-pro@2026-10-24 writes=replaces",
        "ttft_ms": 310,
        "total_ms": 905,
    }
    return open_row(request_id, **(values | fields))


def ledger_url(directory: Path) -> str:
    """The URL of a ledger in this directory."""
    return f"sqlite:///{directory / 'ledger.db'}"
