"""Limits that hold: whatever happens to processes, servers and databases, nothing counts twice or not at all.

The limiter stands between the requests, the state and the ledger. It reads what a key has spent where the state
does not know it, renews what is under way here, tells the state later what could not be told at once, and asks the
ledger about requests whose process has vanished. When the state turns out to have begun anew, every gateway first
tells it again what it has under way and what has just ended; spend is read only once they all had time to.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace
from typing_extensions import override

from kimi_gateway.adapters.limits.recent import Recent
from kimi_gateway.adapters.limits.spend import SpendSource
from kimi_gateway.adapters.limits.state import LimitState, Outcome, Stale
from kimi_gateway.core.limits import Claim, Limits, Use, Verdict, period_end_s, period_name, period_start_s
from kimi_gateway.ports import Limiter, StateUnavailable
from pricing.ledger.errors import LedgerError

_log: Final = logging.getLogger("kimi_gateway.limits")
_TRIES: Final = 50
_AT_ONCE: Final = 100
_AGAIN_AFTER_S: Final = 2.0
"""When first read spend is read once more: by then a process that died just before is in the ledger."""


class Watcher(Protocol):
    """Who is told how keys stand."""

    def seen(self, key: str, verdict: Verdict) -> None:
        """A key stands so. Never waits, never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds. `lease_s`: until a hold that nobody renews is looked up; `release_s`: until one that the ledger
    does not know either is released, beyond its lease; `grace_s`: how old a state that began anew must be before
    spend is read; `tick_s`: how often work is looked for; `recount_s`: how often spend is read again."""

    lease_s: float = 60.0
    release_s: float = 30.0
    grace_s: float = 2.5
    tick_s: float = 0.5
    recount_s: float = 60.0

    @property
    def keep_s(self) -> float:
        """How long the state knows a request that has ended."""
        return 2 * self.lease_s + self.release_s


class LedgerLimiter(Limiter):
    """Limits over one state and one ledger. Belongs to one event loop; `wall` is Unix seconds, `mono` a clock."""

    def __init__(
        self,
        state: LimitState,
        ledger: SpendSource,
        periods: Periods,
        *,
        wall: Callable[[], float],
        mono: Callable[[], float],
        watcher: Watcher | None = None,
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._periods = periods
        self._wall = wall
        self._mono = mono
        self._watcher = watcher
        self._mine: dict[str, tuple[Claim, Limits]] = {}
        self._adrift: set[str] = set()  # of mine, what the state was not told of
        self._debts: dict[str, tuple[Claim, Limits, Use]] = {}  # ends that the state was not told of
        self._recent = Recent(mono)
        self._touched: dict[str, Limits] = {}
        self._recounts: dict[str, tuple[Limits, float]] = {}  # when spend is due to be read again
        self._counted_at: dict[str, float] = {}
        self._renew_at = mono()
        self._lives = 0  # how often the state has begun anew
        self._reading: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._telling = asyncio.Lock()
        self._last: dict[str, Verdict] = {}

    async def start(self, *, alone: bool) -> None:
        """Looks whether the state is there; that it is not is no failure.

        `alone`: the state is new, and no other gateway has used one before it on this ledger and still runs; spend
        is then read without waiting for others.
        """
        try:
            await self._state.greet(alone=alone)
        except StateUnavailable as err:
            _log.info("limits begin without their state: %s", err)

    @override
    def admit_now(self, claim: Claim, limits: Limits) -> Verdict | None:
        """30 µs less than `admit`: no coroutine of four is made."""
        if self._debts or self._adrift:
            return None  # the state is to be told of them first
        verdict = self._state.admit_now(claim, limits)
        if not isinstance(verdict, Verdict) or verdict.refused_by:
            return None
        self._mine[claim.id] = (claim, limits)
        self._note(claim.key, limits, verdict)
        return verdict

    @override
    def settle_now(self, claim: Claim, limits: Limits, use: Use) -> int | None:
        over = self._state.settle_now(claim, limits, use)
        if over is None:
            return None
        self._mine.pop(claim.id, None)
        self._adrift.discard(claim.id)
        self._recent.add((claim, limits, use))
        self._touched[claim.key] = limits
        return over

    @override
    async def admit(self, claim: Claim, limits: Limits, *, last: bool = True) -> Verdict:
        try:
            verdict = await self._answer(lambda: self._state.admit(claim, limits), claim.key, limits, claim.at_s)
        except BaseException:
            # It may have been admitted all the same, with nobody here to use it.
            self._debts[claim.id] = (claim, limits, Use(0, 0))
            raise
        if verdict.admitted:
            self._mine[claim.id] = (claim, limits)
        self._note(claim.key, limits, verdict if last else replace(verdict, refused_by=""))
        return verdict

    @override
    async def settle(self, claim: Claim, limits: Limits, use: Use) -> int:
        self._mine.pop(claim.id, None)
        self._adrift.discard(claim.id)
        end = (claim, limits, use)
        try:
            over = (await self._state.settle([end]))[0]
        except BaseException as err:  # a cancellation as well: the state is told later, once more if it was told
            self._debts[claim.id] = end
            if isinstance(err, StateUnavailable):
                return 0
            raise
        self._recent.add(end)
        self._touched[claim.key] = limits
        return over

    @override
    async def standing(self, key: str, limits: Limits) -> Verdict:
        at_s = self._wall()
        verdict = await self._answer(lambda: self._state.standing(key, limits, at_s), key, limits, at_s)
        self._note(key, limits, verdict)
        return verdict

    @override
    async def keep(self) -> None:
        while True:
            await asyncio.sleep(self._periods.tick_s)
            try:
                await self.tick()
            except (StateUnavailable, LedgerError) as err:
                _log.info("limits are looked after again later: %s", err)

    @override
    async def close(self) -> None:
        """Tells the state what it was not told; what is still not told then the ledger makes good."""
        try:
            await self._tell()
        except StateUnavailable as err:
            _log.warning("the ends of %d requests are left to the ledger: %s", len(self._debts), err)
        for task in self._reading.values():
            task.cancel()
        await asyncio.to_thread(self._ledger.close)

    def adopt(self, claim: Claim, limits: Limits) -> None:
        """A claim that was admitted while the state was away; it is told of it when it is back."""
        self._debts.pop(claim.id, None)
        self._mine[claim.id] = (claim, limits)
        self._adrift.add(claim.id)

    def last(self, key: str) -> Verdict | None:
        """How a key stood when it was last seen."""
        return self._last.get(key)

    async def tick(self) -> None:
        """One round of what `keep` does. Raises `StateUnavailable`, `LedgerError`."""
        await self._renew()
        await self._tell()
        await self._sweep()
        touched, self._touched = self._touched, {}
        for key, limits in touched.items():
            if limits.has_budget:
                await self.standing(key, limits)
        await self._recount()

    def _note(self, key: str, limits: Limits, verdict: Verdict) -> None:
        self._last[key] = verdict
        if not limits.has_budget:
            return
        if key not in self._recounts:
            counted_at = self._counted_at.get(key)
            due_s = self._mono() + _AGAIN_AFTER_S if counted_at is None else counted_at + self._periods.recount_s
            self._recounts[key] = (limits, due_s)
        if self._watcher is not None:
            self._watcher.seen(key, verdict)

    async def _answer(
        self, ask: Callable[[], Awaitable[Verdict | Stale]], key: str, limits: Limits, at_s: float
    ) -> Verdict:
        for _ in range(_TRIES):
            await self._tell()
            life = self._lives
            answer = await ask()
            if isinstance(answer, Verdict):
                return answer
            if answer == "epoch":
                await self._rejoin(life)
            else:
                await self._read(key, limits, at_s)
        raise StateUnavailable(f"the limits of {key} change too fast to be read")

    def _paid(self, name: str, end: tuple[Claim, Limits, Use]) -> None:
        """The state has been told of an end; a newer one may have come meanwhile."""
        if self._debts.get(name) is end:
            del self._debts[name]
        self._recent.add(end)

    async def _tell(self) -> None:
        """Tells the state of what it does not know yet. Raises `StateUnavailable`."""
        if not self._debts and not self._adrift:
            return
        async with self._telling:
            adrift = [self._mine[name] for name in self._adrift if name in self._mine]
            if adrift:
                await self._state.restore(adrift)
                self._adrift.difference_update(claim.id for claim, _ in adrift)
            ends = list(self._debts.items())
            if ends:
                await self._state.settle([end for _, end in ends])
                for name, end in ends:
                    self._paid(name, end)
                    self._touched[end[0].key] = end[1]

    async def _rejoin(self, life: int) -> None:
        """The state began anew: tells it what is under way, and what has just ended."""
        async with self._telling:
            if life != self._lives:
                return  # another has done it
            await self._state.restore(list(self._mine.values()))
            self._lives += 1
            self._adrift.clear()
            await self._state.settle(self._recent.all())

    async def _renew(self) -> None:
        """Sees whether the state began anew; renews what is held here when it is time to."""
        life, held = self._lives, list[tuple[str, str]]()
        if self._mono() >= self._renew_at:
            self._renew_at = self._mono() + self._periods.lease_s / 4
            held = [(claim.key, claim.id) for claim, _ in self._mine.values() if claim.id not in self._adrift]
        began_anew, missing = await self._state.renew(held)
        if began_anew:
            await self._rejoin(life)
            return
        lost = [self._mine[held[place][1]] for place in missing if held[place][1] in self._mine]
        if lost:
            await self._state.restore(lost)

    async def _read(self, key: str, limits: Limits, at_s: float, *, unload: bool = False) -> None:
        """Reads spend from the ledger into the state, once for all who wait for it. Raises `StateUnavailable`."""
        name = (key, period_name(limits.period, at_s))
        task = self._reading.get(name)
        if task is None:
            task = asyncio.create_task(self._read_now(key, limits, at_s, unload=unload))
            self._reading[name] = task
            task.add_done_callback(lambda done: self._was_read(name, done))
        await asyncio.shield(task)

    def _was_read(self, name: tuple[str, str], task: asyncio.Task[None]) -> None:
        self._reading.pop(name, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; where nobody does any more, it is no surprise

    async def _read_now(self, key: str, limits: Limits, at_s: float, *, unload: bool) -> None:
        period = period_name(limits.period, at_s)
        for _ in range(_TRIES):
            if await self._read_once(key, limits, at_s, period, unload=unload):
                return
        raise StateUnavailable(f"the spend of {key} changes too fast to be read")

    async def _read_once(self, key: str, limits: Limits, at_s: float, period: str, *, unload: bool) -> bool:
        known = await self._state.known(key, period, unload=unload)
        young_s = self._periods.grace_s - known.age_s
        if young_s > 0:
            await asyncio.sleep(young_s)
            return False
        since, until = period_start_s(limits.period, at_s), period_end_s(limits.period, at_s)
        try:
            booked = await asyncio.to_thread(self._ledger.booked, key, since=since, until=until, ids=known.ids)
        except LedgerError as err:
            raise StateUnavailable(f"what {key} has spent cannot be read: {err}") from err
        return await self._state.install(key, period, booked, known)

    async def _recount(self) -> None:
        """Reads the spend of keys in use again: it finds what was booked late."""
        for key, (limits, due_s) in list(self._recounts.items()):
            now_s = self._mono()
            if due_s > now_s:
                continue
            del self._recounts[key]
            self._counted_at[key] = now_s
            at_s = self._wall()
            # At first beside the requests; only where these are too many are they kept waiting for it.
            if not await self._read_once(key, limits, at_s, period_name(limits.period, at_s), unload=False):
                await self._read(key, limits, at_s, unload=True)

    async def _sweep(self) -> None:
        """Asks the ledger what became of holds whose lease has ended."""
        lapsed = await self._state.lapsed(_AT_ONCE)
        if not lapsed:
            return
        rows = await asyncio.to_thread(self._ledger.rows, [one.id for one in lapsed])
        outcomes: list[Outcome] = []
        alive: list[tuple[str, str]] = []
        for one in lapsed:
            row = rows.get(one.id)
            if row is None:
                if one.late_s >= self._periods.release_s:
                    outcomes.append(Outcome(one.key, one.id, 0, one.highspeed))
            elif row.state == "open":
                alive.append((one.key, one.id))
            else:
                nano = row.nano if row.state == "settled" else max(row.bound_nano, one.nano)
                outcomes.append(Outcome(one.key, one.id, nano, row.highspeed))
        await self._state.resolve(outcomes)
        if alive:
            await self._state.renew(alive)
