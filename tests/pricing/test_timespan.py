"""Instants as people write them."""

from datetime import UTC, datetime

import pytest

from pricing.timespan import parse_instant

NOW = datetime(2026, 11, 30, 14, 30, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-01", "2026-11-01T00:00:00+00:00"),
        ("2026-11-01T12:30:00Z", "2026-11-01T12:30:00+00:00"),
        ("2026-11-01T12:30:00", "2026-11-01T12:30:00+00:00"),
        ("2026-11-01T12:30:00.5+02:00", "2026-11-01T10:30:00.500000+00:00"),
        ("90m", "2026-11-30T13:00:15+00:00"),
        ("24h", "2026-11-29T14:30:15+00:00"),
        ("7d", "2026-11-23T14:30:15+00:00"),
        (" 2W ", "2026-11-16T14:30:15+00:00"),
        ("today", "2026-11-30T00:00:00+00:00"),
        ("Yesterday", "2026-11-29T00:00:00+00:00"),
        ("now", "2026-11-30T14:30:15+00:00"),
    ],
)
def test_every_spelling_is_an_instant_in_utc(text: str, expected: str) -> None:
    assert parse_instant(text, now=NOW).isoformat() == expected


@pytest.mark.parametrize("text", ["", "7", "7y", "-7d", "2026-13-01", "last week", "999999w"])
def test_anything_else_says_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a date \(2026-11-01\)"):
        parse_instant(text, now=NOW)
