"""Requests that wait for another of the same key: all are woken together, and one looks for all of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kimi_gateway.core.idempotency import Place

_GROWTH: Final = 1.5


class _Watch:
    """One place that somebody waits for."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()
        self.waiters = 0
        self.task: asyncio.Task[None]


class Waiting:
    """Waiters by place. Belongs to one event loop.

    A change made in this process is told by `ring`. One that is made elsewhere is found by `look`, which says
    whether the place is still taken: after `first_s`, then after growing pauses of at most `longest_s`. However
    many wait for a place, one task looks. Without `look` there is no elsewhere.
    """

    def __init__(
        self,
        look: Callable[[Place], Awaitable[bool]] | None = None,
        *,
        first_s: float = 0.05,
        longest_s: float = 1.0,
    ) -> None:
        self._look = look
        self._first_s = first_s
        self._longest_s = longest_s
        self._watches: dict[Place, _Watch] = {}

    async def change(self, place: Place) -> None:
        """Returns when the place may be free, or have its answer."""
        watch = self._watches.get(place)
        if watch is None:
            watch = self._watches[place] = _Watch()
            watch.task = asyncio.create_task(self._watch(place, watch.rung))
        watch.waiters += 1
        try:
            await asyncio.shield(watch.task)
        finally:
            watch.waiters -= 1
            if watch.waiters == 0 or watch.task.done():
                watch.task.cancel()
                if self._watches.get(place) is watch:
                    del self._watches[place]

    def ring(self, place: Place) -> None:
        """Wakes who waits for this place."""
        watch = self._watches.get(place)
        if watch is not None:
            watch.rung.set()

    def close(self) -> None:
        """Wakes everybody."""
        for watch in self._watches.values():
            watch.rung.set()

    async def _watch(self, place: Place, rung: asyncio.Event) -> None:
        if self._look is None:
            await rung.wait()
            return
        pause_s = self._first_s
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await rung.wait()
                return
            except TimeoutError:
                if not await self._look(place):
                    return
            pause_s = min(pause_s * _GROWTH, self._longest_s)
