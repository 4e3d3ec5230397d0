"""Places and their queue in one process: the book, with clocks, timers and tasks that wait. No IO."""

import asyncio
from collections.abc import Callable
from typing import Final

from kimi_gateway.core.routing.facts import Grant, Place, Quota, Refused, Ticket
from kimi_gateway.core.routing.queue_account import Moment
from kimi_gateway.core.routing.queue_book import QueueBook

_LEAST_S: Final = 0.001  # a timer comes no sooner: a clock that is read early has moved on by then


class LocalQueue:
    """A `QueueBook` for tasks. Belongs to one event loop. `mono` and `wall` are seconds, `wall` Unix time."""

    def __init__(
        self,
        quota_of: Callable[[Place], Quota],
        *,
        most: int,
        mono: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._book = QueueBook(quota_of, most)
        self._mono = mono
        self._wall = wall
        self._futures: dict[str, asyncio.Future[Place | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._book.waiting

    def now(self) -> Moment:
        """Both clocks."""
        return Moment(self._mono(), self._wall())

    async def enter(
        self, ticket: Ticket, *, timeout_s: float, since_s: float | None = None
    ) -> Grant | Refused | None:
        """A place, at once or when one gets free; None where it was sent away while it waited.

        `since_s`: it has been waiting since then, elsewhere. Cancelling it gives back what it has.
        """
        now = self.now()
        began_s = now.mono_s if since_s is None else since_s
        found = self._book.enter(ticket, now, patience_s=began_s + timeout_s - now.mono_s, since_s=since_s)
        if found is None:
            return await self._wait(ticket, began_s, began_s + timeout_s)
        if self._futures:
            self._deliver()
        return Grant(ticket, found, now.mono_s - began_s) if isinstance(found, Place) else found

    def leave(self, ticket_id: str, used_tokens: int | None) -> None:
        """Gives a place back."""
        self._book.leave(ticket_id, used_tokens, self.now())
        if self._futures:
            self._deliver()

    def abandon(self, ticket_id: str) -> None:
        """Gives back a place that nobody has used."""
        self._book.abandon(ticket_id, self.now())
        self._deliver()

    def count(self, ticket_id: str, place: Place) -> None:
        """Counts a place that was given elsewhere."""
        self._book.count(ticket_id, place)

    def send_away(self) -> None:
        """Everybody who waits gets None."""
        for future in self._futures.values():
            if not future.done():
                future.set_result(None)

    def room(self, place: Place) -> bool:
        """Whether a small request would get this place now."""
        return self._book.room(place, self.now())

    def queued(self, account: str) -> int:
        """How many wait who could use this account."""
        return self._book.queued(account)

    def limits_changed(self, quota_of: Callable[[str], Quota | None]) -> None:
        """Accounts have other limits now: by name, None where there is no such account any more."""
        self._book.limits_changed(quota_of, self.now())
        if self._futures:
            self._deliver()

    def running(self, account: str) -> int:
        """How many places of this account are taken, as far as the book here counts them."""
        return self._book.running(account)

    def close(self) -> None:
        """Stops the timer and sends everybody away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.send_away()

    async def _wait(self, ticket: Ticket, began_s: float, until_s: float) -> Grant | Refused | None:
        future: asyncio.Future[Place | None] = asyncio.get_running_loop().create_future()
        self._futures[ticket.id] = future
        self._deliver()
        try:
            await asyncio.wait((future,), timeout=max(0.0, until_s - self._mono()))
        except BaseException:
            self.abandon(ticket.id)
            raise
        finally:
            del self._futures[ticket.id]
        if not future.done():
            refused = self._book.give_up(ticket.id, self.now())
            self._deliver()
            return refused
        place = future.result()
        if place is None:
            self.abandon(ticket.id)
            return None
        return Grant(ticket, place, self._mono() - began_s)

    def _deliver(self) -> None:
        """Wakes who got a place, and sets the timer for who gets one next."""
        while granted := self._book.take_granted():
            for ticket_id, place in granted:
                future = self._futures[ticket_id]
                if future.done():  # it was sent away just before
                    self._book.abandon(ticket_id, self.now())
                else:
                    future.set_result(place)
        self._set_timer()

    def _set_timer(self) -> None:
        now = self.now()
        due_s = self._book.next_s(now) if self._book.waiting else None
        if self._timer is not None:
            if due_s == self._timer_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer_s = due_s
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(_LEAST_S, due_s - now.mono_s), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._book.serve(self.now())
        self._deliver()
