"""Places that several gateways share. The server decides who is next; what it cannot know is made good here.

Who waits is told by one small task, which asks every few hundredths of a second for all of them; what another
request of this process sets free is known with that request's own answer. When the server has forgotten holds or
waiters, they are told again, with their age. When it does not answer, `open` gives places from a book of this
process alone, at most its share of each limit, and everybody goes back when the server does.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Final

from typing_extensions import override

from kimi_gateway.adapters.capacity.asked import Asked, Held, Periods
from kimi_gateway.adapters.capacity.local import LocalQueue
from kimi_gateway.adapters.capacity.store import AT_ONCE, UNUSED, Entered, Heard, Seen, ValkeyPlaces, Wish
from kimi_gateway.core.routing.facts import Grant, Place, Quota, Refused, Ticket
from kimi_gateway.core.routing.queue_book import RETRY_S
from kimi_gateway.core.routing.queue_quota import AccountQuotas, share_of
from kimi_gateway.ports import Capacity, StateUnavailable

_log: Final = logging.getLogger("kimi_gateway.capacity")
_CHANGED: Final = "changed"
_REST_S: Final = 0.1  # between tries while the server is away; its link does not try each time


class SharedCapacity(Capacity):
    """Places behind a server. Belongs to one event loop. `mono` and `wall` are seconds, `wall` Unix time.

    `replicas`: processes that share the server; `bound_s`: how long an answer may take with `closed`.
    """

    def __init__(
        self,
        store: ValkeyPlaces,
        periods: Periods,
        *,
        most: int,
        timeout_s: float,
        is_open: bool,
        replicas: int,
        mono: Callable[[], float],
        wall: Callable[[], float],
        bound_s: float | None = None,
    ) -> None:
        self._store = store
        self._periods = periods
        self._most = most
        self._timeout_s = timeout_s
        self._is_open = is_open
        self._replicas = max(1, replicas)
        self._mono = mono
        self._bound_s = bound_s
        self._quotas = AccountQuotas()
        self._shares: dict[Quota, Quota] = {}
        self._alone = LocalQueue(self._share, most=most, mono=mono, wall=wall)
        self._ids = (f"{store.owner}.{number}" for number in itertools.count())
        self._asked: dict[str, Asked] = {}
        self._mine: dict[str, Held] = {}  # by ticket
        self._leases: dict[str, str] = {}  # of what is mine, its account
        self._news: dict[str, str] = {}  # of these, what the server does not know to be known
        self._debts: dict[str, int | str | None] = {}  # ends that the server was not told of
        self._seen: dict[str, tuple[Seen, float]] = {}
        self._epoch = ""
        self._is_out = False
        self._renews = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    @override
    async def enter(self, ticket: Ticket) -> Grant | Refused:
        if not ticket.places or ticket.id in self._mine:
            raise ValueError(f"ticket {ticket.id} has to be new and to name a place, at least one")
        began_s = self._mono()
        places, sure = self._limited(ticket, began_s)
        if not places and sure is not None:
            return Grant(ticket, sure)
        has_waited = False
        while not self._closed:
            try:
                entered = await self._ask(ticket, places, sure, began_s, has_waited=has_waited)
            except StateUnavailable:
                self._is_out, entered = True, None
                self._look_after()
                if not self._is_open:
                    raise
            if entered is None and not self._closed:
                entered = await self._ask_here(ticket, began_s if has_waited else None)
            if entered is not None:
                return entered
            has_waited = True
        return Refused("timeout", RETRY_S)

    @override
    async def leave(self, grant: Grant, tokens: int | None) -> None:
        held = self._mine.pop(grant.ticket.id, None)
        if held is None:
            return
        # The book here counts what the server gave, but has charged nothing for it.
        self._alone.leave(grant.ticket.id, tokens if held.is_alone else None)
        self._release(held.id, tokens)
        try:
            await self._pay(held.id)
        except StateUnavailable as err:
            _log.info("a place is given back later: %s", err)
        finally:
            if held.id in self._debts:
                self._look_after()

    @override
    def waiting(self) -> int:
        return sum(1 for asked in self._asked.values() if asked.life is not None) + self._alone.waiting

    @override
    def room(self, place: Place) -> bool:
        """Whether a small request would get this place now, as far as this process knows."""
        quota = self._quotas.of(place)
        if place.not_before_s > self._mono() or not quota.any:
            return place.not_before_s <= self._mono()
        if self._is_out:
            return self._alone.room(place)
        if quota.concurrency and self._alone.running(place.account) >= quota.concurrency:
            return False
        seen = self._last_seen(place.account)
        return seen is None or not seen.full

    @override
    def queued(self, place: Place) -> int:
        """How many wait who could use this place's account, as far as this process knows."""
        seen = self._last_seen(place.account)
        mine = sum(
            1
            for asked in self._asked.values()
            if asked.life is not None and any(one.account == place.account for one in asked.places)
        )
        return max(0 if seen is None else seen.waiting, mine) + self._alone.queued(place.account)

    @override
    def declare(self, places: Iterable[Place]) -> None:
        """These are all targets, with their own limits: said at the start and when they change."""
        self._quotas.declare(places)
        self._alone.limits_changed(self._share_of_account)
        for asked in self._asked.values():
            if asked.life is not None:  # who waits tells the server
                asked.life = _CHANGED

    def _share_of_account(self, account: str) -> Quota | None:
        quota = self._quotas.of_account(account)
        return None if quota is None else self._part(quota)

    def _share(self, place: Place) -> Quota:
        """What this process may use by itself."""
        return self._part(self._quotas.of(place))

    def _part(self, quota: Quota) -> Quota:
        share = self._shares.get(quota)
        if share is None:
            share = self._shares[quota] = share_of(quota, self._replicas)
        return share

    @override
    async def keep(self) -> None:
        while True:
            await asyncio.sleep(self._periods.lease_s / 4)
            self._renews = bool(self._leases)
            self._look_after()

    @override
    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        for asked in list(self._asked.values()):
            self._send_away(asked, None)
        self._alone.close()
        for held in self._mine.values():
            self._debts[held.id] = None
        try:
            while self._debts:
                await self._pay(*list(self._debts)[:AT_ONCE])
        except StateUnavailable as err:
            _log.info("%d places are free only when their leases end: %s", len(self._debts), err)

    # --- one request ------------------------------------------------------------------------------------------

    def _limited(self, ticket: Ticket, now_s: float) -> tuple[tuple[Place, ...], Place | None]:
        """The places before the first that can be had for sure, and that one."""
        for at, place in enumerate(ticket.places):
            if place.not_before_s <= now_s and not self._quotas.of(place).any:
                return ticket.places[:at], place
        return ticket.places, None

    async def _ask(
        self, ticket: Ticket, places: tuple[Place, ...], sure: Place | None, began_s: float, *, has_waited: bool
    ) -> Grant | Refused | None:
        """What the server gives; None where the request is sent away while it waits. Raises `StateUnavailable`."""
        future: asyncio.Future[Place | StateUnavailable | None] = asyncio.get_running_loop().create_future()
        asked = Asked(next(self._ids), ticket, places, began_s, future)
        self._asked[asked.id] = asked
        entered: Entered | None
        try:
            entered = await self._enter(asked, most=-1 if sure else self._most, has_waited=has_waited)
            if entered.found == "queued":
                await self._wait(asked)
        except StateUnavailable:
            if not future.done():  # else another's answer has brought one
                self._asked.pop(asked.id, None)
                self._release(asked.id, UNUSED)
                raise
            entered = None
        except BaseException:
            self._asked.pop(asked.id, None)
            self._release(asked.id, UNUSED)
            self._look_after()
            raise
        if future.done():
            result = future.result()
            if isinstance(result, StateUnavailable):
                raise result
            return None if result is None else self._grant(asked, result)
        del self._asked[asked.id]
        if entered is None or entered.found == "queued":
            return await self._give_up(asked)
        if sure is not None:
            return Grant(ticket, sure)
        return Refused("full" if entered.found == "full" else "timeout", max(RETRY_S, entered.retry_s))

    async def _enter(self, asked: Asked, *, most: int, has_waited: bool) -> Entered:
        now_s = self._mono()
        age_s = now_s - asked.began_s
        entered = await self._store.enter(
            asked.id,
            asked.ticket.key,
            asked.ticket.tokens,
            [
                Wish(place.account, max(0.0, place.not_before_s - now_s), self._quotas.of(place))
                for place in asked.places
            ],
            most=most,
            patience_s=self._timeout_s - age_s,
            age_s=age_s if has_waited else None,
            bound_s=self._bound_s,
        )
        self._hear(entered.heard)
        if entered.found == "granted" and asked.id in self._asked:
            self._give(asked, entered.place)
            if asked.life is not None:
                self._news[asked.id] = self._leases[asked.id]
        elif entered.found == "queued":
            asked.life = entered.heard.life
        return entered

    async def _wait(self, asked: Asked) -> None:
        self._look_after()
        left_s = asked.began_s + self._timeout_s - self._mono()
        await asyncio.wait((asked.future,), timeout=max(0.0, left_s))

    async def _give_up(self, asked: Asked) -> Refused:
        self._release(asked.id, UNUSED)
        retry_s = 0.0
        try:
            retry_s = await self._pay(asked.id)
        except StateUnavailable:
            self._look_after()
        return Refused("timeout", max(RETRY_S, retry_s or self._mono() - asked.began_s))

    async def _ask_here(self, ticket: Ticket, since_s: float | None) -> Grant | Refused | None:
        """What this process gives by itself while the server is away; None: it is back."""
        entered = await self._alone.enter(ticket, timeout_s=self._timeout_s, since_s=since_s)
        if isinstance(entered, Grant):
            held = self._mine[ticket.id] = Held(next(self._ids), is_alone=True)
            self._leases[held.id] = entered.place.account
        return entered

    def _grant(self, asked: Asked, place: Place) -> Grant:
        self._mine[asked.ticket.id] = Held(asked.id, is_alone=False)
        self._alone.count(asked.ticket.id, place)
        return Grant(asked.ticket, place, self._mono() - asked.began_s)

    def _give(self, asked: Asked, number: int) -> None:
        """One who waits has got the place of this number."""
        del self._asked[asked.id]
        place = asked.places[number]
        self._leases[asked.id] = place.account
        asked.future.set_result(place)

    def _send_away(self, asked: Asked, why: StateUnavailable | None) -> None:
        del self._asked[asked.id]
        self._debts[asked.id] = UNUSED
        asked.future.set_result(why)

    def _release(self, id: str, used: int | str | None) -> None:
        """It is over; the server is to be told."""
        self._leases.pop(id, None)
        self._news.pop(id, None)
        self._debts[id] = used

    # --- all of them ------------------------------------------------------------------------------------------

    def _hear(self, heard: Heard) -> None:
        """What came with an answer."""
        now_s = self._mono()
        if self._is_out or heard.epoch != self._epoch:
            self._renews = bool(self._leases)
        self._epoch = heard.epoch
        if self._is_out:
            self._is_out = False
            self._alone.send_away()
        for account, seen in heard.seen.items():
            self._seen[account] = (seen, now_s)
        for id, number in heard.given.items():
            asked = self._asked.get(id)
            if asked is not None:
                self._give(asked, number)
                self._news[id] = self._leases[id]
        if self._renews or self._news:
            self._look_after()

    def _last_seen(self, account: str) -> Seen | None:
        seen, at_s = self._seen.get(account, (None, 0.0))
        return seen if self._mono() - at_s <= self._periods.stale_s else None

    def _look_after(self) -> None:
        """Has the task run that asks for those who wait, and tells what the server does not know."""
        if not self._closed and self._has_work() and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._beside())

    def _has_work(self) -> bool:
        return bool(self._asked or self._news or self._debts or self._renews or self._is_out)

    async def _beside(self) -> None:
        try:
            while self._has_work():
                try:
                    await self._round()
                    pause_s = self._periods.poll_s
                except StateUnavailable as err:
                    self._lost(err)
                    pause_s = max(_REST_S, self._periods.poll_s)
                await asyncio.sleep(pause_s)
        except Exception:
            _log.exception("who waits for a place was not looked after; the next request tries again")

    async def _round(self) -> None:
        """Asks once for all who wait, after telling what is to be told. Raises `StateUnavailable`."""
        if self._debts:
            await self._pay(*list(self._debts)[:AT_ONCE])
        told = list((self._leases if self._renews else self._news).items())
        self._renews = False
        for first in range(0, len(told) or 1, AT_ONCE):
            some = told[first : first + AT_ONCE]
            heard = await self._store.tend(some, waits=bool(self._asked))
            for id, _ in some:
                self._news.pop(id, None)
                if id not in self._leases:  # it was given back meanwhile, and has now been taken up again
                    self._debts.setdefault(id, 0)
            self._hear(heard)
        for asked in list(self._asked.values()):
            if asked.life not in (None, heard.life):
                await self._rejoin(asked)

    async def _rejoin(self, asked: Asked) -> None:
        """Has one wait again that the server has forgotten."""
        await self._enter(asked, most=self._most, has_waited=True)
        if asked.id not in self._asked and asked.id not in self._leases:  # it has gone meanwhile
            self._debts[asked.id] = UNUSED

    async def _pay(self, *ids: str) -> float:
        """Tells the server of these ends; in how many seconds the last of them that waited may come back."""
        ends = [(id, self._debts[id]) for id in ids if id in self._debts]
        heard, retry_s = await self._store.leave(ends)
        for id, used in ends:
            if id in self._debts and self._debts[id] == used:
                del self._debts[id]
        self._hear(heard)
        return retry_s

    def _lost(self, err: StateUnavailable) -> None:
        """The server does not answer: who waits for it waits here, or hears so."""
        self._is_out = True
        self._renews = bool(self._leases)
        for asked in list(self._asked.values()):
            if asked.life is not None:  # else its own call says so
                self._send_away(asked, None if self._is_open else StateUnavailable(str(err)))
