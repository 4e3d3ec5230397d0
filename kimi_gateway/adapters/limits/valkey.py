"""The state of limits on a server that several gateways share. One script, and one round trip, per operation."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import chain
from typing import Any, Final, cast

from typing_extensions import override

from kimi_gateway.adapters.limits import scripts
from kimi_gateway.adapters.limits.state import Admitted, Ended, Known, LimitState, Outcome, Stale
from kimi_gateway.adapters.state.link import Argument, Link, Script
from kimi_gateway.core.limit_book import Lapsed, LedgerSums
from kimi_gateway.core.limits import Account, Claim, Limit, Limits, Spent, Use, Verdict, money_period, verdict
from kimi_gateway.ports import StateUnavailable

PREFIX: Final = "{kimi}l:"
_AT_ONCE: Final = 200
"""How many requests one script is told of: it keeps others waiting meanwhile."""


class ValkeyLimits(LimitState):
    """Limits behind one link.

    `patience_s` bounds each call, where the link's own limits are too long. `clock` replaces the server's.
    """

    def __init__(
        self,
        link: Link,
        *,
        lease_s: float,
        keep_s: float,
        patience_s: float | None = None,
        prefix: str = PREFIX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._link = link
        self._lease_s = lease_s
        self._keep_s = keep_s
        self._patience_s = patience_s
        self._prefix = prefix.encode()
        self._clock = clock
        self._epoch = b""

    @override
    async def greet(self, *, alone: bool) -> None:
        self._epoch = await self._run(scripts.HELLO, [_flag(alone)])

    @override
    async def admit(self, claim: Claim, limits: Limits) -> Verdict | Stale:
        reply = await self._run(
            scripts.ADMIT,
            [
                *(self._epoch, claim.key, claim.id, money_period(limits, claim.at_s)),
                *_money(claim.nano, limits, highspeed=claim.highspeed),
                claim.tokens,
                "" if limits.budget_nano is None else limits.budget_nano,
                "" if limits.highspeed_nano is None else limits.highspeed_nano,
                *(limits.rpm, limits.tpm, limits.concurrency, repr(self._lease_s)),
            ],
        )
        return _verdict(reply, limits, claim.at_s, claim.tokens)

    @override
    async def standing(self, key: str, limits: Limits, at_s: float) -> Verdict | Stale:
        period = money_period(limits, at_s)
        reply = await self._run(scripts.STANDING, [self._epoch, key, period, limits.rpm, limits.tpm])
        return _verdict(reply, limits, at_s, 0)

    @override
    async def settle(self, ended: Sequence[Ended]) -> list[int]:
        over: list[int] = []
        for first in range(0, len(ended), _AT_ONCE):
            told = chain.from_iterable(_ended(*one) for one in ended[first : first + _AT_ONCE])
            over += map(int, await self._run(scripts.SETTLE, [repr(self._keep_s), *told]))
        return over

    @override
    async def restore(self, admitted: Sequence[Admitted]) -> None:
        epoch = b""
        for first in range(0, len(admitted) or 1, _AT_ONCE):
            told = chain.from_iterable(_admitted(*one) for one in admitted[first : first + _AT_ONCE])
            epoch = await self._run(scripts.RESTORE, [repr(self._lease_s), *told])
        self._epoch = epoch

    @override
    async def renew(self, held: Sequence[tuple[str, str]]) -> tuple[bool, list[int]]:
        missing: list[int] = []
        epoch = self._epoch
        for first in range(0, len(held) or 1, _AT_ONCE):
            told = chain.from_iterable(held[first : first + _AT_ONCE])
            epoch, found = await self._run(scripts.RENEW, [repr(self._lease_s), *told])
            missing += [first + int(place) for place in found]
        return epoch != self._epoch, missing

    @override
    async def known(self, key: str, period: str, *, unload: bool) -> Known:
        epoch, age_s, ids = await self._run(scripts.KNOWN, [key, period, "1" if unload else "0"])
        return Known(frozenset(name.decode() for name in ids), epoch.decode(), float(age_s))

    @override
    async def install(self, key: str, period: str, booked: LedgerSums, known: Known) -> bool:
        told: list[Argument] = [known.epoch, key, period, booked.total_nano, booked.highspeed_nano]
        told += [repr(self._lease_s), len(known.ids), *known.ids]
        for name, row in booked.rows.items():
            told += [name, row.state, row.nano, _flag(row.highspeed), row.bound_nano]
        taken: int = await self._run(scripts.INSTALL, told)
        return taken == 1

    @override
    async def lapsed(self, limit: int) -> list[Lapsed]:
        found = await self._run(scripts.LAPSED, [limit])
        return [
            Lapsed(key.decode(), name.decode(), period.decode(), int(nano), fast == b"1", float(late))
            for key, name, period, nano, fast, late in found
        ]

    @override
    async def resolve(self, outcomes: Sequence[Outcome]) -> None:
        for first in range(0, len(outcomes), _AT_ONCE):
            some = outcomes[first : first + _AT_ONCE]
            told: list[Argument] = []
            for one in some:
                told += [one.key, one.id, one.nano, _flag(one.highspeed)]
            await self._run(scripts.RESOLVE, told)

    async def _run(self, script: Script, args: Iterable[Argument]) -> Any:
        now = "" if self._clock is None else repr(self._clock())
        bound: AbstractAsyncContextManager[object] = nullcontext()
        if self._patience_s is not None:
            bound = asyncio.timeout(self._patience_s)
        try:
            async with bound:
                return await self._link.run(script, [self._prefix], [now, *args])
        except TimeoutError:
            raise StateUnavailable(
                f"the state at {self._link.shown} did not answer within {self._patience_s:g} s"
            ) from None


def _flag(is_set: bool) -> str:
    return "1" if is_set else "0"


def _money(nano: int, limits: Limits, *, highspeed: bool) -> tuple[int, str]:
    return (nano if limits.has_budget else 0), _flag(highspeed)


def _admitted(claim: Claim, limits: Limits) -> tuple[Argument, ...]:
    money = _money(claim.nano, limits, highspeed=claim.highspeed)
    return (claim.key, claim.id, money_period(limits, claim.at_s), *money, claim.tokens)


def _ended(claim: Claim, limits: Limits, use: Use) -> tuple[Argument, ...]:
    highspeed = claim.highspeed if use.highspeed is None else use.highspeed
    tokens = "" if use.tokens is None else use.tokens
    period = money_period(limits, claim.at_s)
    return (claim.key, claim.id, period, use.nano, _flag(highspeed), tokens, limits.tpm)


def _verdict(reply: list[bytes | int], limits: Limits, at_s: float, asked_tokens: int) -> Verdict | Stale:
    kind = cast(bytes, reply[0]).decode()
    if kind != "ok":
        return cast(Stale, kind)
    refused_by = cast(Limit, cast(bytes, reply[2]).decode())
    spent = Spent(*(int(value) for value in reply[3:7]))
    requests, tokens = (float(level) if level else None for level in reply[7:9])
    account = Account(spent, requests, tokens)
    return verdict(account, limits, at_s=at_s, refused_by=refused_by, asked_tokens=asked_tokens)
