"""Capacities for tests: in the process, or as one of several on a real server."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kimi_gateway.adapters.capacity.asked import Periods
from kimi_gateway.adapters.capacity.memory import MemoryCapacity
from kimi_gateway.adapters.capacity.shared import SharedCapacity
from kimi_gateway.adapters.capacity.store import ValkeyPlaces
from kimi_gateway.core.routing.facts import Grant, Place, Quota, Refused, Ticket
from kimi_gateway.ports import Capacity
from support.valkey import Server, fresh_prefix, link_to

QUICK: Final = Periods(lease_s=0.4, poll_s=0.01)
LONG: Final = Periods(lease_s=60.0, poll_s=0.01)


def place(quota: Quota, account: str = "A", target: str = "", in_s: float = 0.0) -> Place:
    return Place(target or account.lower(), account, quota, time.monotonic() + in_s if in_s else 0.0)


def ticket(name: str, *places: Place, key: str = "k", tokens: int = 1) -> Ticket:
    return Ticket(name, key, tokens, places)


class Gateways:
    """One state, and capacities on it as several processes would have them."""

    def __init__(self, server: Server | None) -> None:
        self.server = server
        self.prefix = fresh_prefix()
        self._links: list[Any] = []
        self._made: list[Capacity] = []

    def one(self, *, timeout_s: float = 10.0, most: int = 1000) -> Capacity:
        """In the process without a server, else one that shares it."""
        if self.server is not None:
            return self.shared(timeout_s=timeout_s, most=most)
        made = MemoryCapacity(most=most, timeout_s=timeout_s, mono=time.monotonic, wall=time.time)
        self._made.append(made)
        return made

    def shared(
        self,
        periods: Periods = LONG,
        *,
        timeout_s: float = 10.0,
        most: int = 1000,
        is_open: bool = True,
        replicas: int = 2,
        heartbeat_s: float = 0.3,
        operation_timeout_s: float = 5.0,
        bound_s: float | None = None,
    ) -> SharedCapacity:
        assert self.server is not None
        link = link_to(self.server.url, operation_timeout_s=operation_timeout_s, rest_s=0.05)
        self._links.append(link)
        made = SharedCapacity(
            ValkeyPlaces(
                link,
                f"p{len(self._links)}",
                lease_s=periods.lease_s,
                heartbeat_s=heartbeat_s,
                prefix=self.prefix,
            ),
            periods,
            most=most,
            timeout_s=timeout_s,
            is_open=is_open,
            replicas=replicas,
            mono=time.monotonic,
            wall=time.time,
            bound_s=bound_s,
        )
        self._made.append(made)
        return made

    def kill(self, capacity: SharedCapacity) -> None:
        """What is left of a process that died: nothing of it runs, and nobody was told."""
        if capacity._task is not None:
            capacity._task.cancel()
        capacity._closed = True
        self._made.remove(capacity)

    async def close(self) -> None:
        for made in self._made:
            await made.close()
        for link in self._links:
            await link.close()


def play(server: Server | None, scene: Callable[[Gateways], Coroutine[Any, Any, None]]) -> None:
    """Runs a scene and closes what it made."""

    async def main() -> None:
        gateways = Gateways(server)
        try:
            await scene(gateways)
        finally:
            await gateways.close()

    asyncio.run(main())


async def given(capacity: Capacity, ticket: Ticket) -> Grant:
    """The place that it gets; anything else is a failure."""
    entered = await capacity.enter(ticket)
    assert isinstance(entered, Grant), entered
    return entered


async def refused(capacity: Capacity, ticket: Ticket) -> Refused:
    entered = await capacity.enter(ticket)
    assert isinstance(entered, Refused), entered
    return entered


async def until(condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
    """Returns when it holds."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it never came to hold"
        await asyncio.sleep(0.005)


async def queue_up(capacity: Capacity, *tickets: Ticket) -> list[asyncio.Task[Grant | Refused]]:
    """Tasks that wait, in this order."""
    tasks = []
    for one in tickets:
        before = capacity.waiting()
        tasks.append(asyncio.create_task(capacity.enter(one)))
        await until(lambda before=before: capacity.waiting() > before)  # type: ignore[misc]
    return tasks
