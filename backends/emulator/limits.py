"""What an account may do at once, in a minute and in a day, and whether one more request is within it.

The limits and their tiers: platform.kimi.ai/docs/pricing/limits, August 2026. Chosen here, because no text says
it: a minute is the last 60 seconds and a day the UTC one; a request counts its prompt and its output limit until
it ends, and what it took from then on; a refused request counts for nothing.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from backends.emulator.profile import LimitName

_MINUTE_S: Final = 60.0
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests at once, requests and tokens a minute, tokens a day; 0: no limit."""

    concurrency: int = 0
    rpm: int = 0
    tpm: int = 0
    tpd: int = 0

    def __post_init__(self) -> None:
        for name in ("concurrency", "rpm", "tpm", "tpd"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be zero or more, not {getattr(self, name)}")


NO_LIMITS: Final = Limits()
TIERS: Final[Mapping[int, Limits]] = {
    0: Limits(concurrency=1, rpm=3, tpm=500_000, tpd=1_500_000),
    1: Limits(concurrency=50, rpm=200, tpm=2_000_000),
    2: Limits(concurrency=100, rpm=500, tpm=3_000_000),
    3: Limits(concurrency=200, rpm=5_000, tpm=3_000_000),
    4: Limits(concurrency=400, rpm=5_000, tpm=4_000_000),
    5: Limits(concurrency=1_000, rpm=10_000, tpm=5_000_000),
}
"""By cumulative top-up: $1, $10, $20, $100, $1,000, $3,000."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The limit that a request would break, what it would come to, and the seconds until it would fit."""

    limit: LimitName
    most: int
    current: int
    wait_s: int


@dataclass(slots=True)
class Usage:
    """One admitted request."""

    at_s: float
    tokens: int
    open: bool = True


class Account:
    """One account's requests of the last day."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._minute: deque[Usage] = deque()
        self._day = 0
        self._day_tokens = 0
        self._open = 0

    def admit(self, tokens: int, now_s: float) -> Usage | Reached:
        """Takes a request of so many tokens in, or tells the limit that it would break (the first of concurrency,
        RPM, TPM and TPD). Times are Unix seconds that never run back."""
        self._forget(now_s)
        reached = self._reached(tokens, now_s)
        if reached is not None:
            return reached
        usage = Usage(now_s, tokens)
        if self._limits.rpm or self._limits.tpm:
            self._minute.append(usage)
        self._day_tokens += tokens
        self._open += 1
        return usage

    def ended(self, usage: Usage, tokens: int) -> None:
        """The request has ended and took so many tokens. Safe to call again."""
        if not usage.open:
            return
        usage.open = False
        self._open -= 1
        if math.floor(usage.at_s / _DAY_S) == self._day:
            self._day_tokens += tokens - usage.tokens
        usage.tokens = tokens

    def remaining(self, now_s: float) -> tuple[int, int]:
        """Requests left in this minute, and the seconds until one comes free; `(0, 0)` without a limit."""
        if not self._limits.rpm:
            return 0, 0
        self._forget(now_s)
        left = self._limits.rpm - len(self._minute)
        return left, _wait_s(self._minute[0].at_s, now_s) if self._minute else 0

    def _forget(self, now_s: float) -> None:
        while self._minute and self._minute[0].at_s <= now_s - _MINUTE_S:
            self._minute.popleft()
        day = math.floor(now_s / _DAY_S)
        if day != self._day:
            self._day, self._day_tokens = day, 0

    def _reached(self, tokens: int, now_s: float) -> Reached | None:
        limits = self._limits
        if limits.concurrency and self._open >= limits.concurrency:
            return Reached("concurrency", limits.concurrency, self._open + 1, 1)
        if limits.rpm and len(self._minute) >= limits.rpm:
            return Reached("rpm", limits.rpm, len(self._minute) + 1, _wait_s(self._minute[0].at_s, now_s))
        spent = sum(usage.tokens for usage in self._minute) if limits.tpm else 0
        if limits.tpm and spent + tokens > limits.tpm:
            return Reached("tpm", limits.tpm, spent + tokens, self._tokens_wait_s(spent + tokens, now_s))
        if limits.tpd and self._day_tokens + tokens > limits.tpd:
            tomorrow_s = (self._day + 1) * _DAY_S
            return Reached("tpd", limits.tpd, self._day_tokens + tokens, max(1, math.ceil(tomorrow_s - now_s)))
        return None

    def _tokens_wait_s(self, tokens: int, now_s: float) -> int:
        """Seconds until enough of the minute's tokens are a minute old; a whole one where that never suffices."""
        for usage in self._minute:
            tokens -= usage.tokens
            if tokens <= self._limits.tpm:
                return _wait_s(usage.at_s, now_s)
        return int(_MINUTE_S)


def _wait_s(at_s: float, now_s: float) -> int:
    return max(1, math.ceil(at_s + _MINUTE_S - now_s))
