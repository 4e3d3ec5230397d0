"""Instants as people write them: dates, RFC 3339, or an age such as `7d`. Everything is UTC unless it says so."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_AGE: Final = re.compile(r"(\d{1,6})\s*(m|h|d|w)")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
EXPECTED: Final = "a date (2026-11-01), a time (2026-11-01T12:30:00Z) or an age (90m, 24h, 7d, 4w)"


def parse_instant(text: str, *, now: datetime) -> datetime:
    """The instant in UTC. A date means its first moment, an age counts back from `now`.

    Also `today`, `yesterday` and `now`. Raises `ValueError` with what was expected.
    """
    word = text.strip()
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    words = {"now": now.astimezone(UTC), "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if word.lower() in words:
        return words[word.lower()]
    age = _AGE.fullmatch(word.lower())
    try:
        if age is not None:
            return now.astimezone(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        instant = datetime.fromisoformat(word)
    except (ValueError, OverflowError) as err:
        raise ValueError(f"{text!r} is no instant; expected {EXPECTED}") from err
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
