"""Places in this process: a gateway of one worker, which shares its accounts with nobody."""

import asyncio
from collections.abc import Callable, Iterable

from typing_extensions import override

from kimi_gateway.adapters.capacity.local import LocalQueue
from kimi_gateway.core.routing.facts import Grant, Place, Refused, Ticket
from kimi_gateway.core.routing.queue_book import RETRY_S
from kimi_gateway.core.routing.queue_quota import AccountQuotas
from kimi_gateway.ports import Capacity


class MemoryCapacity(Capacity):
    """The limits of accounts within one process. Belongs to one event loop; nothing in it fails or does IO."""

    def __init__(
        self, *, most: int, timeout_s: float, mono: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._quotas = AccountQuotas()
        self._local = LocalQueue(self._quotas.of, most=most, mono=mono, wall=wall)
        self._timeout_s = timeout_s

    @override
    async def enter(self, ticket: Ticket) -> Grant | Refused:
        entered = await self._local.enter(ticket, timeout_s=self._timeout_s)
        if entered is None:
            return Refused("timeout", RETRY_S)  # closed
        return entered

    @override
    async def leave(self, grant: Grant, tokens: int | None) -> None:
        self._local.leave(grant.ticket.id, tokens)

    @override
    def waiting(self) -> int:
        return self._local.waiting

    @override
    def room(self, place: Place) -> bool:
        """Whether a small request would get this place now."""
        return self._local.room(place)

    @override
    def queued(self, place: Place) -> int:
        """How many wait who could use this place's account."""
        return self._local.queued(place.account)

    @override
    def declare(self, places: Iterable[Place]) -> None:
        """These are all targets, with their own limits: said at the start and when they change."""
        self._quotas.declare(places)
        self._local.limits_changed(self._quotas.of_account)

    @override
    async def keep(self) -> None:
        """Nothing needs it: what is given out dies with the process."""
        await asyncio.Event().wait()

    @override
    async def close(self) -> None:
        self._local.close()
