"""What becomes of keys with limits while the state, or the ledger behind it, does not answer.

`closed`: they are refused at once, so nothing is overspent. `open`: no request fails for it. Each process then
admits by itself, at most its share of what a key had left when it was last seen, and of what it may use a minute.
Everything that is admitted so is told to the state when it is back, before anything else is asked of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace
from typing_extensions import override

from kimi_gateway.adapters.limits.limiter import LedgerLimiter
from kimi_gateway.core.limit_book import LimitBook
from kimi_gateway.core.limits import Claim, Limits, Use, Verdict, money_period
from kimi_gateway.ports import Limiter, StateUnavailable


@dataclass(frozen=True, slots=True)
class _Share:
    """One process's part of a key's limits, in one period."""

    limits: Limits
    whole: Limits
    period: str
    book: LimitBook


class OutageLimiter(Limiter):
    """Limits that go on without their state. `replicas` is the number of processes that share it."""

    def __init__(
        self,
        inner: LedgerLimiter,
        *,
        on_outage: Literal["open", "closed"],
        replicas: int,
        lease_s: float,
        wall: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._closed = on_outage == "closed"
        self._replicas = max(1, replicas)
        self._lease_s = lease_s
        self._wall = wall
        self._shares: dict[str, _Share] = {}
        self._out: dict[str, _Share] = {}  # by request

    async def start(self, *, alone: bool = False) -> None:
        """See `LedgerLimiter.start`."""
        await self._inner.start(alone=alone)

    @override
    def admit_now(self, claim: Claim, limits: Limits) -> Verdict | None:
        verdict = self._inner.admit_now(claim, limits)
        if verdict is not None and self._shares:
            self._shares.pop(claim.key, None)
        return verdict

    @override
    def settle_now(self, claim: Claim, limits: Limits, use: Use) -> int | None:
        return None if claim.id in self._out else self._inner.settle_now(claim, limits, use)

    @override
    async def admit(self, claim: Claim, limits: Limits, *, last: bool = True) -> Verdict:
        try:
            verdict = await self._inner.admit(claim, limits, last=last)
        except StateUnavailable:
            if self._closed:
                raise
            return self._admit_here(claim, limits)
        self._shares.pop(claim.key, None)  # the next outage starts from what is left then
        return verdict

    @override
    async def settle(self, claim: Claim, limits: Limits, use: Use) -> int:
        share = self._out.pop(claim.id, None)
        if share is not None:
            share.book.settle(claim, share.limits, use, self._wall())
        return await self._inner.settle(claim, limits, use)

    @override
    async def standing(self, key: str, limits: Limits) -> Verdict:
        try:
            return await self._inner.standing(key, limits)
        except StateUnavailable:
            if self._closed:
                raise
            share = self._share(key, limits, self._wall())
            return share.book.standing(key, share.limits, self._wall())

    async def budgets_left(self, limits: Mapping[str, Limits]) -> dict[str, int]:
        """What the budgets of these keys have left, in nano-dollars and never below zero, by key name.

        As last seen where nobody can be asked; a key that was never seen is left out then. Never raises.
        """
        left: dict[str, int] = {}
        for key, limit in limits.items():
            if limit.budget_nano is None:
                continue
            try:
                seen = await self._inner.standing(key, limit)
            except StateUnavailable:
                last = self._inner.last(key)
                if last is None:
                    continue
                seen = last
            if seen.left_nano is not None:
                left[key] = max(0, seen.left_nano)
        return left

    @override
    async def keep(self) -> None:
        await self._inner.keep()

    @override
    async def close(self) -> None:
        await self._inner.close()

    def _admit_here(self, claim: Claim, limits: Limits) -> Verdict:
        share = self._share(claim.key, limits, claim.at_s)
        verdict = share.book.admit(claim, share.limits, self._wall())
        if verdict.admitted:
            self._out[claim.id] = share
            self._inner.adopt(claim, limits)
        return verdict

    def _share(self, key: str, limits: Limits, at_s: float) -> _Share:
        period = money_period(limits, at_s)
        share = self._shares.get(key)
        if share is None or share.period != period or share.whole != limits:
            share = _Share(self._scaled(key, limits, period), limits, period, LimitBook(self._lease_s))
            self._shares[key] = share
        return share

    def _scaled(self, key: str, limits: Limits, period: str) -> Limits:
        last = self._inner.last(key)
        if last is not None and last.period != period:
            last = None
        return replace(
            limits,
            budget_nano=self._part(limits.budget_nano, None if last is None else last.left_nano),
            highspeed_nano=self._part(limits.highspeed_nano, None if last is None else last.highspeed_left_nano),
            rpm=_at_least_one(limits.rpm, self._replicas),
            tpm=_at_least_one(limits.tpm, self._replicas),
            concurrency=_at_least_one(limits.concurrency, self._replicas),
        )

    def _part(self, whole: int | None, left: int | None) -> int | None:
        """A share of what was left; of the whole where that was never seen."""
        if whole is None:
            return None
        return max(0, whole if left is None else min(whole, left)) // self._replicas


def _at_least_one(limit: int, replicas: int) -> int:
    return max(1, limit // replicas) if limit else 0
