"""How long an upstream asks to wait, in seconds from now, whatever form it uses.

Forms: `retry-after-ms`; `Retry-After` in seconds or as one of RFC 9110's three dates; a sentence ("please try
again after 3 seconds"); and the reset of a rate limit as seconds, duration, epoch or date. A form that cannot be
read gives None, never NaN and never a negative number: a moment that has passed is 0.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,9})?|\.\d{1,9}", re.ASCII)
_DURATION: Final = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SENTENCE: Final = re.compile(
    r"\b(?:try again|retry)\s+(?:after|in)\s+"
    r"(?:(?P<duration>(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h|d))+)"
    r"|(?P<count>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>milliseconds?|seconds?|secs?|minutes?|mins?|hours?|[smh]))\b",
    re.ASCII | re.IGNORECASE,
)
_EPOCH_S: Final = 10**9
_EPOCH_MS: Final = 10**12
"""Larger numbers in a reset header are moments: OpenRouter's are milliseconds since the epoch."""


def asked_wait_s(headers: Mapping[str, str], message: str, now: float) -> float | None:
    """Seconds to wait by an explicit header or, without one, by the sentence in the message; None without either.

    `now` is Unix seconds; header names in any case.
    """
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    millis = _number(lowered.get("retry-after-ms", ""))
    if millis is not None:
        return millis / 1000
    wait_s = _seconds_or_moment(lowered.get("retry-after", ""), now)
    return _from_sentence(message) if wait_s is None else wait_s


def limit_reset_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to the latest reset of the limits that are used up or, where no header tells which, of all.

    These headers come with every answer of some upstreams, so they mean a wait only after a 429.
    """
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    resets: list[float] = []
    spent: list[float] = []
    for name, value in lowered.items():
        head, separator, tail = name.partition("ratelimit-reset")
        if not separator or head not in ("", "x-"):
            continue
        wait_s = _seconds_or_moment(value, now)
        if wait_s is not None:
            resets.append(wait_s)
            if _number(lowered.get(f"{head}ratelimit-remaining{tail}", "")) == 0:
                spent.append(wait_s)
    return max(spent or resets, default=None)


def _from_sentence(message: str) -> float | None:
    found = _SENTENCE.search(message)
    if found is None:
        return None
    if found["duration"]:
        return _duration(found["duration"].lower())
    unit = found["unit"].lower()
    return float(found["count"]) * _UNITS_S["ms" if unit.startswith("milli") else unit[0]]


def _seconds_or_moment(text: str, now: float) -> float | None:
    number = _number(text)
    if number is None:
        return _duration(text) if _DURATION.fullmatch(text) else _until(text, now)
    if number >= _EPOCH_MS:
        return max(0.0, number / 1000 - now)
    return max(0.0, number - now) if number >= _EPOCH_S else number


def _number(text: str) -> float | None:
    """A plain decimal number; not `nan`, `inf`, a sign or an exponent."""
    return float(text) if _NUMBER.fullmatch(text) else None


def _duration(text: str) -> float:
    """Seconds of a duration such as `6m0s` or `20ms`."""
    return math.fsum(float(count) * _UNITS_S[unit] for count, unit in _DURATION_PART.findall(text))


def _until(text: str, now: float) -> float | None:
    """Seconds until an HTTP date (IMF-fixdate, RFC 850, asctime) or an ISO 8601 moment."""
    moment = _http_date(text) or _iso_date(text)
    if moment is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now)


def _http_date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _iso_date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
