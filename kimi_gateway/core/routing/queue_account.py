"""How much of one account is in use: places at a time, requests and tokens by the minute, tokens by the day. Pure.

Tokens are charged at the most that a request can use and settled when it leaves. A request that is larger than a
whole minute's or day's allowance goes when that is untouched.
"""

from typing import Final, NamedTuple

from kimi_gateway.core.limits import MINUTE_S
from kimi_gateway.core.routing.facts import Quota

DAY_S: Final = 86_400
ROUNDING: Final = 1e-6
"""A bucket that lacks no more than this is full enough: timers come when it should be, give or take a float."""
_OLD: Final = 0.8  # how much of what is known of the pace stays when a place gets free


class Moment(NamedTuple):
    """Now, on a monotonic clock and in Unix seconds: days are UTC's, everything else is the monotonic clock's."""

    mono_s: float
    wall_s: float

    @property
    def midnight_s(self) -> float:
        """When the day ends, on the monotonic clock."""
        return self.mono_s + DAY_S - self.wall_s % DAY_S


class Hold(NamedTuple):
    """A place that is taken, and what was charged for it. `day` is the one that was charged."""

    account: str
    requests: int = 0
    minute_tokens: int = 0
    day_tokens: int = 0
    day: int = 0


class AccountUse:
    """One account. `quota` may be replaced at any time. A day that is over counts no more."""

    __slots__ = (
        "_day",
        "_day_held",
        "_day_used",
        "_filled_s",
        "_freed_s",
        "_gap_s",
        "_requests",
        "_tokens",
        "name",
        "quota",
        "running",
    )

    def __init__(self, name: str, quota: Quota) -> None:
        self.name = name
        self.quota = quota
        self.running = 0
        self._requests = float("inf")  # levels of buckets: cut to what a limit allows once there is one
        self._tokens = float("inf")
        self._filled_s = float("-inf")
        self._day = 0
        self._day_used = 0
        self._day_held = 0  # the part of it that requests under way may give back
        self._gap_s = 0.0
        self._freed_s: float | None = None

    def fits(self, tokens: int, now: Moment) -> bool:
        """Whether a request of so many tokens may go now."""
        quota = self.quota
        if quota.concurrency and self.running >= quota.concurrency:
            return False
        if quota.rpm or quota.tpm:
            self._fill(now)
            if quota.rpm and self._requests + ROUNDING < 1:
                return False
            if quota.tpm and self._tokens + ROUNDING < _charge(tokens, quota.tpm):
                return False
        return not quota.tpd or self._used(now) + _charge(tokens, quota.tpd) <= quota.tpd

    def is_spent(self, tokens: int, now: Moment) -> bool:
        """Whether a request of so many tokens has no chance before the day ends, whatever others give back."""
        tpd = self.quota.tpd
        return bool(tpd) and self._used(now) - self._day_held + _charge(tokens, tpd) > tpd

    def take(self, tokens: int, now: Moment) -> Hold:
        """Takes a place for it and charges it, whether it fits or not."""
        quota, minute, day = self.quota, 0, 0
        self.running += 1
        if quota.rpm or quota.tpm:
            self._fill(now)
            self._requests -= 1 if quota.rpm else 0
            minute = _charge(tokens, quota.tpm)
            self._tokens -= minute
        if quota.tpd:
            day = _charge(tokens, quota.tpd)
            self._day_used = self._used(now) + day
            self._day_held += day
        return Hold(self.name, 1 if quota.rpm else 0, minute, day, self._day if day else 0)

    def settle(self, hold: Hold, used_tokens: int | None, now: Moment, *, is_waited_for: bool) -> None:
        """Gives a place back, with what it has used (None: unknown, its bound stays charged).

        `is_waited_for`: somebody waits for it, so that the time since the last one tells the pace.
        """
        self.running -= 1
        self._note_pace(now, is_waited_for=is_waited_for)
        if used_tokens is not None:
            self._refund(0, hold.minute_tokens - used_tokens, now)
        self._settle_day(hold, hold.day_tokens if used_tokens is None else used_tokens, now)

    def undo(self, hold: Hold, now: Moment) -> None:
        """Gives back a place that nobody has used, and all that was charged for it."""
        self.running -= 1
        self._refund(hold.requests, hold.minute_tokens, now)
        self._settle_day(hold, 0, now)

    def opens_s(self, tokens: int, now: Moment) -> float | None:
        """When time alone lets a request of so many tokens go; None where a place has to be given back first."""
        quota = self.quota
        if quota.concurrency and self.running >= quota.concurrency:
            return None
        if quota.tpd and self._used(now) + _charge(tokens, quota.tpd) > quota.tpd:
            return now.midnight_s
        return now.mono_s + self._refill_s(tokens, 1, now)

    def retry_s(self, tokens: int, ahead: int, now: Moment) -> float:
        """In how many seconds a request that comes back may find a place, as far as is known; 0: nobody knows.

        `ahead` is how many wait before it.
        """
        if self.is_spent(tokens, now):
            return now.midnight_s - now.mono_s
        wait_s = self._refill_s(tokens, ahead + 1, now)
        limit = self.quota.concurrency
        if limit and (ahead or self.running >= limit):
            wait_s = max(wait_s, (ahead + 1) * self._gap_s)
        return wait_s

    def _note_pace(self, now: Moment, *, is_waited_for: bool) -> None:
        if not is_waited_for:
            self._freed_s = None
            return
        if self._freed_s is not None:
            gap_s = now.mono_s - self._freed_s
            self._gap_s = _OLD * self._gap_s + (1 - _OLD) * gap_s if self._gap_s else gap_s
        self._freed_s = now.mono_s

    def _fill(self, now: Moment) -> None:
        """Brings the buckets up to now. A clock that goes back adds nothing."""
        minutes = (now.mono_s - self._filled_s) / MINUTE_S
        if minutes <= 0:
            return
        self._filled_s = now.mono_s
        quota = self.quota
        if quota.rpm:
            self._requests = min(quota.rpm, self._requests + minutes * quota.rpm)
        if quota.tpm:
            self._tokens = min(quota.tpm, self._tokens + minutes * quota.tpm)

    def _refund(self, requests: int, tokens: int, now: Moment) -> None:
        """So much was charged in vain; tokens below zero were used beyond their bound."""
        quota = self.quota
        if quota.rpm or quota.tpm:
            self._fill(now)
            self._requests = min(quota.rpm or self._requests, self._requests + requests)
            self._tokens = min(quota.tpm or self._tokens, self._tokens + tokens)

    def _settle_day(self, hold: Hold, used_tokens: int, now: Moment) -> None:
        if hold.day_tokens:
            used = self._used(now)
            if hold.day == self._day:
                self._day_used = used + used_tokens - hold.day_tokens
                self._day_held -= hold.day_tokens

    def _refill_s(self, tokens: int, requests: int, now: Moment) -> float:
        """How long the buckets take to allow so much; 0 where they do."""
        quota, wait_s = self.quota, 0.0
        self._fill(now)
        if quota.rpm:
            wait_s = max(wait_s, (requests - self._requests) * MINUTE_S / quota.rpm)
        if quota.tpm:
            wait_s = max(wait_s, (_charge(tokens, quota.tpm) - self._tokens) * MINUTE_S / quota.tpm)
        return wait_s

    def _used(self, now: Moment) -> int:
        """The tokens of this day."""
        if (day := int(now.wall_s // DAY_S)) != self._day:
            self._day, self._day_used, self._day_held = day, 0, 0
        return self._day_used


def _charge(tokens: int, allowance: int) -> int:
    """What a request is charged of a minute's or a day's allowance: never more than all of it."""
    if tokens >= allowance:
        return allowance
    return tokens if tokens > 1 else 1
