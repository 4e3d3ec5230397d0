"""What a key may spend and how fast: its limits, what a request claims of them, and the verdict. Pure.

A reservation holds the most that a request can cost; it is replaced by what the request did cost, in the period
that the request began in. What is held counts as spent, so that requests at the same time cannot all pass the
same check. Money is integer nano-dollars, times are Unix seconds in UTC.

Whoever keeps the sums (`kimi_gateway.core.limit_book`, a script in a shared store) decides by the same rules, and
says so in the words of this module.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

Period = Literal["day", "month", "total"]
Limit = Literal["", "budget", "highspeed_budget", "requests", "tokens", "concurrency"]
PERIODS: Final[tuple[Period, ...]] = ("day", "month", "total")

BUDGET_MAX_NANO: Final = 2**53 - 1
"""$9,007,199.254740991: the scripts of a shared store reckon in doubles, which are exact up to here."""

MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_BUSY_RETRY_S: Final = 1.0
"""When to ask again where all places are taken: nobody knows when one gets free."""


class Limits(Struct, frozen=True, gc=False):
    """The limits of one key; None and 0 are none. `rpm` and `tpm` are per minute, `concurrency` at one time."""

    budget_nano: int | None = None
    highspeed_nano: int | None = None
    period: Period = "month"
    rpm: int = 0
    tpm: int = 0
    concurrency: int = 0

    @property
    def has_budget(self) -> bool:
        """Money is limited."""
        return self.budget_nano is not None or self.highspeed_nano is not None

    @property
    def any(self) -> bool:
        """There is something to check at all."""
        return self.has_budget or bool(self.rpm or self.tpm or self.concurrency)


class Claim(Struct, frozen=True, gc=False):
    """What one request may use at most. `id` is the request's; `at_s` is when it began, by its row."""

    id: str
    key: str
    at_s: float
    nano: int = 0
    highspeed: bool = False
    tokens: int = 0


class Use(Struct, frozen=True, gc=False):
    """What a request did use. `tokens` None: unknown, the bound stays charged. `highspeed` None: as claimed."""

    nano: int
    tokens: int | None = None
    highspeed: bool | None = None


@dataclass(slots=True)
class Spent:
    """What a key has booked in one period, and what is held for requests under way; of both what is Highspeed."""

    total_nano: int = 0
    highspeed_nano: int = 0
    held_nano: int = 0
    held_highspeed_nano: int = 0

    def book(self, nano: int, *, highspeed: bool) -> None:
        """Books so much more; less where it is negative."""
        self.total_nano += nano
        if highspeed:
            self.highspeed_nano += nano

    def hold(self, nano: int, *, highspeed: bool) -> None:
        """Holds so much more; less where it is negative."""
        self.held_nano += nano
        if highspeed:
            self.held_highspeed_nano += nano


class Account(Struct, frozen=True, gc=False):
    """How a key stands: its money in a period, the levels of its buckets (None: no such limit)."""

    spent: Spent
    requests: float | None = None
    tokens: float | None = None


class Allowance(Struct, frozen=True, gc=False):
    """What is left of one limit that counts by the minute, and in how many seconds it is whole again."""

    limit: int
    left: int
    reset_s: float


class Verdict(Struct, frozen=True, gc=False):
    """Whether a claim is admitted, else by which limit it is not; and what is left, after it where it is.

    `left_nano` and `highspeed_left_nano` are what the budgets have left with what is held taken off (None without
    such a budget; below zero where more was spent), `spent_nano` and `highspeed_spent_nano` what is booked.
    `period` is the name of the period, `retry_after_s` when it makes sense to ask again (0: never, by itself).
    """

    refused_by: Limit = ""
    retry_after_s: float = 0.0
    period: str = ""
    budget_nano: int | None = None
    left_nano: int | None = None
    highspeed_nano: int | None = None
    highspeed_left_nano: int | None = None
    spent_nano: int = 0
    highspeed_spent_nano: int = 0
    requests: Allowance | None = None
    tokens: Allowance | None = None

    @property
    def admitted(self) -> bool:
        return not self.refused_by

    @property
    def decided(self) -> tuple[int, int]:
        """The budget that decided: its whole and what it has left, never below zero; (0, 0) without one."""
        if self.refused_by == "highspeed_budget":
            return self.highspeed_nano or 0, max(0, self.highspeed_left_nano or 0)
        return self.budget_nano or 0, max(0, self.left_nano or 0)


def period_name(period: Period, at_s: float) -> str:
    """The name of the period that a moment lies in, such as 2026-11, 2026-11-30 or total."""
    return "total" if period == "total" else _name(period, at_s // _HOUR_S)


@lru_cache(64)
def _name(period: Period, hour: float) -> str:
    """The name by Unix hour: no period begins within one, and a request asks for it several times."""
    moment = datetime.fromtimestamp(hour * _HOUR_S, UTC)
    return moment.strftime("%Y-%m-%d" if period == "day" else "%Y-%m")


def period_start_s(period: Period, at_s: float) -> float:
    """When the period of a moment began, in Unix seconds; 0 for `total`."""
    if period == "total":
        return 0.0
    start = datetime.fromtimestamp(at_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (start if period == "day" else start.replace(day=1)).timestamp()


def period_end_s(period: Period, at_s: float) -> float | None:
    """When the period of a moment ends; None for `total`, which never does."""
    if period == "total":
        return None
    start = datetime.fromtimestamp(period_start_s(period, at_s), UTC)
    if period == "day":
        return (start + timedelta(days=1)).timestamp()
    return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1).timestamp()


def money_period(limits: Limits, at_s: float) -> str:
    """The period that a request of that moment is booked in; "" where no money is counted."""
    return period_name(limits.period, at_s) if limits.has_budget else ""


def verdict(
    account: Account, limits: Limits, *, at_s: float, refused_by: Limit = "", asked_tokens: int = 0
) -> Verdict:
    """The verdict on a claim made at `at_s`, in words that do not depend on who keeps the sums."""
    spent = account.spent
    whole, fast = limits.budget_nano, limits.highspeed_nano
    return Verdict(
        refused_by=refused_by,
        retry_after_s=_retry_after_s(account, limits, refused_by, at_s, asked_tokens),
        period=money_period(limits, at_s),
        budget_nano=whole,
        left_nano=None if whole is None else whole - spent.total_nano - spent.held_nano,
        highspeed_nano=fast,
        highspeed_left_nano=None if fast is None else fast - spent.highspeed_nano - spent.held_highspeed_nano,
        spent_nano=spent.total_nano,
        highspeed_spent_nano=spent.highspeed_nano,
        requests=_allowance(limits.rpm, account.requests),
        tokens=_allowance(limits.tpm, account.tokens),
    )


def _allowance(per_minute: int, level: float | None) -> Allowance | None:
    if not per_minute or level is None:
        return None
    return Allowance(per_minute, max(0, int(level)), max(0.0, (per_minute - level) * MINUTE_S / per_minute))


def _retry_after_s(account: Account, limits: Limits, by: Limit, at_s: float, asked_tokens: int) -> float:
    if by in ("budget", "highspeed_budget"):
        end_s = period_end_s(limits.period, at_s)
        return 0.0 if end_s is None else end_s - at_s
    if by == "concurrency":
        return _BUSY_RETRY_S
    if by == "requests" and account.requests is not None:
        return (1 - account.requests) * MINUTE_S / limits.rpm
    if by == "tokens" and account.tokens is not None:
        return (min(asked_tokens, limits.tpm) - account.tokens) * MINUTE_S / limits.tpm
    return 0.0
