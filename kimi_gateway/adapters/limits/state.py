"""The state of limits as a limiter works with it, and the one that lives in the process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from typing_extensions import override

from kimi_gateway.core.limit_book import Lapsed, LedgerSums, LimitBook
from kimi_gateway.core.limits import Claim, Limits, Use, Verdict, money_period

Stale = Literal["epoch", "load"]
"""Why there is no verdict: the state was lost and began anew, or the period's sums are to be read."""

Admitted = tuple[Claim, Limits]
Ended = tuple[Claim, Limits, Use]


@dataclass(frozen=True, slots=True)
class Known:
    """The requests of a key in a period that the state knows, in which life of it, and how old that life is."""

    ids: frozenset[str]
    epoch: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a hold whose lease ended."""

    key: str
    id: str
    nano: int
    highspeed: bool


class LimitState(Protocol):
    """The operations of `kimi_gateway.core.limit_book`, each whole or not at all. All raise `StateUnavailable`."""

    async def greet(self, *, alone: bool) -> None:
        """Begins the state where there is none; `alone`: nobody else can have anything under way."""
        ...

    def admit_now(self, claim: Claim, limits: Limits) -> Verdict | Stale | None:
        """The same as `admit` by a state that need not be waited for; None by every other."""
        return None

    def settle_now(self, claim: Claim, limits: Limits, use: Use) -> int | None:
        """The same as `settle` for one request by a state that need not be waited for; None by every other."""
        return None

    async def admit(self, claim: Claim, limits: Limits) -> Verdict | Stale:
        """Reserves, or says why it cannot tell."""
        ...

    async def standing(self, key: str, limits: Limits, at_s: float) -> Verdict | Stale:
        """What is left, or why it cannot tell."""
        ...

    async def settle(self, ended: Sequence[Ended]) -> list[int]:
        """By how much each exceeds its reservation."""
        ...

    async def restore(self, admitted: Sequence[Admitted]) -> None:
        """Holds what the state may have lost; from now on its present life is the known one."""
        ...

    async def renew(self, held: Sequence[tuple[str, str]]) -> tuple[bool, list[int]]:
        """Whether the state began anew, and the places of those (key, id) that are not held."""
        ...

    async def known(self, key: str, period: str, *, unload: bool) -> Known:
        """What it knows of a period; with `unload` nothing is admitted there until `install`."""
        ...

    async def install(self, key: str, period: str, booked: LedgerSums, known: Known) -> bool:
        """Takes sums that were read after `known`; false where they may lack something."""
        ...

    async def lapsed(self, limit: int) -> list[Lapsed]:
        """Holds whose lease has ended."""
        ...

    async def resolve(self, outcomes: Sequence[Outcome]) -> None:
        """Books what became of them."""
        ...


class MemoryLimits(LimitState):
    """The state in this process. Nothing in it suspends. `wall` is Unix seconds."""

    def __init__(self, wall: Callable[[], float], *, lease_s: float, keep_s: float) -> None:
        self._book = LimitBook(lease_s, keep_s)
        self._wall = wall

    @override
    async def greet(self, *, alone: bool) -> None:
        """It has begun, and nobody else knows it."""

    @override
    def admit_now(self, claim: Claim, limits: Limits) -> Verdict | Stale:
        if not self._book.is_loaded(claim.key, money_period(limits, claim.at_s)):
            return "load"
        return self._book.admit(claim, limits, self._wall())

    @override
    def settle_now(self, claim: Claim, limits: Limits, use: Use) -> int:
        return self._book.settle(claim, limits, use, self._wall())

    @override
    async def admit(self, claim: Claim, limits: Limits) -> Verdict | Stale:
        return self.admit_now(claim, limits)

    @override
    async def standing(self, key: str, limits: Limits, at_s: float) -> Verdict | Stale:
        if not self._book.is_loaded(key, money_period(limits, at_s)):
            return "load"
        return self._book.standing(key, limits, at_s)

    @override
    async def settle(self, ended: Sequence[Ended]) -> list[int]:
        now_s = self._wall()
        return [self._book.settle(claim, limits, use, now_s) for claim, limits, use in ended]

    @override
    async def restore(self, admitted: Sequence[Admitted]) -> None:
        for claim, limits in admitted:
            self._book.restore(claim, limits, self._wall())

    @override
    async def renew(self, held: Sequence[tuple[str, str]]) -> tuple[bool, list[int]]:
        now_s = self._wall()
        return False, [at for at, (key, name) in enumerate(held) if not self._book.renew(key, name, now_s)]

    @override
    async def known(self, key: str, period: str, *, unload: bool) -> Known:
        if unload:
            self._book.unload(key, period)
        return Known(self._book.known(key, period), "", float("inf"))

    @override
    async def install(self, key: str, period: str, booked: LedgerSums, known: Known) -> bool:
        return self._book.install(key, period, booked, known.ids, self._wall())

    @override
    async def lapsed(self, limit: int) -> list[Lapsed]:
        return self._book.lapsed(self._wall(), limit)

    @override
    async def resolve(self, outcomes: Sequence[Outcome]) -> None:
        for one in outcomes:
            self._book.resolve(one.key, one.id, one.nano, highspeed=one.highspeed, now_s=self._wall())
